//! One run: hosts, a network, and faults, all from one seed.
//!
//! Owns the network, the hosts and the faults. The clients' behaviour is in `task`, the rules are in `checks`.

use crate::checks::{Record, Rule};
use crate::client::{Process, Workload};
use crate::environment::{Clock, HostClock, SeededRng, lock};
use crate::fault::Fault;
use crate::late_bytes::LATE_AT_MOST;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use leasehold_core::{HeartbeatReply, SessionOp, SessionReply};
use leasehold_sim::{Data, ModelServer, ServerMutant, ServerObservation};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turmoil::Sim;
use turmoil::net::TcpListener;

/// How much simulated time passes in one step: also the most by which times of different hosts may differ.
const STEP: Duration = Duration::from_millis(5);
/// For how long new faults begin.
const FAULTS_FOR: Duration = Duration::from_secs(20);
/// One in how many steps a fault begins.
const BEGINS_ONE_IN: u64 = 150;
/// How long a fault lasts at most: often within a lease, sometimes longer.
const SHORT_MS: u64 = 2_000;
const LONG_MS: u64 = 8_000;
/// The limit for a run, until all clients are served after the faults.
const RUN_AT_MOST: Duration = Duration::from_secs(150);
/// How long the server runs without clients before the final check: holds that a client never learned of end with their
/// first lease.
const SETTLE_FOR: Duration = Duration::from_secs(3).saturating_add(LATE_AT_MOST);
/// The server's clock when the simulation begins.
const EPOCH_US: u64 = 1_762_000_000_000_000;
const SERVER: &str = "server";
const PORT: u16 = 6379;

/// The result of a run.
pub(crate) struct Run {
    /// Everything that happened, in order.
    pub(crate) trace: String,
    /// How often each case occurred.
    pub(crate) seen: BTreeMap<&'static str, u64>,
    /// The rules that were broken.
    pub(crate) violations: BTreeSet<Rule>,
}

/// Runs a seed, with a mutant of the server if one is given.
pub(crate) fn run(seed: u64, mutant: Option<ServerMutant>) -> Run {
    let record = Arc::new(Record::default());
    {
        let mut simulation = Simulation::new(seed, mutant, Arc::clone(&record));
        simulation.run();
        // The hosts are dropped with it.
        drop(simulation);
    }
    let record = Arc::into_inner(record).expect("all other references ended with the simulation");
    let (trace, seen, violations) = record.into_parts();
    Run { trace, seen, violations }
}

struct Simulation {
    sim: Sim<'static>,
    rng: SeededRng,
    record: Arc<Record>,
    server: ModelServer,
    /// What happens to the stored locks at the server's next start.
    next_start: Arc<Mutex<Data>>,
    clients: usize,
    /// How many client processes have finished.
    done: Arc<AtomicU64>,
    faults_ended: Arc<AtomicBool>,
    /// How long a message takes at most.
    latency: Duration,
    /// Set if the server may lose its data.
    loses_data: bool,
    /// The current faults, and when each ends.
    faults: Vec<(Duration, Fault)>,
}

impl Simulation {
    fn new(seed: u64, mutant: Option<ServerMutant>, record: Arc<Record>) -> Self {
        let rng = SeededRng::new(seed, 0);
        let latency = if rng.one_in(2) { rng.millis(6, 60) } else { rng.millis(60, 400) };
        let sim = turmoil::Builder::new()
            .rng_seed(seed)
            .tick_duration(STEP)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(latency)
            .simulation_duration(RUN_AT_MOST * 2)
            .tcp_capacity(1024)
            .enable_random_order()
            .build();
        let clients = usize::try_from(2 + rng.below(4)).unwrap_or(2);
        let workload = Workload {
            tasks: 1 + rng.below(3),
            mutexes: usize::try_from(1 + rng.below(3)).unwrap_or(1),
            reentrants: usize::try_from(1 + rng.below(2)).unwrap_or(1),
            headers: Arc::default(),
            // Enough for a reply, if there is no fault.
            call_timeout: 2 * latency + rng.millis(200, 1_200),
            faults_ended: Arc::default(),
        };
        let mut simulation = Self {
            sim,
            server: server(&record, mutant),
            record,
            next_start: Arc::new(Mutex::new(Data::Kept)),
            clients,
            done: Arc::default(),
            faults_ended: Arc::clone(&workload.faults_ended),
            latency,
            loses_data: rng.one_in(3),
            rng,
            faults: Vec::new(),
        };
        simulation.host_server();
        for number in 0..clients {
            simulation.host_client(seed, number, workload.clone());
        }
        simulation
    }

