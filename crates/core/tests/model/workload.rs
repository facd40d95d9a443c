//! Random events of a lock of any kind, and how an observer reads its state.
//!
//! 1. The acquire that comes with a release is of the same session, and for another hold.
//! 2. No session checks its own life.

use crate::reservation::is_note;
use leasehold_core::model::{LockState, QueueEntry, QueueEntryId, Record, Sessions};
use leasehold_core::{
    Acquire, AuditEntry, Claim, Enqueue, Evict, Evicted, Extend, Extended, FencingToken, ForceReleased,
    Heartbeat, HoldId, HoldStatus, Inspect, Label, Liveness, LockMode, Nonce, Notification, Op, Release,
    ReleaseAction, Reply, Reserve, SessionId, SessionOp, TokenBlock,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The `n`th hold of a session.
pub(super) type ClaimOf = fn(u8, u8) -> Claim;

pub(super) const SESSIONS: u8 = 4;
pub(super) const HOLDS: u8 = 3;
pub(super) const MAX_INSPECTED_ENTRIES: usize = 64;
pub(super) const HOUR_MS: u64 = 3_600_000;
/// 2025-11-01, in microseconds.
pub(super) const START_US: u64 = 1_762_000_000_000_000;

pub(super) fn session(n: u8) -> SessionId {
    SessionId::from_random([n; 12])
}

/// All holds of all sessions.
pub(super) fn claims(of: ClaimOf) -> impl Iterator<Item = Claim> {
    (0..SESSIONS).flat_map(move |s| (0..HOLDS).map(move |n| of(s, n)))
}

/// Another hold of the same session (1).
fn fork(of: ClaimOf, claim: &Claim, other: u8) -> Claim {
    let mine: Vec<_> = claims(of).filter(|mine| mine.hold.session() == claim.hold.session()).collect();
    let at = mine.iter().position(|mine| mine == claim).expect("a session has its holds");
    mine[(at + usize::from(other)) % mine.len()].clone()
}

pub(super) fn request(
    claim: Claim,
    lease_ms: u64,
    queue: Option<(u64, u64)>,
    expire_foreign_ms: Option<u64>,
) -> Acquire {
    let label = Label::new(claim.hold.session().to_string()).expect("a plain text");
    let queue = queue.map(|(nonce, ttl_ms)| Enqueue { nonce: Nonce::new(0, nonce), ttl_ms });
    Acquire {
        claim,
        lease_ms,
        label,
        queue,
        expire_foreign_ms,
        liveness: Liveness::Session { alive_ms: 10_000 },
        predecessor: None,
        mode: LockMode::Exclusive,
    }
}

/// The author of evictions and forced releases that no waiter causes.
pub(super) fn watcher() -> Label {
    Label::new("the watch").expect("a plain text")
}

pub(super) fn any_claim(of: ClaimOf) -> impl Strategy<Value = Claim> {
    (0..SESSIONS, 0..HOLDS).prop_map(move |(s, n)| of(s, n))
}

pub(super) fn any_lease_ms() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(999), Just(3_000), Just(30 * 24 * HOUR_MS), 1..60_000_u64]
}

fn any_request(of: ClaimOf) -> impl Strategy<Value = Acquire> {
    let ttl_ms = prop_oneof![Just(1_u64), Just(3_000), Just(21_000), 1..30_000_u64];
    let queue = prop_oneof![1 => Just(None), 3 => (any::<u64>(), ttl_ms).prop_map(Some)];
    let expire_foreign_ms = prop_oneof![3 => Just(None), 1 => any_lease_ms().prop_map(Some)];
    let liveness = prop_oneof![3 => any_lease_ms().prop_map(|alive_ms| Liveness::Session { alive_ms }), 1 => Just(Liveness::Lease)];
    let predecessor = proptest::option::of((0..SESSIONS).prop_map(session));
    (any_claim(of), any_lease_ms(), queue, expire_foreign_ms, liveness, predecessor).prop_map(
        |(claim, lease_ms, queue, expire_foreign_ms, liveness, predecessor)| {
            let predecessor = predecessor.filter(|predecessor| *predecessor != claim.hold.session()); // (2)
            Acquire { liveness, predecessor, ..request(claim, lease_ms, queue, expire_foreign_ms) }
        },
    )
}

