//! A holder that is stopped for longer than its lease, its successor, and the late write that is refused.
//!
//! The holder checks that it holds the lock, and is stopped before it writes: as by a debugger, a suspended
//! machine or a long pause of a garbage collector. Its lease ends, and a successor acquires the lock and
//! writes. When the first holder goes on, it writes without another look. No lock can prevent that. The
//! database can: it stores the greatest fencing token, and refuses the smaller one of the late write.
//!
//! The holder is this program, started a second time, and really stopped: by SIGSTOP.
//!
//!     cargo run --example stopped_instance
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example stopped_instance

use leasehold::{Client, FencingToken, Guard};
use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Set for the process that is stopped: the store, and the folder of the database.
const HOLDER: [&str; 2] = ["LEASEHOLD_EXAMPLE_HOLDER", "LEASEHOLD_EXAMPLE_FOLDER"];
/// What the holder prints when it is about to write.
const READY: &str = "holder: I hold the lock, and am about to write";
/// Renewed while the process runs, so its length does not matter to the work.
const LEASE: Duration = Duration::from_secs(2);
const MAX_WAIT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    match HOLDER.map(std::env::var) {
        [Ok(store), Ok(folder)] => hold(&store, Path::new(&folder)).await,
        _ => succeed().await,
    }
}

/// The process that is stopped between its check and its write.
async fn hold(store: &str, folder: &Path) -> Result<()> {
    let (_client, guard) = acquire(store, "the first holder").await?;
    guard.check()?;
    println!("{READY}");
    // Here it is stopped. Until then it waits for its input, and the keeper's thread renews the lease.
    std::io::stdin().read_line(&mut String::new())?;

    let changed = write(folder, "written by the first holder", guard.fencing_token())?;
    println!("holder: my late write changed {changed} rows");
    // Before the write this would have found the loss too; but a stop can always come after the last check.
    if let Err(lost) = guard.check() {
        println!("holder: {lost}");
    }
    Ok(())
}

/// The process that stops the other one, and succeeds it.
async fn succeed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = match std::env::var("LEASEHOLD_STORE") {
        Ok(store) if store.starts_with("memory:") => {
            return Err("a memory store is not shared with other processes".into());
        }
        Ok(store) => store,
        Err(_) => format!("sqlite:{}", folder.path().join("locks.db").display()),
    };
    let mut holder = Holder::start(&store, folder.path())?;
    holder.print_until(READY)?;
    holder.signal(Signal::STOP)?;
    println!("the holder is stopped; its lease of {LEASE:?} is no longer renewed");

    let (_client, guard) = acquire(&store, "the successor").await?;
    let changed = write(folder.path(), "written by the successor", guard.fencing_token())?;
    println!("the successor holds the lock, and its write changed {changed} row");

    holder.signal(Signal::CONT)?;
    holder.print_to_the_end()?;
    println!("in the database: {}", read(folder.path())?);
    guard.release().await?;
    Ok(())
}

async fn acquire(store: &str, label: &str) -> Result<(Client, Guard)> {
    let client = Client::builder(store).label(label).watchdog_lease(LEASE).connect().await?;
    let guard = client.mutex("example/stopped_instance")?.acquire_timeout(MAX_WAIT).await?;
    Ok((client, guard))
}

/// Writes, unless a holder with a greater token has written. Returns how many rows changed: 1, or 0 if the token
/// is stale.
fn write(folder: &Path, text: &str, fence: FencingToken) -> Result<usize> {
    let statement = "INSERT INTO report (id, text, fence) VALUES (1, ?1, ?2)
        ON CONFLICT (id) DO UPDATE SET text = excluded.text, fence = excluded.fence
        WHERE report.fence <= excluded.fence";
    Ok(database(folder)?.execute(statement, rusqlite::params![text, i64::try_from(fence.as_u64())?])?)
}

fn read(folder: &Path) -> Result<String> {
    Ok(database(folder)?.query_row("SELECT text FROM report", [], |row| row.get(0))?)
}

/// Any database with a condition in its statement would do: see `docs/how-to/guard-writes.md`.
fn database(folder: &Path) -> Result<rusqlite::Connection> {
    let database = rusqlite::Connection::open(folder.join("report.db"))?;
    database.execute_batch(
        "CREATE TABLE IF NOT EXISTS report (id INTEGER PRIMARY KEY, text TEXT NOT NULL, fence INTEGER NOT NULL)",
    )?;
    Ok(database)
}

/// The other process, killed on drop.
struct Holder {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(store: &str, folder: &Path) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(HOLDER[0], store)
            .env(HOLDER[1], folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(process.stdout.take().expect("stdout is piped"));
        Ok(Self { process, output })
    }

    fn print_until(&mut self, expected: &str) -> Result<()> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            print!("{line}");
            if line.contains(expected) {
                return Ok(());
            }
            line.clear();
        }
        Err(format!("the holder ended early: {}", self.process.wait()?).into())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    /// Lets it write, and waits for its end.
    fn print_to_the_end(&mut self) -> Result<()> {
        self.process.stdin.take().expect("stdin is piped").write_all(b"\n")?;
        std::io::copy(&mut self.output, &mut std::io::stdout())?;
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the holder failed: {status}").into()) }
    }
}

impl Drop for Holder {
    /// Also if it is stopped.
    fn drop(&mut self) {
        // If it has ended, there is nothing to kill.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
