//! The behaviour of the scripts against the model: random sequences, and edge cases.

use crate::fixture::Fixture;
use crate::sequence::Sequence;
use leasehold_core::model::SharedHold;
use leasehold_core::{
    Acquire, Acquired, Claim, ClassStatistics, Enqueue, Evict, Extend, Extended, FencingToken, ForceRelease,
    Inspect, Kind, Label, Liveness, LockMode, MergeStatistics, ObservedHolder, OwnValue, Refused, Release,
    ReleaseAction, Reserve, SessionId, TimeHistogram, TokenBlock,
};
use leasehold_store::{Op, Outcome, Reply, SessionOp};
use leasehold_testkit::{Random, share_of_seeds};
use std::collections::BTreeMap;
use std::env;

/// `cargo xtask verify scripts` runs 10 000 of each kind.
const SEQUENCES: u64 = 4_000;
/// For each of the four kinds with several holders: their scripts are the same text, except for the last word of
/// some replies.
const SEQUENCES_SHARED: u64 = 1_000;

#[test]
fn the_scripts_of_a_mutex_mean_what_the_model_means() {
    let seen = [
        "adopted",
        "foreign fingerprint",
        "left in cooldown",
        "found in cooldown",
        "another string",
        "a whole block",
        "some tokens reserved",
        "one token reserved",
        "nothing reserved",
        "reserved while others wait",
        "given beyond a block",
        "sent with others",
        "notified: waiter",
        "notified: free",
        "raised",
        "not raised",
    ];
    means_what_the_model_means(Kind::Mutex, &seen);
}

#[test]
fn the_scripts_of_an_election_mean_what_the_model_means() {
    let seen = [
        "adopted",
        "left in cooldown",
        "found in cooldown",
        "another string",
        "published leader",
        "proclaimed",
        "proclaims another value",
        "does not lead",
    ];
    means_what_the_model_means(Kind::Election, &seen);
}

#[test]
fn the_scripts_of_a_reentrant_mutex_mean_what_the_model_means() {
    let seen = [
        "adopted",
        "foreign fingerprint",
        "entered again",
        "entered after a foreign client",
        "a fork's hold",
        "released, and held yet",
        "extended one of several",
        "entries that are over",
        "dropped entries that are over",
        "a foreign client entered",
        "a foreign client left",
        "fewer than ours",
        "evicted one of several",
        "warned several",
        "published free",
        "raised",
        "not raised",
        "other kind",
    ];
    means_what_the_model_means(Kind::Reentrant, &seen);
}

#[test]
fn the_scripts_of_a_semaphore_mean_what_the_model_means() {
    let seen = [
        "others to watch",
        "out of range",
        "resized",
        "resized, and let in",
        "not resized",
        "several woken",
        "gave permits back",
        "gave permits back, and let in",
        "kept all permits",
    ];
    means_what_the_model_means(Kind::Semaphore, &[&SHARED[..], &seen].concat());
}

#[test]
fn the_scripts_of_an_rwlock_mean_what_the_model_means() {
    let seen = [
        "others to watch",
        "several woken",
        "written",
        "written again",
        "written again past a waiter",
        "upgraded",
        "read upgradably",
        "would deadlock",
        "nothing to upgrade",
        "let in while others wait",
        "before the first",
    ];
    means_what_the_model_means(Kind::RwLock, &[&SHARED[..], &seen].concat());
}

#[test]
fn the_scripts_of_a_latch_mean_what_the_model_means() {
    let seen =
        ["several woken", "arrived", "passed", "let in while others wait", "out of range", "disagreed"];
    means_what_the_model_means(Kind::Latch, &[&SHARED[..], &seen].concat());
}

#[test]
fn the_scripts_of_a_barrier_mean_what_the_model_means() {
    let seen = ["out of range", "disagreed", "let in while others wait"];
    means_what_the_model_means(Kind::Barrier, &[&SHARED[..], &seen].concat());
}

/// Cases that all kinds with several holders have.
const SHARED: [&str; 5] = [
    "shared",
    "parts that are over",
    "dropped parts that are over",
    "extended one of several",
    "evicted one of several",
];