pub(super) fn any_session_op() -> impl Strategy<Value = SessionOp> {
    let alive_ms = prop_oneof![Just(1_u64), Just(3_000), Just(10_000), Just(HOUR_MS)];
    let beat =
        ((0..SESSIONS).prop_map(session), alive_ms, any::<bool>()).prop_map(|(session, alive_ms, begin)| {
            let (begin, acquired, released) = (begin.then(String::new), Vec::new(), Vec::new());
            SessionOp::Heartbeat(Heartbeat {
                session,
                alive_ms,
                begin,
                acquired,
                released,
                renew_listing: false,
                activity: None,
            })
        });
    prop_oneof![6 => beat, 1 => (0..SESSIONS).prop_map(|s| SessionOp::End(session(s)))]
}

pub(super) fn any_op(of: ClaimOf) -> impl Strategy<Value = Op> {
    let action = prop_oneof![3 => Just(ReleaseAction::Grant), 1 => Just(ReleaseAction::Free)];
    let release = (any_claim(of), action, proptest::option::of((1..HOLDS, any_request(of))));
    let extend = (any_claim(of), any_lease_ms(), any::<bool>());
    prop_oneof![
        6 => any_request(of).prop_map(Op::Acquire),
        2 => extend.prop_map(|(claim, lease_ms, keep_record)| Op::Extend(Extend { claim, lease_ms, keep_record, reserve: None, fence: None })),
        4 => release.prop_map(move |(claim, action, next)| {
            let next = next.map(|(other, next)| Acquire { claim: fork(of, &claim, other), predecessor: None, ..next });
            Op::Release(Release { claim, action, next, history: 0 })
        }),
        1 => (proptest::option::of(any_claim(of)), any::<bool>())
            .prop_map(|(claim, details)| Op::Inspect(Inspect { claim, details })),
        2 => (0..SESSIONS).prop_map(|s| Op::Evict(Evict { session: session(s), actor: watcher() })),
    ]
}

/// Fewer tokens than a block has, or more than the store reserves.
pub(super) fn any_reserve() -> impl Strategy<Value = Reserve> {
    let tokens =
        prop_oneof![2 => 0..=TokenBlock::MAX_LEN, 2 => Just(TokenBlock::MAX_LEN), 1 => Just(u32::MAX)];
    (tokens, any::<bool>()).prop_map(|(tokens, notify_wanted)| Reserve { tokens, notify_wanted })
}

/// How far the clock moves between two steps: mostly a little, sometimes past every expiry, at times back.
pub(super) fn any_move() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => Just(0),
        4 => 0..5_000_i64,
        6 => 0..3_000_000_i64,
        2 => 0..120_000_000_i64,
        1 => 0..10_000_000_000_i64,
        1 => -5_000_000_000..0_i64,
    ]
}

/// One queue entry per session; tickets and entries agree.
pub(super) fn check_queue_entries(record: &Record) {
    let tickets: BTreeMap<_, _> =
        record.tickets.iter().map(|(ticket, session)| (*session, *ticket)).collect();
    assert_eq!(tickets.len(), record.tickets.len(), "one entry per session");
    let queue_entries: BTreeMap<_, _> =
        record.entries.iter().map(|(session, entry)| (*session, entry.ticket)).collect();
    assert_eq!(tickets, queue_entries, "an entry for every ticket, a ticket for every entry");
    for (session, entry) in &record.entries {
        assert_eq!(*session, QueueEntryId::Session(entry.claim.hold.session()));
    }
    assert!(record.tickets.keys().all(|ticket| *ticket < record.next_ticket), "{record:#?}");
}

/// The queue entries of a lock whose sessions have one each.
pub(super) fn queue_entries(state: &LockState) -> impl Iterator<Item = (&SessionId, &QueueEntry)> {
    state.record.iter().flat_map(|record| &record.entries).map(|(id, entry)| match id {
        QueueEntryId::Session(session) => (session, entry),
        QueueEntryId::Hold(_) => panic!("a session has one queue entry for an exclusive lock"),
    })
}

