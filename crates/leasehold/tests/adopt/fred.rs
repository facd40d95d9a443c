//! An application that speaks to Redis with another client library, and lends its connection.

use crate::example::Lent;
use fred::prelude::{Builder, ClientLike, Config, ReconnectPolicy};
use leasehold::error::AcquireError;
use leasehold::store::RedisStore;
use leasehold::{Attempt, Client};
use leasehold_testkit::RedisServer;
use std::time::Duration;
use tokio::task::JoinSet;

/// Without a policy, `fred` does not connect again.
fn connected_again_and_again(url: &str) -> fred::prelude::Client {
    let mut builder = Builder::from_config(Config::from_url(url).unwrap());
    builder.set_policy(ReconnectPolicy::new_constant(0, 50)).build().unwrap()
}

async fn locks(url: &str) -> Client {
    let client = connected_again_and_again(url);
    client.init().await.unwrap();
    let store = RedisStore::from_connection(Lent(client), "locks:", None).unwrap();
    Client::with_store(store).connect().await.unwrap()
}

#[tokio::test]
async fn one_of_many_tasks_at_a_time_holds_the_lock() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url()).await;
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let lock = locks.mutex("m").unwrap();
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let fence = guard.fencing_token();
            guard.release().await.unwrap();
            fence
        });
    }
    let mut fences = tasks.join_all().await;
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 20);
    // The same locks as those of a client with a connection of its own.
    let other = Client::builder(server.url()).prefix("locks:").connect().await.unwrap().mutex("m").unwrap();
    let guard = locks.mutex("m").unwrap().acquire().await.unwrap();
    assert!(matches!(other.try_acquire().await.unwrap(), Attempt::Taken(_)));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_restarts_is_used_again() {
    let mut server = RedisServer::start().unwrap();
    let locks = locks(&server.url()).await;
    let lock = locks.mutex("m").unwrap().max_wait(Duration::from_secs(20));
    lock.acquire().await.unwrap().release().await.unwrap();
    server.kill().unwrap();
    // `fred` does not tell whether it has sent the command.
    let AcquireError::Unknown(fault) = lock.try_acquire().await.unwrap_err() else { panic!("no server") };
    assert!(fault.is_transient(), "{fault}");
    server.restart().unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
}
