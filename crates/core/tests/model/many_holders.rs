//! Shared locks with more holds than one operation inspects.

use super::workload::{START_US, request, session, watcher};
use leasehold_core::model::{LockState, SessionStatus, all_alive};
use leasehold_core::{
    Acquire, Acquired, Claim, Evict, Evicted, HoldId, Kind, LockMode, Op, OwnValue, Refused, Release,
    ReleaseAction, Reply, SessionId,
};

const INSPECTED: usize = 64;
const SHORT_MS: u64 = 10;
const LONG_MS: u64 = 60_000;

struct Scenario {
    lock: LockState,
    now_us: u64,
}

/// The `n`th hold of a session, with an owner if the kind has owners.
fn claim(kind: Kind, of: u8, n: u8, owner: &str) -> Claim {
    let value = kind.has_owners().then(|| OwnValue::new(owner).expect("a plain text"));
    Claim { hold: HoldId::from_random(session(of), [n; 16]), value }
}

impl Scenario {
    fn new(kind: Kind) -> Self {
        Self { lock: LockState::new(kind), now_us: START_US }
    }

    fn acquire(&mut self, claim: Claim, mode: LockMode, lease_ms: u64) -> Reply {
        let request = Acquire { mode, ..request(claim, lease_ms, None, None) };
        self.now_us += 1;
        self.lock.apply(self.now_us, &Op::Acquire(request), &all_alive).0
    }

    fn granted(&mut self, claim: Claim, mode: LockMode, lease_ms: u64) {
        let reply = self.acquire(claim, mode, lease_ms);
        assert!(matches!(reply, Reply::Acquire(Acquired::Granted { .. })), "{reply:?}");
    }

    /// `count` holds of one owner in one mode that end soon, and one hold of another owner that keeps the key. Then the
    /// first have expired.
    fn with_expired(kind: Kind, count: u8, mode: LockMode) -> Self {
        let mut scenario = Self::new(kind);
        scenario.granted(claim(kind, 0, 0, "other"), mode, LONG_MS);
        for n in 0..count {
            scenario.granted(claim(kind, 1, n, "owner"), mode, SHORT_MS);
        }
        scenario.now_us += 2 * SHORT_MS * 1000;
        scenario
    }

    fn holds(&self) -> usize {
        let shared = self.lock.value.as_ref().and_then(|value| value.content.shared_holders());
        shared.map_or(0, |shared| shared.holds.len())
    }
}

const ONE_PERMIT: LockMode = LockMode::Permits { count: 1, total: 250 };

#[test]
fn an_operation_drops_a_bounded_number_of_expired_holds() {
    let mut scenario = Scenario::with_expired(Kind::Semaphore, 200, ONE_PERMIT);
    for n in 1..=3_usize {
        let own = claim(Kind::Semaphore, 2, u8::try_from(n).expect("a small number"), "");
        scenario.granted(own, ONE_PERMIT, LONG_MS);
        assert_eq!(scenario.holds(), 1 + 200 - n * INSPECTED + n);
    }
    scenario.granted(claim(Kind::Semaphore, 2, 4, ""), ONE_PERMIT, LONG_MS);
    assert_eq!(scenario.holds(), 5, "none of the expired is left");
}

#[test]
fn its_own_expired_hold_is_dropped_wherever_it_is() {
    let mut scenario = Scenario::with_expired(Kind::Semaphore, 200, ONE_PERMIT);
    for n in [0, 100, 199] {
        scenario.granted(claim(Kind::Semaphore, 1, n, ""), ONE_PERMIT, LONG_MS);
    }
}

#[test]
fn expired_holds_that_still_count_open_no_latch() {
    // The first operation leaves more arrivals than the latch waits for.
    let arrival = LockMode::CountDown { count: 1, total: 100 };
    let mut scenario = Scenario::with_expired(Kind::Latch, 200, arrival);
    for n in 0..5 {
        let waits = claim(Kind::Latch, 2, n, "");
        let reply = scenario.acquire(waits, LockMode::LatchWait { total: 100 }, LONG_MS);
        assert!(matches!(reply, Reply::Acquire(Acquired::Taken { .. })), "after {n} others: {reply:?}");
    }
    assert_eq!(scenario.holds(), 1);
}

#[test]
fn no_request_is_refused_for_expired_holds_that_still_count() {
    // Its owner would wait for itself, if its reads had not expired.
    let mut scenario = Scenario::with_expired(Kind::RwLock, 200, LockMode::Read);
    let own = claim(Kind::RwLock, 2, 0, "owner");
    let replies: Vec<_> =
        (0..4).map(|_| scenario.acquire(own.clone(), LockMode::Upgradable, LONG_MS)).collect();
    let [waits @ .., last] = &replies[..] else { panic!("{replies:?}") };
    assert!(waits.iter().all(|reply| matches!(reply, Reply::Acquire(Acquired::Taken { .. }))), "{waits:?}");
    assert!(matches!(last, Reply::Acquire(Acquired::Granted { .. })), "{last:?}");
    // The number differs from that of arrivals which are over.
    let mut scenario = Scenario::with_expired(Kind::Latch, 200, LockMode::CountDown { count: 1, total: 150 });
    let release =
        Release { claim: claim(Kind::Latch, 0, 0, ""), action: ReleaseAction::Grant, next: None, history: 0 };
    scenario.lock.apply(scenario.now_us, &Op::Release(release), &all_alive);
    for n in 0..4 {
        let waits = claim(Kind::Latch, 2, n, "");
        let reply = scenario.acquire(waits, LockMode::LatchWait { total: 7 }, LONG_MS);
        let is_refused = matches!(reply, Reply::Refused(Refused::Disagreement { .. }));
        assert!(!is_refused, "after {n} others");
    }
    assert_eq!(scenario.holds(), 0);
}

#[test]
fn an_eviction_ends_all_holds_of_its_session_and_a_poll_some() {
    let dead = |dead: SessionId| {
        move |of: SessionId| if of == dead { SessionStatus::Lapsed } else { SessionStatus::Alive(LONG_MS) }
    };
    let mut held = Scenario::new(Kind::Semaphore);
    for n in 0..200 {
        held.granted(claim(Kind::Semaphore, 1, n, ""), ONE_PERMIT, LONG_MS);
    }
    held.granted(claim(Kind::Semaphore, 2, 0, ""), ONE_PERMIT, SHORT_MS);
    let before = held.lock.clone();
    let evict = Op::Evict(Evict { session: session(1), actor: watcher() });
    let (reply, _) = held.lock.apply(held.now_us, &evict, &dead(session(1)));
    assert!(matches!(reply, Reply::Evict(Evicted::Removed { fence: Some(_), .. })), "{reply:?}");
    assert_eq!(held.holds(), 1);
    held.lock = before;
    let whole = LockMode::Permits { count: 250, total: 250 };
    let mut poll = Acquire { mode: whole, ..request(claim(Kind::Semaphore, 3, 0, ""), LONG_MS, None, None) };
    poll.predecessor = Some(session(1));
    held.lock.apply(held.now_us, &Op::Acquire(poll), &dead(session(1)));
    assert_eq!(held.holds(), 201 - (INSPECTED - 1), "one of those that it inspects is another session's");
}
