//! The server: the model, with a clock that can be wrong, data that can be lost, and perhaps a replica.

use crate::event::{Event, LockId, ServerEvent};
use crate::mutants::Mutant;
use crate::world::Sim;
use crate::world::link::LinkId;
use crate::world::time::{Clock, Instant};
use leasehold_core::model::{Content, LockState, ReentrantHolds, Sessions, Value};
use leasehold_core::{
    Acquire, Kind, MultiAcquired, Notification, Op, OwnValue, Reply, SessionId, SessionOp, SessionReply,
};
use leasehold_testkit::Random;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// By how much the clock of a replica may differ, unless the outage is shorter.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_millis(100);

pub(crate) struct Server {
    /// Which one: each that is promoted has the next number.
    pub(crate) number: u32,
    pub(crate) is_up: bool,
    pub(crate) clock: Clock,
    pub(crate) locks: BTreeMap<LockId, LockState>,
    /// The kind of each lock.
    kinds: Vec<Kind>,
    pub(crate) sessions: Sessions,
    /// The link and its generation that receives a session's notifications.
    pub(crate) subscriptions: BTreeMap<SessionId, (LinkId, u64)>,
    replica: Option<Replica>,
}

/// A replica that receives each update with a delay.
#[derive(Default)]
struct Replica {
    locks: BTreeMap<LockId, LockState>,
    sessions: Sessions,
    /// Updates that it has not applied yet.
    log: VecDeque<(Instant, ReplicaUpdate)>,
}

/// An update for a replica: the new state.
enum ReplicaUpdate {
    Lock(LockId, Box<LockState>),
    Sessions(Sessions),
}

impl Replica {
    /// One that has all this.
    fn of(locks: &BTreeMap<LockId, LockState>, sessions: &Sessions) -> Self {
        Self { locks: locks.clone(), sessions: sessions.clone(), log: VecDeque::new() }
    }

    /// What it has after the updates before `until`.
    fn apply(self, until: Instant) -> (BTreeMap<LockId, LockState>, Sessions) {
        let Self { mut locks, mut sessions, log } = self;
        for (_, update) in log.into_iter().take_while(|(at, _)| *at <= until) {
            match update {
                ReplicaUpdate::Lock(lock, state) => drop(locks.insert(lock, *state)),
                ReplicaUpdate::Sessions(known) => sessions = known,
            }
        }
        (locks, sessions)
    }
}

impl Server {
    pub(crate) fn new(clock: Clock, with_replica: bool, kinds: Vec<Kind>) -> Self {
        let replica = with_replica.then(Replica::default);
        let (locks, sessions, subscriptions) = (BTreeMap::new(), Sessions::default(), BTreeMap::new());
        Self { number: 0, is_up: true, clock, locks, kinds, sessions, subscriptions, replica }
    }

    /// Whether a replica follows it.
    pub(crate) fn has_replica(&self) -> bool {
        self.replica.is_some()
    }

    /// The replica as a server of its own, which is not up yet, with the updates before `applied_until`. Another replica
    /// follows it, and none follows this server any more.
    pub(crate) fn promote_replica(&mut self, applied_until: Instant) -> Self {
        let (locks, sessions) = self.replica.take().unwrap_or_default().apply(applied_until);
        let replica = Some(Replica::of(&locks, &sessions));
        let (kinds, subscriptions) = (self.kinds.clone(), BTreeMap::new());
        let (number, clock) = (self.number + 1, self.clock);
        Self { number, is_up: false, clock, locks, kinds, sessions, subscriptions, replica }
    }

    /// Executes an operation, with a mutant if given.
    pub(crate) fn execute(
        &mut self,
        now: Instant,
        lock: LockId,
        op: &Op,
        mutant: Option<Mutant>,
    ) -> (Reply, Vec<Notification>) {
        let now_us = self.clock.reading_us(now);
        let (state, sessions) = (state(&mut self.locks, &self.kinds, lock), &self.sessions);
        let alive = |session| sessions.status(now_us / 1000, session);
        let done = match mutant {
            Some(mutant) => mutant.apply(state, now_us, op, &alive),
            None => state.apply(now_us, op, &alive),
        };
        if let Some(replica) = &mut self.replica {
            replica.log.push_back((now, ReplicaUpdate::Lock(lock, Box::new(state.clone()))));
        }
        done
    }

    /// Acquires all of several locks or none, with a mutant if given.
    pub(crate) fn acquire_all(
        &mut self,
        now: Instant,
        requests: &[(LockId, Acquire)],
        mutant: Option<Mutant>,
    ) -> Vec<MultiAcquired> {
        let now_us = self.clock.reading_us(now);
        for (lock, _) in requests {
            state(&mut self.locks, &self.kinds, *lock);
        }
        // In order of their names, which is that of their ids.
        let wanted = self.locks.iter_mut().filter_map(|(lock, state)| {
            let (_, request) = requests.iter().find(|(requested, _)| requested == lock)?;
            Some((state, request))
        });
        let mut wanted: Vec<_> = wanted.collect();
        let replies = match mutant {
            Some(mutant) => mutant.acquire_all(&mut wanted, now_us),
            None => LockState::acquire_all(&mut wanted, now_us),
        };
        if let Some(replica) = &mut self.replica {
            let update = |(lock, _): &(LockId, Acquire)| {
                self.locks.get(lock).map(|state| (now, ReplicaUpdate::Lock(*lock, Box::new(state.clone()))))
            };
            replica.log.extend(requests.iter().filter_map(update));
        }
        replies
    }

