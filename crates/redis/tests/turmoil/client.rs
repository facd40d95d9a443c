//! One run of a workload process: its client, and its connections to the server. Its tasks are in `task`.

use crate::checks::{Record, Rule};
use crate::environment::{Clock, HostClock, HostEnvironment, SeededRng};
use crate::late_bytes::{ConnectionDriver, Connections, OVERTAKEN};
use crate::task::{HeaderQueue, Task};
use futures_util::future::{BoxFuture, join};
use leasehold::Client;
use leasehold_redis::{RedisConfig, RedisStore};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

/// A lease shorter than a long fault.
const WATCHDOG: Duration = Duration::from_secs(4);

/// What all clients of a simulation share.
#[derive(Clone)]
pub(crate) struct Workload {
    pub(crate) tasks: u64,
    pub(crate) mutexes: usize,
    pub(crate) reentrants: usize,
    /// The owner headers that processes exchange.
    pub(crate) headers: Arc<HeaderQueue>,
    pub(crate) call_timeout: Duration,
    /// Set once no new fault begins.
    pub(crate) faults_ended: Arc<AtomicBool>,
}

/// A client's process: one run of it, until it crashes.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) workload: Workload,
    pub(crate) record: Arc<Record>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) host_clock: HostClock,
    pub(crate) rng: Arc<SeededRng>,
}

impl Process {
    /// Runs to the end, and leaves nothing behind. Delayed bytes then still arrive.
    pub(crate) async fn run(self, done: impl FnOnce()) {
        let (driver, driven) = ConnectionDriver::new();
        let live = async {
            self.live(driver).await;
            done();
        };
        join(live, driven.run()).await;
    }

    async fn live(&self, driver: UnboundedSender<BoxFuture<'static, ()>>) {
        let client = self.connect(driver).await;
        let shared = client.new_owner();
        let tasks = (0..self.workload.tasks).map(|number| {
            let name = format!("{}/{number}", self.name);
            let rng = Arc::new(SeededRng::new(self.rng.bits(), number));
            let process = Self { name, rng, ..self.clone() };
            tokio::spawn(Task::new(process, &client, shared.clone()).run())
        });
        for task in tasks.collect::<Vec<_>>() {
            if task.await.is_err() {
                self.record.violated(Rule::Panic, self.clock.elapsed(), &self.name);
            }
        }
        client.flush().await;
        self.log("is done");
    }

    async fn connect(&self, driver: UnboundedSender<BoxFuture<'static, ()>>) -> Client {
        let (environment, connections) = (self.environment(), self.connections(driver));
        let config: RedisConfig = "redis://server".parse().expect("it is a URL");
        let config = config
            .connector(move |address| connections.clone().open(address))
            .connect_timeout(Duration::from_secs(4))
            .environment(environment.clone());
        loop {
            let client = async {
                let store = RedisStore::connect(config.clone()).await?;
                Client::with_store(store)
                    .label(&self.name)
                    .statistics(false)
                    .call_timeout(self.workload.call_timeout)
                    .outage_limit(Duration::from_secs(5))
                    .watchdog_lease(WATCHDOG)
                    .environment(environment.clone())
                    .connect()
                    .await
            };
            match client.await {
                Ok(client) => {
                    self.log(format_args!("connected as {}", client.session_id()));
                    return client;
                }
                Err(error) => self.log(format_args!("cannot connect: {error}")),
            }
            sleep(self.rng.millis(10, 300)).await;
        }
    }

    fn environment(&self) -> HostEnvironment {
        let process = self.clone();
        let on_panic = move || process.record.violated(Rule::Panic, process.clock.elapsed(), "the keeper");
        HostEnvironment {
            clock: Arc::clone(&self.clock),
            host_clock: self.host_clock,
            rng: Arc::clone(&self.rng),
            on_panic: Arc::new(on_panic),
        }
    }

    fn connections(&self, driver: UnboundedSender<BoxFuture<'static, ()>>) -> Connections {
        let process = self.clone();
        let on_late = move |what: &str| {
            process.record.count(if what == OVERTAKEN { "overtaken" } else { "late" });
            process.log(what);
        };
        let process = self.clone();
        let opened = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&opened);
        let on_sent = move |hold, kind| {
            process.record.sent(process.clock.elapsed(), hold, kind, counted.load(Ordering::Relaxed));
        };
        Connections {
            rng: Arc::new(SeededRng::new(self.rng.bits(), 0)),
            faults_ended: Arc::clone(&self.workload.faults_ended),
            opened,
            on_late: Arc::new(on_late),
            on_sent: Arc::new(on_sent),
            driver,
        }
    }

    pub(crate) fn log(&self, what: impl fmt::Display) {
        self.record.log(self.clock.elapsed(), &self.name, what);
    }
}
