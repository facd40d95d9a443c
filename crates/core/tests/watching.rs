//! How a waiter for several holders finds the dead ones among them: the contender, with the model as its
//! store.
//!
//! Sessions send a heartbeat every two and a half seconds, no two at the same time, and live for ten seconds
//! without one. The waiter needs everything that the others hold, so it is admitted when the last of them is
//! gone.

use leasehold_core::machine::contender::{AcquireTerms, Contender, ContenderAction};
use leasehold_core::model::{LockState, SessionStatus, all_alive};
use leasehold_core::{
    Acquire, Acquired, Claim, HoldId, Kind, Label, Liveness, LockMode, Moment, Op, Predecessor, Reply,
    SessionId,
};
use std::collections::BTreeMap;
use std::time::Duration;

const LIVES_MS: u64 = 10_000;
const BEATS_MS: u64 = 2_500;
const HOUR_MS: u64 = 3_600_000;
/// The round-trip time of a request.
const ROUND_TRIP_MS: u64 = 1;

/// A lock with several holders, and one waiter for all of them.
struct Fixture {
    lock: LockState,
    now_ms: u64,
    /// When a session stopped its heartbeat.
    died: BTreeMap<u8, u64>,
    contender: Contender,
    terms: AcquireTerms,
    /// When the waiter sent requests.
    asked: Vec<u64>,
    /// When each of the dead sessions was gone.
    gone: BTreeMap<u8, u64>,
    drawn: u64,
}

fn session(n: u8) -> SessionId {
    SessionId::from_random([n; 12])
}

fn terms(mode: LockMode) -> AcquireTerms {
    AcquireTerms {
        lease: Duration::from_secs(60),
        label: Label::new("waiter").expect("a plain text"),
        value: None,
        expire_foreign: None,
        liveness: Liveness::Session { alive_ms: LIVES_MS },
        queue: true,
        poll_often: false,
        margin: Duration::ZERO,
        history: 0,
        fresh_hold: false,
        mode,
    }
}

/// The last heartbeat before `now_ms` of a session that is alive.
fn last_beat(n: u8, now_ms: u64) -> u64 {
    let phase = u64::from(n) * 157 % BEATS_MS;
    ((now_ms + BEATS_MS - phase) / BEATS_MS * BEATS_MS + phase).saturating_sub(BEATS_MS)
}

impl Fixture {
    /// A semaphore of which each of `holders` sessions holds a permit for a day.
    fn of(holders: u8) -> Self {
        let total = u32::from(holders);
        let mut lock = LockState::new(Kind::Semaphore);
        let now_ms = HOUR_MS;
        for n in 0..holders {
            let request = Acquire {
                claim: Claim::new(HoldId::from_random(session(n), [n; 16])),
                lease_ms: 24 * HOUR_MS,
                label: Label::new("holder").expect("a plain text"),
                queue: None,
                expire_foreign_ms: None,
                liveness: Liveness::Session { alive_ms: LIVES_MS },
                predecessor: None,
                mode: LockMode::Permits { count: 1, total },
            };
            lock.apply(now_ms * 1000, &Op::Acquire(request), &all_alive);
        }
        let terms = terms(LockMode::Permits { count: total, total });
        let (died, gone, asked) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let contender = Contender::new(session(250), 0);
        Self { lock, now_ms, died, contender, terms, asked, gone, drawn: 7 }
    }

    /// Continues for that long. Returns whether the waiter was admitted.
    fn go_on(&mut self, for_ms: u64) -> bool {
        let end_ms = self.now_ms + for_ms;
        while self.now_ms < end_ms {
            // Spread over the whole range, and the same in every run.
            let drawn = &mut self.drawn;
            let mut random = move || {
                *drawn =
                    drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *drawn
            };
            let now = Moment::from_micros(self.now_ms * 1000);
            match self.contender.poll(now, &self.terms, &mut random) {
                ContenderAction::Granted(_) => return true,
                ContenderAction::LeaseTooShort => panic!("an answer takes a millisecond"),
                ContenderAction::Undo(_) => panic!("it keeps its hold"),
                ContenderAction::Sleep(until) => {
                    self.now_ms = until.as_micros().div_ceil(1000).max(self.now_ms + 1).min(end_ms);
                }
                ContenderAction::Send(nonce, request) => {
                    let reply = answer(&mut self.lock, &self.died, self.now_ms, request);
                    self.asked.push(self.now_ms);
                    self.now_ms += ROUND_TRIP_MS;
                    let now = Moment::from_micros(self.now_ms * 1000);
                    self.contender.handle_reply(nonce, &reply, now, &mut random);
                    self.note_removed();
                }
            }
        }
        false
    }

