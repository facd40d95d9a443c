//! The checks: what must hold in the simulated world, derived from its events alone.
//!
//! A [`Check`] observes every [`Event`]. It knows neither the workload nor the engine: only what was requested, what
//! the store executed, what was reported to tasks, and when, in true time.
//!
//! | Check | Property |
//! |---|---|
//! | [`Exclusion`] | guards that are valid at the same time do not exclude each other |
//! | [`HolderValidity`] | a guard becomes invalid before the store ends its hold, and the loss is reported |
//! | [`Ownership`] | a hold ends only by its own release, its expiry, the lapse of its session, or a matching forced release; a released hold does not return |
//! | [`Tokens`] | fencing tokens grow with every hold and every local hand-off; the holds of one re-entrant owner share one |
//! | [`MultiAcquire`] | several locks are acquired together or not at all; one by one only in their order |
//! | [`Reentrancy`] | an owner's hold count is correct, and re-entry does not wait |
//! | [`Sharing`] | concurrent holders are compatible, and within the limit |
//! | [`SharedOrder`] | locks with several holders are granted first come, first served |
//! | [`Renewal`] | a loss is reported only with a cause, holds are renewed, and a given lease lasts |
//! | [`Order`] | locks with one holder are granted first come, first served, between processes and within one |
//! | [`Handoff`] | a process hands off or caches a hold no longer than it may while others wait |
//! | [`Deadlines`] | an acquire ends at its time limit, and not before; no client polls too often |
//! | [`Progress`] | a granted lock is taken up; a free lock is granted |
//! | [`SharedProgress`] | the same for locks with several holders: no waiter waits beside free capacity |
//! | [`Cleanup`] | holds and queue entries that no task needs end soon; every key expires |
//! | [`AfterRelease`] | after a release has returned, the client sends nothing about its hold |
//! | [`LockDelays`] | after a loss, no other client is granted the lock within its delay |
//! | [`Observers`] | observers of an Election report each leader in order and soon, and no other |
//! | [`Proclaims`] | observers of an Election see the last text of its leader, and of no other |
//! | [`OncePerPeriod`] | at most one start succeeds in a period, and its guard is not valid for longer than the store keeps the hold |
//! | [`Reports`] | tokens grow and a period is started once, by what clients report alone |
//! | [`SessionLiveness`] | a lapsed session is over, at the store and in its process; none lapses without a cause |
//!
//! The first two apply only while the documentation promises exclusion ([`Promises`]). With two primaries at once, only those of
//! [`of_two_primaries`] apply.

mod after_release;
mod cleanup;
mod deadlines;
mod exclusion;
#[cfg(test)]
mod fixture;
mod guards;
mod handoff;
mod health;
mod lock_delays;
mod multi;
mod observers;
mod once_per;
mod order;
mod ownership;
mod proclaims;
mod progress;
pub(crate) mod recorder;
mod reentrancy;
mod renewal;
mod reports;
mod session_ends;
mod sessions;
mod shared_order;
mod shared_progress;
mod sharing;
mod tokens;
mod validity;

pub use after_release::AfterRelease;
pub use cleanup::Cleanup;
pub use deadlines::Deadlines;
pub use exclusion::Exclusion;
pub use guards::{GuardRecord, Guards};
pub use handoff::Handoff;
pub use health::Health;
pub(crate) use health::POLL_INTERVAL;
pub use lock_delays::LockDelays;
pub use multi::MultiAcquire;
pub use observers::Observers;
pub use once_per::OncePerPeriod;
pub use order::Order;
pub use ownership::Ownership;
pub use proclaims::Proclaims;
pub use progress::Progress;
pub use reentrancy::Reentrancy;
pub use renewal::Renewal;
pub use reports::Reports;
pub use sessions::SessionLiveness;
pub use shared_order::SharedOrder;
pub use shared_progress::SharedProgress;
pub use sharing::Sharing;
pub use tokens::Tokens;
pub use validity::HolderValidity;

use crate::event::{Event, HostEvent, LockId, ServerEvent};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{HeartbeatReply, Kind, SessionId, SessionOp, SessionReply};
use std::collections::BTreeMap;
use std::time::Duration;

/// Describes a violation.
pub type CheckResult = Result<(), String>;

