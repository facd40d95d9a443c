//! What must hold in the simulated world, judged from what happens in it and from nothing else.
//!
//! A [`Check`] sees every [`Event`]. It knows neither the workload nor the engine: only what was asked, what the store
//! did, what tasks were told, and when, in true time, which nobody in the world can read.
//!
//! | Check | What it holds the engine and the model to |
//! |---|---|
//! | [`Exclusion`] | no two owners believe that they hold a lock at once, but those who get on with each other |
//! | [`HolderValidity`] | a holder stops believing before the store does, and is told |
//! | [`Ownership`] | nothing is taken from anybody but by its own hold, from the dead, or as it was seen; what was released does not come back |
//! | [`Tokens`] | every hold, and every guard that a hold is handed on to, has a greater token than all before it, but for those of one owner's stay, which have one |
//! | [`MultiAcquire`] | several locks are had together or not at all, and nobody waits for one with others in hand but in their order |
//! | [`Reentrancy`] | an owner is in as often as he is told, and gets in again at once |
//! | [`Sharing`] | who has a lock side by side with others gets on with them, and there are no more than may be |
//! | [`SharedOrder`] | first come, first served, among those who have a lock side by side |
//! | [`Renewal`] | what the store said is told, a hold is renewed, and a given lease lasts as long as it was given for |
//! | [`Order`] | first come, first served, between processes and within one |
//! | [`Handoff`] | a process hands a lock on, or keeps it, no longer than it may while others wait |
//! | [`Deadlines`] | whoever waits gives up when he said, and not before; nobody asks too often |
//! | [`Progress`] | who was granted a lock takes it; a lock that could be granted is |
//! | [`SharedProgress`] | the same of locks that several have: nobody waits where there is room |
//! | [`Cleanup`] | what nobody wants any more is gone soon; every key expires |
//! | [`AfterRelease`] | after a release has returned nothing is sent about its hold, and an end is the end |
//! | [`Observers`] | whoever observes an Election is told who leads, in order, soon, and nobody who did not |
//! | [`OncePerPeriod`] | what is done once in a period is done once in it, and whoever has the turn knows how long |
//! | [`SessionLiveness`] | a session that has lapsed is over, at the store and for its process; none lapses without a cause |
//!
//! The first two only hold where the docs promise exclusion ([`Promises`]).

mod after_release;
mod cleanup;
mod deadlines;
mod exclusion;
mod guards;
mod handoff;
mod health;
mod multi;
mod observers;
mod once_per;
mod order;
mod ownership;
mod progress;
pub(crate) mod recorder;
mod reentrancy;
mod renewal;
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
pub(crate) use health::LOOK;
pub use multi::MultiAcquire;
pub use observers::Observers;
pub use once_per::OncePerPeriod;
pub use order::Order;
pub use ownership::Ownership;
pub use progress::Progress;
pub use reentrancy::Reentrancy;
pub use renewal::Renewal;
pub use sessions::SessionLiveness;
pub use shared_order::SharedOrder;
pub use shared_progress::SharedProgress;
pub use sharing::Sharing;
pub use tokens::Tokens;
pub use validity::HolderValidity;

use crate::event::{Event, HostEvent, LockId, ServerEvent};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{Beaten, Kind, SessionId, SessionOp, SessionReply};
use std::collections::BTreeMap;
use std::time::Duration;

/// What was found to be wrong.
pub type CheckResult = Result<(), String>;

/// Something that must hold.
pub trait Check {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Something has happened.
    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult;

    /// Time has gone on to `at`, and nothing happened since the last event.
    fn pass(&mut self, _at: Instant, _scene: &CheckContext) -> CheckResult {
        Ok(())
    }
}

/// What the docs promise under the faults of this run.
#[derive(Debug, Clone, Copy)]
pub struct Promises {
    /// Whether at most one holds a lock at a time: not where the store loses data, or clocks go wrong.
    pub exclusion: bool,
    /// Whether clocks can be relied on.
    pub clocks: bool,
}

/// What every check may know.
#[derive(Debug)]
pub struct CheckContext {
    /// What the docs promise, as long as it does.
    pub promises: Promises,
    /// Whether releases may leave the lock to strangers.
    pub shares: bool,
    /// Of what kind each lock is.
    kinds: Vec<Kind>,
    /// When something last happened to the server.
    pub upset_at: Option<Instant>,
    hosts: BTreeMap<SessionId, HostId>,
    health: BTreeMap<HostId, Health>,
    /// Which links of a process are up.
    links: BTreeMap<HostId, [bool; 2]>,
    /// Beats without an answer: whose, when they were asked for, and for how long they ask.
    heartbeats: BTreeMap<u64, (SessionId, Instant, Duration)>,
    /// Until when sessions are certainly believed alive.
    lives: BTreeMap<SessionId, Instant>,
    /// The guards that tasks have had, and whose holds they are.
    pub guards: Guards,
}

