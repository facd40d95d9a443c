//! Which commands each script sends on each of its paths: what a cut-off can come between, and what an operation costs.

use crate::Violation;
use crate::fixture::Fixture;
use crate::keyspace::Keyspace;
use crate::tap::WHOLE;
use leasehold_core::{
    Acquire, Claim, Enqueue, Evict, Extend, FencingToken, ForceRelease, Heartbeat, HoldId, Inspect, Kind,
    Label, Liveness, Lock, LockMode, Nonce, ObservedHolder, Op, OwnValue, Proclaim, RaiseFence, Release,
    ReleaseAction, Reserve, Resize, SessionId, TokenBlock,
};

const START_US: u64 = 1_762_000_000_000_000;

/// Its name, the operations before it, the operation, and the commands that it sends.
type Path = (&'static str, Vec<Op>, Op, &'static str);

#[test]
pub(crate) fn each_path_of_a_mutex_has_its_commands() {
    let paths = acquires().into_iter().chain(releases()).chain(removals()).chain(others());
    have_their_commands(Kind::Mutex, paths);
}

#[test]
pub(crate) fn each_path_of_an_election_has_its_commands() {
    have_their_commands(Kind::Election, elections());
}

#[test]
pub(crate) fn each_path_of_a_reentrant_mutex_has_its_commands() {
    have_their_commands(Kind::Reentrant, entries());
}

#[test]
pub(crate) fn each_path_of_a_semaphore_has_its_commands() {
    have_their_commands(Kind::Semaphore, permits());
}

#[test]
pub(crate) fn each_path_of_an_rwlock_has_its_commands() {
    have_their_commands(Kind::RwLock, readers());
}

#[test]
pub(crate) fn each_path_of_a_latch_has_its_commands() {
    have_their_commands(Kind::Latch, arrivals());
}

#[test]
pub(crate) fn each_path_of_a_barrier_has_its_commands() {
    have_their_commands(Kind::Barrier, meetings());
}