/// Runs random sequences, and checks that all possible cases occurred, including those of this kind alone.
fn means_what_the_model_means(kind: Kind, of_this_kind: &[&str]) {
    if let Some(seed) = number("LEASEHOLD_SEED") {
        return Fixture::new().sequence(kind, seed);
    }
    let all = if kind.is_shared() { SEQUENCES_SHARED } else { SEQUENCES };
    let sequences = number("LEASEHOLD_SEQUENCES").unwrap_or(all);
    // Shared holds are evicted less often.
    let rarer = if kind.is_shared() { 5 } else { 1 };
    let seeds = share_of_seeds(sequences);
    let halves = [0, 1].map(|half| {
        let own: Vec<u64> = seeds.iter().copied().skip(half).step_by(2).collect();
        std::thread::spawn(move || {
            let mut fixture = Fixture::new();
            for seed in own {
                fixture.sequence(kind, seed);
            }
            fixture.seen
        })
    });
    let mut seen = BTreeMap::new();
    for half in halves {
        let half = half.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        for (what, times) in half {
            *seen.entry(what).or_insert(0) += times;
        }
    }
    let own = u64::try_from(seeds.len()).unwrap();
    println!("{own} sequences of a {}: {seen:?}", kind.as_str());
    // A generator that reached no interesting state would agree with any script.
    for (what, seldom) in [
        "granted",
        "taken",
        "already ended",
        "woken",
        "held",
        "queued",
        "released",
        "vanished",
        "superseded",
        "forgotten",
        "extended",
        "extended together",
        "not held",
        "wrong kind",
        "next granted",
        "next taken",
        "ahead",
        "predecessor and its liveness",
        "the dead ahead buried",
        "evicted a hold",
        "evicted a queue entry",
        "nothing to evict",
        "not evicted",
        "force released",
        "not force released",
        "warned",
        "found force released",
        "audit",
        "history",
        "begun",
        "beaten",
        "lapsed",
        "ended",
        "listed alive",
        "listed dead",
        "listed a lock",
    ]
    .iter()
    .map(|what| (what, 100 * rarer))
    .chain(of_this_kind.iter().chain(&["found evicted"]).map(|what| (what, 500 * rarer)))
    {
        let times = seen.get(what).copied().unwrap_or(0);
        assert!(own < 1_000.min(all / 2) || times >= own / seldom, "`{what}` came {times} times only");
    }
}

#[test]
pub(crate) fn a_token_of_sixteen_digits_stays_exact() {
    let mut fixture = Fixture::new();
    let mut sequence = fixture.begin(Kind::Mutex, 0);
    for _ in 0..3 {
        let claim = sequence.workload.fresh_claim(0);
        let reply = sequence.check(&acquire(&claim, 1000, None));
        let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("{reply:?}") };
        let last = sequence.field("last");
        assert_eq!(last, fence.to_string());
        assert_eq!(last.len(), 16, "{last}");
        sequence.check(&release(&claim));
    }
}

#[test]
pub(crate) fn the_greatest_token_is_not_passed() {
    let mut fixture = Fixture::new();
    let mut sequence = fixture.begin(Kind::Mutex, 0);
    let claim = sequence.workload.fresh_claim(0);
    sequence.check(&acquire(&claim, 1000, None));
    sequence.check(&release(&claim));
    for last in [FencingToken::MAX.as_u64() - 1, FencingToken::MAX.as_u64()] {
        sequence.set_last(last);
        let claim = sequence.workload.fresh_claim(0);
        let reply = sequence.check(&acquire(&claim, 1000, None));
        let greatest = matches!(reply, Reply::Acquire(Acquired::Granted { fence: FencingToken::MAX, .. }));
        assert!(greatest, "{reply:?}");
        sequence.check(&reserve(&claim, TokenBlock::MAX_LEN));
        sequence.check(&release(&claim));
    }
}

