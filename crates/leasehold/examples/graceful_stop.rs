//! A worker that gives its lock back when it is asked to stop, so that the next one does not wait for a lease to end.
//!
//! It needs the feature `signal`. SIGTERM or SIGINT starts the stop: no lock is acquired any more, work under `run` is
//! dropped, and the locks are released before the process ends.
//!
//!     cargo run --example graceful_stop
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example graceful_stop

use leasehold::{Attempt, Client, Guard};
use rustix::process::{Signal, getpid, kill_process};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    let (client, next) = (Client::connect(&store).await?, Client::connect(&store).await?);

    let job = client.mutex("example/graceful_stop")?;
    let (begun, working) = tokio::sync::oneshot::channel();
    let worker = tokio::spawn(async move { job.run(|guard| work(guard, begun)).await });
    working.await?;

    // What an orchestrator does when it replaces this process.
    let orchestrator = tokio::spawn(async { kill_process(getpid(), Signal::TERM) });
    client.shutdown_on_signal(Duration::from_secs(5)).await?;
    orchestrator.await??;
    match worker.await? {
        Err(error) => println!("the work has ended: {error}"),
        Ok(()) => println!("the work was done before"),
    }

    let is_free = matches!(next.mutex("example/graceful_stop")?.try_acquire().await?, Attempt::Granted(_));
    println!("the lock is free for the next worker: {is_free}");
    Ok(())
}

async fn work(guard: Arc<Guard>, begun: tokio::sync::oneshot::Sender<()>) {
    println!("working, as hold {}", guard.fencing_token());
    // If the receiver is gone, the program is about to end.
    let _ = begun.send(());
    std::future::pending::<()>().await;
}