    fn host_server(&mut self) {
        let (server, next_start) = (self.server.clone(), Arc::clone(&self.next_start));
        self.sim.host(SERVER, move || {
            let (server, data) = (server.clone(), *lock(&next_start));
            async move {
                server.restart(data);
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
                // Not tasks: when a host crashes, its runtime drops them in an order that differs from run to run.
                let mut connections = FuturesUnordered::new();
                loop {
                    tokio::select! {
                        biased;
                        accepted = listener.accept() => connections.push(server.serve(accepted?.0)),
                        Some(_) = connections.next(), if !connections.is_empty() => {}
                    }
                }
            }
        });
    }

    fn host_client(&mut self, seed: u64, number: usize, workload: Workload) {
        let name = client(number);
        let (record, done) = (Arc::clone(&self.record), Arc::clone(&self.done));
        let clock = Arc::<Clock>::default();
        let stream = 1_000 * (1 + number as u64);
        let host_clock = HostClock::new(&SeededRng::new(seed, stream));
        let starts = AtomicU64::new(0);
        self.sim.host(name.clone(), move || {
            let run = starts.fetch_add(1, Ordering::Relaxed) + 1;
            let process = Process {
                name: name.clone(),
                workload: workload.clone(),
                record: Arc::clone(&record),
                clock: Arc::clone(&clock),
                host_clock,
                rng: Arc::new(SeededRng::new(seed, stream + run)),
            };
            let done = Arc::clone(&done);
            async move {
                let done = || {
                    done.fetch_add(1, Ordering::Relaxed);
                };
                process.run(done).await;
                Ok(())
            }
        });
    }

    /// Runs all phases: faults; no faults until all clients are served; and no clients.
    fn run(&mut self) {
        while self.sim.elapsed() < FAULTS_FOR && self.step() {
            self.end_faults(|until, now| until <= now);
            if self.rng.one_in(BEGINS_ONE_IN) {
                self.begin_fault();
            }
        }
        self.end_faults(|_, _| true);
        self.faults_ended.store(true, Ordering::Relaxed);
        self.record.faults_ended(self.sim.elapsed());
        self.log("no new faults");
        while self.done.load(Ordering::Relaxed) < self.clients as u64 && self.step() {
            if self.sim.elapsed() > RUN_AT_MOST {
                self.record.violated(Rule::Service, self.sim.elapsed(), "some clients never finish");
                return;
            }
        }
        let until = self.sim.elapsed() + SETTLE_FOR;
        while self.sim.elapsed() < until && self.step() {}
        self.check_leftovers();
    }

    /// Runs one step. Returns whether there can be another.
    fn step(&mut self) -> bool {
        if let Err(error) = self.sim.step() {
            self.record.violated(Rule::Panic, self.sim.elapsed(), error);
            return false;
        }
        let now = self.sim.elapsed();
        self.record.check(now, &self.server.locks(server_time_us(now)));
        true
    }

    fn begin_fault(&mut self) {
        let Some(fault) = Fault::any(&self.rng, self.clients) else {
            self.server.flush_scripts();
            return self.log("the scripts are flushed");
        };
        // At most one fault at a time for the same target.
        if self.faults.iter().any(|(_, other)| fault.target() == other.target()) {
            return;
        }
        let longest = if self.rng.one_in(3) { LONG_MS } else { SHORT_MS };
        let lasts = self.rng.millis(50, longest);
        self.log(format_args!("{fault:?} for {lasts:?}"));
        self.record.count(fault.name());
        match fault {
            Fault::Partitioned(name) => self.sim.partition(client(name), SERVER),
            Fault::RequestsLost(name) => self.sim.partition_oneway(client(name), SERVER),
            Fault::RepliesLost(name) => self.sim.partition_oneway(SERVER, client(name)),
            Fault::HeldBack(name) => self.sim.hold(client(name), SERVER),
            Fault::Slow(name) => {
                self.sim.set_link_max_message_latency(client(name), SERVER, Duration::from_millis(700));
            }
            Fault::ClientDown(name) => self.sim.crash(client(name)),
            Fault::ServerDown => self.sim.crash(SERVER),
            Fault::MessagesLost => self.server.set_drops_messages(true),
        }
        self.faults.push((self.sim.elapsed() + lasts, fault));
    }

