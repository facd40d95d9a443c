//! A job queue in PostgreSQL, guarded by fencing tokens.
//!
//! The jobs are rows of a table. A worker takes a job under a lock of its own, and no transaction stays open
//! while it works. A worker can be stopped for longer than its lease, and another one does the job again. So the row
//! stores the token of the worker that took it last, and the result is written by one statement that compares
//! the token: each job has one result, and a late one changes nothing.
//!
//! What this is not: the work itself can run twice, and what it does outside of the table needs a fence there too, or
//! must be harmless when repeated. And if a job fits into one transaction, `SELECT … FOR UPDATE SKIP LOCKED` needs
//! no lock at all.
//!
//! ```text
//! cargo run --package leasehold-examples --bin job_queue -- 'host=/run/postgresql user=app dbname=app'
//! LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --package leasehold-examples --bin job_queue -- 'host=…'
//! ```
//!
//! It makes a temporary schema of its own, and removes it at the end.

use leasehold::{Attempt, Client, FencingToken};
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_postgres::{Client as Database, NoTls};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// `fence` is the token of the worker that took the job last: a token fits into a `bigint`.
const TABLE: &str = "
CREATE TABLE job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task text NOT NULL,
    result text,
    fence bigint NOT NULL DEFAULT 0
)";
/// From here on no earlier worker can finish the job. Changes no row if it is finished, or was taken by a later worker.
const TAKE: &str = "UPDATE job SET fence = $2 WHERE id = $1 AND result IS NULL AND fence < $2";
/// Changes no row if another worker has taken the job since.
const FINISH: &str = "UPDATE job SET result = $3 WHERE id = $1 AND fence = $2 AND result IS NULL";
const OPEN: &str = "SELECT id, task FROM job WHERE result IS NULL ORDER BY id";

const JOBS: i64 = 6;
/// How long a worker pauses when others work on all open jobs.
const PAUSE: Duration = Duration::from_millis(50);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url =
        std::env::args().nth(1).ok_or("give the database: 'host=/run/postgresql user=app dbname=app'")?;
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:example-jobs".into());
    let schema = format!("leasehold_{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros());
    let database = open(&url, &schema).await?;
    database.batch_execute(&format!("CREATE SCHEMA {schema}; {TABLE}")).await?;
    for n in 1..=JOBS {
        database.execute("INSERT INTO job (task) VALUES ($1)", &[&format!("mail {n}")]).await?;
    }

    // The first worker takes a job, and stalls until its lease is over.
    let late = Worker::new("the late worker", &store, &url, &schema).await?;
    let lock = late.locks.mutex(late.name(1))?.lease(Duration::from_millis(300));
    let guard = lock.acquire_timeout(Duration::from_secs(30)).await?;
    late.take(1, guard.fencing_token()).await?;
    println!("late worker: {}", guard.lost().await);

    // Two others do all jobs, that one included.
    let mut workers = tokio::task::JoinSet::new();
    for n in 1..=2 {
        let worker = Worker::new(&format!("worker {n}"), &store, &url, &schema).await?;
        workers.spawn(async move { worker.work().await });
    }
    let mut finished = 0;
    for worker in workers.join_all().await {
        finished += worker?;
    }
    println!("two workers have finished {finished} jobs");

    let changed = late.finish(1, guard.fencing_token(), "by the late worker").await?;
    println!("the late result changed {changed} rows");
    let rows = database.query("SELECT task, result FROM job ORDER BY id", &[]).await?;
    for row in rows {
        println!("{}: {}", row.get::<_, String>(0), row.get::<_, String>(1));
    }
    database.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?;
    Ok(())
}

/// One process of a fleet.
struct Worker {
    locks: Client,
    database: Database,
    /// Names of locks begin with it, so that each run has its own.
    schema: String,
}

impl Worker {
    async fn new(label: &str, store: &str, url: &str, schema: &str) -> Result<Self> {
        let locks = Client::builder(store).label(label).connect().await?;
        Ok(Self { locks, database: open(url, schema).await?, schema: schema.to_owned() })
    }

    /// Works until no job is open; returns how many it has finished.
    async fn work(&self) -> Result<u64> {
        let mut finished = 0;
        loop {
            let open = self.database.query(OPEN, &[]).await?;
            if open.is_empty() {
                return Ok(finished);
            }
            let before = finished;
            for job in open {
                finished += self.attempt(job.get(0), job.get(1)).await?;
            }
            if finished == before {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Does a job unless another worker does it, or has done it; returns how many jobs it has finished: 1 or 0.
    async fn attempt(&self, id: i64, task: &str) -> Result<u64> {
        let Attempt::Granted(guard) = self.locks.mutex(self.name(id))?.try_acquire().await? else {
            return Ok(0);
        };
        let mut finished = 0;
        if self.take(id, guard.fencing_token()).await? == 1 {
            let result = send(task).await;
            finished = self.finish(id, guard.fencing_token(), &result).await?;
        }
        guard.release().await?;
        Ok(finished)
    }

    async fn take(&self, id: i64, fence: FencingToken) -> Result<u64> {
        Ok(self.database.execute(TAKE, &[&id, &i64::try_from(fence.as_u64())?]).await?)
    }

    async fn finish(&self, id: i64, fence: FencingToken, result: &str) -> Result<u64> {
        Ok(self.database.execute(FINISH, &[&id, &i64::try_from(fence.as_u64())?, &result]).await?)
    }

    fn name(&self, id: i64) -> String {
        format!("{}/job/{id}", self.schema)
    }
}

/// Stands for work that takes long, or calls other systems.
async fn send(task: &str) -> String {
    tokio::time::sleep(Duration::from_millis(20)).await;
    format!("{task} is sent")
}

/// A connection whose names are those of the schema.
async fn open(url: &str, schema: &str) -> Result<Database> {
    let (database, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    database.batch_execute(&format!("SET search_path TO {schema}")).await?;
    Ok(database)
}
