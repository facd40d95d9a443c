//! The run: starts the workers, causes faults, and collects the history.

use super::budget;
use super::clock::RunClock;
use super::counters::Counters;
use super::faults::{Faults, Workers};
use super::leftovers;
use super::nodes::{Nodes, Reading};
use super::plan::{self, LEASE, Plan, SESSION, WORKERS};
use super::process::{Line, WorkerProcess};
use super::progress;
use super::protocol::{FromWorker, Setup, ToWorker};
use super::recorder::Recorder;
use super::relay::Relay;
use super::space::Space;
use super::stall;
use crate::output::error_map::{acquire_failure, connect_failure};
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::report::millis;
use crate::output::timestamp::rfc3339;
use anyhow::{Context, anyhow};
use leasehold::store::StoreKind;
use leasehold_history::{Event, FaultKind, History, What};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

/// How often the clocks of the servers are read.
const CLOCK_INTERVAL: Duration = Duration::from_millis(100);

/// How long a server may take to answer before that counts as a fault, which excuses the calls of that time.
const SLOW_US: u64 = 150_000;

/// How long a worker may take to end what it does.
const STOP_LIMIT: Duration = Duration::from_secs(8);

/// The longest time without faults at the beginning.
const MAX_QUIET: Duration = Duration::from_secs(10);

/// How many workers may end by themselves before the run is given up.
const MAX_UNEXPECTED: u32 = 20;

/// What the user wants.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) length: Duration,
    pub(crate) seed: u64,
    /// Calls of acquire in a second, of all workers; `None` to find out what is affordable.
    pub(crate) rate: Option<u32>,
    pub(crate) restart: Option<OsString>,
    pub(crate) failover: Option<OsString>,
}

/// Runs the workload, and returns its history.
///
/// Cancel safety: if the future is dropped, all workers are killed.
pub(crate) async fn run(space: &Space, settings: &Settings) -> Result<History, Failure> {
    let refused = |error| connect_failure(error, space.is_default());
    let client = space.client().await?.without_session().connect().await.map_err(refused)?;
    let nodes = space.nodes().await?;
    nodes.check_removable().await?;
    let rate = match settings.rate {
        Some(rate) => f64::from(rate),
        None => budget::calls_per_second(&client, &nodes)
            .await
            .map_err(|error| acquire_failure(error, Exit::CONFLICT))?,
    };
    let kind = space.kind();
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let calls_per_second = rate / WORKERS as f64;
    let locks = plan::locks(kind, settings.length);
    let plan = Plan { seed: settings.seed, locks, calls_per_second };
    let recorder = Recorder::new(RunClock::begin());
    recorder.add(Event { at_us: 0, process: 0, what: began(space, settings, &plan, rate) });
    let mut relays = Vec::new();
    if kind != StoreKind::Sqlite {
        for _ in 0..WORKERS {
            let relay = Relay::start().await.context("failed to listen on this machine");
            relays.push(relay.map_err(Failure::unavailable)?);
        }
    }
    let (sender, lines) = unbounded_channel();
    let crew = Crew::start(space, &plan, &recorder, &relays, sender).await?;
    let faults = Faults::new(&recorder, &crew, &relays, plan::faults(kind), settings.seed);
    let quiet = (settings.length / 5).min(MAX_QUIET);
    let ended = {
        let disturbing = async {
            let command = async |kind, command: &Option<OsString>| {
                if let Some(command) = command {
                    faults.commands(kind, command, settings.length).await;
                }
            };
            tokio::join!(
                faults.lane(0, quiet),
                faults.lane(1, quiet),
                command(FaultKind::Restart, &settings.restart),
                command(FaultKind::Failover, &settings.failover),
            );
        };
        let working = async {
            tokio::select! {
                () = sleep(settings.length) => {}
                () = disturbing => {}
            }
            crew.stop().await;
            client_left(space, &nodes, &plan, &recorder).await
        };
        tokio::select! {
            ended = working => ended,
            failure = crew.collect(lines, &faults) => Err(failure),
            never = progress::draw(&recorder, settings.length) => match never {},
            never = stall::watch(recorder.clock(), |from_us, to_us| faults.stalled(None, from_us, to_us)) => match never {},
            never = watch_clocks(&nodes, &recorder, |from_us, to_us| faults.was_slow(from_us, to_us)) => match never {},
        }
    };
    ended?;
    drop(client);
    let events = recorder.take();
    History::from_events(events).context("the history of this run is not whole").map_err(Failure::unavailable)
}