/// The last token of a block is not ahead of the clock, none is from long ago, and the next token granted is
/// greater.
#[test]
pub(crate) fn what_is_reserved_never_outruns_the_clock() {
    let mut fixture = Fixture::new();
    let mut sequence = fixture.begin(Kind::Mutex, 0);
    let claim = sequence.workload.fresh_claim(0);
    sequence.check(&acquire(&claim, 10_000, None));
    for (by_us, tokens, expected) in [
        (0, TokenBlock::MAX_LEN, TokenBlock::MAX_AHEAD - 1),
        (0, TokenBlock::MAX_LEN, 1),
        (20, TokenBlock::MAX_LEN, 19),
        (300, TokenBlock::MAX_LEN, 300),
        (5_000, 7, 7),
        (1, TokenBlock::MAX_LEN, TokenBlock::MAX_LEN - 6),
        (-5_000, 9, 1),
        (1_000, TokenBlock::MAX_LEN, 1),
        (60_000, TokenBlock::MAX_LEN, TokenBlock::MAX_LEN),
    ] {
        sequence.step_us(by_us);
        let reply = sequence.check(&reserve(&claim, tokens));
        let Reply::Extend(Extended::Reserved { block, .. }) = reply else { panic!("{reply:?}") };
        assert_eq!(block.remaining(), expected, "{by_us} us later");
        assert_eq!(sequence.field("reserved").len(), 16, "sixteen digits stay exact");
    }
    let reserved = sequence.field("reserved");
    sequence.check(&release(&claim));
    let next = sequence.workload.fresh_claim(1);
    sequence.check(&acquire(&next, 1_000, None));
    assert!(sequence.field("last") > reserved);
}

/// Failure row 33.
#[test]
fn scripts_flushed_between_all_calls_are_loaded_again() {
    let mut fixture = Fixture::new();
    fixture.flush_scripts = true;
    for kind in Kind::EXCLUSIVE {
        (0..40).for_each(|seed| fixture.sequence(kind, seed));
    }
}

/// A token that was reserved is not granted at the very microsecond that it stands for, by a call of its own and by one with
/// others.
#[test]
pub(crate) fn a_reserved_token_is_not_granted_at_its_own_instant() {
    let mut fixture = Fixture::new();
    for seed in 0..16 {
        let mut sequence = fixture.begin(Kind::Mutex, seed);
        sequence.step_us(1_000 - sequence.fixture.now_us.cast_signed() % 1_000);
        let claim = sequence.workload.fresh_claim(0);
        sequence.check(&acquire(&claim, 1, None));
        // The last microseconds of the lease: what is reserved stands for the first ones after it.
        sequence.step_us(1_984);
        let Op::Extend(extend) = reserve(&claim, TokenBlock::MAX_LEN) else { panic!("an extend") };
        sequence.check(&Op::Extend(Extend { lease_ms: 0, ..extend }));
        let reserved: u64 = sequence.field("reserved").parse().expect("a token");
        let by_us = reserved.cast_signed() - sequence.fixture.now_us.cast_signed();
        sequence.step_us(by_us);
        let next = sequence.workload.fresh_claim(1);
        let reply = sequence.check(&acquire(&next, 1_000, None));
        let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("{reply:?}") };
        assert_eq!(fence.as_u64(), reserved + 1);
    }
}

/// A record lasts as long as a hold of any length needs it, by a call of its own and by one with others.
#[test]
pub(crate) fn a_lease_of_each_length_keeps_the_record() {
    let mut fixture = Fixture::new();
    for seed in 0..8 {
        for lease_ms in [1, 99_999, 100_000, 999_999, 1_000_000, 10_000_000] {
            let mut sequence = fixture.begin(Kind::Mutex, seed * 100 + lease_ms);
            let claim = sequence.workload.fresh_claim(0);
            sequence.check(&acquire(&claim, 1, None));
            sequence.step_us(3_000);
            let next = sequence.workload.fresh_claim(1);
            sequence.check(&acquire(&next, lease_ms, None));
        }
    }
}

