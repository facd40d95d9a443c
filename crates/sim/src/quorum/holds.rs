//! The holds that clients have requested, as far as they may still matter.

use crate::event::{GuardId, LockId};
use crate::quorum::event::{ClientNo, HoldNo, NodeNo, RequestOutcome};
use crate::world::time::Instant;
use leasehold_core::{Acquire, Claim, FencingToken, HoldId, Lock, drift};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// For how long a request still counts as in flight after its reply, so that its client has taken note of it.
const NOTED_WITHIN: Duration = Duration::from_millis(10);

/// A hold that a client requested.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) number: HoldNo,
    pub(crate) client: ClientNo,
    pub(crate) lock_id: LockId,
    pub(crate) lock: Lock,
    pub(crate) acquire: Acquire,
    /// What the slowest clock of a node showed when it was requested.
    pub(crate) slowest_us: u64,
    pub(crate) state: HoldState,
    pub(crate) guard: Option<GuardId>,
    /// How many messages about it are under way.
    pub(crate) messages: u32,
    /// The nodes to which an extend that is in flight has given it. They do not count for that extend.
    pub(crate) repaired: BTreeSet<NodeNo>,
    /// Until when its client may rely on it if requests succeed that are in flight.
    requests: Vec<Request>,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    number: u64,
    until: Instant,
    answered_at: Option<Instant>,
}

/// What the client knows of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldState {
    Requested,
    Granted(FencingToken),
    /// Not granted, or released.
    Over,
}

impl Hold {
    pub(crate) const fn claim(&self) -> &Claim {
        &self.acquire.claim
    }

    /// Whether the quorum has granted it, and its client has not released it.
    pub(crate) const fn is_granted(&self) -> bool {
        matches!(self.state, HoldState::Granted(_))
    }

    /// Until when its client may rely on it, by requests that are in flight.
    pub(crate) fn requested_until(&self, now: Instant) -> Option<Instant> {
        let open = self.requests.iter().filter(|request| request.is_open(now));
        open.map(|request| request.until).max()
    }
}

impl Request {
    fn is_open(&self, now: Instant) -> bool {
        self.answered_at.is_none_or(|at| now.since(at) < NOTED_WITHIN)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    all: BTreeMap<HoldId, Hold>,
    next: u32,
    next_request: u64,
}

impl Holds {
    pub(crate) fn get(&self, hold: HoldId) -> Option<&Hold> {
        self.all.get(&hold)
    }

    pub(crate) fn get_mut(&mut self, hold: HoldId) -> Option<&mut Hold> {
        self.all.get_mut(&hold)
    }

    /// Those that may have votes.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Hold> {
        self.all.values().filter(|hold| hold.state != HoldState::Over)
    }

    /// A client requests a hold.
    pub(crate) fn requested(
        &mut self,
        client: ClientNo,
        lock_id: LockId,
        lock: &Lock,
        acquire: &Acquire,
        slowest_us: u64,
    ) -> HoldNo {
        let number = HoldNo(self.next);
        let hold = self.all.entry(acquire.claim.hold).or_insert_with(|| {
            self.next += 1;
            Hold {
                number,
                client,
                lock_id,
                lock: lock.clone(),
                acquire: acquire.clone(),
                slowest_us,
                state: HoldState::Requested,
                guard: None,
                messages: 0,
                repaired: BTreeSet::new(),
                requests: Vec::new(),
            }
        });
        hold.state = HoldState::Requested;
        hold.number
    }

    /// The client may rely on the hold for the lease, counted from now, if this request succeeds. Returns its number.
    pub(crate) fn begin_request(&mut self, hold: HoldId, lease_ms: u64, now: Instant) -> u64 {
        let (number, lease) = (self.next_request, Duration::from_millis(lease_ms));
        self.next_request += 1;
        if let Some(hold) = self.all.get_mut(&hold) {
            hold.requests.retain(|request| request.is_open(now));
            let until = now + lease.saturating_sub(drift(lease));
            hold.requests.push(Request { number, until, answered_at: None });
        }
        number
    }

    pub(crate) fn end_request(&mut self, hold: HoldId, number: u64, now: Instant) {
        if let Some(hold) = self.all.get_mut(&hold) {
            let mut requests = hold.requests.iter_mut();
            if let Some(request) = requests.find(|request| request.number == number) {
                request.answered_at = Some(now);
            }
            hold.repaired.clear();
        }
    }

    pub(crate) fn answered(&mut self, hold: HoldId, outcome: RequestOutcome) -> Option<HoldNo> {
        let hold = self.all.get_mut(&hold)?;
        hold.state = match outcome {
            RequestOutcome::Granted(fence) => HoldState::Granted(fence),
            RequestOutcome::NotGranted => HoldState::Over,
        };
        Some(hold.number)
    }

    pub(crate) fn ended(&mut self, hold: HoldId) {
        if let Some(hold) = self.all.get_mut(&hold) {
            hold.state = HoldState::Over;
        }
    }

    /// The hold of a new guard: the newest with its token that has no guard yet.
    pub(crate) fn of_guard(
        &mut self,
        client: ClientNo,
        lock: LockId,
        fence: FencingToken,
        guard: GuardId,
    ) -> Option<&Hold> {
        let is_it = |hold: &&mut Hold| {
            let is_of = hold.client == client && hold.lock_id == lock && hold.guard.is_none();
            is_of && hold.state == HoldState::Granted(fence)
        };
        let hold = self.all.values_mut().filter(is_it).max_by_key(|hold| hold.number)?;
        hold.guard = Some(guard);
        Some(hold)
    }
}
