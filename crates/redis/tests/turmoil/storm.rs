//! One run: hosts, a network, and faults, all from one seed.
//!
//! Owns the world and its faults. The clients' behaviour is in `task`, the rules are in `checks`.

use crate::checks::{Record, Rule};
use crate::client::{AcquireTerms, Process};
use crate::host::{Chance, Clock, Pace, lock};
use crate::late::LATE_AT_MOST;
use crate::trouble::Trouble;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use leasehold_core::{HeartbeatReply, SessionOp, SessionReply};
use leasehold_sim::{Data, Flaw, ModelServer, ObservedHolder};
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
/// How long new faults begin.
const STORM: Duration = Duration::from_secs(20);
/// One in how many steps of the storm begins another fault.
const BEGINS_ONE_IN: u64 = 150;
/// How long a fault lasts at most: often within a lease, sometimes longer.
const SHORT_MS: u64 = 2_000;
const LONG_MS: u64 = 8_000;
/// The limit for a run: the storm, and what follows until all clients are served.
const TO_THE_END: Duration = Duration::from_secs(150);
/// How long the server is left alone before the final check: holds that a client never learned of end with their
/// first lease.
const AFTERMATH: Duration = Duration::from_secs(3).saturating_add(LATE_AT_MOST);
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

/// Runs a seed, on a server with a flaw if one is given.
pub(crate) fn run(seed: u64, flaw: Option<Flaw>) -> Run {
    let record = Arc::new(Record::default());
    {
        let mut storm = Storm::new(seed, flaw, Arc::clone(&record));
        storm.blow();
        // The hosts are dropped with the simulation.
        drop(storm);
    }
    let record = Arc::into_inner(record).expect("all other references ended with the simulation");
    let (trace, seen, violations) = record.into_parts();
    Run { trace, seen, violations }
}

struct Storm {
    sim: Sim<'static>,
    chance: Chance,
    record: Arc<Record>,
    server: ModelServer,
    /// What happens to the stored locks at the server's next start.
    next_start: Arc<Mutex<Data>>,
    clients: usize,
    /// How many client processes have finished.
    done: Arc<AtomicU64>,
    calm: Arc<AtomicBool>,
    /// How long a message takes at most.
    latency: Duration,
    /// Set in worlds whose server may lose its data.
    loses_data: bool,
    /// The current faults, and when each ends.
    troubles: Vec<(Duration, Trouble)>,
}