fn began(space: &Space, settings: &Settings, plan: &Plan, rate: f64) -> What {
    let mut known = BTreeMap::from([
        ("for_ms".to_owned(), millis(settings.length).to_string()),
        ("calls_per_second".to_owned(), format!("{rate:.1}")),
        ("workers".to_owned(), WORKERS.to_string()),
        ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    if space.kind() == StoreKind::Quorum {
        // It has no queue.
        known.insert("order".to_owned(), "none".to_owned());
    }
    What::Began {
        format: 1,
        seed: settings.seed,
        store: space.word().to_owned(),
        started_at: rfc3339(SystemTime::now()),
        locks: plan.locks.clone(),
        lease_ms: millis(LEASE),
        session_ms: millis(SESSION),
        settings: known,
    }
}

/// Records what the store has once everything has ended.
async fn client_left(space: &Space, nodes: &Nodes, plan: &Plan, recorder: &Recorder) -> Result<(), Failure> {
    let refused = |error| connect_failure(error, space.is_default());
    let builder = space.client().await?.session_ttl(SESSION).watchdog_lease(LEASE);
    let client = builder.connect_within(Duration::from_secs(10)).await.map_err(refused)?;
    let keys = leftovers::find(&client, nodes, &plan.locks).await;
    recorder.record(What::Left { keys });
    recorder.record(What::Ended);
    // What it could not release is removed with all else.
    let _ = client.shutdown(Duration::from_secs(2)).await;
    Ok(())
}

/// Reads the clocks of the servers again and again, and reports when one took long to answer, or did not answer: from its last
/// answer on.
async fn watch_clocks(nodes: &Nodes, recorder: &Recorder, slow: impl Fn(u64, u64)) -> Infallible {
    let mut last_answers = BTreeMap::new();
    loop {
        for Reading { node, sent_us, answered_us, store_us } in
            nodes.times(|| recorder.clock().now_us()).await
        {
            let Some(store_us) = store_us else {
                slow(*last_answers.entry(node).or_insert(sent_us), answered_us);
                continue;
            };
            last_answers.insert(node, answered_us);
            let what = What::Clock { node, sent_us, store_us };
            recorder.add(Event { at_us: answered_us, process: 0, what });
            if answered_us.saturating_sub(sent_us) > SLOW_US {
                slow(sent_us, answered_us);
            }
        }
        sleep(CLOCK_INTERVAL).await;
    }
}

/// The workers. Dropping this kills them.
struct Crew<'a> {
    setup: Setup,
    recorder: &'a Recorder,
    relays: &'a [Relay],
    lines: UnboundedSender<Line>,
    next: AtomicU32,
    places: Mutex<Vec<Option<WorkerProcess>>>,
    counters: Mutex<Counters>,
    /// When a worker that was stopped went on.
    continued: Mutex<BTreeMap<u32, u64>>,
}

impl<'a> Crew<'a> {
    async fn start(
        space: &Space,
        plan: &Plan,
        recorder: &'a Recorder,
        relays: &'a [Relay],
        lines: UnboundedSender<Line>,
    ) -> Result<Self, Failure> {
        let setup = Setup {
            process: 0,
            origin_us: recorder.clock().origin_us(),
            url: space.text().to_owned(),
            username: space.username().map(str::to_owned),
            password: space.password().await?,
            prefix: space.prefix().map(str::to_owned),
            accepted: space.accepted().iter().map(ToString::to_string).collect(),
            relay: None,
            plan: plan.clone(),
        };
        let places = Mutex::new((0..WORKERS).map(|_| None).collect());
        let (counters, continued, next) = (Mutex::default(), Mutex::default(), AtomicU32::new(1));
        let crew = Self { setup, recorder, relays, lines, next, places, counters, continued };
        for place in 0..WORKERS {
            crew.start_in(place).context("failed to start a worker").map_err(Failure::unavailable)?;
        }
        Ok(crew)
    }

    fn start_in(&self, place: usize) -> std::io::Result<()> {
        let process = self.next.fetch_add(1, Ordering::Relaxed);
        let relay = self.relays.get(place).map(Relay::port);
        let setup = Setup { process, relay, ..self.setup.clone() };
        let worker = WorkerProcess::start(&setup, self.lines.clone())?;
        let what = What::Started { pid: worker.pid() };
        self.recorder.add(Event { at_us: self.recorder.clock().now_us(), process, what });
        self.places()[place] = Some(worker);
        Ok(())
    }

    /// Adds what the workers send to the history, and answers. Returns only if the run cannot go on.
    async fn collect(&self, mut lines: UnboundedReceiver<Line>, faults: &Faults<'_, Self>) -> Failure {
        let mut unexpected = 0;
        while let Some((number, message)) = lines.recv().await {
            match message {
                Some(FromWorker::Event(event)) => self.recorder.add(event),
                Some(FromWorker::Read { call, lock }) => {
                    let value = self.counters().read(&lock);
                    self.send(number, &ToWorker::Value { call, value });
                }
                Some(FromWorker::Write { call, lock, fence, read }) => {
                    let wrote = self.counters().write(call, lock, fence, read);
                    self.recorder.record(wrote);
                    self.send(number, &ToWorker::Value { call, value: read + 1 });
                }
                Some(FromWorker::Stalled { from_us, to_us }) => {
                    // A stop of ours is in the history already.
                    let was_stopped = self.continued().get(&number).is_some_and(|at_us| *at_us >= from_us);
                    if !was_stopped {
                        faults.stalled(Some(number), from_us, to_us);
                    }
                }
                Some(FromWorker::Unusable { error }) => {
                    return Failure::unavailable(anyhow!("a worker cannot use the store: {error}"));
                }
                None if self.has_gone(number) => {
                    unexpected += 1;
                    log::warning("a worker has ended by itself");
                    if unexpected > MAX_UNEXPECTED {
                        return Failure::unavailable(anyhow!("the workers end by themselves"));
                    }
                }
                None => {}
            }
        }
        Failure::unavailable(anyhow!("the workers are gone"))
    }

    /// Takes note of a worker that has closed its output: true if nothing made it end.
    fn has_gone(&self, number: u32) -> bool {
        let mut places = self.places();
        let place =
            places.iter_mut().find(|place| place.as_ref().is_some_and(|worker| worker.number() == number));
        let Some(mut worker) = place.and_then(Option::take) else { return false };
        let how = worker.kill();
        self.recorder.record(What::Exited { worker: number, how: how.clone() });
        how != "status 0"
    }

    fn send(&self, number: u32, message: &ToWorker) {
        for worker in self.places().iter_mut().flatten().filter(|worker| worker.number() == number) {
            worker.send(message);
        }
    }

    /// Has all workers end, and waits for that. Those that do not end in time are killed.
    async fn stop(&self) {
        for worker in self.places().iter_mut().flatten() {
            worker.send(&ToWorker::Stop);
        }
        let ending = async {
            while self.places().iter().any(Option::is_some) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(STOP_LIMIT, ending).await.is_err() {
            for place in 0..WORKERS {
                self.kill(place);
            }
        }
    }

    fn places(&self) -> MutexGuard<'_, Vec<Option<WorkerProcess>>> {
        // No code panics while it holds this lock.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn continued(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        self.continued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workers for Crew<'_> {
    fn number(&self, place: usize) -> Option<u32> {
        self.places()[place].as_ref().map(WorkerProcess::number)
    }

    fn kill(&self, place: usize) {
        let Some(mut worker) = self.places()[place].take() else { return };
        let how = worker.kill();
        self.recorder.record(What::Exited { worker: worker.number(), how });
    }

    fn stop(&self, place: usize, stops: bool) {
        if let Some(worker) = &self.places()[place] {
            worker.signal(if stops { Signal::STOP } else { Signal::CONT });
            if !stops {
                self.continued().insert(worker.number(), self.recorder.clock().now_us());
            }
        }
    }

    fn linger(&self, place: usize, time: Duration) {
        if let Some(worker) = &mut self.places()[place] {
            worker.send(&ToWorker::Linger { ms: millis(time) });
        }
    }

    fn restart(&self, place: usize) {
        if self.number(place).is_none()
            && let Err(error) = self.start_in(place)
        {
            log::warning(&format!("failed to start a worker: {error}"));
        }
    }
}