pub(super) fn entries(state: &LockState) -> Vec<AuditEntry> {
    state.audit.iter().flat_map(|audit| audit.entries.clone()).collect()
}

pub(super) fn lives_with(liveness: Liveness, claim: &Claim, session: SessionId) -> bool {
    liveness.ends_with_session() && claim.hold.session() == session
}

/// The author of an operation.
pub(super) fn by(op: &Op) -> Label {
    match op {
        Op::Acquire(request) => request.label.clone(),
        Op::Evict(evict) => evict.actor.clone(),
        Op::ForceRelease(free) => free.actor.clone(),
        _ => watcher(),
    }
}

/// The queue, from the front.
pub(super) fn order(state: &LockState) -> Vec<SessionId> {
    state.waiter_sessions().collect()
}

pub(super) fn waits(record: &Record, hold: &HoldId) -> bool {
    record.entries.values().any(|entry| entry.claim.hold == *hold)
}

/// Whether the record says that a hold was ended.
pub(super) fn has_ended(state: &LockState, hold: &HoldId) -> bool {
    state.record.as_ref().is_some_and(|record| record.ended.find(hold).is_some())
}

/// The session of an operation that can change that session's queue entry (1).
pub(super) fn actor(op: &Op) -> Option<SessionId> {
    match op {
        Op::Acquire(request) => Some(request.claim.hold.session()),
        Op::Release(release) => Some(release.claim.hold.session()),
        _ => None,
    }
}

/// First come, first served; and no operation inspects more entries than its bound.
pub(super) fn check_queue(
    before: &LockState,
    after: &LockState,
    (now_us, op): (u64, &Op),
    notifications: &[Notification],
    evicted: Option<SessionId>,
) {
    let (mut old, new) = (order(before), order(after));
    if let Op::Release(release) = op {
        // It gives up its entry, and may take a new one behind the others.
        old.retain(|s| {
            !queue_entries(before).any(|(t, entry)| s == t && entry.claim.hold == release.claim.hold)
        });
    }
    // A session that was checked and is dead loses what lives with it.
    let evicted = evicted.filter(|dead| {
        queue_entries(before).any(|(_, entry)| lives_with(entry.liveness, &entry.claim, *dead))
    });
    let mine = actor(op);
    assert!(evicted.is_none_or(|dead| !new.contains(&dead)), "{evicted:?} still waits");
    old.retain(|s| Some(*s) != evicted);
    let kept: Vec<_> = old.iter().copied().filter(|s| new.contains(s)).collect();
    assert!(new.starts_with(&kept), "{old:?} became {new:?} by {op:?}");
    assert!(new.len() - kept.len() <= 1, "one operation, one entry");
    assert!(old.len() - kept.len() <= MAX_INSPECTED_ENTRIES + 1, "{} entries gone", old.len() - kept.len());
    let now_ms = now_us / 1000;
    let grants: Vec<_> = notifications.iter().filter(|notification| notification.nonce().is_some()).collect();
    for notification in &grants {
        assert_eq!(grants.len(), 1, "one lock has one holder");
        let (_, entry) = queue_entries(before)
            .find(|(session, _)| **session == notification.to())
            .expect("a waiter is woken");
        assert_eq!(notification.nonce(), Some(entry.nonce), "the nonce of the last request");
        assert!(entry.expires_ms >= now_ms, "a dead entry was granted");
    }
    // A session that lost an entry either got the lock through it, gave it up itself, or was dead; or its hold, which
    // another client's value had made the holder again, was ended.
    for session in old.iter().filter(|s| !new.contains(s)) {
        let (_, entry) = queue_entries(before).find(|(s, _)| *s == session).expect("it waited");
        let woken = grants.iter().any(|notification| notification.to() == *session);
        let dead = entry.expires_ms < now_ms;
        let hold = &entry.claim.hold;
        let ended = has_ended(after, hold) && !has_ended(before, hold);
        assert!(woken || dead || ended || mine == Some(*session), "{session:?} was thrown out by {op:?}");
    }
}