impl Storm {
    fn new(seed: u64, flaw: Option<Flaw>, record: Arc<Record>) -> Self {
        let chance = Chance::new(seed, 0);
        let latency = if chance.one_in(2) { chance.millis(6, 60) } else { chance.millis(60, 400) };
        let sim = turmoil::Builder::new()
            .rng_seed(seed)
            .tick_duration(STEP)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(latency)
            .simulation_duration(TO_THE_END * 2)
            .tcp_capacity(1024)
            .enable_random_order()
            .build();
        let clients = usize::try_from(2 + chance.below(4)).unwrap_or(2);
        let terms = AcquireTerms {
            tasks: 1 + chance.below(3),
            mutexes: usize::try_from(1 + chance.below(3)).unwrap_or(1),
            entrances: usize::try_from(1 + chance.below(2)).unwrap_or(1),
            post: Arc::default(),
            // Enough for a reply, if there is no fault.
            call_timeout: 2 * latency + chance.millis(200, 1_200),
            calm: Arc::default(),
        };
        let mut storm = Self {
            sim,
            server: server(&record, flaw),
            record,
            next_start: Arc::new(Mutex::new(Data::Kept)),
            clients,
            done: Arc::default(),
            calm: Arc::clone(&terms.calm),
            latency,
            loses_data: chance.one_in(3),
            chance,
            troubles: Vec::new(),
        };
        storm.host_server();
        for number in 0..clients {
            storm.host_client(seed, number, terms.clone());
        }
        storm
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

    fn host_client(&mut self, seed: u64, number: usize, terms: AcquireTerms) {
        let name = client(number);
        let (record, done) = (Arc::clone(&self.record), Arc::clone(&self.done));
        let clock = Arc::<Clock>::default();
        let stream = 1_000 * (1 + number as u64);
        let pace = Pace::new(&Chance::new(seed, stream));
        let lives = AtomicU64::new(0);
        self.sim.host(name.clone(), move || {
            let life = lives.fetch_add(1, Ordering::Relaxed) + 1;
            let process = Process {
                name: name.clone(),
                terms: terms.clone(),
                record: Arc::clone(&record),
                clock: Arc::clone(&clock),
                pace,
                chance: Arc::new(Chance::new(seed, stream + life)),
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

    /// Runs all phases: the storm, the calm until all clients are served, and the aftermath.
    fn blow(&mut self) {
        while self.sim.elapsed() < STORM && self.step() {
            self.end_troubles(|until, now| until <= now);
            if self.chance.one_in(BEGINS_ONE_IN) {
                self.begin_trouble();
            }
        }
        self.end_troubles(|_, _| true);
        self.calm.store(true, Ordering::Relaxed);
        self.record.calm(self.sim.elapsed());
        self.say("calm");
        while self.done.load(Ordering::Relaxed) < self.clients as u64 && self.step() {
            if self.sim.elapsed() > TO_THE_END {
                self.record.violated(Rule::Service, self.sim.elapsed(), "some clients never finish");
                return;
            }
        }
        let until = self.sim.elapsed() + AFTERMATH;
        while self.sim.elapsed() < until && self.step() {}
        self.look_for_leftovers();
    }

    /// One step of the world; returns whether there can be another.
    fn step(&mut self) -> bool {
        if let Err(error) = self.sim.step() {
            self.record.violated(Rule::Panic, self.sim.elapsed(), error);
            return false;
        }
        let now = self.sim.elapsed();
        self.record.check(now, &self.server.locks(server_time_us(now)));
        true
    }

    fn begin_trouble(&mut self) {
        let Some(trouble) = Trouble::any(&self.chance, self.clients) else {
            self.server.flush_scripts();
            return self.say("the scripts are flushed");
        };
        // At most one fault at a time for the same target.
        if self.troubles.iter().any(|(_, other)| trouble.concerns() == other.concerns()) {
            return;
        }
        let longest = if self.chance.one_in(3) { LONG_MS } else { SHORT_MS };
        let lasts = self.chance.millis(50, longest);
        self.say(format_args!("{trouble:?} for {lasts:?}"));
        self.record.count(trouble.name());
        match trouble {
            Trouble::Cut(who) => self.sim.partition(client(who), SERVER),
            Trouble::Unheard(who) => self.sim.partition_oneway(client(who), SERVER),
            Trouble::Deaf(who) => self.sim.partition_oneway(SERVER, client(who)),
            Trouble::Held(who) => self.sim.hold(client(who), SERVER),
            Trouble::Slow(who) => {
                self.sim.set_link_max_message_latency(client(who), SERVER, Duration::from_millis(700));
            }
            Trouble::ClientDown(who) => self.sim.crash(client(who)),
            Trouble::ServerDown => self.sim.crash(SERVER),
            Trouble::Mute => self.server.mute(true),
        }
        self.troubles.push((self.sim.elapsed() + lasts, trouble));
    }

    /// Ends the faults that are due.
    fn end_troubles(&mut self, is_over: impl Fn(Duration, Duration) -> bool) {
        let now = self.sim.elapsed();
        let over = self.troubles.extract_if(.., |(until, _)| is_over(*until, now)).collect::<Vec<_>>();
        for (_, trouble) in over {
            self.end(trouble);
        }
    }

    fn end(&mut self, trouble: Trouble) {
        self.say(format_args!("{trouble:?} is over"));
        match trouble {
            Trouble::Cut(who) => self.sim.repair(client(who), SERVER),
            Trouble::Unheard(who) => self.sim.repair_oneway(client(who), SERVER),
            Trouble::Deaf(who) => self.sim.repair_oneway(SERVER, client(who)),
            Trouble::Held(who) => self.sim.release(client(who), SERVER),
            Trouble::Slow(who) => {
                self.sim.set_link_max_message_latency(client(who), SERVER, self.latency);
            }
            Trouble::ClientDown(who) => self.sim.bounce(client(who)),
            Trouble::ServerDown => self.restart_server(),
            Trouble::Mute => self.server.mute(false),
        }
    }

    fn restart_server(&mut self) {
        let lost = self.loses_data && self.chance.one_in(2);
        *lock(&self.next_start) = if lost { Data::Lost } else { Data::Kept };
        if lost {
            self.say("the server has lost its data");
            self.record.count("data lost");
            // Up to the end of the step in which it starts.
            self.record.data_lost(server_time_us(self.sim.elapsed() + STEP));
        }
        self.sim.bounce(SERVER);
    }

    fn look_for_leftovers(&self) {
        let now = self.sim.elapsed();
        for (key, seen) in self.server.locks(server_time_us(now)) {
            if seen.holder.is_some() || seen.waiters != 0 {
                self.record.violated(Rule::Leftovers, now, format_args!("{key}: {seen:?}"));
            }
        }
    }

    fn say(&self, what: impl fmt::Display) {
        self.record.say(self.sim.elapsed(), "storm", what);
    }
}

fn client(number: usize) -> String {
    format!("client-{number}")
}

pub(crate) fn server_time_us(elapsed: Duration) -> u64 {
    EPOCH_US + u64::try_from(elapsed.as_micros()).unwrap_or(0)
}

/// The server, which writes everything it does into the trace.
fn server(record: &Arc<Record>, flaw: Option<Flaw>) -> ModelServer {
    let clock = Arc::<Clock>::default();
    let (record, read) = (Arc::clone(record), Arc::clone(&clock));
    let observer = move |seen: ObservedHolder<'_>| {
        match seen {
            ObservedHolder::Connected(_) => record.count("connections"),
            ObservedHolder::Executed { key, op, reply, wakes, .. } => {
                record.executed(clock.elapsed(), key, op, reply, wakes);
            }
            ObservedHolder::Together { asks, shares, .. } => record.asked_together(asks, shares),
            ObservedHolder::Attended {
                op: SessionOp::Heartbeat(beat),
                reply: SessionReply::Heartbeat(HeartbeatReply::Alive),
                ..
            } => {
                record.beaten(clock.elapsed(), beat.session);
            }
            ObservedHolder::Ended(_) | ObservedHolder::Command { .. } | ObservedHolder::Attended { .. } => {}
        }
        record.say(clock.elapsed(), SERVER, format_args!("{seen:?}"));
    };
    ModelServer::with(move || server_time_us(read.elapsed()), observer, flaw)
}
