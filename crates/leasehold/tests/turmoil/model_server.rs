//! The simulated server does what every store must do, by the client and the scripts' calls of the Redis store: what a
//! storm finds is then no fault of the server's.

use futures_util::future::{BoxFuture, ready};
use leasehold::KeyError;
use leasehold::store::{RedisConfig, RedisStore, Store};
use leasehold_core::LockName;
use leasehold_testkit::ModelServer;
use leasehold_testkit::conformance::{self, Subject};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{DuplexStream, duplex};

struct Simulated {
    server: ModelServer,
    now_us: Arc<AtomicU64>,
}

impl Simulated {
    fn new() -> Self {
        let now_us = Arc::new(AtomicU64::new(1_762_000_000_000_000));
        let read = Arc::clone(&now_us);
        Self { server: ModelServer::new(move || read.load(Ordering::Relaxed)), now_us }
    }
}

/// Opens a pipe to a server.
pub(crate) async fn pipe(server: ModelServer) -> io::Result<DuplexStream> {
    let (near, far) = duplex(4096);
    tokio::spawn(async move { server.serve(far).await });
    Ok(near)
}

impl Subject for Simulated {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let server = self.server.clone();
            let config: RedisConfig = "redis://simulated".parse().expect("it is a URL");
            let config = config.connector(move |_| pipe(server.clone()));
            Arc::new(RedisStore::connect(config).await.expect("a server that answers")) as Arc<dyn Store>
        })
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        let by_us = u64::try_from(by.as_micros()).expect("a time that can be counted");
        self.now_us.fetch_add(by_us, Ordering::Relaxed);
        Some(Box::pin(ready(())))
    }

    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        let name = |text| LockName::new(text).expect("a good name");
        vec![(name("a}b"), KeyError::Brace), (name("leasehold:{x}:record:mutex:x"), KeyError::Reserved)]
    }
}

conformance::suite!(Simulated::new());