/// A property that must hold.
pub trait Check {
    /// The name of the check.
    fn name(&self) -> &'static str;

    /// Called for each event.
    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult;

    /// Called when time has advanced to `at` without an event.
    fn advance(&mut self, _at: Instant, _context: &CheckContext) -> CheckResult {
        Ok(())
    }
}

/// What the documentation promises under the faults of a run.
#[derive(Debug, Clone, Copy)]
pub struct Promises {
    /// Whether at most one owner holds a lock at a time. Not after the store has lost data, or with wrong clocks.
    pub exclusion: bool,
    /// Whether clocks are within their tolerated error.
    pub clocks: bool,
}

/// State that the checks share.
#[derive(Debug)]
pub struct CheckContext {
    /// What the documentation promises, as long as it does.
    pub promises: Promises,
    /// Whether releases may leave the lock free although clients wait.
    pub may_leave_free: bool,
    /// How far behind the replica is that clients wait for, if they do.
    pub replica_lag: Duration,
    /// The kind of each lock.
    kinds: Vec<Kind>,
    /// When the last event of the server was.
    pub last_server_event: Option<Instant>,
    hosts: BTreeMap<SessionId, HostId>,
    health: BTreeMap<HostId, Health>,
    /// Which connections of a process are up.
    links: BTreeMap<HostId, [bool; 2]>,
    /// When each process was resumed last.
    resumed_at: BTreeMap<HostId, Instant>,
    /// Heartbeats without a reply.
    heartbeats: BTreeMap<u64, SentHeartbeat>,
    /// Until when a process certainly takes its session for alive.
    alive_until: BTreeMap<SessionId, Instant>,
    /// The guards of tasks, and their holds.
    pub guards: Guards,
}

/// A heartbeat of a process.
#[derive(Debug, Clone, Copy)]
struct SentHeartbeat {
    session: SessionId,
    asked_at: Instant,
    /// The requested lifetime.
    alive: Duration,
    /// Whether it begins the session. If the store refuses another one, it may have forgotten the session: the process
    /// begins it again.
    begins: bool,
}

impl CheckContext {
    /// The state before the first event.
    pub fn new(promises: Promises, may_leave_free: bool, kinds: Vec<Kind>) -> Self {
        Self {
            promises,
            may_leave_free,
            replica_lag: Duration::ZERO,
            kinds,
            last_server_event: None,
            hosts: BTreeMap::new(),
            health: BTreeMap::new(),
            links: BTreeMap::new(),
            resumed_at: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
            alive_until: BTreeMap::new(),
            guards: Guards::default(),
        }
    }

    /// Updates the shared state.
    pub fn observe(&mut self, at: Instant, event: &Event<'_>) {
        self.advance(at);
        let is_connected = |host| self.links.get(&host).is_some_and(|up| up[0]);
        self.guards.observe(at, event, is_connected);
        match *event {
            Event::Started(host, session) => {
                self.hosts.insert(session, host);
                let up = self.links.get(&host).copied().unwrap_or_default();
                let until = self.alive_until.get(&session).copied();
                self.health.insert(host, Health::new(at, up.map(|up| !up), until));
            }
            Event::SessionSent { host, message, asked_at, op: SessionOp::Heartbeat(heartbeat) } => {
                if heartbeat.begin.is_some() {
                    self.hosts.insert(heartbeat.session, host);
                }
                let sent = SentHeartbeat {
                    session: heartbeat.session,
                    asked_at,
                    alive: Duration::from_millis(heartbeat.alive_ms),
                    begins: heartbeat.begin.is_some(),
                };
                self.heartbeats.insert(message, sent);
            }
            Event::SessionAnswered { host, message, reply } => {
                self.session_answered(at, host, message, reply);
            }
            Event::Host(host, HostEvent::Crashed | HostEvent::Ended) => drop(self.health.remove(&host)),
            Event::Server(what) => {
                self.last_server_event = Some(at);
                // After the first data loss, exclusion is no longer promised.
                let keeps_data = matches!(
                    what,
                    ServerEvent::Down
                        | ServerEvent::Up { with_data: true }
                        // What the promoted replica lacks, no replica had confirmed.
                        | ServerEvent::Isolated
                        | ServerEvent::Promoted
                        | ServerEvent::Rejoined
                );
                self.promises.exclusion &= keeps_data;
            }
            Event::Host(host, what) => {
                if let HostEvent::LinkDown { keeper } | HostEvent::LinkUp { keeper } = what {
                    let is_up = matches!(what, HostEvent::LinkUp { .. });
                    self.links.entry(host).or_default()[usize::from(keeper)] = is_up;
                }
                if what == HostEvent::Resumed {
                    self.resumed_at.insert(host, at);
                }
                if let Some(health) = self.health.get_mut(&host) {
                    health.observe(at, what);
                }
            }
            _ => {}
        }
    }