impl CheckContext {
    /// A world in which nothing has happened yet.
    pub fn new(promises: Promises, shares: bool, kinds: Vec<Kind>) -> Self {
        Self {
            promises,
            shares,
            kinds,
            upset_at: None,
            hosts: BTreeMap::new(),
            health: BTreeMap::new(),
            links: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
            lives: BTreeMap::new(),
            guards: Guards::default(),
        }
    }

    /// Takes note of what concerns all checks.
    pub fn observe(&mut self, at: Instant, event: &Event<'_>) {
        self.pass(at);
        self.guards.observe(at, event);
        match *event {
            Event::Started(host, session) => {
                self.hosts.insert(session, host);
                let up = self.links.get(&host).copied().unwrap_or_default();
                let until = self.lives.get(&session).copied();
                self.health.insert(host, Health::new(at, up.map(|up| !up), until));
            }
            Event::SessionSent { host, message, asked_at, op: SessionOp::Beat(beat) } => {
                if beat.begin.is_some() {
                    self.hosts.insert(beat.session, host);
                }
                self.heartbeats
                    .insert(message, (beat.session, asked_at, Duration::from_millis(beat.alive_ms)));
            }
            Event::SessionAnswered { host, message, reply } => self.heard(at, host, message, reply),
            Event::Host(host, HostEvent::Crashed | HostEvent::Ended) => drop(self.health.remove(&host)),
            Event::Server(what) => {
                self.upset_at = Some(at);
                // From the first loss on nothing is promised any more.
                let keeps_data = matches!(what, ServerEvent::Down | ServerEvent::Up { with_data: true });
                self.promises.exclusion &= keeps_data;
            }
            Event::Host(host, what) => {
                if let HostEvent::LinkDown { keeper } | HostEvent::LinkUp { keeper } = what {
                    let is_up = matches!(what, HostEvent::LinkUp { .. });
                    self.links.entry(host).or_default()[usize::from(keeper)] = is_up;
                }
                if let Some(health) = self.health.get_mut(&host) {
                    health.observe(at, what);
                }
            }
            _ => {}
        }
    }

    /// A process has the answer to a beat.
    fn heard(&mut self, at: Instant, host: HostId, message: u64, reply: Option<&SessionReply>) {
        let Some((session, asked_at, alive)) = self.heartbeats.remove(&message) else { return };
        match reply {
            Some(SessionReply::Beat(Beaten::Alive)) => {
                // Less the drift that is allowed for, and that of any clock.
                let until = asked_at + alive * 23 / 25;
                let until =
                    *self.lives.entry(session).and_modify(|old| *old = until.max(*old)).or_insert(until);
                if let Some(health) = self.health.get_mut(&host) {
                    health.lives_until(at, until);
                }
            }
            Some(SessionReply::Beat(Beaten::Lapsed)) => {
                if let Some(health) = self.health.get_mut(&host) {
                    health.lapses(at);
                }
            }
            _ => {}
        }
    }

    /// Time has gone on to `at`.
    pub fn pass(&mut self, at: Instant) {
        for health in self.health.values_mut() {
            health.pass(at);
        }
    }

    /// Whether a lock can be entered again by its owner.
    pub fn is_reentrant(&self, lock: LockId) -> bool {
        self.kinds.get(usize::from(lock.0)) == Some(&Kind::Reentrant)
    }

    /// Whether several can have a lock side by side.
    pub fn is_shared(&self, lock: LockId) -> bool {
        self.kinds.get(usize::from(lock.0)).is_some_and(|kind| kind.is_shared())
    }

    /// Whose session it is.
    pub fn host(&self, session: SessionId) -> Option<HostId> {
        self.hosts.get(&session).copied()
    }

    /// Whether the keeper of a process has its connection.
    pub fn keeper_is_connected(&self, host: HostId) -> bool {
        self.links.get(&host).is_some_and(|up| up[1])
    }

    /// How a process fares; nothing if it is gone.
    pub fn health(&self, host: HostId) -> Option<&Health> {
        self.health.get(&host)
    }
}

/// All checks.
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
        Box::new(Observers::default()),
        Box::new(OncePerPeriod::default()),
        Box::new(SessionLiveness::default()),
    ]
}