    /// Ends the faults that are due.
    fn end_faults(&mut self, is_over: impl Fn(Duration, Duration) -> bool) {
        let now = self.sim.elapsed();
        let over = self.faults.extract_if(.., |(until, _)| is_over(*until, now)).collect::<Vec<_>>();
        for (_, fault) in over {
            self.end(fault);
        }
    }

    fn end(&mut self, fault: Fault) {
        self.log(format_args!("{fault:?} is over"));
        match fault {
            Fault::Partitioned(name) => self.sim.repair(client(name), SERVER),
            Fault::RequestsLost(name) => self.sim.repair_oneway(client(name), SERVER),
            Fault::RepliesLost(name) => self.sim.repair_oneway(SERVER, client(name)),
            Fault::HeldBack(name) => self.sim.release(client(name), SERVER),
            Fault::Slow(name) => {
                self.sim.set_link_max_message_latency(client(name), SERVER, self.latency);
            }
            Fault::ClientDown(name) => self.sim.bounce(client(name)),
            Fault::ServerDown => self.restart_server(),
            Fault::MessagesLost => self.server.set_drops_messages(false),
        }
    }

    fn restart_server(&mut self) {
        let lost = self.loses_data && self.rng.one_in(2);
        *lock(&self.next_start) = if lost { Data::Lost } else { Data::Kept };
        if lost {
            self.log("the server has lost its data");
            self.record.count("data lost");
            // Up to the end of the step in which it starts.
            self.record.data_lost(server_time_us(self.sim.elapsed() + STEP));
        }
        self.sim.bounce(SERVER);
    }

    fn check_leftovers(&self) {
        let now = self.sim.elapsed();
        for (key, seen) in self.server.locks(server_time_us(now)) {
            if seen.holder.is_some() || seen.waiters != 0 {
                self.record.violated(Rule::Leftovers, now, format_args!("{key}: {seen:?}"));
            }
        }
    }

    fn log(&self, what: impl fmt::Display) {
        self.record.log(self.sim.elapsed(), "faults", what);
    }
}

fn client(number: usize) -> String {
    format!("client-{number}")
}

pub(crate) fn server_time_us(elapsed: Duration) -> u64 {
    EPOCH_US + u64::try_from(elapsed.as_micros()).unwrap_or(0)
}

/// The server, which writes everything it does into the trace.
fn server(record: &Arc<Record>, mutant: Option<ServerMutant>) -> ModelServer {
    let clock = Arc::<Clock>::default();
    let (record, read) = (Arc::clone(record), Arc::clone(&clock));
    let observer = move |seen: ServerObservation<'_>| {
        match seen {
            ServerObservation::Connected(_) => record.count("connections"),
            ServerObservation::Executed { key, op, reply, notifications, .. } => {
                record.executed(clock.elapsed(), key, op, reply, notifications);
            }
            ServerObservation::MultiExecuted { requests, replies, .. } => {
                record.multi_executed(requests, replies);
            }
            ServerObservation::SessionExecuted {
                op: SessionOp::Heartbeat(heartbeat),
                reply: SessionReply::Heartbeat(HeartbeatReply::Alive),
                ..
            } => {
                record.heartbeats(clock.elapsed(), heartbeat.session);
            }
            ServerObservation::Ended(_)
            | ServerObservation::Command { .. }
            | ServerObservation::SessionExecuted { .. } => {}
        }
        record.log(clock.elapsed(), SERVER, format_args!("{seen:?}"));
    };
    ModelServer::with(move || server_time_us(read.elapsed()), observer, mutant)
}