    fn note_removed(&mut self) {
        let parts = self.lock.value.as_ref().and_then(|value| value.content.shared_holders());
        let there = |n: u8| {
            parts.is_some_and(|parts| parts.holds.iter().any(|part| part.hold.session() == session(n)))
        };
        for n in self.died.keys().filter(|n| !there(**n)) {
            self.gone.entry(*n).or_insert(self.now_ms);
        }
    }

    /// How long after the lapse of its session a holder was gone, in milliseconds.
    fn noticed_after(&self, n: u8) -> u64 {
        let gone_ms = *self.gone.get(&n).unwrap_or_else(|| panic!("{n} was never found dead"));
        gone_ms - (last_beat(n, self.died[&n]) + LIVES_MS)
    }

    /// The highest rate of requests per second over any five seconds.
    fn busiest(&self) -> u64 {
        let within = |from: &u64| self.asked.iter().filter(|at| **at >= *from && **at < from + 5_000).count();
        self.asked.iter().map(within).max().unwrap_or_default() as u64 / 5
    }
}

fn answer(lock: &mut LockState, died: &BTreeMap<u8, u64>, now_ms: u64, request: Acquire) -> Acquired {
    let alive = |who: SessionId| {
        let n = (0..250).find(|n| session(*n) == who);
        let Some(n) = n else { return SessionStatus::Alive(LIVES_MS) };
        let beat = last_beat(n, died.get(&n).map_or(now_ms, |died| *died.min(&now_ms)));
        (beat + LIVES_MS).checked_sub(now_ms).map_or(SessionStatus::Lapsed, SessionStatus::Alive)
    };
    match lock.apply(now_ms * 1000, &Op::Acquire(request), &alive).0 {
        Reply::Acquire(acquired) => acquired,
        other => panic!("to an acquire: {other:?}"),
    }
}

/// Each death is noticed within a second of its lapse, whichever session dies while the others live, and the
/// waiter sends few requests.
#[test]
fn each_of_sixteen_holders_is_found_dead_within_a_second() {
    let mut fixture = Fixture::of(16);
    assert!(!fixture.go_on(30_000));
    for n in [7, 0, 15, 3, 8] {
        fixture.died.insert(n, fixture.now_ms);
        assert!(!fixture.go_on(4_321));
    }
    fixture.go_on(20_000);
    for n in [7, 0, 15, 3, 8] {
        assert!(fixture.noticed_after(n) <= 1_000, "{n} only after {} ms", fixture.noticed_after(n));
    }
    assert!(fixture.busiest() <= 5, "{} requests a second", fixture.busiest());
}

/// All of them die while the waiter sleeps: each costs one request, one right after the other once they have
/// lapsed.
#[test]
fn many_sessions_that_died_together_are_cleared_together() {
    let mut fixture = Fixture::of(16);
    assert!(!fixture.go_on(15_000));
    let asked = fixture.asked.len();
    for n in 0..16 {
        fixture.died.insert(n, fixture.now_ms);
    }
    assert!(fixture.go_on(LIVES_MS + 1_000), "it is admitted once all are dead");
    let latest = (0..16).map(|n| fixture.noticed_after(n)).max();
    assert!(latest.is_some_and(|ms| ms <= 1_000), "{latest:?}");
    let questions = fixture.asked.len() - asked;
    assert!(questions <= 16 * 3, "{questions} requests for sixteen of them");
}

/// Sessions that were dead before the waiter came cost one request each.
#[test]
fn many_sessions_dead_from_the_start_are_cleared_at_once() {
    let mut fixture = Fixture::of(40);
    for n in 0..40 {
        fixture.died.insert(n, fixture.now_ms);
    }
    fixture.now_ms += LIVES_MS + BEATS_MS;
    assert!(fixture.go_on(2_000), "{} requests", fixture.asked.len());
    assert!(fixture.asked.len() <= 42, "{} requests", fixture.asked.len());
}