    /// A process has received the reply to a heartbeat.
    fn session_answered(&mut self, at: Instant, host: HostId, message: u64, reply: Option<&SessionReply>) {
        let Some(sent) = self.heartbeats.remove(&message) else { return };
        let SentHeartbeat { session, asked_at, alive, begins } = sent;
        match reply {
            Some(SessionReply::Heartbeat(HeartbeatReply::Alive)) => {
                // Less the tolerated drift, and the actual drift of any clock.
                let until = asked_at + alive * 23 / 25;
                let until = *self
                    .alive_until
                    .entry(session)
                    .and_modify(|old| *old = until.max(*old))
                    .or_insert(until);
                if let Some(health) = self.health.get_mut(&host) {
                    health.session_alive_until(at, until);
                }
            }
            Some(SessionReply::Heartbeat(HeartbeatReply::Lapsed)) if begins => {
                if let Some(health) = self.health.get_mut(&host) {
                    health.session_lapsed(at);
                }
            }
            _ => {}
        }
    }

    /// Time has advanced to `at`.
    pub fn advance(&mut self, at: Instant) {
        for health in self.health.values_mut() {
            health.advance(at);
        }
    }

    /// Whether a lock is a ReentrantMutex.
    pub fn is_reentrant(&self, lock: LockId) -> bool {
        self.kinds.get(usize::from(lock.0)) == Some(&Kind::Reentrant)
    }

    /// Whether a lock can have several holders.
    pub fn is_shared(&self, lock: LockId) -> bool {
        self.kinds.get(usize::from(lock.0)).is_some_and(|kind| kind.is_shared())
    }

    /// The process of a session.
    pub fn host(&self, session: SessionId) -> Option<HostId> {
        self.hosts.get(&session).copied()
    }

    /// Whether the keeper of a process has its connection.
    pub fn keeper_is_connected(&self, host: HostId) -> bool {
        self.links.get(&host).is_some_and(|up| up[1])
    }

    /// Whether a process is just being resumed. What has waited for a connection that is there by then is sent, whatever the
    /// time limit: no limit ends a wait while the process is stopped.
    pub fn is_resuming(&self, host: HostId, at: Instant) -> bool {
        self.resumed_at.get(&host) == Some(&at)
    }

    /// The health of a process; `None` once it has crashed or ended.
    pub fn health(&self, host: HostId) -> Option<&Health> {
        self.health.get(&host)
    }
}

/// The checks that apply to two primaries at once. The others compare what clients report with one server.
pub fn of_two_primaries() -> Vec<Box<dyn Check + Send>> {
    vec![Box::new(Exclusion::default()), Box::new(Deadlines::default()), Box::new(Reports::default())]
}

/// All checks of one server.
pub fn all() -> Vec<Box<dyn Check + Send>> {
    vec![
        Box::new(Exclusion::default()),
        Box::new(HolderValidity::default()),
        Box::new(Ownership::default()),
        Box::new(Tokens::default()),
        Box::new(Reentrancy::default()),
        Box::new(Sharing::default()),
        Box::new(SharedOrder::default()),
        Box::new(MultiAcquire::default()),
        Box::new(Renewal::default()),
        Box::new(Order::default()),
        Box::new(Handoff::default()),
        Box::new(Deadlines::default()),
        Box::new(Progress::default()),
        Box::new(SharedProgress::default()),
        Box::new(Cleanup::default()),
        Box::new(AfterRelease::default()),
        Box::new(LockDelays::default()),
        Box::new(Observers::default()),
        Box::new(Proclaims::default()),
        Box::new(OncePerPeriod::default()),
        Box::new(SessionLiveness::default()),
    ]
}
