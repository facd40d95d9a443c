//! Properties of the ReentrantMutex.
//!
//! 1. Every property is checked after every step, in [`Environment::step`] alone.
//! 2. Clients of other libraries acquire and release as Redisson does, under owners of their own and under Leasehold's, and
//!    release no more often than they acquired; they delete the key at random, and store other values there.
//! 3. An observer keeps track of the share of other libraries in the count, of when a hold without extends must end,
//!    and of the longest lease.

use super::workload::{
    HOUR_MS, SESSIONS, START_US, Tokens, any_claim, any_lease_ms, any_move, any_op, any_session_op, by,
    check_doubling, check_queue, check_queue_entries, claims, entries, has_ended, lives_with, order,
    queue_entries, request, session, watcher,
};
use leasehold_core::model::{
    Content, LockState, ReentrantHold, ReentrantHolds, SessionStatus, Sessions, Value, Watermark, all_alive,
};
use leasehold_core::{
    Acquire, Acquired, AuditEntry, Claim, Ended, Evict, Evicted, Extend, Extended, FencingToken, Fingerprint,
    ForceRelease, ForceReleased, HoldId, HoldStatus, Inspect, Kind, Label, Liveness, Notification,
    ObservedHolder, Op, OwnValue, OwnerHolds, Predecessor, Refused, Release, ReleaseAction, Released, Reply,
    SessionId, SessionOp,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// One event.
#[derive(Debug, Clone)]
enum Event {
    /// An operation of Leasehold.
    Op(Op),
    /// A client of another library acquires, for that many milliseconds, unless for ever.
    Enters(&'static str, Option<u64>),
    /// A client of another library releases.
    Leaves,
    /// A client of another library stores a Mutex or another value at the key.
    SetOther(Content),
    /// A client of another library deletes the key.
    Delete,
    /// A store that tracks dead sessions reports that this one is dead.
    EvictSession(SessionId),
    /// An operation on a session.
    SessionOp(SessionOp),
    /// An operator takes the lock by force: from its holder, or with a wrong observation.
    ForceRelease(Option<ObservedHolder>),
}

/// The `n`th hold of a session. The first two are of an owner of the session's own; the third is of an owner
/// that all sessions share.
fn claim(s: u8, n: u8) -> Claim {
    let owner = if n == 2 { "shared".to_owned() } else { format!("task {s}") };
    let value = OwnValue::new(owner).ok();
    Claim { hold: HoldId::from_random(session(s), [n; 16]), value }
}

fn any_event() -> impl Strategy<Value = Event> {
    let owner = prop_oneof![Just("redisson"), Just("shared"), Just("task 1")];
    let other = prop_oneof![Just(Content::Token("foreign".into())), Just(Content::Other("list".into()))];
    let wrong = prop_oneof![
        any::<u64>().prop_map(|fence| ObservedHolder::Hold(FencingToken::new(fence))),
        Just(ObservedHolder::Foreign(Fingerprint::of("shared")))
    ];
    prop_oneof![
        24 => any_op(claim).prop_map(Event::Op),
        3 => (owner, proptest::option::weighted(0.9, any_lease_ms())).prop_map(|(owner, ms)| Event::Enters(owner, ms)),
        3 => Just(Event::Leaves),
        1 => other.prop_map(Event::SetOther),
        1 => Just(Event::Delete),
        1 => (0..SESSIONS).prop_map(|s| Event::EvictSession(session(s))),
        8 => any_session_op().prop_map(Event::SessionOp),
        2 => proptest::option::weighted(0.4, wrong).prop_map(Event::ForceRelease),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<(i64, Event)>> {
    proptest::collection::vec((any_move(), any_event()), 1..80)
}

/// What the observer remembers (3).
#[derive(Default)]
struct Observed {
    /// How many holds clients of other libraries have.
    foreign_holds: u64,
    /// Set if a client of another library may have set the key's expiry since Leasehold's holds exist.
    foreign_expiry: bool,
    /// When the holds without extends end, in milliseconds of the store's clock.
    orphans: BTreeMap<HoldId, u64>,
    /// The longest requested lease, in milliseconds.
    longest_ms: u64,
    /// The holds that ended, most recent first, and how.
    ended: Vec<(HoldId, Ended)>,
}

/// The model with its observer.
struct Environment {
    state: LockState,
    sessions: Sessions,
    now_us: u64,
    /// The latest time so far, in microseconds: the clock also goes back.
    latest_us: u64,
    tokens: Tokens,
    observed: Observed,
    /// Every claim that may occur.
    claims: Vec<Claim>,
}

impl Environment {
    fn new() -> Self {
        let (state, sessions) = (LockState::new(Kind::Reentrant), Sessions::default());
        let (tokens, observed, claims) = (Tokens::default(), Observed::default(), claims(claim).collect());
        Self { state, sessions, now_us: START_US, latest_us: START_US, tokens, observed, claims }
    }

    /// Moves the clock, applies an event, and checks everything (1).
    fn step(&mut self, (by_us, event): &(i64, Event)) {
        self.now_us = self.now_us.saturating_add_signed(*by_us);
        self.latest_us = self.latest_us.max(self.now_us);
        // The clock expires values, not the operation.
        self.state.is_empty_at(self.now_us);
        self.forget_ended_holds();
        let before = self.state.clone();
        match event {
            Event::Op(op) => self.execute(&before, op),
            Event::ForceRelease(observed) => {
                let observed =
                    observed.or_else(|| self.shown()).unwrap_or(ObservedHolder::Hold(FencingToken::new(0)));
                self.execute(&before, &Op::ForceRelease(ForceRelease { observed, actor: watcher() }));
            }
            Event::SessionOp(op) => drop(self.sessions.apply(self.now_ms(), op)),
            Event::Enters(owner, ms) => self.enter(owner, *ms),
            Event::Leaves => self.leave(),
            Event::SetOther(content) => {
                self.state.value = Some(Value { content: content.clone(), expires_ms: None });
            }
            Event::Delete => self.state.value = None,
            Event::EvictSession(dead) => {
                let (fence, _) = self.state.evict_session(self.now_us, *dead, &watcher());
                let gone = self.dying(&before, *dead);
                assert_eq!(fence.is_some(), !gone.is_empty());
                self.check_lost(&before, &gone, Some((Ended::Evicted, &watcher())));
                self.check_recorded_ends(&before, &gone, Ended::Evicted);
                assert!(!queue_entries(&self.state).any(|(_, entry)| lives_with(
                    entry.liveness,
                    &entry.claim,
                    *dead
                )));
            }
        }
        self.forget_ended_holds();
        self.tokens.check(&before, &self.state, self.now_us);
        self.check_state();
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    /// How Redisson acquires.
    fn enter(&mut self, owner: &str, lease_ms: Option<u64>) {
        let now_ms = self.now_ms();
        let none = || ReentrantHolds {
            owner: OwnValue::new(owner).expect("a plain text"),
            count: 0,
            fence: None,
            lease_ms: 0,
            holds: Vec::new(),
        };
        let free = || Value { content: Content::ReentrantHolds(none()), expires_ms: None };
        let value = self.state.value.get_or_insert_with(free);
        if let Content::ReentrantHolds(entries) = &mut value.content
            && entries.owner.as_str() == owner
        {
            entries.count += 1;
            value.expires_ms = lease_ms.map(|lease_ms| now_ms + lease_ms);
            self.observed.foreign_holds += 1;
            self.observed.foreign_expiry = true;
        }
    }

    /// How Redisson releases.
    fn leave(&mut self) {
        let Some(Value { content: Content::ReentrantHolds(entries), .. }) = &mut self.state.value else {
            return;
        };
        if self.observed.foreign_holds > 0 {
            self.observed.foreign_holds -= 1;
            entries.count -= 1;
            let left = entries.count;
            self.state.value.take_if(|_| left == 0);
        }
    }

    /// Drops what the observer knows about holds that are gone.
    fn forget_ended_holds(&mut self) {
        let stands = self.state.value.as_ref().is_some_and(|value| value.content.reentrant_holds().is_some());
        if !stands {
            (self.observed.foreign_holds, self.observed.foreign_expiry) = (0, false);
        }
        let lie = holds(&self.state, 0);
        // Expired holds also exist until an operation writes: the clock may go back.
        self.observed.orphans.retain(|hold, _| lie.iter().any(|entry| entry.hold == *hold));
    }

    fn execute(&mut self, before: &LockState, op: &Op) {
        let dead = self.named_dead(before, op);
        let (sessions, now_ms) = (&self.sessions, self.now_ms());
        let (reply, notifications) =
            self.state.apply(self.now_us, op, &|session| sessions.status(now_ms, session));
        if reply == Reply::ForceRelease(ForceReleased::Released) {
            (self.observed.foreign_holds, self.observed.foreign_expiry) = (0, false);
        }
        let sent = (self.now_us, op);
        check_doubling(before, &self.state, sent, &reply, &self.sessions);
        check_queue(before, &self.state, sent, &notifications, dead);
        if self.check_refusal(before, op, &reply) {
            return;
        }
        let lost = self.lost(before, op, &reply, dead);
        let how = match op {
            Op::ForceRelease(_) => Some(Ended::ForceReleased),
            Op::Release(_) => None,
            _ => Some(Ended::Evicted),
        };
        let by = by(op);
        self.check_lost(before, &lost, how.map(|how| (how, &by)));
        self.check_recorded_ends(before, &lost, how.unwrap_or(Ended::Released));
        self.check_force(before, op, &reply, &notifications);
        self.note_extend(op, &reply);
        self.check_entries(before, op, &lost, &notifications);
        self.check_replies(before, op, &reply);
        self.check_free_lock(op, &reply);
        self.check_predecessor(op, &reply);
    }

    /// A value of another kind at the key stays as it is, and the request is refused.
    fn check_refusal(&self, before: &LockState, op: &Op, reply: &Reply) -> bool {
        let other = before.value.as_ref().is_some_and(|value| value.content.reentrant_holds().is_none());
        let told = match op {
            Op::Extend(_) => *reply == Reply::Extend(Extended::NotHeld),
            Op::Release(_) => {
                matches!(reply, Reply::Release(released) if released.status != HoldStatus::Held)
            }
            _ => matches!(reply, Reply::Refused(_)),
        };
        if other {
            assert!(told, "{reply:?} to {op:?} of {before:#?}");
            assert_eq!(self.state.value, before.value, "by {op:?}");
        } else {
            assert!(!matches!(reply, Reply::Refused(_)), "{op:?} of {before:#?}");
        }
        other
    }

    /// The dead session that an operation removes, if any.
    fn named_dead(&self, before: &LockState, op: &Op) -> Option<SessionId> {
        let named = match op {
            Op::Acquire(request) => {
                let held = holds(before, self.now_ms()).iter().any(|entry| entry.hold == request.claim.hold);
                let ended = has_ended(before, &request.claim.hold);
                request.predecessor.filter(|_| !held && !ended)
            }
            Op::Evict(evict) => Some(evict.session),
            _ => None,
        };
        let refused = before.value.as_ref().is_some_and(|value| value.content.reentrant_holds().is_none());
        named.filter(|named| !refused && self.alive_ms(before, *named).is_none())
    }

    /// How long a session counts as alive: an unknown session counts as alive for as long as its client may
    /// rely on any of its holds.
    fn alive_ms(&self, state: &LockState, session: SessionId) -> Option<u64> {
        let believed = |entry: ReentrantHold| match entry.liveness {
            Liveness::Session { alive_ms } if entry.hold.session() == session => {
                (entry.since_ms + alive_ms).checked_sub(self.now_ms())
            }
            _ => None,
        };
        match self.sessions.status(self.now_ms(), session) {
            SessionStatus::Alive(alive_ms) => Some(alive_ms),
            SessionStatus::Lapsed => None,
            SessionStatus::Unknown => holds(state, self.now_ms()).into_iter().filter_map(believed).max(),
        }
    }

    /// The holds that a dead session loses.
    fn dying(&self, before: &LockState, dead: SessionId) -> Vec<ReentrantHold> {
        let mut dying = holds(before, self.now_ms());
        dying.retain(|entry| entry.liveness.ends_with_session() && entry.hold.session() == dead);
        dying
    }

    /// The holds that an operation must end.
    fn lost(
        &self,
        before: &LockState,
        op: &Op,
        reply: &Reply,
        dead: Option<SessionId>,
    ) -> Vec<ReentrantHold> {
        match (op, reply) {
            (Op::Release(release), _) => {
                let mut own = holds(before, self.now_ms());
                own.retain(|entry| entry.hold == release.claim.hold);
                own
            }
            (Op::ForceRelease(_), Reply::ForceRelease(ForceReleased::Released)) => {
                holds(before, self.now_ms())
            }
            _ => dead.map(|dead| self.dying(before, dead)).unwrap_or_default(),
        }
    }

    /// The holds that must end do, and no others; and an end by a client other than the holder is in the
    /// audit.
    fn check_lost(&self, before: &LockState, lost: &[ReentrantHold], ended: Option<(Ended, &Label)>) {
        let now = holds(&self.state, self.now_ms());
        for entry in holds(before, self.now_ms()) {
            let after = now.iter().find(|after| after.hold == entry.hold);
            let goes = lost.iter().any(|lost| lost.hold == entry.hold);
            assert_eq!(after.is_none(), goes, "{entry:?} of {before:#?} in {:#?}", self.state);
            assert!(
                after.is_none_or(|after| after.until_ms >= entry.until_ms),
                "it was shortened: {entry:?}"
            );
        }
        let (Some(first), Some((ended, actor))) = (lost.first(), ended) else { return };
        let (at_ms, holder, actor) = (self.now_ms(), Some(first.label.clone()), actor.clone());
        let fence = live(before, self.now_ms()).and_then(|entries| entries.fence);
        let written = entries(&self.state);
        assert_eq!(written.first(), Some(&AuditEntry { at_ms, ended, fence, holder, actor }));
        assert!(before.record.is_none() || has_ended(&self.state, &first.hold), "{ended:?} {first:?}");
    }

    /// The status of an ended hold is reported until eight other holds of this lock have ended: to a resent
    /// release, and to a late acquire.
    fn check_recorded_ends(&mut self, before: &LockState, lost: &[ReentrantHold], how: Ended) {
        if before.record.is_none() {
            // It is lost with the record; only a release creates a new one.
            self.observed.ended.clear();
        }
        if before.record.is_some() || how == Ended::Released {
            self.observed.ended.splice(..0, lost.iter().rev().map(|entry| (entry.hold, how)));
            self.observed.ended.truncate(8);
        }
        let Some(record) = &self.state.record else { return };
        for (at, (hold, how)) in self.observed.ended.iter().enumerate() {
            let again = self.observed.ended[..at].iter().any(|(later, _)| later == hold);
            assert!(again || record.ended.find(hold) == Some(*how), "{hold:?} was {how:?}: {record:#?}");
        }
    }

    /// A forced release notifies each former holder once, and no other session.
    fn check_force(&self, before: &LockState, op: &Op, reply: &Reply, notifications: &[Notification]) {
        let mut told: Vec<_> =
            notifications.iter().filter(|notification| notification.nonce().is_none()).copied().collect();
        told.sort();
        let mut expected = Vec::new();
        if let (Op::ForceRelease(_), Reply::ForceRelease(ForceReleased::Released)) = (op, reply) {
            let had = live(before, self.now_ms()).expect("the lock was held");
            let had = had.holds.iter().map(|entry| (entry.hold.session(), had.fence.expect("a token")));
            expected = had.map(|(to, fence)| Notification::ForceReleased { to, fence }).collect();
            expected.sort();
            expected.dedup();
        } else if let (Op::ForceRelease(_), Reply::ForceRelease(ForceReleased::Changed { .. })) = (op, reply)
        {
            assert_eq!(self.state, *before, "no hold was taken");
        }
        assert_eq!(told, expected, "by {op:?}");
    }

    fn note_extend(&mut self, op: &Op, reply: &Reply) {
        if let (Op::Extend(extend), Reply::Extend(Extended::Extended)) = (op, reply) {
            self.observed.orphans.remove(&extend.claim.hold);
            self.observed.longest_ms = self.observed.longest_ms.max(extend.lease_ms);
        }
    }

    /// A new holder is entitled to the lock: its owner already held it, or it was free, and no live waiter
    /// was before it. All holds of one tenure share one token.
    fn check_entries(
        &mut self,
        before: &LockState,
        op: &Op,
        lost: &[ReentrantHold],
        notifications: &[Notification],
    ) {
        let now_ms = self.now_ms();
        let was = live(before, now_ms);
        let mut stays = holds(before, now_ms);
        self.check_ends(op, &stays);
        let theirs = was.as_ref().is_some_and(|was| was.count > stays.len() as u64);
        stays.retain(|entry| lost.iter().all(|lost| lost.hold != entry.hold));
        let Some(after) = live(&self.state, now_ms) else { return };
        if let Some(was) = was.as_ref().filter(|_| !stays.is_empty()) {
            assert_eq!((&after.owner, after.fence), (&was.owner, was.fence), "one tenure, one token");
        }
        let old = holds(before, now_ms);
        for new in after.holds.iter().filter(|entry| old.iter().all(|old| old.hold != entry.hold)) {
            let woken = self.check_right(before, op, new, &after, notifications);
            if stays.is_empty() {
                let last = |state: &LockState| state.record.as_ref().and_then(|record| record.last_fence);
                assert_ne!(last(&self.state), last(before), "a new tenure, a new token");
                assert_eq!(after.fence, last(&self.state));
                self.observed.longest_ms = 0;
                if !theirs || matches!(op, Op::ForceRelease(_)) {
                    self.observed.foreign_expiry = false;
                    self.check_turn(before, op, new);
                }
            } else {
                assert!(!woken, "the lock was not free");
            }
            self.observed.longest_ms = self.observed.longest_ms.max(new.until_ms - now_ms);
            stays.push(new.clone());
        }
    }

    /// A hold is extended or shortened only by an extend of its own.
    fn check_ends(&self, op: &Op, before: &[ReentrantHold]) {
        let own = |entry: &ReentrantHold| matches!(op, Op::Extend(extend) if extend.claim.hold == entry.hold);
        for after in holds(&self.state, self.now_ms()) {
            let before = before.iter().find(|before| before.hold == after.hold && !own(before));
            assert!(before.is_none_or(|before| before.until_ms == after.until_ms), "{op:?} moved {before:?}");
        }
    }

    /// It was requested, by that owner, and lasts as long as requested. Returns whether a message was sent
    /// for it.
    fn check_right(
        &mut self,
        before: &LockState,
        op: &Op,
        new: &ReentrantHold,
        has: &ReentrantHolds,
        notifications: &[Notification],
    ) -> bool {
        let asked = asked(op).filter(|request| request.claim.hold == new.hold);
        let entry = queue_entries(before).map(|(_, entry)| entry).find(|entry| entry.claim.hold == new.hold);
        let (claim, lease_ms) = match (asked, entry) {
            (Some(request), _) => (&request.claim, request.lease_ms),
            (None, Some(entry)) => (&entry.claim, entry.lease_ms),
            (None, None) => panic!("no client requested {new:?}"),
        };
        assert_eq!(claim.value.as_ref(), Some(&has.owner));
        assert_eq!((new.since_ms, new.until_ms), (self.now_ms(), self.now_ms() + lease_ms));
        self.observed.orphans.insert(new.hold, new.until_ms);
        let its = |notification: &Notification| {
            notification.to() == new.hold.session() && notification.nonce() == entry.map(|entry| entry.nonce)
        };
        let woken =
            notifications.iter().any(|notification| notification.nonce().is_some() && its(notification));
        assert_eq!(woken, asked.is_none(), "the request learns it from the reply, a waiter from a message");
        woken
    }

    /// A free lock goes to the first live waiter in the queue.
    fn check_turn(&self, before: &LockState, op: &Op, winner: &ReentrantHold) {
        let dead = self.named_dead(before, op);
        let leaver = match op {
            Op::Release(release) => Some(release.claim.hold),
            _ => None,
        };
        for session in order(before) {
            let (_, entry) = queue_entries(before).find(|(s, _)| **s == session).expect("it waited");
            // An entry also stands for another task of the same process that waits.
            let waits =
                asked(op).is_some_and(|request| request.claim.hold == winner.hold && request.queue.is_some());
            if session == winner.hold.session() && (waits || entry.claim.hold == winner.hold) {
                break;
            }
            let left = Some(entry.claim.hold) == leaver;
            let was_evicted = dead.is_some_and(|dead| lives_with(entry.liveness, &entry.claim, dead));
            let over = entry.expires_ms < self.now_ms();
            assert!(left || was_evicted || over, "{winner:?} was served before {session:?} by {op:?}");
        }
    }

    /// Replies are true: a request of the same owner is granted at once, one of another owner never; and
    /// count and lease are correct.
    fn check_replies(&self, before: &LockState, op: &Op, reply: &Reply) {
        let (was, is) = (live(before, self.now_ms()), live(&self.state, self.now_ms()));
        match (op, reply) {
            (Op::Acquire(request), Reply::Acquire(acquired)) => {
                self.check_acquired(request, acquired, is.as_ref());
            }
            (Op::Release(release), Reply::Release(released)) => {
                let mine = was.filter(|was| Some(&was.owner) == release.claim.value.as_ref());
                let count = mine.map_or(0, |was| was.count);
                let taken = u64::from(released.status == HoldStatus::Held);
                assert_eq!(released.remaining_holds, count - taken, "{op:?} of {before:#?}");
                if let (Some(request), Released { next: Some(Ok(next)), .. }) = (&release.next, released) {
                    self.check_acquired(request, next, is.as_ref());
                }
            }
            (Op::Inspect(_), Reply::Inspect(inspection)) => {
                assert_eq!(self.state, *before, "an inspect changes nothing");
                let holder = inspection.holder.as_ref();
                let told =
                    holder.and_then(|holder| Some((holder.owner.clone()?, holder.count, holder.fence)));
                assert_eq!(told, was.map(|was| (was.owner, was.count, was.fence)));
            }
            (Op::Extend(extend), Reply::Extend(extended)) => {
                let held = was.is_some_and(|was| was.find(&extend.claim.hold).is_some());
                assert_eq!(*extended == Extended::Extended, held);
                if !held {
                    assert_eq!(self.state, *before);
                }
            }
            (Op::Evict(evict), Reply::Evict(Evicted::Alive)) => {
                assert!(self.alive_ms(before, evict.session).is_some());
                assert_eq!(self.state, *before, "the living keep what they have");
            }
            (Op::Evict(evict), Reply::Evict(Evicted::Removed { fence, .. })) => {
                let lost = self.dying(before, evict.session);
                assert_eq!(*fence, was.and_then(|was| was.fence).filter(|_| !lost.is_empty()));
            }
            (Op::ForceRelease(_), Reply::ForceRelease(_)) => {}
            other => panic!("{other:?}"),
        }
    }

    fn check_acquired(&self, request: &Acquire, acquired: &Acquired, is: Option<&ReentrantHolds>) {
        let mine = is.filter(|is| Some(&is.owner) == request.claim.value.as_ref());
        match acquired {
            Acquired::Granted { fence, remaining_ms, owner_holds, .. } => {
                let mine = mine.expect("its owner holds the lock");
                let entry = mine.find(&request.claim.hold).expect("the hold is one of the owner's");
                assert_eq!((Some(*fence), *remaining_ms), (mine.fence, entry.until_ms - self.now_ms()));
                let OwnerHolds { count, lease_ms } = owner_holds.expect("the reply has the count");
                assert_eq!((count, lease_ms), (mine.count, self.observed.longest_ms));
            }
            Acquired::Taken { .. } => assert_eq!(mine, None, "the same owner acquires at once: {request:?}"),
            Acquired::AlreadyEnded(_) => assert!(has_ended(&self.state, &request.claim.hold)),
        }
    }

    /// A lock stays free only where no client waits, or where a release requested it.
    fn check_free_lock(&self, op: &Op, reply: &Reply) {
        let pumps = match (op, reply) {
            (Op::Acquire(_), Reply::Acquire(acquired)) => !matches!(acquired, Acquired::AlreadyEnded(_)),
            (Op::Release(Release { action, next, .. }), _) => {
                *action == ReleaseAction::Grant && next.is_none()
            }
            (Op::Evict(_), Reply::Evict(evicted)) => *evicted != Evicted::Alive,
            (Op::ForceRelease(_), Reply::ForceRelease(freed)) => *freed == ForceReleased::Released,
            _ => false,
        };
        let other = self.state.value.as_ref().is_some_and(|value| value.content.reentrant_holds().is_none());
        if pumps && !other && live(&self.state, self.now_ms()).is_none() {
            assert!(order(&self.state).is_empty(), "the lock is free after {op:?}, and a client waits");
            assert!(!matches!(op, Op::Acquire(_)), "no client was before it: {op:?}");
        }
    }

    /// The predecessor in a reply has the queue entry right before the request's, or is the first holder.
    fn check_predecessor(&self, op: &Op, reply: &Reply) {
        let (Op::Acquire(request), Reply::Acquire(Acquired::Taken { position, predecessor, .. })) =
            (op, reply)
        else {
            return;
        };
        let queue = order(&self.state);
        let own =
            queue.iter().position(|s| *s == request.claim.hold.session()).filter(|_| position.is_some());
        let entry = own.and_then(|own| own.checked_sub(1)).map(|before| queue[before]);
        let entry = entry.and_then(|s| queue_entries(&self.state).find(|(session, _)| **session == s));
        let first = || holds(&self.state, self.now_ms()).first().map(|entry| (entry.liveness, entry.hold));
        let before = entry.map(|(_, entry)| (entry.liveness, entry.claim.hold)).or_else(first);
        let expected = before.filter(|(liveness, _)| liveness.ends_with_session()).map(|(_, hold)| {
            let session = hold.session();
            let asked = request.predecessor == Some(session);
            Predecessor { session, alive_ms: self.alive_ms(&self.state, session).filter(|_| asked) }
        });
        assert_eq!(*predecessor, expected, "ahead of {request:?} in {:#?}", self.state);
    }

    /// Invariants of every state.
    fn check_state(&self) {
        let (state, now_ms) = (&self.state, self.now_ms());
        let live = live(state, now_ms);
        let held: Vec<_> =
            self.claims.iter().filter(|claim| self.hold_status(claim) == Some(HoldStatus::Held)).collect();
        let holds: Vec<_> = live.iter().flat_map(|live| &live.holds).collect();
        assert_eq!(held.len(), holds.len(), "{held:?} in {state:#?}");
        for held in &held {
            let live = live.as_ref().expect("the lock is held");
            assert_eq!(held.value.as_ref(), Some(&live.owner), "two owners hold the lock: {state:#?}");
            assert!(live.find(&held.hold).is_some());
        }
        if let Some(live) = &live {
            assert_eq!(live.count, holds.len() as u64 + self.observed.foreign_holds, "{state:#?}");
            assert_eq!(live.fence.is_some(), !holds.is_empty());
        }
        for held in &holds {
            let end_ms = self.observed.orphans.get(&held.hold);
            assert!(
                end_ms.is_none_or(|end_ms| held.until_ms == *end_ms),
                "an orphan was lengthened: {held:?}"
            );
        }
        let last_ms = holds.iter().map(|entry| entry.until_ms).max();
        let expires_ms = state.value.as_ref().and_then(|value| value.expires_ms);
        if !self.observed.foreign_expiry && last_ms.is_some() {
            // An expiry is at least a millisecond ahead: one that is due now would delete the key at once,
            // while the hold counts until this millisecond is over.
            let due = |at_ms| at_ms <= self.latest_us / 1000;
            let ends = |at_ms| expires_ms == Some(at_ms) || (due(at_ms) && expires_ms == Some(at_ms + 1));
            assert!(last_ms.is_some_and(ends), "the key ends with the last hold: {state:#?}");
        }
        if let Some(record) = &state.record {
            check_queue_entries(record);
            let waits = |hold| record.entries.values().any(|entry| entry.claim.hold == hold);
            // A hold that was expired when it queued, and counts again because the clock went back, may do
            // both.
            let mut had = holds.iter().filter(|held| held.until_ms >= self.latest_us / 1000);
            assert!(!had.any(|held| waits(held.hold)), "a holder waits for its own lock: {state:#?}");
            assert!(
                holds.iter().all(|held| record.ended.find(&held.hold).is_none()),
                "an ended hold holds: {state:#?}"
            );
        }
        // The watermark belongs to the partition, and is not stored with the lock.
        let stored = LockState { watermark: Watermark::default(), ..state.clone() };
        let text = serde_json::to_string(state).expect("plain data");
        assert_eq!(serde_json::from_str(&text).ok(), Some(stored), "{text}");
    }

    fn hold_status(&self, claim: &Claim) -> Option<HoldStatus> {
        let inspect = Inspect { claim: Some(claim.clone()), details: false };
        match self.state.clone().apply(self.now_us, &Op::Inspect(inspect), &all_alive).0 {
            Reply::Inspect(inspection) => inspection.hold_status,
            Reply::Refused(_) => None,
            other => panic!("to an inspect: {other:?}"),
        }
    }

    /// The holder as an inspection shows it.
    fn shown(&self) -> Option<ObservedHolder> {
        let inspect = Op::Inspect(Inspect { claim: None, details: true });
        let (reply, _) = self.state.clone().apply(self.now_us, &inspect, &all_alive);
        let Reply::Inspect(seen) = reply else { return None };
        let fence = seen.holder.and_then(|holder| holder.fence).map(ObservedHolder::Hold);
        fence.or(seen.foreign_fingerprint.map(ObservedHolder::Foreign))
    }
}

/// The holds at that time: expired ones do not count (2 of `model/lock.rs`).
fn live(state: &LockState, now_ms: u64) -> Option<ReentrantHolds> {
    let mut entries = state.value.as_ref()?.content.reentrant_holds()?.clone();
    let lie = entries.holds.len();
    entries.holds.retain(|entry| entry.until_ms >= now_ms);
    entries.count -= (lie - entries.holds.len()) as u64;
    if entries.holds.is_empty() {
        entries.fence = None;
    }
    (entries.count > 0).then_some(entries)
}

fn holds(state: &LockState, now_ms: u64) -> Vec<ReentrantHold> {
    live(state, now_ms).map(|entries| entries.holds).unwrap_or_default()
}

/// The acquire in an operation.
fn asked(op: &Op) -> Option<&Acquire> {
    match op {
        Op::Acquire(request) => Some(request),
        Op::Release(release) => release.next.as_ref(),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_keeps_its_promises(steps in any_steps()) {
        let mut environment = Environment::new();
        for step in &steps {
            environment.step(step);
        }
    }

    /// Row 27 in small: nothing is kept for ever, and no count is left.
    #[test]
    fn an_expired_state_leaves_nothing(steps in any_steps()) {
        let mut environment = Environment::new();
        for step in steps.iter().filter(|(_, event)| !matches!(event, Event::Enters(_, None) | Event::SetOther(_))) {
            environment.step(step);
        }
        let value_ms = environment.state.value.as_ref().and_then(|value| value.expires_ms);
        let record_ms = environment.state.record.as_ref().map(|record| record.expires_ms);
        let audit_ms = environment.state.audit.as_ref().map(|audit| audit.expires_ms);
        let over_ms = value_ms.max(record_ms).max(audit_ms).unwrap_or(0) + 1;
        prop_assert!(environment.state.is_empty_at(over_ms * 1000));
        prop_assert!(over_ms < environment.tokens.latest_us / 1000 + 31 * 24 * HOUR_MS, "kept for too long");
    }

    /// An extend only raises, only its own hold, and only where that exists.
    #[test]
    fn an_extend_only_raises_its_own(steps in any_steps(), claim in any_claim(claim), lease_ms in any_lease_ms()) {
        let mut environment = Environment::new();
        for step in &steps {
            environment.step(step);
            let (mut state, now_us) = (environment.state.clone(), environment.now_us);
            let before = holds(&state, now_us / 1000);
            let extend = Extend { claim: claim.clone(), lease_ms, keep_record: false, reserve: None, fence: None };
            let (reply, _) = state.apply(now_us, &Op::Extend(extend), &all_alive);
            let mut expected = before.clone();
            let own = expected.iter_mut().find(|entry| entry.hold == claim.hold);
            prop_assert_eq!(reply == Reply::Extend(Extended::Extended), own.is_some());
            let Some(own) = own else {
                prop_assert_eq!(&state, &environment.state);
                continue;
            };
            own.until_ms = own.until_ms.max(now_us / 1000 + lease_ms);
            prop_assert_eq!(holds(&state, now_us / 1000), expected);
        }
    }

    /// A hold that does not exist is not released or evicted (rows 2 and 16).
    #[test]
    fn a_hold_that_does_not_exist_is_not_ended(steps in any_steps(), claim in any_claim(claim)) {
        let mut environment = Environment::new();
        for step in &steps {
            environment.step(step);
            let mut state = environment.state.clone();
            if !matches!(environment.hold_status(&claim), None | Some(HoldStatus::Held | HoldStatus::Queued)) {
                let release = Release { claim: claim.clone(), action: ReleaseAction::Free, next: None, history: 0 };
                let (_, notifications) = state.apply(environment.now_us, &Op::Release(release), &all_alive);
                prop_assert_eq!(notifications, []);
                prop_assert_eq!(&state, &environment.state);
            }
            let unrelated = SessionId::from_random([0xee; 12]);
            if live(&state, environment.now_us / 1000).is_some() {
                let evict = Op::Evict(Evict { session: unrelated, actor: watcher() });
                let (reply, _) = state.apply(environment.now_us, &evict, &|_| SessionStatus::Lapsed);
                prop_assert_eq!(reply, Reply::Evict(Evicted::Removed { fence: None, was_queued: false }));
                prop_assert_eq!(&state, &environment.state);
            }
        }
    }

    /// Rows 1, 4 and 27: an acquire whose caller is gone ends by its own lease, whatever else its owner does,
    /// and leaves no count.
    #[test]
    fn an_orphaned_hold_ends_with_its_own_lease(
        steps in any_steps(),
        owner in prop_oneof![Just("shared"), Just("task 1"), Just("redisson")],
        lease_ms in any_lease_ms(),
        at in 0..40_usize,
    ) {
        let orphan = Claim {
            hold: HoldId::from_random(SessionId::from_random([0xee; 12]), [0xee; 16]),
            value: OwnValue::new(owner).ok(),
        };
        let mut environment = Environment::new();
        environment.claims.push(orphan.clone());
        let mut end_ms = None;
        for (n, step) in steps.iter().enumerate() {
            if n == at {
                let request = Acquire { liveness: Liveness::Lease, ..request(orphan.clone(), lease_ms, None, None) };
                environment.step(&(0, Event::Op(Op::Acquire(request))));
                end_ms = Some(environment.now_us / 1000 + lease_ms);
            }
            environment.step(step);
            if environment.hold_status(&orphan) == Some(HoldStatus::Held) {
                prop_assert!(Some(environment.now_us / 1000) <= end_ms, "{:#?}", environment.state);
            }
        }
    }
}

/// A claim without an owner is refused: its hold id would be shown as the owner.
#[test]
fn a_claim_without_an_owner_is_refused() {
    let named = |owner: &str| Claim { value: OwnValue::new(owner).ok(), ..claim(0, 0) };
    for no_owner in [Claim { value: None, ..claim(0, 0) }, named("leasehold")] {
        let mut state = LockState::new(Kind::Reentrant);
        let take = |claim: &Claim| request(claim.clone(), 3_000, Some((1, 3_000)), None);
        let release = |claim: &Claim, next| {
            Op::Release(Release { claim: claim.clone(), action: ReleaseAction::Grant, next, history: 0 })
        };
        for op in [
            Op::Acquire(take(&no_owner)),
            Op::Extend(Extend {
                claim: no_owner.clone(),
                lease_ms: 1,
                keep_record: true,
                reserve: None,
                fence: None,
            }),
            release(&no_owner, None),
            release(&named("ada"), Some(take(&no_owner))),
            Op::Inspect(Inspect { claim: Some(no_owner.clone()), details: true }),
        ] {
            let (reply, notifications) = state.apply(START_US, &op, &all_alive);
            assert_eq!((reply, notifications.len()), (Reply::Refused(Refused::NoOwner), 0), "{op:?}");
            assert_eq!(state, LockState::new(Kind::Reentrant), "{op:?}");
        }
        state.apply(START_US, &Op::Acquire(take(&named("ada"))), &all_alive);
        assert!(live(&state, START_US / 1000).is_some());
    }
}

/// A client that knows a hold can end it, and a client that knows an owner can acquire with it.
#[test]
fn a_state_that_is_shown_keeps_its_holds_and_owners() {
    let outer = Claim { value: OwnValue::new("my-secret-trace").ok(), ..claim(1, 2) };
    let mut state = LockState::new(Kind::Reentrant);
    state.apply(START_US, &Op::Acquire(request(outer.clone(), 3_000, None, None)), &all_alive);
    let shown = format!("{state:?}");
    let token = outer.hold.token();
    let (_, secret) = token.split_once('.').expect("a token has a dot");
    assert_eq!(live(&state, START_US / 1000).map(|entries| entries.count), Some(1));
    assert!(!shown.contains(secret) && !shown.contains("my-secret-trace"), "{shown}");
}