/// A session's record of another format is an error of an eviction, and an acquire does not evict.
#[test]
pub(crate) fn a_damaged_session_is_refused() {
    let mut fixture = Fixture::new();
    for kind in [Kind::Mutex, Kind::Reentrant, Kind::Election, Kind::Semaphore] {
        let mut sequence = fixture.begin(kind, 0);
        let claim = sequence.workload.fresh_claim(0);
        let mode = match kind {
            Kind::Semaphore => LockMode::Permits { count: 1, total: 1 },
            _ => LockMode::Exclusive,
        };
        let request = |claim: Claim, predecessor| {
            let Op::Acquire(request) = acquire(&claim, 1_000, None) else { panic!("an acquire") };
            Op::Acquire(Acquire { predecessor, mode, ..request })
        };
        sequence.check(&request(claim.clone(), None));
        let session = claim.hold.session();
        let record = sequence.fixture.keys.session(session);
        sequence.raw(&["HSET", &record, "format", "2", "until", "9000000000000"]);
        let next = request(sequence.workload.fresh_claim(1), Some(session));
        let outcome = sequence.outcome(&next);
        let Outcome::Done(Reply::Acquire(Acquired::Taken { predecessor: Some(ahead), .. })) = &outcome else {
            panic!("a {}: {outcome:?}", kind.as_str())
        };
        assert_eq!(ahead.alive_ms, None, "what cannot be read says nothing");
        let outcome = sequence.outcome(&Op::Evict(Evict { session, actor: Label::new("test").unwrap() }));
        let is_refused =
            matches!(&outcome, Outcome::Done(Reply::Refused(Refused::Format { found })) if found == "2");
        assert!(is_refused, "a {}: {outcome:?}", kind.as_str());
        let keys = [vec!["DEL".to_owned()], sequence.all_keys()].concat();
        sequence.raw(&keys);
    }
}

#[test]
pub(crate) fn a_long_dead_queue_is_skipped_over_several_polls() {
    let mut fixture = Fixture::new();
    let mut sequence = fixture.begin(Kind::Mutex, 0);
    let holder = sequence.workload.fresh_claim(0);
    sequence.check(&acquire(&holder, 10_000, None));
    for session in 1..=150 {
        let waiter = sequence.workload.fresh_claim(session);
        let queue = Enqueue { nonce: sequence.workload.nonce(), ttl_ms: 100 };
        sequence.check(&acquire(&waiter, 1000, Some(queue)));
    }
    sequence.step_us(101_000);
    sequence.check(&release(&holder));
    for _ in 0..3 {
        let claim = sequence.workload.fresh_claim(0);
        let queue = Enqueue { nonce: sequence.workload.nonce(), ttl_ms: 100 };
        sequence.check(&acquire(&claim, 1000, Some(queue)));
    }
}

/// More holders than a script visits, of which many expire or die at once.
#[test]
pub(crate) fn many_holders_are_visited_in_bounded_steps() {
    for kind in [Kind::Semaphore, Kind::RwLock, Kind::Latch] {
        let mut fixture = Fixture::new();
        for seed in 0..number("LEASEHOLD_SEQUENCES").map_or(12, |all| all.div_ceil(100)) {
            let mut sequence = fixture.begin(kind, seed);
            let mut expired_at_once = 0;
            for n in 0..220 {
                let op = acquire_beside(&mut sequence, n, false);
                sequence.check(&op);
            }
            sequence.step_us(1_200_000);
            for _ in 0..120 {
                let by_us = *sequence.workload.random().pick(&[0, 0, 0, 1_000, 40_000, 900_000]);
                sequence.step_us(by_us);
                expired_at_once = expired_at_once.max(expired(&sequence));
                let op = op_beside(&mut sequence);
                sequence.check(&op);
            }
            assert!(expired_at_once > 64, "{expired_at_once} holds are visited by one script");
            sequence.step_us(3_600_000_000 * 24 * 3);
            sequence.check(&Op::Inspect(Inspect { claim: None, details: true }));
        }
    }
}

/// The holds that have expired, and are not dropped.
fn expired(sequence: &Sequence<'_>) -> usize {
    let now_ms = sequence.fixture.now_us / 1000;
    held(sequence).iter().filter(|hold| hold.until_ms < now_ms).count()
}

fn held(sequence: &Sequence<'_>) -> Vec<SharedHold> {
    let holders = sequence.state.value.as_ref().and_then(|value| value.content.shared_holders());
    holders.map(|holders| holders.holds.clone()).unwrap_or_default()
}

