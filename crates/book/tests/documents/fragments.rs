//! Rust that pages and the crates' READMEs show without what is around it. It is compiled, and not run.
//!
//! A page quotes the inner lines of a function: `<!-- from: crates/book/tests/documents/fragments.rs -->`.

#![allow(dead_code, reason = "nothing calls them: it is enough that they compile")]
#![allow(clippy::pedantic, reason = "they are written for readers of a page")]

use std::time::Duration;

use leasehold::error::AcquireError;
use leasehold::{Client, Deadlock};

type AnyResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

// crates/leasehold/README.md
async fn readme_of_the_library(order: u64) -> AnyResult {
    async fn save(_order: u64, _fence: leasehold::FencingToken) -> AnyResult {
        Ok(())
    }
    let client = leasehold::Client::connect("redis://localhost").await?;
    let guard = client.mutex("orders/42")?.acquire().await?;
    // Pass the fencing token to the resource, so that it can reject a late holder.
    save(order, guard.fencing_token()).await?;
    guard.check()?; // fails if the hold is lost; reads a local clock
    guard.release().await?;
    Ok(())
}

// crates/redis/README.md
async fn readme_of_redis() -> AnyResult {
    let client = leasehold::Client::connect("redis://localhost").await?;
    drop(client);
    Ok(())
}

// crates/sqlite/README.md
async fn readme_of_sqlite() -> AnyResult {
    let client = leasehold::Client::connect("sqlite:/var/lib/app/locks.db").await?;
    drop(client);
    Ok(())
}

// crates/history/README.md
fn readme_of_history(file: std::io::BufReader<std::fs::File>) -> AnyResult {
    let history = leasehold_history::History::read(file)?;
    let verdict = leasehold_history::judge(&history);
    std::fs::write("report.html", leasehold_history::report_html(&history, &verdict))?;
    Ok(())
}

// docs/how-to/find-and-free-locks.md
async fn break_a_deadlock(first: leasehold::Guard, account_2: leasehold::Mutex) -> AnyResult {
    let second = match account_2.clone().deadlock(Deadlock::Refuse).acquire().await {
        Err(AcquireError::Deadlock(cycle)) => {
            tracing::warn!(%cycle, "beginning anew");
            return Ok(first.release().await?); // so that the others go on
        }
        acquired => acquired?,
    };
    second.release().await?;
    Ok(())
}

async fn observe_ends(client: Client) -> AnyResult {
    let mut ends = client.mutex("nightly")?.observe_ends().await?;
    loop {
        let end = ends.next().await?;
        println!("{:?} by {:?}, token {:?}", end.ending, end.holder, end.fence);
    }
}

// docs/how-to/observe.md
fn a_class(client: Client, customer: &str) -> AnyResult {
    let order = client.mutex(format!("order/{customer}"))?.class("orders");
    drop(order);
    Ok(())
}

mod observer {
    use super::{AnyResult, Client};

    use leasehold::telemetry::{Lost, Observer, Waiting};

    struct Alerts;

    impl Observer for Alerts {
        fn waiting(&self, event: &Waiting<'_>) {
            println!("{} is held by {:?}", event.lock.name, event.holder);
        }

        fn lost(&self, event: &Lost<'_>) {
            eprintln!("{} lost: {}", event.lock.name, event.reason);
        }
    }

    async fn observed(url: &str) -> AnyResult {
        let client = Client::builder(url).observer(Alerts).connect().await?;
        drop(client);
        Ok(())
    }
}

async fn slow_locks(url: &str) -> AnyResult {
    let client = Client::builder(url)
        .slow_wait(Duration::from_secs(10))
        .slow_hold(Duration::from_secs(60))
        .connect()
        .await?;
    drop(client);
    Ok(())
}

// docs/reference/stores.md
async fn a_pool(pool: deadpool_redis::Pool) -> AnyResult {
    use leasehold::store::{LentPool, RedisStore};

    let lent = LentPool::new(move || {
        let pool = pool.clone();
        async move { pool.get().await } // bb8: `pool.get_owned().await`
    });
    let client =
        leasehold::Client::with_store(RedisStore::from_connection(lent, "app:", None)?).connect().await?;
    drop(client);
    Ok(())
}

// README.md
const GUARDED_UPDATE: &str = "\
UPDATE report SET body = :body, fence = :fence WHERE id = :id AND fence <= :fence;";

#[test]
fn a_stale_token_changes_no_row() -> AnyResult {
    let database = rusqlite::Connection::open_in_memory()?;
    database.execute_batch(
        "CREATE TABLE report (id INTEGER, body TEXT, fence INTEGER); INSERT INTO report VALUES (1, '', 0)",
    )?;
    let write = |body: &str, fence: i64| {
        database.execute(GUARDED_UPDATE, rusqlite::named_params! { ":body": body, ":fence": fence, ":id": 1 })
    };
    assert_eq!((write("first", 7)?, write("later", 8)?, write("late", 7)?), (1, 1, 0));
    let body: String = database.query_row("SELECT body FROM report", [], |row| row.get(0))?;
    assert_eq!(body, "later");
    Ok(())
}
