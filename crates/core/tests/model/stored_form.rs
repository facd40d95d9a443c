//! The JSON text of a lock's state, as databases store it.
//!
//! One state for each kind of lock, with every field in use. `LEASEHOLD_BLESS=1` rewrites the file: a difference means
//! that databases written before cannot be read any more.

use crate::workload::{START_US, request, session, watcher};
use leasehold_core::model::{LockState, SessionStatus};
use leasehold_core::{
    Acquire, Claim, Evict, Extend, HoldId, Kind, Liveness, LockMode, Op, OwnValue, Release, ReleaseAction,
    Reserve, Resize,
};
use std::fmt::Write as _;

const STORED: &str = include_str!("stored_form.txt");

#[test]
fn a_stored_state_is_written_and_read_as_before() {
    let mut written = String::new();
    for state in states() {
        let text = serde_json::to_string(&state).expect("plain data");
        assert_eq!(serde_json::from_str::<LockState>(&text).ok().as_ref(), Some(&state), "{text}");
        writeln!(written, "{text}").expect("a string takes everything");
    }
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model/stored_form.txt");
        std::fs::write(path, &written).expect("the file can be written");
        return;
    }
    assert_eq!(written, STORED);
}

fn states() -> [LockState; 9] {
    [
        mutex(),
        mutex_in_cooldown(),
        reentrant(),
        state(Kind::Election, &[LockMode::Exclusive, LockMode::Exclusive]),
        semaphore(),
        state(Kind::RwLock, &[LockMode::Upgradable, LockMode::Read, LockMode::Write, LockMode::Upgrade]),
        state(
            Kind::Latch,
            &[
                LockMode::LatchWait { total: 5 },
                LockMode::CountDown { count: 2, total: 5 },
                LockMode::LatchWait { total: 5 },
            ],
        ),
        state(Kind::Barrier, &[LockMode::BarrierWait { total: 3 }, LockMode::BarrierWait { total: 3 }]),
        state(Kind::RwLock, &[LockMode::Write, LockMode::Read]),
    ]
}

fn claim(kind: Kind, n: u8) -> Claim {
    let owner = if kind == Kind::Reentrant { 0 } else { n.min(3) % 3 };
    let value = if kind.has_owners() { OwnValue::new(format!("owner {owner}")).ok() } else { None };
    Claim { hold: HoldId::from_random(session(n), [n; 16]), value }
}

fn acquire_request(kind: Kind, n: u8, mode: LockMode) -> Acquire {
    let liveness = if n == 1 { Liveness::Lease } else { Liveness::Session { alive_ms: 10_000 } };
    Acquire { liveness, mode, ..request(claim(kind, n), 30_000, Some((n.into(), 21_000)), None) }
}

/// Executes these operations, a millisecond apart. Session 9 is dead.
fn execute(state: &mut LockState, ops: Vec<Op>) {
    let alive = |who| if who == session(9) { SessionStatus::Lapsed } else { SessionStatus::Alive(10_000) };
    for (n, op) in (1..).zip(ops) {
        state.apply(START_US + n * 1_000, &op, &alive);
    }
}

/// A lock that is requested in these modes, one after the other.
fn state(kind: Kind, modes: &[LockMode]) -> LockState {
    let mut state = LockState::new(kind);
    let requests = (0..).zip(modes).map(|(n, mode)| Op::Acquire(acquire_request(kind, n, *mode)));
    execute(&mut state, requests.collect());
    state
}

/// A hold with reserved tokens, an evicted and a released hold, and two waiters.
fn mutex() -> LockState {
    let mut state = LockState::new(Kind::Mutex);
    let acquire = |n| Op::Acquire(acquire_request(Kind::Mutex, n, LockMode::Exclusive));
    let release = |n| {
        let claim = claim(Kind::Mutex, n);
        Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 })
    };
    let reserve = Some(Reserve { tokens: 32, notify_wanted: true });
    let extend =
        Extend { claim: claim(Kind::Mutex, 2), lease_ms: 60_000, keep_record: true, reserve, fence: None };
    let evict = Op::Evict(Evict { session: session(9), actor: watcher() });
    execute(
        &mut state,
        vec![
            acquire(9),
            evict,
            acquire(0),
            acquire(2),
            acquire(1),
            acquire(3),
            release(0),
            Op::Extend(extend),
        ],
    );
    state
}

fn mutex_in_cooldown() -> LockState {
    let mut state = LockState::new(Kind::Mutex);
    let value = OwnValue::new("mine").ok();
    let acquire = acquire_request(Kind::Mutex, 0, LockMode::Exclusive);
    let claim = Claim { value, ..acquire.claim.clone() };
    let release = Release {
        claim: claim.clone(),
        action: ReleaseAction::Cooldown { for_ms: 60_000 },
        next: None,
        history: 0,
    };
    execute(&mut state, vec![Op::Acquire(Acquire { claim, ..acquire }), Op::Release(release)]);
    state
}

/// Two holds of one owner.
fn reentrant() -> LockState {
    let mut state = LockState::new(Kind::Reentrant);
    let acquire = |n| Op::Acquire(acquire_request(Kind::Reentrant, n, LockMode::Exclusive));
    execute(&mut state, vec![acquire(0), acquire(1)]);
    state
}

/// A resized semaphore with two holds, one of them evicted, and a waiter.
fn semaphore() -> LockState {
    let mut state = LockState::new(Kind::Semaphore);
    let acquire =
        |n, count| Op::Acquire(acquire_request(Kind::Semaphore, n, LockMode::Permits { count, total: 3 }));
    execute(
        &mut state,
        vec![
            acquire(9, 1),
            acquire(1, 2),
            Op::Evict(Evict { session: session(9), actor: watcher() }),
            acquire(2, 3),
            Op::Resize(Resize { observed: Some(3), limit: 4, agreed: false }),
        ],
    );
    state
}
