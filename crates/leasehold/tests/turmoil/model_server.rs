//! The simulated server does what every store must do, by the client and the scripts' calls of the Redis store: what a
//! storm finds is then no fault of the server's.

use futures_util::future::{BoxFuture, ready};
use leasehold::KeyError;
use leasehold::store::{Lock, Outcome, RedisConfig, RedisStore, Store};
use leasehold_core::model::{LockState, Sessions};
use leasehold_core::{Kind, LockName};
use leasehold_testkit::ModelServer;
use leasehold_testkit::conformance::{self, Happening, Subject, Workload};
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

conformance::suite!(mutex: Simulated::new());

/// Every call of a script is understood as what it says, and every answer is written as the script would.
#[tokio::test]
async fn random_operations_are_answered_as_by_the_model() {
    const WITHIN: Duration = Duration::from_secs(20);
    for (seed, kind) in (0..40).flat_map(|seed| Kind::ALL.map(|kind| (seed, kind))) {
        let simulated = Simulated::new();
        let store = simulated.store().await;
        let lock = Lock { kind, name: "job".parse().expect("a good name") };
        let (mut state, mut sessions) = (LockState::new(kind), Sessions::default());
        let mut workload = Workload::of(kind, seed);
        for step in 0..40 {
            let now_us = simulated.now_us.load(Ordering::Relaxed);
            // Time goes on, for the model behind the server forgets what it is not asked about.
            let by_us = workload.time_us(&state, &sessions, now_us).max(0);
            let now_us = now_us.saturating_add_signed(by_us);
            simulated.now_us.store(now_us, Ordering::Relaxed);
            match workload.happening(&state) {
                Happening::Sent(op) | Happening::SentTwice(op) => {
                    let alive = |session| sessions.vital(now_us / 1000, session);
                    let expected = state.apply(now_us, &op, &alive).0;
                    let found = store.execute(&lock, &op, WITHIN).await;
                    let agree = matches!(&found, Outcome::Done(found) if *found == expected);
                    assert!(agree, "seed {seed}, step {step}: {op:?}\n  {found:?}\n  {expected:?}");
                }
                Happening::Attended(op) => {
                    let expected = sessions.apply(now_us / 1000, &op);
                    let found = store.attend(&op, WITHIN).await;
                    let agree = matches!(&found, Outcome::Done(found) if *found == expected);
                    assert!(agree, "seed {seed}, step {step}: {op:?}\n  {found:?}\n  {expected:?}");
                }
                Happening::Stranger(_) => {}
            }
        }
    }
}
