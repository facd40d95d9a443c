//! Step 10: fencing tokens. The holder writes late; and the server with the counter loses its data.

use super::own_value::acquire;
use super::{LIMIT, Result, client, connect, lease_runs_out};
use leasehold_testkit::RedisServer;
use redis::{Connection, RedisResult, cmd};
use std::time::Duration;

/// What the lock guards. It rejects a token that is smaller than the greatest that it has seen.
#[derive(Default)]
struct Storage {
    greatest: u64,
    value: &'static str,
}

impl Storage {
    fn write(&mut self, value: &'static str, token: u64) -> bool {
        if token < self.greatest {
            return false;
        }
        self.greatest = token;
        self.value = value;
        true
    }
}

fn next_token(redis: &mut Connection) -> RedisResult<u64> {
    cmd("INCR").arg("token").query(redis)
}

pub(crate) async fn run() -> Result<()> {
    println!("step 10: fencing tokens");
    let mut server = RedisServer::start()?;
    let (mut a, mut b) = (connect(&server.url())?, connect(&server.url())?);
    acquire(&mut a, "A")?;
    lease_runs_out(&server, "lock")?; // A is stopped, or its write is on its way for so long
    acquire(&mut b, "B")?;
    let mut storage = Storage::default();
    storage.write("of B", 0);
    storage.write("of A, late", 0);
    println!("  by hand, without a token: the value is \"{}\"", storage.value);

    lease_runs_out(&server, "lock")?;
    let mut storage = Storage::default();
    acquire(&mut a, "A")?;
    next_token(&mut a)?;
    let token_of_a = next_token(&mut a)?;
    server.restart()?; // without its data: the lock is free, and the counter begins again
    let mut b = connect(&server.url())?;
    acquire(&mut b, "B")?;
    let token_of_b = next_token(&mut b)?;
    storage.write("of A", token_of_a);
    let b_writes = storage.write("of B", token_of_b);
    println!(
        "  by hand, with INCR: A has {token_of_a}, and after a restart B has {token_of_b}. B can write: {b_writes}"
    );

    let mut server = RedisServer::start()?;
    let mut storage = Storage::default();
    let late =
        client(&server.url(), "A").await?.mutex("lock")?.lease(Duration::from_secs(1)).acquire().await?;
    storage.write("of A", late.fencing_token().as_u64());
    server.restart()?;
    let guard = client(&server.url(), "B").await?.mutex("lock")?.acquire_timeout(LIMIT).await?;
    let b_writes = storage.write("of B", guard.fencing_token().as_u64());
    let a_writes = storage.write("of A, late", late.fencing_token().as_u64());
    println!("  Leasehold: after a restart B can write: {b_writes}, A can write: {a_writes}");
    println!("  Leasehold: the value is \"{}\"", storage.value);
    Ok(())
}
