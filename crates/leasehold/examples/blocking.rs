//! Locks from plain threads: no async code, no runtime to set up.
//!
//!     cargo run --example blocking
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example blocking

use leasehold::Attempt;
use leasehold::blocking::{Client, ReentrantMutex};
use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    // All settings are those of the async client. This lease is renewed every second, on a thread of the
    // client.
    let client = Client::builder(store).watchdog_lease(Duration::from_secs(3)).connect_blocking()?;

    // Four threads read, add one and write. Without the lock, most updates would be lost.
    let counter = client.mutex("example/blocking/counter")?;
    let count = AtomicU32::new(0);
    thread::scope(|threads| {
        let count_up = || -> Result<()> {
            for _ in 0..25 {
                let guard = counter.acquire_timeout(Duration::from_secs(30))?;
                let seen = count.load(Relaxed);
                thread::yield_now();
                count.store(seen + 1, Relaxed);
                guard.release()?;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..4).map(|_| threads.spawn(count_up)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    println!("counted to {}", count.load(Relaxed));

    // A thread that computes for longer than the lease keeps its lock, since renewal runs on another thread.
    let report = client.mutex("example/blocking/report")?;
    let guard = report.acquire()?;
    thread::sleep(Duration::from_secs(4));
    guard.check()?;
    if let Attempt::Taken(contention) = report.try_acquire()? {
        println!("after four seconds: {contention}");
    }

    // Another thread may wait for the loss, and any thread may release.
    thread::scope(|threads| threads.spawn(|| guard.lost_timeout(Duration::from_millis(50))).join())
        .expect("the watcher does not panic")?
        .map_or_else(|| println!("not lost"), |lost| println!("{lost}"));
    guard.release()?;

    // A thread can acquire again what it holds: a caller of `withdraw` may already hold the account.
    let account = client.reentrant_mutex("example/blocking/account")?;
    let transfer = account.acquire_timeout(Duration::from_secs(30))?;
    println!("withdrawn by an owner with {} holds", withdraw(&account)?);
    transfer.release()?;

    // Releases what is still held before the program exits.
    client.shutdown(Duration::from_secs(5))?;
    println!("counted, and everything is released");
    Ok(())
}

fn withdraw(account: &ReentrantMutex) -> Result<u64> {
    let guard = account.acquire()?; // at once, since this thread holds it
    guard.check()?;
    let count = guard.count();
    guard.release()?;
    Ok(count)
}