fn have_their_commands(kind: Kind, paths: impl IntoIterator<Item = Path>) {
    let mut fixture = Fixture::new(kind);
    for (name, before, op, expected) in paths {
        let found =
            commands(&mut fixture, &before, &op).unwrap_or_else(|Violation(what)| panic!("{name}: {what}"));
        println!("| {name} | {} | `{found}` |", found.split(' ').count());
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
pub(crate) fn every_heartbeat_has_its_commands() {
    let mut fixture = Fixture::new(Kind::Mutex);
    for (name, before, heartbeat, expected) in heartbeats() {
        fixture.redis.load(Keyspace::default());
        let mut now_us = START_US;
        for heartbeat in before.iter().chain([&heartbeat]) {
            fixture.redis.set_now_us(now_us);
            fixture
                .run_heartbeat(heartbeat, WHOLE)
                .unwrap_or_else(|Violation(what)| panic!("{name}: {what}"));
            now_us += 2_000;
        }
        let found = fixture.redis.executed();
        println!("| {name} | {} | `{found}` |", found.split(' ').count());
        assert_eq!(found, expected, "{name}");
    }
}

fn heartbeats() -> Vec<(&'static str, Vec<Heartbeat>, Heartbeat, &'static str)> {
    let begin = |n: u8| Heartbeat { begin: Some("{}".to_owned()), ..heartbeat(n) };
    let lock = || Lock::mutex("job".parse().expect("a good name"));
    let many = |count: u32| {
        let name = |n: u32| format!("job-{n}").parse().expect("a good name");
        (0..count).map(|n| Lock::mutex(name(n))).collect::<Vec<_>>()
    };
    vec![
        (
            "the first session",
            vec![],
            begin(1),
            "HMGET TIME SET PEXPIRE HSET PEXPIRE PTTL PEXPIRE ZADD PEXPIRE ZREMRANGEBYSCORE",
        ),
        (
            "another session",
            vec![begin(1)],
            begin(2),
            "HMGET TIME SET PEXPIRE HSET PEXPIRE PTTL PEXPIRE ZADD ZREMRANGEBYSCORE",
        ),
        (
            "heartbeat",
            vec![begin(1)],
            heartbeat(1),
            "HMGET TIME PTTL PEXPIRE HSET PTTL PEXPIRE ZADD ZREMRANGEBYSCORE",
        ),
        (
            "heartbeat that reports locks",
            vec![begin(1)],
            Heartbeat { acquired: vec![lock()], released: vec![lock()], ..heartbeat(1) },
            "HMGET TIME PTTL PEXPIRE HSET HDEL HSET PTTL PEXPIRE ZADD ZREMRANGEBYSCORE",
        ),
        (
            "heartbeat that reports an activity",
            vec![begin(1)],
            Heartbeat { activity: Some("waits".to_owned()), ..heartbeat(1) },
            "HMGET TIME PTTL PEXPIRE HSET PTTL PEXPIRE ZADD ZREMRANGEBYSCORE",
        ),
        (
            "heartbeat that withdraws its activity",
            vec![Heartbeat { activity: Some("waits".to_owned()), ..begin(1) }],
            Heartbeat { activity: Some(String::new()), ..heartbeat(1) },
            "HMGET TIME PTTL PEXPIRE HSET HDEL PTTL PEXPIRE ZADD ZREMRANGEBYSCORE",
        ),
        (
            "heartbeat that reports 2500 locks",
            vec![begin(1)],
            Heartbeat { acquired: many(2_500), released: many(1_001), ..heartbeat(1) },
            "HMGET TIME PTTL PEXPIRE HSET HDEL HDEL HSET HSET HSET PTTL PEXPIRE ZADD ZREMRANGEBYSCORE",
        ),
        ("heartbeat of an unknown session", vec![], heartbeat(1), "HMGET TIME"),
    ]
}

fn heartbeat(n: u8) -> Heartbeat {
    let (session, alive_ms) = (SessionId::from_random([n; 12]), 10_000);
    Heartbeat {
        session,
        alive_ms,
        begin: None,
        acquired: vec![],
        released: vec![],
        renew_listing: true,
        activity: None,
    }
}

/// The commands of an operation that follows others, 2 ms apart.
fn commands(fixture: &mut Fixture, before: &[Op], op: &Op) -> Result<String, Violation> {
    fixture.redis.load(Keyspace::default());
    let mut now_us = START_US;
    for op in before.iter().chain([op]) {
        fixture.redis.set_now_us(now_us);
        fixture.run(op, WHOLE)?;
        now_us += 2_000;
    }
    Ok(fixture.redis.executed())
}

fn acquires() -> Vec<Path> {
    let left_free = || [queue(), vec![give(1, ReleaseAction::Free, None)]].concat();
    vec![
        ("acquire of a new lock", vec![], take(1), "MGET TIME SET SET"),
        (
            "acquire of a free lock that was used before",
            vec![take(1), release(1)],
            take(2),
            "MGET TIME SET SET",
        ),
        (
            "the same, for half an hour",
            vec![take(1), release(1)],
            Op::Acquire(Acquire { lease_ms: 1_800_000, ..request(claim(2), Some(60_000)) }),
            "MGET TIME SET SET",
        ),
        ("acquire that is sent again", vec![take(1)], take(1), "MGET PTTL"),
        ("acquire of a lock that is held: not to wait", vec![take(1)], try_to_take(2), "MGET PTTL"),
        (
            "the same, to wait",
            vec![take(1)],
            take(2),
            "MGET TIME PTTL PTTL SET PEXPIRE HSET DEL HSET PEXPIRE",
        ),
        ("the same, behind others", queue(), take(4), "MGET HMGET HGET TIME PTTL PTTL HSET"),
        ("poll of a waiter", queue(), take(3), "MGET HMGET TIME PTTL HGET HGET PTTL HSET"),
        (
            "try of a lock whose holder is notified of waiters",
            vec![take(1), reserve(1, 1)],
            try_to_take(2),
            "MGET PTTL PUBLISH",
        ),
        (
            "the same, to wait",
            vec![take(1), reserve(1, 1)],
            take(2),
            "MGET TIME PTTL PTTL SET PEXPIRE HSET DEL HSET PEXPIRE PUBLISH",
        ),
        (
            "poll of a client that was granted the lock",
            [queue(), vec![release(1)]].concat(),
            take(2),
            "MGET HMGET PTTL",
        ),
        (
            "acquire of a lock that was left free, by the first waiter",
            left_free(),
            take(2),
            "MGET TIME SET GET HMGET HMGET TIME HSET SET HDEL",
        ),
        (
            "the same, by another client, which grants it to the first",
            left_free(),
            take(4),
            "MGET TIME SET GET HMGET HGET HMGET TIME PTTL HGET HSET SET HDEL PUBLISH",
        ),
    ]
}

fn releases() -> Vec<Path> {
    let dead = || vec![take(1), doomed(2), doomed(3)];
    vec![
        ("release without a waiter", vec![take(1)], release(1), "MGET DEL SET SET"),
        ("the same, of a user's own value", vec![own()], release_own(), "GET HMGET GET DEL GET SET SET"),
        ("release that grants", queue(), release(1), "MGET HMGET HMGET TIME DEL HSET SET HDEL PUBLISH"),
        (
            "release that grants, and queues again",
            queue(),
            give(1, ReleaseAction::Grant, Some(4)),
            "GET HMGET HGET HMGET TIME HGET PTTL HGET DEL HSET SET HDEL PUBLISH",
        ),
        (
            "release that leaves the lock free for others",
            queue(),
            give(1, ReleaseAction::Free, None),
            "MGET HMGET DEL HSET",
        ),
        (
            "release that grants to the third, behind two dead",
            [dead(), vec![take(4)]].concat(),
            release(1),
            "MGET HMGET HMGET TIME HMGET HGET HMGET TIME HGET HMGET HGET DEL HSET SET HDEL PUBLISH",
        ),
        (
            "release that acquires again",
            vec![take(1)],
            give(1, ReleaseAction::Grant, Some(4)),
            "GET HMGET GET TIME DEL SET SET",
        ),
        (
            "release that starts a cooldown",
            vec![take(1)],
            cooldown(1),
            "GET HMGET GET TIME PTTL PEXPIRE SET SET",
        ),
        ("the same, sent again", vec![take(1), cooldown(1)], cooldown(1), "GET HMGET GET"),
        (
            "release with a history",
            vec![take(1)],
            release_with_history(1),
            "GET HMGET GET TIME DEL GET SET SET GET SET",
        ),
        (
            "the same, sent again",
            vec![take(1), release_with_history(1)],
            release_with_history(1),
            "GET HMGET GET",
        ),
        ("release that is sent again", vec![take(1), release(1)], release(1), "MGET GET"),
        ("release of a waiting hold", queue(), release(2), "MGET HMGET HMGET HSET HDEL"),
        ("release of an unknown hold", vec![take(1)], release(2), "MGET PTTL"),
    ]
}

/// No session has begun here, so every session is dead.
fn removals() -> Vec<Path> {
    let evict = |n: u8| {
        Op::Evict(Evict { session: claim(n).hold.session(), actor: Label::new("test").expect("a label") })
    };
    let free =
        |observed| Op::ForceRelease(ForceRelease { observed, actor: Label::new("test").expect("a label") });
    let hold = || ObservedHolder::Hold(FencingToken::new(START_US));
    let poll = |n: u8, ahead: u8| {
        let predecessor = Some(claim(ahead).hold.session());
        Op::Acquire(Acquire { predecessor, ..request(claim(n), Some(60_000)) })
    };
    vec![
        (
            "acquire of a free lock that names a session",
            vec![take(1), release(1)],
            poll(2, 1),
            "MGET TIME SET SET",
        ),
        (
            "poll of the first waiter, whose holder is dead",
            queue(),
            poll(2, 1),
            "MGET HMGET HMGET TIME HGET GET HMGET DEL HSET SET HDEL SET",
        ),
        (
            "poll of the second waiter, whose predecessor is dead",
            queue(),
            poll(3, 2),
            "MGET HMGET HMGET HGET HMGET TIME PTTL PTTL HSET HDEL",
        ),
        (
            "eviction of a holder",
            queue(),
            evict(1),
            "GET HMGET HMGET TIME GET HGET HMGET DEL HSET SET HDEL PUBLISH SET",
        ),
        ("eviction of a waiting session", queue(), evict(2), "GET HMGET HMGET HMGET HSET HDEL"),
        ("eviction of a session without a hold", vec![take(1)], evict(2), "GET HMGET GET HMGET"),
        (
            "force-released from its holder",
            queue(),
            free(hold()),
            "GET HMGET HGET TIME GET HGET HMGET DEL HSET SET HDEL PUBLISH PUBLISH SET",
        ),
        (
            "the same, without a waiter",
            vec![take(1)],
            free(hold()),
            "GET HMGET GET TIME GET DEL SET PUBLISH SET",
        ),
        (
            "not force-released",
            vec![take(1)],
            free(ObservedHolder::Hold(FencingToken::new(1))),
            "GET HMGET GET PTTL",
        ),
        (
            "inspect in full",
            vec![take(1), free(hold())],
            Op::Inspect(Inspect { claim: None, details: true }),
            "GET GET GET GET GET",
        ),
    ]
}

fn others() -> Vec<Path> {
    let mut own_extend = extend(1, false);
    if let Op::Extend(extend) = &mut own_extend {
        extend.claim = own_claim();
    }
    vec![
        ("extend", vec![take(1)], extend(1, false), "MGET PEXPIRE"),
        (
            "extend that keeps the record",
            vec![take(1)],
            extend(1, true),
            "GET HMGET GET PTTL PEXPIRE TIME PTTL PEXPIRE",
        ),
        ("extend of a user's own value", vec![own()], own_extend, "GET HMGET GET PTTL PEXPIRE"),
        (
            "extend that reserves tokens",
            vec![take(1)],
            reserve(1, 90_000_000),
            "GET HMGET GET PTTL PEXPIRE TIME SET",
        ),
        ("the same, that lengthens nothing", vec![take(1)], reserve(1, 1), "GET HMGET GET PTTL TIME SET"),
        (
            "the same, that keeps the record",
            vec![take(1)],
            keeping(reserve(1, 90_000_000)),
            "GET HMGET GET PTTL PEXPIRE TIME PTTL PEXPIRE SET",
        ),
        ("the same, of a hold that is gone", vec![take(1), release(1)], reserve(1, 1), "GET"),
        ("extend of a hold that is gone", vec![], extend(1, false), "MGET"),
        ("raise of a token", vec![take(1)], raise(1, START_US + 9_000_000), "GET HMGET GET TIME PTTL SET"),
        ("the same, to what it is", vec![take(1)], raise(1, START_US), "GET HMGET GET TIME PTTL"),
        ("raise for a hold that is gone", vec![take(1), release(1)], raise(1, START_US), "GET"),
        (
            "release that notifies waiters",
            vec![take(1)],
            give(1, ReleaseAction::FreeAndPublish, None),
            "GET HMGET GET DEL GET SET SET GET SET PUBLISH",
        ),
        (
            "inspect of a free lock",
            vec![],
            Op::Inspect(Inspect { claim: None, details: false }),
            "GET GET HMGET",
        ),
        (
            "inspect of a lock that others wait for",
            queue(),
            Op::Inspect(Inspect { claim: None, details: false }),
            "GET GET HMGET TIME HVALS PTTL",
        ),
    ]
}

fn raise(n: u8, fence: u64) -> Op {
    Op::RaiseFence(RaiseFence { claim: claim(n), fence: FencingToken::new(fence), exact: false })
}

/// An Election: like a Mutex, without its short paths, and with messages about the leader.
fn elections() -> Vec<Path> {
    vec![
        ("acquire of a new lock", vec![], take(1), "GET HMGET TIME GET SET SET PUBLISH"),
        (
            "acquire of a free lock that was used before",
            vec![take(1), release(1)],
            take(2),
            "GET HMGET GET TIME GET SET SET PUBLISH",
        ),
        ("acquire that is sent again", vec![take(1)], take(1), "GET HMGET GET PTTL"),
        (
            "acquire of a lock that is held: to wait",
            vec![take(1)],
            take(2),
            "GET HMGET GET TIME PTTL PTTL SET PEXPIRE HSET DEL HSET PEXPIRE",
        ),
        ("release without a waiter", vec![take(1)], release(1), "GET HMGET GET DEL GET SET SET PUBLISH"),
        (
            "release that grants",
            queue(),
            release(1),
            "GET HMGET HGET HMGET TIME DEL HSET SET HDEL PUBLISH PUBLISH",
        ),
        ("extend", vec![take(1)], extend(1, false), "MGET PEXPIRE"),
        (
            "extend that keeps the record",
            vec![take(1)],
            extend(1, true),
            "GET HMGET GET PTTL PEXPIRE TIME PTTL PEXPIRE",
        ),
        (
            "inspect of a held one",
            vec![take(1)],
            Op::Inspect(Inspect { claim: None, details: false }),
            "GET GET PTTL",
        ),
        ("proclaim", vec![take(1)], proclaim(1, "ready"), "GET HMGET GET SET PUBLISH"),
        ("proclaim while others wait", queue(), proclaim(1, "ready"), "GET HMGET HSET PUBLISH"),
        ("the same text again", vec![take(1), proclaim(1, "ready")], proclaim(1, "ready"), "GET HMGET GET"),
        ("proclaim for a hold that is gone", vec![take(1), release(1)], proclaim(1, "ready"), "GET"),
    ]
}

/// A leader that knows its own label replaces it.
fn proclaim(n: u8, value: &str) -> Op {
    let observed = request(claim(n), None).label;
    let value = Label::new(value).expect("a plain text");
    Op::Proclaim(Proclaim { claim: claim(n), fence: FencingToken::new(START_US), observed, value })
}

/// A ReentrantMutex: the first two sessions have the same owner, every other session its own.
#[allow(clippy::too_many_lines, reason = "a table")]
fn entries() -> Vec<Path> {
    let owned = |n: u8| {
        let owner = if n < 3 { "ours".to_owned() } else { format!("owner {n}") };
        Claim { value: OwnValue::new(owner).ok(), ..claim(n) }
    };
    let take = |n: u8| Op::Acquire(request(owned(n), Some(60_000)));
    let release = |n: u8| {
        Op::Release(Release { claim: owned(n), action: ReleaseAction::Grant, next: None, history: 0 })
    };
    let extend = |n: u8, lease_ms: u64, keep_record: bool| {
        Op::Extend(Extend { claim: owned(n), lease_ms, keep_record, reserve: None, fence: None })
    };
    let evict = |n: u8| {
        Op::Evict(Evict { session: claim(n).hold.session(), actor: Label::new("test").expect("a label") })
    };
    let free = || {
        let observed = ObservedHolder::Hold(FencingToken::new(START_US));
        Op::ForceRelease(ForceRelease { observed, actor: Label::new("test").expect("a label") })
    };
    let raise = |n: u8, fence: u64| {
        Op::RaiseFence(RaiseFence { claim: owned(n), fence: FencingToken::new(fence), exact: false })
    };
    let twice = || vec![take(1), take(2)];
    let queue = || vec![take(1), take(3), take(4)];
    vec![
        ("acquire of a new lock", vec![], take(1), "HMGET HLEN HMGET TIME GET SET SET PEXPIRE HSET PEXPIRE"),
        (
            "acquire of a free lock that was used before",
            vec![take(1), release(1)],
            take(3),
            "HMGET HLEN HMGET GET TIME GET SET SET PEXPIRE HSET PEXPIRE",
        ),
        ("acquire that is sent again", vec![take(1)], take(1), "HMGET HLEN TIME HMGET GET"),
        (
            "raise of a token",
            vec![take(1)],
            raise(1, START_US + 9_000_000),
            "HMGET HLEN TIME HMGET GET PTTL SET PEXPIRE HSET",
        ),
        ("raise for a hold that is gone", vec![take(1)], raise(4, START_US), "HMGET HLEN HGET TIME"),
        (
            "acquire by the owner that holds the lock",
            vec![take(1)],
            take(2),
            "HMGET HLEN TIME HMGET GET PTTL PEXPIRE HSET",
        ),
        (
            "the same, past others, by a queued session",
            [queue(), vec![release(3)]].concat(),
            take(2),
            "HMGET HLEN TIME HMGET PTTL PEXPIRE HSET",
        ),
        (
            "acquire of a lock that is held: to wait",
            vec![take(1)],
            take(3),
            "HMGET HLEN HGET TIME HMGET GET PTTL SET PEXPIRE HSET DEL HSET PEXPIRE",
        ),
        ("poll of a waiter", queue(), take(4), "HMGET HLEN HGET TIME HMGET PTTL HGET HGET HSET"),
        ("extend", vec![take(1)], extend(1, 90_000, false), "HMGET HLEN TIME PTTL PEXPIRE HSET"),
        (
            "extend that changes nothing",
            vec![take(1), extend(1, 1, false)],
            extend(1, 1, false),
            "HMGET HLEN TIME PTTL",
        ),
        (
            "extend that keeps the record",
            vec![take(1)],
            extend(1, 90_000_000, true),
            "HMGET HLEN TIME PTTL PEXPIRE HSET HMGET GET PTTL PEXPIRE",
        ),
        ("extend of a hold that is gone", vec![], extend(1, 90_000, false), "HMGET HLEN"),
        (
            "release without a waiter",
            vec![take(1)],
            release(1),
            "HMGET HLEN TIME HMGET GET DEL GET SET SET PUBLISH",
        ),
        ("release of one of several", twice(), release(1), "HMGET HLEN TIME HMGET GET PEXPIRE HSET SET"),
        (
            "release that grants",
            queue(),
            release(1),
            "HMGET HLEN TIME HMGET HGET HMGET DEL HSET SET PEXPIRE HSET PEXPIRE HDEL PUBLISH",
        ),
        ("release of an unknown hold", vec![take(1)], release(3), "HMGET HLEN HGET TIME HMGET GET"),
        (
            "eviction of one of several sessions",
            twice(),
            evict(1),
            "HMGET HLEN HGET TIME HMGET GET HMGET GET PEXPIRE HSET SET SET",
        ),
        (
            "eviction of a holder",
            queue(),
            evict(1),
            "HMGET HLEN HGET TIME HMGET HMGET GET HGET HMGET DEL HSET SET PEXPIRE HSET PEXPIRE HDEL PUBLISH SET",
        ),
        (
            "force-released from its holders",
            twice(),
            free(),
            "HMGET HLEN HGET TIME HMGET GET GET DEL SET PUBLISH PUBLISH PUBLISH SET",
        ),
        (
            "inspect of a free lock",
            vec![],
            Op::Inspect(Inspect { claim: None, details: false }),
            "GET HMGET HLEN HMGET",
        ),
        (
            "inspect of a held one",
            vec![take(1)],
            Op::Inspect(Inspect { claim: None, details: false }),
            "GET HMGET HLEN HGET TIME",
        ),
    ]
}

/// An acquire in a lock mode, which queues.
fn take_part(n: u8, mode: LockMode) -> Op {
    Op::Acquire(Acquire { mode, ..request(claim(n), Some(60_000)) })
}

/// A Semaphore with two permits.
#[allow(clippy::too_many_lines, reason = "a table")]
fn permits() -> Vec<Path> {
    let take = |n: u8, count: u32| take_part(n, LockMode::Permits { count, total: 2 });
    let by = || Label::new("test").expect("a label");
    let evict = |n: u8| Op::Evict(Evict { session: claim(n).hold.session(), actor: by() });
    let free = |at_us: u64| {
        Op::ForceRelease(ForceRelease {
            observed: ObservedHolder::Hold(FencingToken::new(at_us)),
            actor: by(),
        })
    };
    let resize = |observed: Option<u32>, limit: u32| Op::Resize(Resize { observed, limit, agreed: false });
    let two = || vec![take(1, 1), take(2, 1)];
    let queue = || [two(), vec![take(3, 1), take(4, 1)]].concat();
    vec![
        (
            "acquire of a new lock",
            vec![],
            take(1, 1),
            "HMGET HLEN HMGET TIME GET SET PEXPIRE ZADD PEXPIRE SET PEXPIRE HSET PEXPIRE",
        ),
        (
            "acquire of one more permit",
            vec![take(1, 1)],
            take(2, 1),
            "HMGET ZCARD HLEN HMGET GET TIME ZRANGE PTTL SET PTTL PEXPIRE PEXPIRE ZADD HSET",
        ),
        (
            "acquire that is sent again",
            vec![take(1, 1)],
            take(1, 1),
            "HMGET ZCARD HLEN HMGET GET TIME ZRANGE",
        ),
        (
            "acquire of what is not there: to wait",
            two(),
            take(3, 1),
            "HMGET ZCARD HLEN HMGET GET TIME ZRANGE PTTL ZRANGE HMGET SET PEXPIRE HSET DEL HSET PEXPIRE",
        ),
        (
            "poll of a waiter",
            queue(),
            take(4, 1),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGET PTTL ZRANGE HMGET HGET HSET",
        ),
        ("acquire of more than there are", vec![], take(1, 3), "HMGET HLEN HMGET"),
        ("extend", vec![take(1, 1)], extend(1, false), "HMGET TIME PTTL PEXPIRE PEXPIRE HSET ZADD"),
        (
            "extend of one of several",
            vec![take(1, 1), take(2, 1), extend(2, false)],
            extend(1, false),
            "HMGET TIME PTTL PEXPIRE PEXPIRE HSET ZADD",
        ),
        (
            "extend that changes nothing",
            vec![take(1, 1), extend(1, false)],
            short_extend(1),
            "HMGET TIME PTTL",
        ),
        (
            "extend that keeps the record",
            vec![take(1, 1)],
            extend(1, true),
            "HMGET TIME PTTL PEXPIRE PEXPIRE HSET ZADD HMGET GET PTTL PEXPIRE",
        ),
        (
            "release without a waiter",
            vec![take(1, 1)],
            release(1),
            "HMGET ZCARD HLEN HMGET GET TIME ZRANGE DEL SET",
        ),
        (
            "release of one of several",
            two(),
            release(1),
            "HMGET ZCARD HLEN HMGET GET TIME ZRANGE HDEL ZREM SET HSET",
        ),
        (
            "release that grants",
            queue(),
            release(1),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGET HMGET PTTL HGET HGET HDEL ZREM HSET PTTL PEXPIRE PEXPIRE ZADD HSET HDEL PUBLISH",
        ),
        (
            "release of two permits, that grants both",
            vec![take(1, 2), take(2, 1), take(3, 1)],
            release(1),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGET HMGET PTTL HGET HGET HGET DEL HSET PEXPIRE ZADD PEXPIRE SET PEXPIRE HSET PEXPIRE HDEL PUBLISH PUBLISH",
        ),
        (
            "release of a waiting hold",
            queue(),
            release(3),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HMGET HGET HSET HDEL",
        ),
        (
            "eviction of one of several sessions",
            queue(),
            evict(1),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGETALL HMGET HVALS GET HGET HMGET PTTL HGET HGET HDEL ZREM HSET PTTL PEXPIRE PEXPIRE ZADD HSET HDEL PUBLISH SET",
        ),
        (
            "eviction of a waiting session",
            queue(),
            evict(3),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGETALL HMGET HVALS HMGET HGET HSET HDEL",
        ),
        (
            "force-released from its holder",
            queue(),
            free(START_US),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGETALL GET HGET HMGET PTTL HGET HGET HDEL ZREM HSET PTTL PEXPIRE PEXPIRE ZADD HSET HDEL PUBLISH PUBLISH SET",
        ),
        ("resize of a new one", vec![], resize(None, 5), "HMGET HLEN HMGET SET"),
        (
            "resize that lets in two",
            queue(),
            resize(Some(2), 4),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE PTTL HGET HMGET HGET HGET HGET HSET PTTL PEXPIRE PEXPIRE ZADD HSET HDEL PUBLISH PUBLISH",
        ),
        ("resize that comes late", two(), resize(Some(1), 4), "HMGET ZCARD HLEN HMGET GET TIME ZRANGE"),
        (
            "inspect of a lock that others wait for",
            queue(),
            Op::Inspect(Inspect { claim: None, details: true }),
            "HGET HGETALL TIME HMGET HVALS GET GET HMGET HMGET",
        ),
    ]
}

/// An RwLock: each session has its own owner, except that the fifth has that of the first.
fn readers() -> Vec<Path> {
    let owned = |n: u8| Claim { value: OwnValue::new(format!("owner {}", n % 4)).ok(), ..claim(n) };
    let take = |n: u8, mode: LockMode| Op::Acquire(Acquire { mode, ..request(owned(n), Some(60_000)) });
    let release = |n: u8| {
        Op::Release(Release { claim: owned(n), action: ReleaseAction::Grant, next: None, history: 0 })
    };
    let (read, write) = (|n: u8| take(n, LockMode::Read), |n: u8| take(n, LockMode::Write));
    vec![
        (
            "read",
            vec![],
            read(1),
            "HMGET HLEN HMGET TIME GET SET PEXPIRE ZADD PEXPIRE SET PEXPIRE HSET PEXPIRE",
        ),
        (
            "read beside another",
            vec![read(1)],
            read(2),
            "HMGET ZCARD HLEN HMGET GET TIME ZRANGE PTTL SET PTTL PEXPIRE PEXPIRE ZADD HSET",
        ),
        (
            "read behind a waiting writer",
            vec![read(1), write(2)],
            read(3),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGET PTTL ZRANGE HMGET HSET",
        ),
        (
            "read by an owner that reads, past a writer",
            vec![read(1), write(2)],
            read(5),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGET PTTL HSET PTTL PEXPIRE PEXPIRE ZADD HSET",
        ),
        (
            "release of the last reader, which lets a writer in",
            vec![read(1), write(2)],
            release(1),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGET PTTL HGET HGET DEL HSET PEXPIRE ZADD PEXPIRE SET PEXPIRE HSET PEXPIRE HDEL PUBLISH",
        ),
        (
            "release of the writer, which lets readers in",
            vec![write(1), read(2), read(3)],
            release(1),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGET HMGET PTTL HGET HGET HGET HGET HGET DEL HSET PEXPIRE ZADD PEXPIRE SET PEXPIRE HSET PEXPIRE HDEL PUBLISH PUBLISH",
        ),
        (
            "upgrade before a waiting writer",
            vec![take(1, LockMode::Upgradable), read(3), write(2)],
            take(5, LockMode::Upgrade),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGET PTTL ZRANGE HMGET HSET",
        ),
    ]
}

/// A Latch that opens after two arrivals.
fn arrivals() -> Vec<Path> {
    let arrive = |n: u8| take_part(n, LockMode::CountDown { count: 1, total: 2 });
    let wait = |n: u8| take_part(n, LockMode::LatchWait { total: 2 });
    vec![
        (
            "arrival",
            vec![],
            arrive(1),
            "HMGET HLEN HMGET TIME GET SET PEXPIRE ZADD PEXPIRE SET PEXPIRE HSET PEXPIRE",
        ),
        (
            "wait for arrivals",
            vec![arrive(1)],
            wait(2),
            "HMGET ZCARD HLEN HMGET GET TIME ZRANGE PTTL SET PEXPIRE HSET DEL HSET PEXPIRE",
        ),
        (
            "the arrival that opens it for two",
            vec![arrive(1), wait(2), wait(3)],
            arrive(4),
            "HMGET ZCARD HLEN HMGET TIME ZRANGE HGET PTTL ZRANGE HMGET HGET HGET HGET HSET PTTL PEXPIRE PEXPIRE ZADD HSET HDEL PUBLISH PUBLISH",
        ),
        (
            "wait by another number",
            vec![wait(2)],
            take_part(3, LockMode::LatchWait { total: 3 }),
            "HMGET HLEN HMGET HGET TIME",
        ),
    ]
}

/// A Barrier of three parties.
fn meetings() -> Vec<Path> {
    let meet = |n: u8| take_part(n, LockMode::BarrierWait { total: 3 });
    vec![
        ("the first", vec![], meet(1), "HMGET HLEN HMGET TIME SET PEXPIRE HSET PEXPIRE"),
        ("the second", vec![meet(1)], meet(2), "HMGET HLEN HMGET HMGET TIME PTTL HSET"),
        (
            "the third, with whom all go on",
            vec![meet(1), meet(2)],
            meet(3),
            "HMGET HLEN HMGET HMGET HMGET TIME PTTL HGET HMGET GET HMGET HSET PEXPIRE ZADD PEXPIRE SET PEXPIRE HSET PEXPIRE HDEL PUBLISH PUBLISH",
        ),
    ]
}

fn claim(n: u8) -> Claim {
    Claim::new(HoldId::from_random(SessionId::from_random([n; 12]), [n; 16]))
}

fn request(claim: Claim, ttl_ms: Option<u64>) -> Acquire {
    let nonce = Nonce::new(0, 1);
    let label = Label::new("test").expect("a plain text is a label");
    let queue = ttl_ms.map(|ttl_ms| Enqueue { nonce, ttl_ms });
    Acquire {
        claim,
        lease_ms: 3_000,
        label,
        queue,
        expire_foreign_ms: None,
        liveness: Liveness::Session { alive_ms: 0 },
        predecessor: None,
        mode: LockMode::Exclusive,
    }
}

fn take(n: u8) -> Op {
    Op::Acquire(request(claim(n), Some(60_000)))
}

fn try_to_take(n: u8) -> Op {
    Op::Acquire(request(claim(n), None))
}

/// An acquire whose queue entry expires before the next operation.
fn doomed(n: u8) -> Op {
    Op::Acquire(request(claim(n), Some(1)))
}

/// One session holds the lock, two wait.
fn queue() -> Vec<Op> {
    vec![take(1), take(2), take(3)]
}

fn release(n: u8) -> Op {
    give(n, ReleaseAction::Grant, None)
}

fn release_with_history(n: u8) -> Op {
    let Op::Release(release) = release(n) else { unreachable!("it is a release") };
    Op::Release(Release { history: 5, ..release })
}

fn cooldown(n: u8) -> Op {
    give(n, ReleaseAction::Cooldown { for_ms: 60_000 }, None)
}

fn give(n: u8, action: ReleaseAction, next: Option<u8>) -> Op {
    let next = next.map(|n| request(claim(n), Some(60_000)));
    Op::Release(Release { claim: claim(n), action, next, history: 0 })
}

fn own_claim() -> Claim {
    Claim { value: OwnValue::new("own").ok(), ..claim(1) }
}

fn own() -> Op {
    Op::Acquire(request(own_claim(), Some(60_000)))
}

fn release_own() -> Op {
    Op::Release(Release { claim: own_claim(), action: ReleaseAction::Grant, next: None, history: 0 })
}

fn short_extend(n: u8) -> Op {
    Op::Extend(Extend { claim: claim(n), lease_ms: 1, keep_record: false, reserve: None, fence: None })
}

/// Reserves tokens; the holder is notified of waiters.
fn reserve(n: u8, lease_ms: u64) -> Op {
    let reserve = Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: true });
    Op::Extend(Extend { claim: claim(n), lease_ms, keep_record: false, reserve, fence: None })
}

fn keeping(op: Op) -> Op {
    match op {
        Op::Extend(extend) => Op::Extend(Extend { keep_record: true, ..extend }),
        other => other,
    }
}

fn extend(n: u8, keep_record: bool) -> Op {
    Op::Extend(Extend { claim: claim(n), lease_ms: 90_000_000, keep_record, reserve: None, fence: None })
}