    /// Executes an operation on sessions, with a mutant if given.
    pub(crate) fn execute_session(
        &mut self,
        now: Instant,
        op: &SessionOp,
        mutant: Option<Mutant>,
    ) -> SessionReply {
        let now_ms = self.clock.reading_us(now) / 1000;
        let reply = match mutant {
            Some(mutant) => mutant.execute_session(&mut self.sessions, now_ms, op),
            None => self.sessions.apply(now_ms, op),
        };
        if let Some(replica) = &mut self.replica {
            replica.log.push_back((now, ReplicaUpdate::Sessions(self.sessions.clone())));
        }
        reply
    }

    /// Loses all data, as does the replica.
    fn lose_data(&mut self) {
        self.locks.clear();
        self.sessions = Sessions::default();
        self.replica = self.replica.take().map(|_| Replica::default());
    }

    /// The replica takes over with the updates before `applied_until`.
    fn fail_over(&mut self, now: Instant, applied_until: Instant, clock_differs_us: i64) {
        let (locks, sessions) = self.replica.take().unwrap_or_default().apply(applied_until);
        self.replica = Some(Replica::of(&locks, &sessions));
        (self.locks, self.sessions) = (locks, sessions);
        self.clock.jump(now, clock_differs_us);
    }

    /// Acquires a lock as a client of another library does: `SET name value NX PX lease` for a Mutex; for a
    /// ReentrantMutex an entry of one owner without Leasehold's fields. With `overwrites`, without the `NX`.
    fn set(&mut self, now: Instant, lock: LockId, value: &str, lease: Duration, overwrites: bool) -> bool {
        let now_ms = self.clock.reading_us(now) / 1000;
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(1);
        let state = state(&mut self.locks, &self.kinds, lock);
        let is_current = |value: &Value| value.expires_ms.is_none_or(|at_ms| at_ms >= now_ms);
        // A foreign value would block an Election forever.
        let allows_none = state.kind.is_shared() || state.kind == Kind::Election;
        let is_held = state.value.as_ref().is_some_and(is_current) && !overwrites;
        if allows_none || !self.is_up || is_held {
            return false;
        }
        let content = match (state.kind, OwnValue::new(value)) {
            (Kind::Reentrant, Ok(owner)) => Content::ReentrantHolds(ReentrantHolds {
                owner,
                count: 1,
                fence: None,
                lease_ms: 0,
                holds: Vec::new(),
            }),
            _ => Content::Token(value.into()),
        };
        state.value = Some(Value { content, expires_ms: Some(now_ms + lease_ms) });
        true
    }
}

/// The state of a lock, which may be new.
fn state<'a>(locks: &'a mut BTreeMap<LockId, LockState>, kinds: &[Kind], lock: LockId) -> &'a mut LockState {
    let kind = kinds.get(usize::from(lock.0)).copied().unwrap_or_default();
    locks.entry(lock).or_insert_with(|| LockState::new(kind))
}

impl Sim {
    /// Takes the server down with all its links. Returns whether it was up.
    pub(crate) fn server_down(self: &Arc<Self>) -> bool {
        if !mem::replace(&mut self.net().server.is_up, false) {
            return false;
        }
        self.record(&Event::Server(ServerEvent::Down));
        self.break_all_links();
        true
    }

    pub(crate) fn server_up(&self, with_data: bool) {
        let mut net = self.net();
        net.server.is_up = true;
        if !with_data {
            net.server.lose_data();
        }
        drop(net);
        self.record(&Event::Server(ServerEvent::Up { with_data }));
    }

    /// Fails over after an outage to a replica that lags by `lag`. The clocks differ by less than the outage: otherwise
    /// growing tokens are not promised.
    pub(crate) fn fail_over(&self, outage: Duration, lag: Duration) {
        let now = self.scheduler.now();
        let mut net = self.net();
        let differs_us = clock_difference(&net.random, outage / 2);
        let before = now.since(Instant(0)).saturating_sub(outage).saturating_sub(lag);
        net.server.fail_over(now, Instant(0) + before, differs_us);
        drop(net);
        self.record(&Event::Server(ServerEvent::FailedOver));
        self.server_up(true);
    }

    pub(crate) fn jump(&self, by_us: i64) {
        let now = self.scheduler.now();
        self.net().server.clock.jump(now, by_us);
        self.record(&Event::Server(ServerEvent::Jumped(by_us)));
    }

    pub(crate) fn delete(&self, lock: LockId) {
        if let Some(state) = self.net().server.locks.get_mut(&lock) {
            state.value = None;
        }
        self.record(&Event::Server(ServerEvent::Deleted(lock)));
    }

    /// A foreign client acquires a free lock. Returns whether it was free.
    pub(crate) fn foreign_set(&self, lock: LockId, value: &str, lease: Duration) -> bool {
        let now = self.scheduler.now();
        let overwrites = self.mutant == Some(Mutant::ForeignSetOverwrites);
        let is_set = self.net().server.set(now, lock, value, lease, overwrites);
        if is_set {
            self.record(&Event::Foreign(lock, Some(now + lease * 9 / 10)));
        }
        is_set
    }

    /// A foreign client deletes the key if it has its value.
    pub(crate) fn foreign_delete(&self, lock: LockId, value: &str) {
        if let Some(state) = self.net().server.locks.get_mut(&lock) {
            state.value.take_if(|current| match &current.content {
                Content::ReentrantHolds(entries) => entries.owner.as_str() == value,
                content => content.token() == Some(value),
            });
        }
        self.record(&Event::Foreign(lock, None));
    }
}

/// A random difference of two clocks in microseconds, within a bound and [`MAX_CLOCK_DIFFERENCE`].
fn clock_difference(random: &Random, bound: Duration) -> i64 {
    let most = u64::try_from(bound.min(MAX_CLOCK_DIFFERENCE).as_micros()).unwrap_or(0);
    let difference = i64::try_from(random.below(most * 2 + 1)).unwrap_or(0);
    difference.saturating_sub_unsigned(most)
}
