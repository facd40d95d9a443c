//! Properties of shared locks: Semaphore, RwLock, Latch, Barrier.
//!
//! 1. Every property is checked after every step, in [`Environment::step`] alone.
//! 2. A hold always requests the same mode: another mode needs another hold.
//! 3. An operator deletes the key or the record, and changes the number of permits.

use super::workload::{
    MAX_INSPECTED_ENTRIES, START_US, any_lease_ms, any_move, any_session_op, entries, has_ended, request,
    session, watcher,
};
use leasehold_core::model::{LockState, QueueEntry, QueueEntryId, SessionStatus, Sessions, SharedHold};
use leasehold_core::{
    Acquire, Acquired, Claim, Ended, Evict, Evicted, Extend, Extended, FencingToken, ForceRelease,
    ForceReleased, HoldId, HoldStatus, Inspect, Kind, Liveness, LockMode, Notification, ObservedHolder, Op,
    OwnValue, Refused, Release, ReleaseAction, Reply, Resize, Resized, SessionId, SessionOp,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

const SESSIONS: u8 = 4;
const HOLDS: u8 = 8;

/// One event.
#[derive(Debug, Clone)]
enum Event {
    /// An operation of Leasehold, and whether it is sent twice.
    Op(Op),
    /// An operator ends a hold by force: the `n`th, if there are that many.
    ForceRelease(usize),
    /// An operator changes the number of permits, with a correct observation or not.
    Resize(bool, u32),
    /// An operator deletes the key.
    DeleteKey,
    /// The store loses the record.
    DeleteRecord,
    /// A store that tracks dead sessions reports that this one is dead.
    EvictSession(SessionId),
    /// An operation on a session.
    SessionOp(SessionOp),
}

/// The `n`th hold of a session. The first ones of an RwLock are of an owner of the session's own, four by four;
/// the last is of an owner that all sessions share.
fn claim(kind: Kind, s: u8, n: u8) -> Claim {
    let owner = match n {
        n if n + 1 == HOLDS => "shared".to_owned(),
        n => format!("task {s}.{}", n / 4),
    };
    let value = kind.has_owners().then(|| OwnValue::new(owner).expect("a plain text"));
    Claim { hold: HoldId::from_random(session(s), [n; 16]), value }
}

/// The mode that the `n`th hold requests (2).
fn mode(kind: Kind, s: u8, n: u8) -> LockMode {
    let at = u32::from(s * HOLDS + n);
    match kind {
        Kind::Semaphore => LockMode::Permits { count: at % 4, total: 3 + u32::from(at % 7 == 0) },
        Kind::RwLock => [
            LockMode::Upgradable,
            LockMode::Upgrade,
            LockMode::Read,
            LockMode::Write,
            LockMode::Read,
            LockMode::Write,
            LockMode::Write,
            if s.is_multiple_of(2) { LockMode::Read } else { LockMode::Write },
        ][usize::from(n)],
        Kind::Latch if n < 2 => LockMode::LatchWait { total: 3 - u32::from(at == 9) },
        Kind::Latch => LockMode::CountDown { count: 1 + at % 2, total: 3 + u32::from(at % 9 == 0) },
        _ => LockMode::BarrierWait { total: if at % 8 == 7 { 2 } else { 3 } },
    }
}

fn any_hold(kind: Kind) -> impl Strategy<Value = (Claim, LockMode)> {
    (0..SESSIONS, 0..HOLDS).prop_map(move |(s, n)| (claim(kind, s, n), mode(kind, s, n)))
}

fn any_request(kind: Kind) -> impl Strategy<Value = Acquire> {
    let ttl_ms = prop_oneof![Just(1_u64), Just(3_000), Just(21_000), 1..30_000_u64];
    let queue = prop_oneof![1 => Just(None), 4 => (any::<u64>(), ttl_ms).prop_map(Some)];
    let liveness = prop_oneof![
        3 => any_lease_ms().prop_map(|alive_ms| Liveness::Session { alive_ms }),
        1 => Just(Liveness::Lease)
    ];
    let predecessor = proptest::option::weighted(0.3, (0..SESSIONS).prop_map(session));
    (any_hold(kind), any_lease_ms(), queue, liveness, predecessor).prop_map(
        |((claim, mode), lease_ms, queue, liveness, predecessor)| {
            let predecessor = predecessor.filter(|predecessor| *predecessor != claim.hold.session());
            Acquire { liveness, predecessor, mode, ..request(claim, lease_ms, queue, None) }
        },
    )
}

fn any_op(kind: Kind) -> impl Strategy<Value = Op> {
    let next = (any_hold(kind), proptest::option::weighted(0.2, any_request(kind)));
    let release = next.prop_map(|((claim, _), next)| {
        let next = next.map(|next| Acquire { predecessor: None, ..next });
        let next =
            next.filter(|next| next.claim.hold.session() == claim.hold.session() && next.claim != claim);
        Op::Release(Release { claim, action: ReleaseAction::Grant, next, history: 0 })
    });
    let extend =
        (any_hold(kind), any_lease_ms(), any::<bool>()).prop_map(|((claim, _), lease_ms, keep_record)| {
            Op::Extend(Extend { claim, lease_ms, keep_record, reserve: None, fence: None })
        });
    let inspect = proptest::option::of(any_hold(kind))
        .prop_map(|of| Op::Inspect(Inspect { claim: of.map(|(claim, _)| claim), details: true }));
    let evict = (0..SESSIONS).prop_map(|s| Op::Evict(Evict { session: session(s), actor: watcher() }));
    prop_oneof![8 => any_request(kind).prop_map(Op::Acquire), 2 => extend, 5 => release, 1 => inspect, 2 => evict]
}

fn any_event(kind: Kind) -> impl Strategy<Value = Event> {
    prop_oneof![
        30 => any_op(kind).prop_map(Event::Op),
        2 => (0..4_usize).prop_map(Event::ForceRelease),
        2 => (any::<bool>(), 0..6_u32).prop_map(|(seen, limit)| Event::Resize(seen, limit)),
        1 => Just(Event::DeleteKey),
        1 => Just(Event::DeleteRecord),
        1 => (0..SESSIONS).prop_map(|s| Event::EvictSession(session(s))),
        8 => any_session_op().prop_map(Event::SessionOp),
    ]
}

fn any_steps(kind: Kind) -> impl Strategy<Value = Vec<(i64, Event)>> {
    proptest::collection::vec((any_move(), any_event(kind)), 1..80)
}

/// The model with its observer.
struct Environment {
    state: LockState,
    sessions: Sessions,
    now_us: u64,
    /// The greatest token that was ever granted, and whether the clock has been behind it since all data was
    /// lost.
    newest: Option<FencingToken>,
}

/// The state before a step.
struct Before {
    state: LockState,
    holds: Vec<SharedHold>,
    /// The queue, from the front.
    queue: Vec<QueueEntry>,
}

impl Environment {
    fn new(kind: Kind) -> Self {
        Self { state: LockState::new(kind), sessions: Sessions::default(), now_us: START_US, newest: None }
    }

    /// Moves the clock, applies an event, and checks everything (1). Returns whether to continue: where the
    /// clock goes back, an expired hold exists again, and may wait at the same time.
    fn step(&mut self, (by_us, event): &(i64, Event)) -> bool {
        self.now_us = self.now_us.saturating_add_signed(*by_us);
        self.state.is_empty_at(self.now_us);
        let before = self.snapshot();
        let waits =
            |shared_hold: &SharedHold| before.queue.iter().any(|entry| entry.claim.hold == shared_hold.hold);
        if *by_us < 0 && before.holds.iter().any(waits) {
            return false;
        }
        match event {
            Event::Op(op) => self.execute(&before, op),
            Event::ForceRelease(at) => {
                let observed =
                    before.holds.get(*at).map_or(FencingToken::new(1), |shared_hold| shared_hold.fence);
                self.execute(
                    &before,
                    &Op::ForceRelease(ForceRelease {
                        observed: ObservedHolder::Hold(observed),
                        actor: watcher(),
                    }),
                );
            }
            Event::Resize(as_seen, limit) if self.state.kind == Kind::Semaphore => {
                let observed = if *as_seen { limit_of(&before.state) } else { Some(7) };
                self.execute(&before, &Op::Resize(Resize { observed, limit: *limit, agreed: false }));
            }
            Event::Resize(..) => {}
            Event::DeleteKey => self.state.value = None,
            Event::DeleteRecord => self.state.record = None,
            Event::EvictSession(dead) => {
                let (fence, _) = self.state.evict_session(self.now_us, *dead, &watcher());
                self.check_ended(
                    &before,
                    &|shared_hold| lives_with(shared_hold.liveness, &shared_hold.hold, *dead),
                    Ended::Evicted,
                );
                let its = before
                    .holds
                    .iter()
                    .filter(|shared_hold| lives_with(shared_hold.liveness, &shared_hold.hold, *dead));
                let first = its.min_by_key(|shared_hold| shared_hold.until_ms);
                assert_eq!(fence, first.map(|shared_hold| shared_hold.fence));
                assert!(!self.snapshot().queue.iter().any(|entry| lives_with(
                    entry.liveness,
                    &entry.claim.hold,
                    *dead
                )));
            }
            Event::SessionOp(op) => drop(self.sessions.apply(self.now_ms(), op)),
        }
        self.check_tokens(&before);
        self.check_state();
        true
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    fn snapshot(&self) -> Before {
        let mut holds: Vec<_> = shared_holds(&self.state);
        holds.retain(|shared_hold| shared_hold.until_ms >= self.now_ms());
        let record = self.state.record.iter();
        let queue = record.flat_map(|record| record.tickets.values().map(|id| record.entries[id].clone()));
        Before { state: self.state.clone(), holds, queue: queue.collect() }
    }

    fn execute(&mut self, before: &Before, op: &Op) {
        let (sessions, now_ms) = (self.sessions.clone(), self.now_ms());
        let alive = |session| sessions.status(now_ms, session);
        let (reply, notifications) = self.state.apply(self.now_us, op, &alive);
        let dead = self.named_dead(before, op, &alive);
        self.check_doubling(op, &reply, &alive);
        let ends = |shared_hold: &SharedHold| match op {
            Op::Release(release) => shared_hold.hold == release.claim.hold,
            Op::ForceRelease(free) => free.observed == ObservedHolder::Hold(shared_hold.fence),
            _ => dead.is_some_and(|dead| lives_with(shared_hold.liveness, &shared_hold.hold, dead)),
        };
        let how = match op {
            Op::Release(_) => Ended::Released,
            Op::ForceRelease(_) => Ended::ForceReleased,
            _ => Ended::Evicted,
        };
        self.check_ended(before, &ends, how);
        self.check_extended(before, op, &reply);
        self.check_admitted(before, op, &reply, &notifications);
        self.check_order(before, op);
        self.check_reply(before, op, &reply);
        if !matches!(op, Op::Extend(_) | Op::Inspect(_)) && !is_settled(before, op, &reply) {
            self.check_no_waiter_is_left_behind(before);
        }
    }

    /// The session that an operation treats as dead.
    fn named_dead(
        &self,
        before: &Before,
        op: &Op,
        alive: &dyn Fn(SessionId) -> SessionStatus,
    ) -> Option<SessionId> {
        let named = match op {
            Op::Acquire(request) => {
                let settled = before.holds.iter().any(|shared_hold| shared_hold.hold == request.claim.hold)
                    || has_ended(&before.state, &request.claim.hold);
                request.predecessor.filter(|_| !settled)
            }
            Op::Evict(evict) => Some(evict.session),
            _ => None,
        };
        named.filter(|named| match alive(*named) {
            SessionStatus::Alive(_) => false,
            SessionStatus::Lapsed => true,
            // It counts as alive for as long as its client may rely on any of its holds.
            SessionStatus::Unknown => !before.holds.iter().any(|shared_hold| match shared_hold.liveness {
                Liveness::Session { alive_ms } => {
                    shared_hold.hold.session() == *named
                        && shared_hold.since_ms.saturating_add(alive_ms) >= self.now_ms()
                }
                Liveness::Lease => false,
            }),
        })
    }

    /// Sending twice has the same effect as sending once, except that the second release, eviction or forced
    /// release finds nothing any more.
    fn check_doubling(&self, op: &Op, reply: &Reply, alive: &dyn Fn(SessionId) -> SessionStatus) {
        let mut twice = self.state.clone();
        let (second, notifications) = twice.apply(self.now_us, op, alive);
        match (reply, &second) {
            (Reply::Release(first), Reply::Release(second)) => {
                assert_ne!(second.status, HoldStatus::Held, "released twice");
                assert_eq!(
                    without_others_wait(first.next.as_ref()),
                    without_others_wait(second.next.as_ref())
                );
            }
            (Reply::Evict(Evicted::Removed { .. }), second) => {
                assert_eq!(*second, Reply::Evict(Evicted::Removed { fence: None, was_queued: false }));
            }
            (Reply::ForceRelease(ForceReleased::Released), second) => {
                assert!(matches!(second, Reply::ForceRelease(ForceReleased::Changed { .. })));
            }
            (Reply::Acquire(first), Reply::Acquire(second)) => {
                assert_eq!(*first, as_doubted_before(first, second), "the second {op:?}");
            }
            (first, second) => assert_eq!(first, second, "the second {op:?}"),
        }
        assert_eq!(twice, self.state, "the state after the second {op:?}");
        assert_eq!(notifications, [], "the second {op:?} admitted a waiter");
    }

    /// The holds that should end do, in this way, and no others; no end comes closer.
    fn check_ended(&self, before: &Before, ends: &dyn Fn(&SharedHold) -> bool, how: Ended) {
        let now = shared_holds(&self.state);
        let mut lost = 0;
        for shared_hold in &before.holds {
            let after = now.iter().find(|after| after.hold == shared_hold.hold);
            assert_eq!(after.is_none(), ends(shared_hold), "{shared_hold:?} of {:#?}", before.state);
            if let Some(after) = after {
                assert!(after.until_ms >= shared_hold.until_ms, "it was shortened: {shared_hold:?}");
                assert_eq!(
                    (after.fence, after.mode, &after.owner),
                    (shared_hold.fence, shared_hold.mode, &shared_hold.owner)
                );
            } else {
                lost += 1;
                assert!(
                    lost > 8 || has_ended(&self.state, &shared_hold.hold),
                    "{how:?} is not written down: {shared_hold:?}"
                );
            }
        }
        if how != Ended::Released {
            let written: Vec<_> =
                entries(&self.state).into_iter().take(lost).map(|entry| entry.ended).collect();
            assert_eq!(written, vec![how; lost.min(32)]);
        }
    }

    /// An extend extends its own hold alone.
    fn check_extended(&self, before: &Before, op: &Op, reply: &Reply) {
        for shared_hold in &before.holds {
            let Some(after) =
                shared_holds(&self.state).into_iter().find(|after| after.hold == shared_hold.hold)
            else {
                continue;
            };
            let until_ms = match op {
                Op::Extend(extend) if extend.claim.hold == shared_hold.hold => {
                    assert_eq!(*reply, Reply::Extend(Extended::Extended));
                    shared_hold.until_ms.max(self.now_ms() + extend.lease_ms)
                }
                _ => shared_hold.until_ms,
            };
            assert_eq!(after.until_ms, until_ms, "{op:?}");
        }
    }

    /// Every new holder was admitted in its turn or by its own request. Each admitted waiter is notified
    /// once, and no other session is.
    fn check_admitted(&self, before: &Before, op: &Op, reply: &Reply, notifications: &[Notification]) {
        let was = |hold: &HoldId| before.holds.iter().any(|shared_hold| shared_hold.hold == *hold);
        let now = self.snapshot().holds;
        let fresh: Vec<_> = now.iter().filter(|shared_hold| !was(&shared_hold.hold)).collect();
        let mine = match op {
            Op::Acquire(request) => vec![(request.claim.hold, request.lease_ms)],
            // The release itself can also admit the hold of its accompanying acquire, before that acquire is
            // executed.
            Op::Release(release) => {
                release.next.iter().map(|next| (next.claim.hold, next.lease_ms)).collect()
            }
            _ => vec![],
        };
        let grants: Vec<_> = notifications
            .iter()
            .filter_map(|notification| notification.nonce().map(|nonce| (notification, nonce)))
            .collect();
        let mut reported = BTreeSet::new();
        for (notification, nonce) in &grants {
            let shared_hold = now
                .iter()
                .find(|shared_hold| shared_hold.fence == notification.fence())
                .expect("a notified waiter is a holder");
            assert!(!was(&shared_hold.hold), "notified again");
            assert!(reported.insert(shared_hold.fence), "notified twice");
            let entry = before.queue.iter().find(|entry| entry.claim.hold == shared_hold.hold);
            let asked = mine.iter().any(|(hold, _)| *hold == shared_hold.hold);
            assert!(
                asked || entry.is_some_and(|entry| entry.nonce == *nonce),
                "the nonce of the last request"
            );
            assert_eq!(notification.to(), shared_hold.hold.session());
        }
        for shared_hold in &fresh {
            let asked = mine.iter().find(|(hold, _)| *hold == shared_hold.hold);
            let entry = before.queue.iter().find(|entry| entry.claim.hold == shared_hold.hold);
            assert!(
                asked.is_some() || reported.contains(&shared_hold.fence),
                "admitted but not notified: {shared_hold:?}"
            );
            let lease_ms =
                entry.map(|entry| entry.lease_ms).into_iter().chain(asked.map(|(_, lease_ms)| *lease_ms));
            assert!(
                lease_ms.into_iter().any(|lease_ms| shared_hold.until_ms == self.now_ms() + lease_ms),
                "{shared_hold:?}"
            );
            assert!(
                asked.is_some() || entry.is_some_and(|entry| entry.expires_ms >= self.now_ms()),
                "dead: {shared_hold:?}"
            );
            assert_eq!(shared_hold.since_ms, self.now_ms());
        }
        assert!(grants.len() <= MAX_INSPECTED_ENTRIES);
        let taken: u64 = now.iter().map(|shared_hold| u64::from(shared_hold.mode.count())).sum();
        for shared_hold in &fresh {
            match shared_hold.mode {
                LockMode::Permits { .. } => {
                    assert!(taken <= u64::from(limit_of(&self.state).expect("it is known")));
                }
                LockMode::LatchWait { total } => {
                    assert!(taken >= u64::from(total), "it has not opened for {shared_hold:?}");
                }
                _ => {}
            }
        }
        if self.state.kind == Kind::Barrier {
            let total = fresh.first().and_then(|shared_hold| shared_hold.mode.total());
            assert!(
                fresh.is_empty() || total == u32::try_from(fresh.len()).ok(),
                "all parties, or none: {fresh:#?}"
            );
        }
        if let (Op::Acquire(request), Reply::Acquire(Acquired::Granted { fence, remaining_ms, .. })) =
            (op, reply)
        {
            let shared_hold = now
                .iter()
                .find(|shared_hold| shared_hold.hold == request.claim.hold)
                .expect("an admitted hold exists");
            assert_eq!((shared_hold.fence, shared_hold.until_ms), (*fence, self.now_ms() + remaining_ms));
        }
    }

    /// No waiter is passed by a later one, except by those for which it would wait itself; a waiter keeps its
    /// entry.
    fn check_order(&self, before: &Before, op: &Op) {
        let after = self.snapshot();
        // An expired entry no longer counts: a new request comes last.
        let over = |entry: &&QueueEntry| entry.expires_ms < self.now_ms();
        let anew = before.queue.iter().filter(over).map(|entry| entry.claim.hold);
        let anew: Vec<_> = anew.filter(|hold| requests_hold(op, hold)).collect();
        let kept: Vec<_> = before.queue.iter().map(|entry| entry.claim.hold).collect();
        let waits: Vec<_> = after.queue.iter().map(|entry| entry.claim.hold).collect();
        let stayed: Vec<_> =
            kept.iter().filter(|hold| waits.contains(hold) && !anew.contains(hold)).collect();
        let order: Vec<_> = waits.iter().filter(|hold| stayed.contains(hold)).collect();
        assert_eq!(stayed, order, "the order of the waiters");
        let now_ms = self.now_ms();
        for shared_hold in after
            .holds
            .iter()
            .filter(|shared_hold| !before.holds.iter().any(|held| held.hold == shared_hold.hold))
        {
            let at = kept.iter().position(|hold| *hold == shared_hold.hold).unwrap_or(kept.len());
            let owners = |held: &&SharedHold| {
                shared_hold.owner.is_some()
                    && held.owner == shared_hold.owner
                    && held.hold != shared_hold.hold
            };
            let passes = match shared_hold.mode {
                LockMode::CountDown { .. } | LockMode::Upgrade => true,
                LockMode::Read | LockMode::Upgradable => {
                    after.holds.iter().chain(&before.holds).any(|held| owners(&held))
                }
                LockMode::Write => {
                    after.holds.iter().chain(&before.holds).any(|held| owners(&held) && writes(held))
                }
                _ => false,
            };
            for earlier in &before.queue[..at] {
                let waits = after.queue.iter().any(|entry| entry.claim.hold == earlier.claim.hold);
                let live = earlier.expires_ms >= now_ms;
                assert!(passes || !waits || !live, "{shared_hold:?} has passed {earlier:?}");
            }
        }
    }

    /// Replies are true.
    fn check_reply(&self, before: &Before, op: &Op, reply: &Reply) {
        match (op, reply) {
            (
                Op::Acquire(request),
                Reply::Acquire(Acquired::Taken { position, predecessor, other_holders, .. }),
            ) => {
                let queue = self.snapshot().queue;
                let at = queue.iter().position(|entry| entry.claim.hold == request.claim.hold);
                assert_eq!(position.is_some(), request.queue.is_some());
                assert!(position.is_none_or(|reported| {
                    at.is_some_and(|at| reported >= at as u64 && reported < queue.len() as u64)
                }));
                let own = request.claim.hold.session();
                let mut reported: Vec<_> =
                    predecessor.iter().map(|predecessor| predecessor.session).collect();
                reported.extend(other_holders);
                assert!(!reported.contains(&own), "no session waits for its own death");
                if at == Some(0) && !matches!(self.state.kind, Kind::Latch | Kind::Barrier) {
                    let other_holders = |shared_hold: &&SharedHold| {
                        shared_hold.owner.is_none() || shared_hold.owner != request.claim.value
                    };
                    let die = |shared_hold: &SharedHold| {
                        shared_hold.liveness.ends_with_session().then(|| shared_hold.hold.session())
                    };
                    let all: BTreeSet<_> = self
                        .snapshot()
                        .holds
                        .iter()
                        .filter(other_holders)
                        .filter_map(die)
                        .filter(|who| *who != own)
                        .collect();
                    assert_eq!(
                        reported.iter().copied().collect::<BTreeSet<_>>(),
                        all,
                        "all of them are named"
                    );
                    assert_eq!(reported.len(), all.len(), "each once");
                }
            }
            (Op::Acquire(request), Reply::Refused(refused)) => {
                assert!(
                    !self.snapshot().holds.iter().any(|shared_hold| shared_hold.hold == request.claim.hold)
                );
                assert!(!self.snapshot().queue.iter().any(|entry| entry.claim.hold == request.claim.hold));
                self.check_refusal(before, request, refused);
            }
            (Op::Inspect(_), Reply::Inspect(seen)) => {
                assert_eq!(self.state, before.state, "an inspection changes nothing");
                assert_eq!(seen.shared_holders.len(), before.holds.len());
                assert_eq!(seen.limit, limit_of(&before.state));
            }
            (Op::Release(release), Reply::Release(released)) => {
                let held = before.holds.iter().any(|shared_hold| shared_hold.hold == release.claim.hold);
                assert_eq!(released.status == HoldStatus::Held, held);
                assert_eq!((released.remaining_holds, &released.holder), (0, &None));
            }
            (Op::Resize(resize), Reply::Resize(resized)) => match resized {
                Resized::Done => assert_eq!(limit_of(&self.state), Some(resize.limit)),
                Resized::Changed { limit } => {
                    assert_eq!(self.state, before.state);
                    assert!(*limit != resize.observed && *limit != Some(resize.limit));
                }
            },
            _ => {}
        }
    }

    /// Only a request that can never succeed is refused.
    fn check_refusal(&self, before: &Before, request: &Acquire, refused: &Refused) {
        let own = |shared_hold: &&SharedHold| {
            shared_hold.owner.is_some() && shared_hold.owner == request.claim.value
        };
        let is_true = match refused {
            Refused::OutOfRange { count, limit } => *count == 0 || count > limit,
            Refused::WouldDeadlock => {
                let now = self.snapshot().holds;
                before.holds.iter().chain(&now).any(|shared_hold| own(&shared_hold))
                    && !now.iter().any(|shared_hold| own(&shared_hold) && writes(shared_hold))
            }
            Refused::NothingToUpgrade => {
                // It may have been removed with a dead session in the same step.
                !self
                    .snapshot()
                    .holds
                    .iter()
                    .filter(own)
                    .any(|shared_hold| shared_hold.mode == LockMode::Upgradable)
            }
            Refused::Disagreement { limit, .. } => limit_of(&before.state) == Some(*limit),
            _ => false,
        };
        assert!(is_true, "{refused:?} to {request:?} on {:#?}", before.state);
    }

    /// Tokens grow with every hold, even if the record is lost while there are holders.
    fn check_tokens(&mut self, before: &Before) {
        let was = |shared_hold: &SharedHold| {
            before.holds.iter().any(|held| held.hold == shared_hold.hold && held.fence == shared_hold.fence)
        };
        let mut fresh: Vec<_> =
            shared_holds(&self.state).into_iter().filter(|shared_hold| !was(shared_hold)).collect();
        fresh.retain(|shared_hold| {
            shared_hold.until_ms >= self.now_ms() && shared_hold.since_ms == self.now_ms()
        });
        let known = before.holds.iter().map(|shared_hold| shared_hold.fence).max();
        let known = known.max(before.state.record.as_ref().and_then(|record| record.last_fence));
        for shared_hold in fresh {
            assert!(known.is_none_or(|known| shared_hold.fence > known), "{shared_hold:?} after {known:?}");
            assert!(shared_hold.fence.as_u64() >= self.now_us);
            self.newest = self.newest.max(Some(shared_hold.fence));
        }
    }

    /// Invariants of every state.
    fn check_state(&self) {
        let now = self.snapshot();
        let all = shared_holds(&self.state);
        assert!(all.is_sorted_by(|a, b| a.fence < b.fence), "the oldest first, and no two alike: {all:#?}");
        if let Some(value) = &self.state.value {
            let longest = all.iter().map(|shared_hold| shared_hold.until_ms).max();
            assert!(
                value.expires_ms >= longest,
                "the key lasts at least as long as the longest hold: {value:#?}"
            );
        }
        if let Some(record) = &self.state.record {
            let tickets: BTreeSet<_> = record.tickets.values().copied().collect();
            assert_eq!(tickets.len(), record.tickets.len(), "one entry per hold");
            assert_eq!(tickets, record.entries.keys().copied().collect());
            assert!(record.entries.iter().all(|(id, entry)| *id == QueueEntryId::Hold(entry.claim.hold)));
            assert!(record.entries.values().all(|entry| record.tickets.contains_key(&entry.ticket)));
            assert!(record.tickets.keys().all(|ticket| *ticket < record.next_ticket.max(1)));
            assert!(record.entries.keys().all(
                |id| !matches!(id, QueueEntryId::Hold(hold) if now.holds.iter().any(|shared_hold| shared_hold.hold == *hold))
            ));
        }
        match self.state.kind {
            Kind::RwLock => check_readers(&now.holds),
            Kind::Semaphore => {}
            _ => assert!(all.iter().all(|shared_hold| shared_hold.owner.is_none())),
        }
    }

    /// The first live waiter has no room after an operation has served the queue, as far as one operation
    /// inspects it.
    fn check_no_waiter_is_left_behind(&self, before: &Before) {
        let now = self.snapshot();
        if before.queue.len() > MAX_INSPECTED_ENTRIES {
            return;
        }
        let live: Vec<_> = now.queue.iter().filter(|entry| entry.expires_ms >= self.now_ms()).collect();
        let Some(first) = now.queue.first() else { return };
        if self.state.kind != Kind::Barrier {
            assert!(first.expires_ms >= self.now_ms(), "a dead one in front: {first:?}");
        }
        let limit = limit_of(&self.state);
        let taken: u64 = now.holds.iter().map(|shared_hold| u64::from(shared_hold.mode.count())).sum();
        let are_own = || now.holds.iter().all(|shared_hold| shared_hold.owner == first.claim.value);
        let room = match first.mode {
            LockMode::Permits { count, .. } => {
                let limit = limit.expect("a waiter has set the limit");
                count > limit || taken + u64::from(count) <= u64::from(limit)
            }
            LockMode::Read => !now.holds.iter().any(writes),
            LockMode::Upgradable => !now
                .holds
                .iter()
                .any(|shared_hold| writes(shared_hold) || shared_hold.mode == LockMode::Upgradable),
            LockMode::Write => now.holds.is_empty() || are_own() && now.holds.iter().any(writes),
            LockMode::Upgrade => are_own(),
            LockMode::LatchWait { total } => taken >= u64::from(total),
            LockMode::BarrierWait { .. } => live.len() >= limit.expect("a party has set the limit") as usize,
            _ => true,
        };
        assert!(!room, "there is room for {first:?} in {:#?}", self.state);
    }
}

/// Whether it requests this hold, by itself or after a release.
fn requests_hold(op: &Op, hold: &HoldId) -> bool {
    match op {
        Op::Acquire(request) => request.claim.hold == *hold,
        Op::Release(release) => release.next.as_ref().is_some_and(|next| next.claim.hold == *hold),
        _ => false,
    }
}

/// Whether the operation checked only its own hold, or nothing at all.
fn is_settled(before: &Before, op: &Op, reply: &Reply) -> bool {
    match (op, reply) {
        (Op::Acquire(request), _) => {
            let hold = &request.claim.hold;
            before.holds.iter().any(|shared_hold| shared_hold.hold == *hold) || has_ended(&before.state, hold)
        }
        (Op::Resize(_), reply) => *reply != Reply::Resize(Resized::Done),
        (_, Reply::Evict(Evicted::Alive) | Reply::ForceRelease(ForceReleased::Changed { .. })) => true,
        _ => false,
    }
}

/// Whether a hold excludes all other owners.
fn writes(shared_hold: &SharedHold) -> bool {
    matches!(shared_hold.mode, LockMode::Write | LockMode::Upgrade)
}

/// A writer is alone except for the other holds of its own owner, and at most one owner reads upgradably.
fn check_readers(holds: &[SharedHold]) {
    for shared_hold in holds {
        assert!(shared_hold.owner.is_some());
        if writes(shared_hold) {
            assert!(
                holds.iter().all(|other| other.owner == shared_hold.owner),
                "beside a writer: {holds:#?}"
            );
        }
    }
    let upgradable: BTreeSet<_> = holds
        .iter()
        .filter(|shared_hold| shared_hold.mode == LockMode::Upgradable)
        .map(|shared_hold| shared_hold.owner.as_ref().map(OwnValue::as_str))
        .collect();
    assert!(upgradable.len() <= 1, "{holds:#?}");
}

/// The reply to an acquire that came with a release, without `others_wait`: an expired entry may be found
/// only after that reply.
fn without_others_wait(next: Option<&Result<Acquired, Refused>>) -> Option<Result<Acquired, Refused>> {
    let mut next = next.cloned();
    if let Some(Ok(Acquired::Granted { others_wait, .. })) = &mut next {
        *others_wait = false;
    }
    next
}

/// The second reply to an acquire, without the remaining life of an unknown session: the first operation
/// determines it before it admits a waiter, which may be of that session.
fn as_doubted_before(first: &Acquired, second: &Acquired) -> Acquired {
    let mut second = second.clone();
    if let (
        Acquired::Taken { predecessor: Some(first), .. },
        Acquired::Taken { predecessor: Some(second), .. },
    ) = (first, &mut second)
        && first.session == second.session
    {
        second.alive_ms = second.alive_ms.min(first.alive_ms);
    }
    second
}

fn shared_holds(state: &LockState) -> Vec<SharedHold> {
    let shared_holds = state.value.as_ref().and_then(|value| value.content.shared_holders());
    shared_holds.map(|shared_holds| shared_holds.holds.clone()).unwrap_or_default()
}

fn limit_of(state: &LockState) -> Option<u32> {
    state.record.as_ref().and_then(|record| record.limit)
}

fn lives_with(liveness: Liveness, hold: &HoldId, session: SessionId) -> bool {
    liveness.ends_with_session() && hold.session() == session
}

fn play(kind: Kind, steps: &[(i64, Event)]) {
    let mut environment = Environment::new(kind);
    let _ = steps.iter().all(|step| environment.step(step));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_semaphore_keeps_what_it_promises(steps in any_steps(Kind::Semaphore)) {
        play(Kind::Semaphore, &steps);
    }

    #[test]
    fn an_rwlock_keeps_what_it_promises(steps in any_steps(Kind::RwLock)) {
        play(Kind::RwLock, &steps);
    }

    #[test]
    fn a_latch_keeps_what_it_promises(steps in any_steps(Kind::Latch)) {
        play(Kind::Latch, &steps);
    }

    #[test]
    fn a_barrier_keeps_what_it_promises(steps in any_steps(Kind::Barrier)) {
        play(Kind::Barrier, &steps);
    }
}
