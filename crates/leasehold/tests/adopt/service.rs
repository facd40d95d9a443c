//! A service that changes an account under its lock, waits for it for a limited time, and says what went wrong.

use leasehold::{Client, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Clone)]
struct Accounts {
    locks: Client,
    balance: Arc<AtomicU64>,
}

impl Accounts {
    /// Handles `POST /accounts/{id}/charge`.
    async fn charge(&self, id: u32, amount: u64) -> Result<u64, Error> {
        let lock = self.locks.mutex(format_args!("account/{id}"))?.max_wait(Duration::from_millis(50));
        let balance = &self.balance;
        lock.run(|guard| async move {
            let read = balance.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
            guard.check()?;
            balance.store(read + amount, Ordering::SeqCst);
            Ok(read + amount)
        })
        .await?
    }
}

/// The HTTP status of an error.
fn status(error: &Error) -> u16 {
    if error.is_contended() {
        409
    } else if error.is_transient() {
        503
    } else {
        500
    }
}

#[tokio::test]
async fn charges_do_not_overlap_and_errors_have_a_status() {
    let locks = Client::connect("memory:adopt-service").await.unwrap();
    let accounts = Accounts { locks: locks.clone(), balance: Arc::default() };
    // As a framework does: each request is a task of its own.
    let requests: Vec<_> = (0..10)
        .map(|_| {
            let accounts = accounts.clone();
            tokio::spawn(async move {
                loop {
                    match accounts.charge(7, 5).await {
                        Err(error) if status(&error) == 409 => {}
                        charged => return charged,
                    }
                }
            })
        })
        .collect();
    for request in requests {
        request.await.unwrap().unwrap();
    }
    assert_eq!(accounts.balance.load(Ordering::SeqCst), 50);

    let _held = locks.mutex("account/7").unwrap().acquire().await.unwrap();
    assert_eq!(status(&accounts.charge(7, 5).await.unwrap_err()), 409);
    let down = Client::builder("redis://127.0.0.1:1").call_timeout(Duration::from_millis(20));
    let accounts = Accounts { locks: down.connect_lazy().await.unwrap(), ..accounts };
    assert_eq!(status(&accounts.charge(7, 5).await.unwrap_err()), 503);
}