/// If there are more holders than a reply names, each of them is named in turn, so every dead one is found.
#[test]
fn each_of_many_holders_is_checked() {
    let mut fixture = Fixture::of(60);
    assert!(!fixture.go_on(5_000));
    for n in [59, 20, 40] {
        fixture.died.insert(n, fixture.now_ms);
    }
    fixture.go_on(LIVES_MS + 25_000);
    for n in [59, 20, 40] {
        assert!(fixture.noticed_after(n) <= 20_000, "{n} only after {} ms", fixture.noticed_after(n));
    }
    assert!(fixture.busiest() <= 5, "{} requests a second", fixture.busiest());
}

/// Holders that come and go cause no further requests.
#[test]
fn holders_that_leave_alive_cause_no_storm_of_requests() {
    let mut fixture = Fixture::of(30);
    for n in 0..29 {
        fixture.go_on(700);
        let claim = Claim::new(HoldId::from_random(session(n), [n; 16]));
        let release = leasehold_core::Release {
            claim,
            action: leasehold_core::ReleaseAction::Grant,
            next: None,
            history: 0,
        };
        fixture.lock.apply(fixture.now_ms * 1000, &Op::Release(release), &all_alive);
    }
    assert!(fixture.busiest() <= 6, "{} requests a second", fixture.busiest());
}

/// A waiter at a latch or a barrier has no holder in front of it: it polls as seldom as others do, and
/// requests its full lease, because its hold excludes no other client.
#[test]
fn a_waiter_at_a_latch_or_barrier_polls_seldom_and_requests_the_full_lease() {
    for mode in [LockMode::LatchWait { total: 3 }, LockMode::BarrierWait { total: 3 }] {
        let mut random = || 0;
        let mut contender = Contender::new(session(1), 0);
        let (mut now, mut polls) = (Moment::from_micros(0), 0);
        let end = Moment::from_micros(20_000_000);
        while now < end {
            match contender.poll(now, &terms(mode), &mut random) {
                ContenderAction::Send(nonce, request) => {
                    assert_eq!((request.lease_ms, request.predecessor), (60_000, None));
                    polls += 1;
                    let (holder, position, predecessor, other_holders) = (None, Some(0), None, Vec::new());
                    let taken = Acquired::Taken { holder, position, predecessor, other_holders };
                    contender.handle_reply(nonce, &taken, now, &mut random);
                }
                ContenderAction::Sleep(until) => now = until,
                other => panic!("{mode:?}: {other:?}"),
            }
        }
        assert!((20..=26).contains(&polls), "{mode:?}: {polls} polls in twenty seconds");
    }
    for mode in
        [LockMode::CountDown { count: 1, total: 3 }, LockMode::Read, LockMode::Permits { count: 1, total: 3 }]
    {
        let mut contender = Contender::new(session(1), 0);
        let ContenderAction::Send(_, request) =
            contender.poll(Moment::from_micros(0), &terms(mode), &mut || 0)
        else {
            panic!("it sends a request first")
        };
        assert_eq!(request.lease_ms, 3_000, "an orphan of {mode:?} would exclude other clients");
    }
}

/// A hold that was requested for reading does not suit a writer.
#[test]
fn a_request_matches_only_the_mode_that_it_was_made_for() {
    let mut contender = Contender::new(session(1), 0);
    assert!(matches!(
        contender.poll(Moment::from_micros(0), &terms(LockMode::Read), &mut || 0),
        ContenderAction::Send(..)
    ));
    assert!(contender.matches(&terms(LockMode::Read)) && !contender.matches(&terms(LockMode::Write)));
}

/// The waiter remembers the life of one holder while it checks others.
#[test]
fn it_checks_each_holder_before_it_checks_one_again() {
    let mut random = || 0;
    let mut contender = Contender::new(session(200), 0);
    let mut now = Moment::from_micros(0);
    let mut about = Vec::new();
    let all = [1, 2, 3].map(session);
    while about.len() < 4 {
        match contender.poll(now, &terms(LockMode::Write), &mut random) {
            ContenderAction::Send(nonce, request) => {
                let first = request.predecessor.unwrap_or(all[0]);
                about.push(request.predecessor);
                let alive_ms = request.predecessor.map(|_| 600_000);
                let other_holders = all.iter().copied().filter(|session| *session != first).collect();
                let predecessor = Some(Predecessor { session: first, alive_ms });
                let taken = Acquired::Taken { holder: None, position: Some(0), predecessor, other_holders };
                contender.handle_reply(nonce, &taken, now, &mut random);
            }
            ContenderAction::Sleep(until) => now = until,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(about, [None, Some(all[0]), Some(all[1]), Some(all[2])]);
}
