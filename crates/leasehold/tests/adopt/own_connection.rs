//! An application that has a connection to Redis already, and uses it for its locks too.

use leasehold::store::RedisStore;
use leasehold::{Client, Error};
use leasehold_testkit::RedisServer;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

async fn count(connection: MultiplexedConnection) -> Result<u64, Box<dyn std::error::Error>> {
    let store = RedisStore::from_connection(connection.clone(), "locks:", None)?;
    let client = Client::with_store(store).connect().await?;
    let counter = client.mutex("counter")?;
    let counted = counter.run(|_guard| async move {
        let mut connection = connection;
        let before: Option<u64> = connection.get("counter").await?;
        let next = before.unwrap_or_default() + 1;
        connection.set::<_, _, ()>("counter", next).await?;
        Ok::<_, redis::RedisError>(next)
    });
    Ok(counted.await.map_err(Error::from)??)
}

#[tokio::test]
async fn the_locks_use_the_connection_of_the_application() {
    let server = RedisServer::start().unwrap();
    let connection =
        redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    for expected in 1..=3 {
        assert_eq!(count(connection.clone()).await.unwrap(), expected);
    }
}