/// Sending twice has the same effect as sending once. The exceptions are the status that was found and the
/// `holder` reported with it, because the first operation changed them; the reservation, which is another
/// block each time; and the notification, which is sent for each request.
pub(super) fn check_doubling(
    before: &LockState,
    after: &LockState,
    (now_us, op): (u64, &Op),
    reply: &Reply,
    sessions: &Sessions,
) {
    let mut twice = after.clone();
    let (again, notifications) = twice.apply(now_us, op, &|session| sessions.status(now_us / 1000, session));
    let mut reply = reply.clone();
    let mut second = again.clone();
    if let (Reply::Release(first), Reply::Release(second)) = (&mut reply, &mut second) {
        assert_ne!(second.status, HoldStatus::Held, "released twice: {before:#?}");
        second.status = first.status;
        second.holder.clone_from(&first.holder);
        // The acquire after the release can be of the same owner.
        second.remaining_holds = first.remaining_holds;
    }
    // A hold that was taken from its holder is also taken only once.
    if let (Reply::Evict(Evicted::Removed { .. }), Reply::Evict(second)) = (&reply, &mut second) {
        assert_eq!(*second, Evicted::Removed { fence: None, was_queued: false });
        reply = Reply::Evict(*second);
    }
    if let (Reply::ForceRelease(ForceReleased::Released), Reply::ForceRelease(second)) = (&reply, &second) {
        assert!(matches!(second, ForceReleased::Changed { .. }), "freed twice: {before:#?}");
        reply = Reply::ForceRelease(second.clone());
    }
    if let (Reply::Extend(Extended::Reserved { .. }), Reply::Extend(Extended::Reserved { .. })) =
        (&reply, &second)
    {
        second = reply.clone();
        let reserved = after.record.as_ref().and_then(|record| record.reserved);
        twice.record.iter_mut().for_each(|record| record.reserved = reserved);
    }
    assert_eq!(reply, second, "the reply to the second {op:?} on {before:#?}");
    assert_eq!(twice, *after, "the state after the second {op:?} on {before:#?}");
    assert!(notifications.iter().all(is_note), "the second {op:?} granted something: {before:#?}");
}

/// What the observer remembers about fencing tokens.
#[derive(Default)]
pub(super) struct Tokens {
    /// The greatest that was granted or reserved, for as long as it must be respected.
    last: Option<FencingToken>,
    /// The latest time so far.
    pub(super) latest_us: u64,
}

impl Tokens {
    /// Fencing tokens grow for as long as the record or the watermark lives, and beyond that if the clock does not go back.
    pub(super) fn check(&mut self, before: &LockState, after: &LockState, now_us: u64) {
        self.latest_us = self.latest_us.max(now_us);
        let last = |state: &LockState| state.record.as_ref().and_then(|record| record.last_fence);
        let reserved = |state: &LockState| state.record.as_ref().and_then(|record| record.reserved);
        let given = Some(last(after)).filter(|given| *given != last(before));
        let new = given.or_else(|| {
            let new = reserved(after).filter(|new| reserved(before) != Some(*new));
            new.map(|new| Some(new.last_fence))
        });
        let Some(new) = new else { return };
        let Some(new) = new else {
            let greatest = before.record.as_ref().and_then(Record::greatest_fence);
            // An hour after its instant a token needs no memory.
            let is_old = greatest.is_none_or(|greatest| greatest.as_u64() / 1000 + HOUR_MS < now_us / 1000);
            assert!(is_old || after.watermark.fence >= greatest, "{after:?} has forgotten {greatest:?}");
            return;
        };
        if given.is_some() {
            assert!(new.as_u64() >= now_us, "a token is no smaller than the time");
        } else {
            let behind = before.record.as_ref().and_then(Record::greatest_fence);
            let next = FencingToken::after(behind, 0);
            assert!(
                new == next || new.as_u64() < now_us + u64::from(TokenBlock::MAX_AHEAD),
                "{new:?} outruns the clock, {now_us}"
            );
        }
        let remembered = last(before).is_some() || before.watermark.fence.is_some();
        if remembered || now_us >= self.latest_us {
            assert!(self.last.is_none_or(|last| new > last), "{new:?} after {:?}", self.last);
        }
        self.last = Some(new);
    }
}