/// An acquire by one of ten sessions, and for an RwLock of one of 40 owners.
fn acquire_beside(sequence: &mut Sequence<'_>, n: u8, may_wait: bool) -> Op {
    let kind = sequence.lock.kind;
    let mut claim = sequence.workload.fresh_claim(n % 10);
    let nonce = sequence.workload.nonce();
    let random = sequence.workload.random();
    if kind == Kind::RwLock {
        claim.value = OwnValue::new(format!("owner {}", random.below(40))).ok();
    }
    let mode = match kind {
        Kind::Semaphore => LockMode::Permits { count: *random.pick(&[1, 1, 2]), total: 300 },
        Kind::Latch => {
            let total = if may_wait { *random.pick(&[150, 150, 150, 7]) } else { 150 };
            match random.below(4) {
                0 if may_wait => LockMode::LatchWait { total },
                _ => LockMode::CountDown { count: 1, total },
            }
        }
        _ if may_wait => {
            *random.pick(&[LockMode::Read, LockMode::Write, LockMode::Upgrade, LockMode::Upgradable])
        }
        _ => LockMode::Read,
    };
    let liveness = *random.pick(&[
        Liveness::Lease,
        Liveness::Session { alive_ms: 200 },
        Liveness::Session { alive_ms: 60_000 },
    ]);
    Op::Acquire(Acquire {
        claim,
        lease_ms: *random.pick(&[30, 100, 1_000, 1_000, 20_000, 60_000]),
        label: Label::new("test").unwrap(),
        queue: (random.below(2) == 0).then_some(Enqueue { nonce, ttl_ms: 3_000 }),
        expire_foreign_ms: None,
        liveness,
        predecessor: (random.below(3) == 0)
            .then(|| SessionId::from_random([u8::try_from(random.below(10)).unwrap(); 12])),
        mode,
    })
}

fn op_beside(sequence: &mut Sequence<'_>) -> Op {
    let holds = held(sequence);
    let random = sequence.workload.random();
    let hold = (!holds.is_empty()).then(|| random.pick(&holds).clone());
    let actor = Label::new("test").unwrap();
    match (random.below(10), hold) {
        (0 | 1, Some(hold)) => {
            let claim = Claim { hold: hold.hold, value: hold.owner };
            Op::Extend(Extend { claim, lease_ms: 5_000, keep_record: false, reserve: None, fence: None })
        }
        (2 | 3, Some(hold)) => release(&Claim { hold: hold.hold, value: hold.owner }),
        (4, Some(hold)) => {
            Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(hold.fence), actor })
        }
        (5, _) => Op::Evict(Evict {
            session: SessionId::from_random([u8::try_from(random.below(10)).unwrap(); 12]),
            actor,
        }),
        (6, Some(hold)) => {
            // Again, by a hold that may have expired.
            let mut op = acquire_beside(sequence, 0, true);
            if let Op::Acquire(request) = &mut op {
                request.claim = Claim { hold: hold.hold, value: hold.owner };
                request.mode = hold.mode;
            }
            op
        }
        _ => acquire_beside(sequence, 3, true),
    }
}

#[test]
pub(crate) fn texts_of_users_are_texts() {
    let mut fixture = Fixture::new();
    let mut sequence = fixture.begin(Kind::Mutex, 0);
    for text in ["a b", "%d%s%%", "'\"\\", "]] .. redis.call('FLUSHALL') .. [[", "é…", "(.*)", ""] {
        let label = Label::new(text).unwrap();
        let mut holder = sequence.workload.fresh_claim(0);
        holder.value = OwnValue::new(text).ok();
        let waiter = sequence.workload.fresh_claim(1);
        let nonce = sequence.workload.nonce();
        let ask = |claim: &Claim| {
            let (claim, label) = (claim.clone(), label.clone());
            let queue = Some(Enqueue { nonce, ttl_ms: 1000 });
            Op::Acquire(Acquire {
                claim,
                lease_ms: 1000,
                label,
                queue,
                expire_foreign_ms: None,
                liveness: Liveness::Session { alive_ms: 10_000 },
                predecessor: None,
                mode: LockMode::Exclusive,
            })
        };
        sequence.check(&ask(&holder));
        sequence.check(&ask(&waiter));
        sequence.check(&release(&holder));
        sequence.check(&Op::Inspect(Inspect { claim: Some(waiter.clone()), details: false }));
        sequence.check(&release(&waiter));
    }
}

