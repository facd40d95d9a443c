//! One run of a workload process: its client, and its connections to the server. Its tasks are in `task`.

use crate::checks::{Record, Rule};
use crate::host::{Chance, Clock, HostWorld, Pace};
use crate::late::{Carrier, OVERTAKEN, Ways};
use crate::task::{Post, Task};
use futures_util::future::{BoxFuture, join};
use leasehold::Client;
use leasehold_redis::{RedisConfig, RedisStore};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

/// A lease shorter than a long fault.
const WATCHDOG: Duration = Duration::from_secs(4);

/// What all clients of a simulation share.
#[derive(Clone)]
pub(crate) struct AcquireTerms {
    pub(crate) tasks: u64,
    pub(crate) mutexes: usize,
    pub(crate) entrances: usize,
    /// The owner headers that processes exchange.
    pub(crate) post: Arc<Post>,
    pub(crate) call_timeout: Duration,
    /// Set once no new fault begins.
    pub(crate) calm: Arc<AtomicBool>,
}

/// A client's process: one run of it, until it crashes.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) terms: AcquireTerms,
    pub(crate) record: Arc<Record>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) pace: Pace,
    pub(crate) chance: Arc<Chance>,
}

impl Process {
    /// Runs to the end, and leaves nothing behind. Delayed bytes then still arrive.
    pub(crate) async fn run(self, done: impl FnOnce()) {
        let (carrier, carried) = Carrier::new();
        let live = async {
            self.live(carrier).await;
            done();
        };
        join(live, carried.run()).await;
    }

    async fn live(&self, carrier: UnboundedSender<BoxFuture<'static, ()>>) {
        let client = self.connect(carrier).await;
        let shared = client.owner();
        let tasks = (0..self.terms.tasks).map(|number| {
            let name = format!("{}/{number}", self.name);
            let chance = Arc::new(Chance::new(self.chance.bits(), number));
            let process = Self { name, chance, ..self.clone() };
            tokio::spawn(Task::new(process, &client, shared.clone()).run())
        });
        for task in tasks.collect::<Vec<_>>() {
            if task.await.is_err() {
                self.record.violated(Rule::Panic, self.clock.elapsed(), &self.name);
            }
        }
        client.flush().await;
        self.say("is done");
    }

    async fn connect(&self, carrier: UnboundedSender<BoxFuture<'static, ()>>) -> Client {
        let (environment, ways) = (self.environment(), self.ways(carrier));
        let config: RedisConfig = "redis://server".parse().expect("it is a URL");
        let config = config
            .connector(move |address| ways.clone().open(address))
            .connect_timeout(Duration::from_secs(4))
            .environment(environment.clone());
        loop {
            let client = async {
                let store = RedisStore::connect(config.clone()).await?;
                Client::with_store(store)
                    .label(&self.name)
                    .call_timeout(self.terms.call_timeout)
                    .outage_limit(Duration::from_secs(5))
                    .watchdog_lease(WATCHDOG)
                    .environment(environment.clone())
                    .connect()
                    .await
            };
            match client.await {
                Ok(client) => {
                    self.say(format_args!("connected as {}", client.session()));
                    return client;
                }
                Err(error) => self.say(format_args!("cannot connect: {error}")),
            }
            sleep(self.chance.millis(10, 300)).await;
        }
    }

    fn environment(&self) -> HostWorld {
        let process = self.clone();
        let on_panic = move || process.record.violated(Rule::Panic, process.clock.elapsed(), "the keeper");
        HostWorld {
            clock: Arc::clone(&self.clock),
            pace: self.pace,
            chance: Arc::clone(&self.chance),
            on_panic: Arc::new(on_panic),
        }
    }

    fn ways(&self, carrier: UnboundedSender<BoxFuture<'static, ()>>) -> Ways {
        let process = self.clone();
        let on_late = move |what: &str| {
            process.record.count(if what == OVERTAKEN { "overtaken" } else { "late" });
            process.say(what);
        };
        let process = self.clone();
        let on_sent = move |hold, said| process.record.sent(process.clock.elapsed(), hold, said);
        Ways {
            chance: Arc::new(Chance::new(self.chance.bits(), 0)),
            calm: Arc::clone(&self.terms.calm),
            opened: Arc::default(),
            on_late: Arc::new(on_late),
            on_sent: Arc::new(on_sent),
            carrier,
        }
    }

    pub(crate) fn say(&self, what: impl fmt::Display) {
        self.record.say(self.clock.elapsed(), &self.name, what);
    }
}