/// Random merges, until the classes are too many, and until the statistics begin anew.
#[test]
pub(crate) fn the_scripts_of_statistics_mean_what_the_model_means() {
    let mut fixture = Fixture::new();
    fixture.flush_scripts = true;
    let mut sequence = fixture.begin(Kind::Mutex, 0);
    let (mut expired, mut most) = (0, 0);
    for n in 0..400_u64 {
        let random = sequence.workload.random();
        let times = |random: &Random| {
            let mut histogram = TimeHistogram::default();
            for _ in 0..random.below(4) {
                let count = *random.pick(&[1, 2, 1_000, (1 << 53) - 1, u64::MAX]);
                histogram.add(*random.pick(&[0, 1, 57, 58, 216]), count);
            }
            histogram
        };
        let number = |random: &Random| *random.pick(&[0, 0, 1, 7, (1 << 53) - 2, u64::MAX]);
        let mut classes = Vec::new();
        for _ in 0..=random.below(3) {
            let class = random.pick(&["jobs", "orders/*", "other", "%d = (.*)\t'", "", "new"]);
            let class =
                if *class == "new" { format!("class {}", random.below(260)) } else { (*class).to_owned() };
            let counted = ClassStatistics {
                holds: times(random),
                waits: times(random),
                taken: number(random),
                refused: number(random),
                losses: number(random),
                longest_hold_us: number(random),
                longest_wait_us: number(random),
                ..ClassStatistics::default()
            };
            classes.push((class, *random.pick(&[0, 1, 10_000, u64::MAX]), counted));
        }
        // Enough classes for the limit, in some periods.
        if n % 100 == 50 {
            classes.extend((0..210).map(|n| (format!("class {n}"), 0, ClassStatistics::default())));
        }
        let step_us = *random.pick(&[0, 999, 1_000, 10_000_000, 3_600_000_000]);
        let before = sequence.sessions.statistics.expires_ms;
        sequence.execute_session(&SessionOp::MergeStatistics(MergeStatistics { classes }));
        let table = &sequence.sessions.statistics;
        expired += u64::from(before != 0 && before != table.expires_ms);
        most = most.max(table.classes.len());
        let key = sequence.fixture.keys.statistics(None);
        let ttl = sequence.raw(&["PTTL", &key]).integer().expect("a number");
        let expires_ms = sequence.fixture.now_us.cast_signed() / 1000 + ttl;
        assert_eq!(expires_ms, sequence.sessions.statistics.expires_ms.cast_signed(), "when they end");
        sequence.execute_session(&SessionOp::ListStatistics);
        sequence.step_us(step_us);
        if n % 100 == 99 {
            let to_end_us = (sequence.sessions.statistics.expires_ms * 1000) - sequence.fixture.now_us;
            // In the last millisecond they are still there, and in the next one they are not.
            sequence.step_us(to_end_us.cast_signed());
            sequence.execute_session(&SessionOp::ListStatistics);
            sequence.step_us(1_000);
            sequence.execute_session(&SessionOp::ListStatistics);
        }
    }
    assert!(expired >= 3 && most == 201, "{expired} times anew, {most} classes");
}

fn acquire(claim: &Claim, lease_ms: u64, queue: Option<Enqueue>) -> Op {
    let label = Label::new("test").unwrap();
    Op::Acquire(Acquire {
        claim: claim.clone(),
        lease_ms,
        label,
        queue,
        expire_foreign_ms: None,
        liveness: Liveness::Session { alive_ms: 10_000 },
        predecessor: None,
        mode: LockMode::Exclusive,
    })
}

fn reserve(claim: &Claim, tokens: u32) -> Op {
    let reserve = Some(Reserve { tokens, notify_wanted: false });
    Op::Extend(Extend { claim: claim.clone(), lease_ms: 1, keep_record: false, reserve, fence: None })
}

fn release(claim: &Claim) -> Op {
    Op::Release(Release { claim: claim.clone(), action: ReleaseAction::Grant, next: None, history: 0 })
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}
