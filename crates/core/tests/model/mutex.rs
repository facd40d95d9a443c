//! Properties of the Mutex.
//!
//! 1. Every property is checked after every step, in [`Environment::step`] alone.
//! 2. Clients of other libraries set and delete the key at random, but never set it to a token of
//!    Leasehold. They may set a user-defined value: nothing prevents it.

use super::workload::{
    HOUR_MS, MAX_INSPECTED_ENTRIES, SESSIONS, START_US, Tokens, actor, any_claim, any_lease_ms, any_move,
    any_op, any_reserve, any_session_op, by, check_doubling, check_queue, check_queue_entries, claims,
    entries, has_ended, lives_with, order, queue_entries, request, session, waits, watcher,
};
use crate::reservation::NotificationObserver;
use leasehold_core::model::{
    Audit, Content, LockState, QueueEntryId, RecordedHolder, SessionStatus, Sessions, Value, Watermark,
    all_alive,
};
use leasehold_core::{
    AUDIT_TTL, Acquire, Acquired, AuditEntry, Claim, Ended, Evict, Evicted, Extend, Extended, FencingToken,
    Fingerprint, ForceRelease, ForceReleased, HoldId, HoldStatus, Holder, Inspect, Inspection, Label,
    Liveness, LockMode, Notification, ObservedHolder, Op, OwnValue, Predecessor, RELEASED_TTL, Release,
    ReleaseAction, Reply, Reserve, SessionId, SessionOp, TokenBlock, whole_millis,
};
use proptest::prelude::*;

/// One event.
#[derive(Debug, Clone)]
enum Event {
    /// An operation of Leasehold.
    Op(Op),
    /// A client of another library sets the key: its value, and for how many milliseconds, unless for ever.
    Set(String, Option<u64>),
    /// A client of another library sets the key to a value that is not a string.
    SetOther,
    /// A client of another library deletes the key.
    Delete,
    /// A store that tracks dead sessions reports that this one is dead.
    EvictSession(SessionId),
    /// An operation on a session.
    SessionOp(SessionOp),
    /// An operator takes the lock by force.
    ForceRelease(Observation),
    /// The last holder extends its hold by that many milliseconds, and reserves tokens.
    Reserve(u64, bool, Reserve),
}

/// The holder that an operator claims to have observed.
#[derive(Debug, Clone)]
enum Observation {
    /// The actual one.
    True,
    /// A hold that does not exist, or not any more.
    Fence(u64),
    /// The value of a client of another library, which may be at the key or not.
    Value(&'static str),
}

/// A step: by how many microseconds the clock moves before the event, and the event.
type Step = (i64, Event);

/// The `n`th hold of a session. The third of every session has a user-defined value, which is the same for
/// all of them.
fn claim(s: u8, n: u8) -> Claim {
    let value = (n == 2).then(|| OwnValue::new("shared").expect("a plain text"));
    Claim { hold: HoldId::from_random(session(s), [n; 16]), value }
}

fn any_observation() -> impl Strategy<Value = Observation> {
    prop_oneof![
        3 => Just(Observation::True),
        1 => any::<u64>().prop_map(Observation::Fence),
        1 => prop_oneof![Just("foreign"), Just("shared")].prop_map(Observation::Value),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let foreign = prop_oneof![Just("foreign".to_owned()), Just("shared".to_owned())];
    prop_oneof![
        24 => any_op(claim).prop_map(Event::Op),
        1 => (foreign, proptest::option::of(any_lease_ms())).prop_map(|(text, ms)| Event::Set(text, ms)),
        1 => Just(Event::SetOther),
        2 => Just(Event::Delete),
        1 => (0..SESSIONS).prop_map(|s| Event::EvictSession(session(s))),
        8 => any_session_op().prop_map(Event::SessionOp),
        2 => any_observation().prop_map(Event::ForceRelease),
        4 => (any_lease_ms(), any::<bool>(), any_reserve())
            .prop_map(|(lease_ms, keep, reserve)| Event::Reserve(lease_ms, keep, reserve)),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((any_move(), any_event()), 1..80)
}

/// The model, and what the observer remembers of it.
struct Environment {
    state: LockState,
    sessions: Sessions,
    now_us: u64,
    tokens: Tokens,
    observer: NotificationObserver,
    /// Set while the value of a client of another library is at the key.
    foreign: bool,
}

impl Environment {
    fn new() -> Self {
        let (state, sessions) = (LockState::default(), Sessions::default());
        let (tokens, observer) = (Tokens::default(), NotificationObserver::default());
        Self { state, sessions, now_us: START_US, tokens, observer, foreign: false }
    }

    /// Moves the clock, applies an event, and checks everything (1).
    fn step(&mut self, (by_us, event): &Step) {
        self.now_us = self.now_us.saturating_add_signed(*by_us);
        // The clock expires values, not the operation.
        self.state.is_empty_at(self.now_us);
        let before = self.state.clone();
        let now_ms = self.now_us / 1000;
        match event {
            Event::Op(op) => self.execute(&before, op),
            Event::ForceRelease(observation) => {
                let op =
                    Op::ForceRelease(ForceRelease { observed: self.seen(observation), actor: watcher() });
                self.execute(&before, &op);
            }
            Event::Reserve(lease_ms, keep_record, reserve) => {
                let recorded = before.record.as_ref().and_then(|record| record.last_holder.clone());
                let claim = recorded.map_or_else(|| claim(0, 0), |recorded| recorded.claim);
                let (lease_ms, keep_record, reserve) = (*lease_ms, *keep_record, Some(*reserve));
                let extend = Extend { claim, lease_ms, keep_record, reserve, fence: None };
                self.execute(&before, &Op::Extend(extend));
            }
            Event::SessionOp(op) => drop(self.sessions.apply(now_ms, op)),
            Event::Set(text, ms) => {
                let expires_ms = ms.map(|ms| now_ms + ms);
                self.state.value = Some(Value { content: Content::Token(text.clone()), expires_ms });
            }
            Event::SetOther => {
                self.state.value = Some(Value { content: Content::Other("list".into()), expires_ms: None });
            }
            Event::Delete => self.state.value = None,
            Event::EvictSession(dead) => {
                let by = watcher();
                let (fence, entry) = self.state.evict_session(self.now_us, *dead, &by);
                self.check_eviction(&before, *dead, fence, entry);
                self.check_audit(&before, None, Some(*dead), &by);
            }
        }
        self.foreign = match event {
            Event::Set(..) | Event::SetOther => true,
            _ => {
                self.foreign
                    && self.state.value.as_ref().map(|v| &v.content)
                        == before.value.as_ref().map(|v| &v.content)
            }
        };
        self.tokens.check(&before, &self.state, self.now_us);
        self.check_state();
    }

    fn execute(&mut self, before: &LockState, op: &Op) {
        let (reply, notifications) = self.apply(op);
        let sent = (self.now_us, op);
        self.observer.check(before, &self.state, sent, &reply, &notifications);
        check_doubling(before, &self.state, sent, &reply, &self.sessions);
        self.check_inspection(before, op, &reply);
        check_queue(before, &self.state, sent, &notifications, self.named_dead(before, op));
        self.check_grants(before, op, &reply, &notifications);
        self.check_predecessor(op, &reply);
        self.check_audit(before, Some(op), self.named_dead(before, op), &by(op));
        self.check_evictions_and_releases_by_force(before, op, &reply, &notifications);
    }

    fn apply(&mut self, op: &Op) -> (Reply, Vec<Notification>) {
        let (sessions, now_ms) = (&self.sessions, self.now_us / 1000);
        self.state.apply(self.now_us, op, &|session| sessions.status(now_ms, session))
    }

    /// How long a session counts as alive: an unknown session counts as alive for as long as its client may
    /// rely on its hold of this lock.
    fn alive_ms(&self, lock: &LockState, session: SessionId) -> Option<u64> {
        let now_ms = self.now_us / 1000;
        match (self.sessions.status(now_ms, session), self.held(lock)) {
            (SessionStatus::Alive(alive_ms), _) => Some(alive_ms),
            (SessionStatus::Unknown, Some(held)) if held.claim.hold.session() == session => {
                match held.liveness {
                    Liveness::Session { alive_ms } => (held.since_ms + alive_ms).checked_sub(now_ms),
                    Liveness::Lease => None,
                }
            }
            _ => None,
        }
    }

    /// What an operator observed.
    fn seen(&self, observation: &Observation) -> ObservedHolder {
        match observation {
            Observation::Fence(fence) => ObservedHolder::Hold(FencingToken::new(*fence)),
            Observation::Value(value) => ObservedHolder::Foreign(Fingerprint::of(value)),
            Observation::True => self.shown().unwrap_or(ObservedHolder::Hold(FencingToken::new(0))),
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

    /// The dead session that an operation removes, if any.
    fn named_dead(&self, before: &LockState, op: &Op) -> Option<SessionId> {
        let named = match op {
            Op::Acquire(request) => {
                let settled = has_ended(before, &request.claim.hold)
                    || hold_status_in(before, self.now_us, &request.claim) == Some(HoldStatus::Held);
                request.predecessor.filter(|_| !settled)
            }
            Op::Evict(evict) => Some(evict.session),
            _ => None,
        };
        named.filter(|named| self.alive_ms(before, *named).is_none() && !is_refused(before))
    }

    /// The predecessor in a reply is directly ahead of the request, and its hold or entry ends with its
    /// session. Its remaining life is only given if the request named it.
    fn check_predecessor(&self, op: &Op, reply: &Reply) {
        let (request, acquired) = match (op, reply) {
            (Op::Acquire(request), Reply::Acquire(acquired)) => (request, acquired),
            (Op::Release(Release { next: Some(next), .. }), Reply::Release(released)) => match &released.next
            {
                Some(Ok(acquired)) => (next, acquired),
                _ => return,
            },
            _ => return,
        };
        let Acquired::Taken { position, predecessor, .. } = acquired else { return };
        let queue = order(&self.state);
        let own =
            queue.iter().position(|s| *s == request.claim.hold.session()).filter(|_| position.is_some());
        let entry = own.and_then(|own| own.checked_sub(1)).map(|before| queue[before]);
        let entry = entry.map(|session| {
            self.state.record.as_ref().expect("it queues").entries[&QueueEntryId::Session(session)].clone()
        });
        let holder = self.held(&self.state);
        let before = entry
            .map(|entry| (entry.liveness, entry.claim))
            .or(holder.map(|held| (held.liveness, held.claim)));
        let expected = before.filter(|(liveness, _)| liveness.ends_with_session()).map(|(_, claim)| {
            let session = claim.hold.session();
            let asked = matches!(op, Op::Acquire(_)) && request.predecessor == Some(session);
            Predecessor { session, alive_ms: self.alive_ms(&self.state, session).filter(|_| asked) }
        });
        assert_eq!(*predecessor, expected, "ahead of {request:?} in {:#?}", self.state);
    }

    /// A session loses everything that lives with it, and nothing else.
    fn check_eviction(&self, before: &LockState, dead: SessionId, fence: Option<FencingToken>, entry: bool) {
        let holder = self.held(before).filter(|held| lives_with(held.liveness, &held.claim, dead));
        let last = before.record.as_ref().and_then(|record| record.last_fence);
        assert_eq!(fence, holder.as_ref().and(last), "{dead:?} in {before:#?}");
        let had = queue_entries(before).any(|(_, entry)| lives_with(entry.liveness, &entry.claim, dead));
        assert_eq!(entry, had, "{dead:?} in {before:#?}");
        assert!(!queue_entries(&self.state).any(|(_, entry)| lives_with(entry.liveness, &entry.claim, dead)));
        if let Some(held) = holder {
            assert_eq!(self.hold_status(&held.claim), Some(HoldStatus::Ended(Ended::Evicted)));
        }
    }

    /// Every hold that was taken from its holder has one audit entry, most recent first, and there are no
    /// others.
    fn check_audit(&self, before: &LockState, op: Option<&Op>, dead: Option<SessionId>, by: &Label) {
        let (old, new) = (entries(before), entries(&self.state));
        let (was, is) = (self.held(before), self.held(&self.state));
        let fence = before.record.as_ref().and_then(|record| record.last_fence);
        let foreign = was.is_none();
        let given_up = matches!(op, Some(Op::Release(release)) if was.as_ref().is_some_and(|was| was.claim == release.claim));
        let lost = was.filter(|was| is.as_ref().is_none_or(|is| is.claim != was.claim) && !given_up);
        let freed = matches!(op, Some(Op::ForceRelease(_)));
        let expected = match lost {
            Some(was) => {
                let evicted = dead.is_some_and(|dead| lives_with(was.liveness, &was.claim, dead));
                assert_ne!(evicted, freed, "{op:?} ended {was:?} of {before:#?}");
                let ended = if freed { Ended::ForceReleased } else { Ended::Evicted };
                Some((ended, fence, Some(was.label)))
            }
            None => (foreign && recognised(before, op)).then_some((Ended::ForceReleased, None, None)),
        };
        let Some((ended, fence, holder)) = expected else { return assert_eq!(new, old, "by {op:?}") };
        let entry = AuditEntry { at_ms: self.now_us / 1000, ended, fence, holder, actor: by.clone() };
        assert_eq!(new.first(), Some(&entry), "by {op:?} on {before:#?}");
        assert_eq!(new[1..], old[..old.len().min(Audit::MAX_ENTRIES - 1)], "by {op:?}");
        let expires_ms = self.state.audit.as_ref().map(|audit| audit.expires_ms);
        assert_eq!(expires_ms, Some(self.now_us / 1000 + whole_millis(AUDIT_TTL)));
    }

    /// The replies to an evict and a forced release match their effects, and the former holder is notified.
    fn check_evictions_and_releases_by_force(
        &self,
        before: &LockState,
        op: &Op,
        reply: &Reply,
        notifications: &[Notification],
    ) {
        let was = self.held(before);
        match (op, reply) {
            (Op::Evict(evict), Reply::Evict(Evicted::Alive)) => {
                assert!(self.alive_ms(before, evict.session).is_some());
                assert_eq!(self.state, *before, "the living keep what they have");
            }
            (Op::Evict(evict), Reply::Evict(Evicted::Removed { fence: hold, was_queued })) => {
                assert!(self.alive_ms(before, evict.session).is_none());
                self.check_eviction(before, evict.session, *hold, *was_queued);
            }
            (Op::ForceRelease(free), Reply::ForceRelease(ForceReleased::Changed { holder })) => {
                assert_eq!(self.state, *before, "no hold was taken");
                assert_ne!(self.shown(), Some(free.observed), "it was as it was seen");
                assert_eq!(holder.is_some(), before.value.is_some());
            }
            (Op::ForceRelease(free), Reply::ForceRelease(ForceReleased::Released)) => {
                let expected = was.as_ref().zip(before.record.as_ref().and_then(|record| record.last_fence));
                let expected = expected
                    .map(|(was, fence)| Notification::ForceReleased { to: was.claim.hold.session(), fence });
                match free.observed {
                    ObservedHolder::Hold(fence) => {
                        assert_eq!(expected.map(|expected| expected.fence()), Some(fence));
                    }
                    ObservedHolder::Foreign(_) => assert_eq!(expected, None),
                }
                assert_eq!(
                    notifications.iter().copied().find(|notification| notification.nonce().is_none()),
                    expected
                );
                if let Some(was) = was {
                    assert_eq!(self.hold_status(&was.claim), Some(HoldStatus::Ended(Ended::ForceReleased)));
                }
            }
            (Op::Evict(_) | Op::ForceRelease(_), Reply::Refused(_)) => assert_eq!(self.state, *before),
            (Op::Evict(_) | Op::ForceRelease(_), other) => panic!("to {op:?}: {other:?}"),
            _ => {
                let is_forced =
                    |notification: &Notification| matches!(notification, Notification::ForceReleased { .. });
                assert!(!notifications.iter().any(is_forced), "no holder was notified by {op:?}");
            }
        }
    }

    /// The current hold, if it is Leasehold's.
    fn held(&self, state: &LockState) -> Option<RecordedHolder> {
        let recorded = state.record.as_ref().and_then(|record| record.last_holder.clone())?;
        (hold_status_in(state, self.now_us, &recorded.claim) == Some(HoldStatus::Held)).then_some(recorded)
    }

    /// Invariants of every state.
    fn check_state(&self) {
        let state = &self.state;
        if let Some(value) = &state.value {
            assert!(value.expires_ms.is_some() || self.foreign, "our key has an expiry: {state:#?}");
        }
        let held: Vec<_> =
            claims(claim).filter(|claim| self.hold_status(claim) == Some(HoldStatus::Held)).collect();
        assert!(held.len() <= 1, "two hold the lock: {held:?}");
        if let Some(record) = &state.record {
            check_queue_entries(record);
            for (ended, _) in &record.ended.holds {
                assert!(
                    held.iter().all(|held| held.hold != *ended),
                    "an ended hold still counts: {state:#?}"
                );
                assert!(!waits(record, ended), "an ended hold waits: {state:#?}");
            }
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

    fn check_inspection(&self, before: &LockState, op: &Op, reply: &Reply) {
        let (Op::Inspect(_), Reply::Inspect(inspection)) = (op, reply) else { return };
        assert_eq!(&self.state, before, "an inspect changes nothing");
        let Inspection { holder, waiters, foreign_fingerprint, audit, .. } = inspection;
        assert_eq!(holder.is_some(), before.value.is_some());
        let now_ms = self.now_us / 1000;
        let live = queue_entries(before).filter(|(_, entry)| entry.expires_ms >= now_ms).count();
        assert_eq!(*waiters, live as u64);
        let details = matches!(op, Op::Inspect(inspect) if inspect.details);
        let foreign = holder.as_ref().is_some_and(Holder::is_foreign);
        assert_eq!(foreign_fingerprint.is_some(), details && foreign);
        assert_eq!(*audit, if details { entries(before) } else { Vec::new() });
    }

    /// A new holder was the first live waiter; and a lock stays free only where no client waits, or where a
    /// release requested it.
    fn check_grants(&self, before: &LockState, op: &Op, reply: &Reply, notifications: &[Notification]) {
        let now_ms = self.now_us / 1000;
        let (was, is) = (before.value.as_ref(), self.state.value.as_ref());
        let released = matches!(op, Op::Release(release) if hold_status_in(before, self.now_us, &release.claim) == Some(HoldStatus::Held));
        let given = is.is_some() && is.map(|v| &v.content) != was.map(|v| &v.content);
        let taken = entries(before) != entries(&self.state);
        if given {
            assert!(was.is_none() || released || taken, "{op:?} took the lock from {was:?}");
            let recorded = self
                .state
                .record
                .as_ref()
                .and_then(|record| record.last_holder.as_ref())
                .expect("a last holder");
            let winner = recorded.claim.hold.session();
            assert_eq!(
                notifications
                    .iter()
                    .any(|notification| notification.to() == winner && notification.nonce().is_some()),
                actor(op) != Some(winner) || !requests_hold(op, &recorded.claim)
            );
            let leaver = match op {
                Op::Release(release) => {
                    queue_entries(before).find(|(_, p)| p.claim.hold == release.claim.hold).map(|(s, _)| *s)
                }
                _ => None,
            };
            let predecessor = order(before).into_iter().take_while(|s| *s != winner);
            let evicted_session = self.named_dead(before, op);
            for session in predecessor.filter(|s| Some(*s) != leaver) {
                let (_, entry) = queue_entries(before).find(|(s, _)| **s == session).expect("it waited");
                let hold = &entry.claim.hold;
                if has_ended(&self.state, hold) && !has_ended(before, hold) {
                    continue;
                }
                if evicted_session.is_some_and(|dead| lives_with(entry.liveness, &entry.claim, dead)) {
                    continue;
                }
                assert!(entry.expires_ms < now_ms, "{winner:?} was served before {session:?} by {op:?}");
            }
            assert_eq!(recorded.since_ms, now_ms);
        }
        // An ended hold gets its reply at once.
        let ended = |request: &Acquire| has_ended(before, &request.claim.hold);
        let pumps = match op {
            Op::Acquire(request) => !ended(request),
            Op::Release(Release { action, next, .. }) => {
                *action == ReleaseAction::Grant && !next.as_ref().is_some_and(ended)
            }
            Op::Evict(_) => matches!(reply, Reply::Evict(Evicted::Removed { .. })),
            Op::ForceRelease(_) => *reply == Reply::ForceRelease(ForceReleased::Released),
            _ => false,
        };
        if pumps && is.is_none() && queue_entries(before).count() <= MAX_INSPECTED_ENTRIES {
            assert_eq!(order(&self.state), [], "the lock is free after {op:?}, and a client waits");
            assert!(!matches!(op, Op::Acquire(_)), "no client was before it: {op:?}");
        }
    }
}

/// Whether the key has a value that is not a string.
fn is_refused(state: &LockState) -> bool {
    state.value.as_ref().is_some_and(|value| value.content.token().is_none())
}

/// Whether an operation frees the lock of a client of another library, after a correct observation. (A
/// changed value proves nothing: a user-defined value may be the same.)
fn recognised(state: &LockState, op: Option<&Op>) -> bool {
    let value = state.value.as_ref().and_then(|value| value.content.token());
    let seen = value.map(|value| ObservedHolder::Foreign(Fingerprint::of(value)));
    matches!(op, Some(Op::ForceRelease(free)) if Some(free.observed) == seen)
}

fn hold_status_in(state: &LockState, now_us: u64, claim: &Claim) -> Option<HoldStatus> {
    let environment = Environment { state: state.clone(), now_us, ..Environment::new() };
    environment.hold_status(claim)
}

/// Whether an operation requests that very hold.
fn requests_hold(op: &Op, claim: &Claim) -> bool {
    match op {
        Op::Acquire(request) => request.claim == *claim,
        Op::Release(release) => release.next.as_ref().is_some_and(|next| next.claim == *claim),
        _ => false,
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

    /// Rows 20 and 27 in small: nothing is kept for ever.
    #[test]
    fn an_expired_state_leaves_nothing(steps in any_steps()) {
        let mut environment = Environment::new();
        for step in steps.iter().filter(|(_, event)| !matches!(event, Event::Set(_, None) | Event::SetOther)) {
            environment.step(step);
        }
        let value_ms = environment.state.value.as_ref().and_then(|value| value.expires_ms);
        let record_ms = environment.state.record.as_ref().map(|record| record.expires_ms);
        let audit_ms = environment.state.audit.as_ref().map(|audit| audit.expires_ms);
        let over_ms = value_ms.max(record_ms).max(audit_ms).unwrap_or(0) + 1;
        prop_assert!(environment.state.is_empty_at(over_ms * 1000));
        prop_assert!(over_ms < environment.tokens.latest_us / 1000 + 31 * 24 * HOUR_MS, "kept for too long");
    }

    /// An extend only raises, and only where its hold exists.
    #[test]
    fn an_extend_only_raises(
        steps in any_steps(),
        claim in any_claim(claim),
        lease_ms in any_lease_ms(),
        reserve in proptest::option::of(any_reserve()),
    ) {
        let mut environment = Environment::new();
        for step in &steps {
            environment.step(step);
            let (mut state, now_us) = (environment.state.clone(), environment.now_us);
            let held = environment.hold_status(&claim) == Some(HoldStatus::Held);
            let before = state.clone();
            let extend = Extend { claim: claim.clone(), lease_ms, keep_record: false, reserve, fence: None };
            let (reply, _) = state.apply(now_us, &Op::Extend(extend), &all_alive);
            if held {
                let Reply::Extend(Extended::Extended | Extended::Reserved { .. }) = reply else { panic!("{reply:?}") };
                let end = |state: LockState| state.value.and_then(|value| value.expires_ms);
                prop_assert_eq!(end(state), end(before).max(Some(now_us / 1000 + lease_ms)));
            } else {
                prop_assert_eq!(reply, Reply::Extend(Extended::NotHeld));
                prop_assert_eq!(state, before);
            }
        }
    }

    /// A release of a hold that neither exists nor waits changes no other hold or queue entry (row 16).
    #[test]
    fn a_late_release_touches_nothing(steps in any_steps(), claim in any_claim(claim)) {
        let mut environment = Environment::new();
        for step in &steps {
            environment.step(step);
            if matches!(environment.hold_status(&claim), None | Some(HoldStatus::Held | HoldStatus::Queued)) {
                continue;
            }
            let mut state = environment.state.clone();
            let release = Release { claim: claim.clone(), action: ReleaseAction::Free, next: None, history: 0 };
            let (_, notifications) = state.apply(environment.now_us, &Op::Release(release), &all_alive);
            prop_assert_eq!(notifications, []);
            prop_assert_eq!(&state, &environment.state);
        }
    }
}

fn waiting(session: u8, n: u64, ttl_ms: u64) -> Acquire {
    request(Claim::new(HoldId::from_random(many(n), [session; 16])), 3_000, Some((n, ttl_ms)), None)
}

fn many(n: u64) -> SessionId {
    let mut bits = [0xff; 12];
    bits[..8].copy_from_slice(&n.to_be_bytes());
    SessionId::from_random(bits)
}

fn held_by_first(state: &mut LockState) -> Claim {
    let first = claim(0, 0);
    let (reply, _) =
        state.apply(START_US, &Op::Acquire(request(first.clone(), HOUR_MS, None, None)), &all_alive);
    assert!(matches!(reply, Reply::Acquire(Acquired::Granted { .. })), "{reply:?}");
    first
}

fn free(claim: Claim) -> Op {
    Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 })
}

/// A name that is used once leaves nothing, and its tokens grow all the same: over a clock that is set back by less than an
/// hour, and over a reservation.
#[test]
fn an_idle_lock_leaves_a_token_that_all_names_share() {
    let mut state = LockState::default();
    let first = held_by_first(&mut state);
    let reserve = Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: false });
    let extend = Extend { claim: first.clone(), lease_ms: 1, keep_record: false, reserve, fence: None };
    let (reply, _) = state.apply(START_US, &Op::Extend(extend), &all_alive);
    let Reply::Extend(Extended::Reserved { mut block, .. }) = reply else { panic!("{reply:?}") };
    let greatest = std::iter::from_fn(|| block.pop_first()).last().expect("a token");
    state.apply(START_US, &free(first.clone()), &all_alive);
    assert!(state.is_settled());
    assert_eq!(state.watermark.fence, Some(greatest), "reserved tokens count");

    let released_us = START_US + u64::try_from(RELEASED_TTL.as_micros()).expect("a short time");
    let (again, _) = state.clone().apply(released_us, &free(first), &all_alive);
    let Reply::Release(again) = again else { panic!("{again:?}") };
    assert_eq!(again.status, HoldStatus::Ended(Ended::Released), "it is remembered for that long");
    assert!(state.is_empty_at(released_us + 1_000), "and then nothing of the name is left");

    // Another name of the same partition, on a clock that was set back by nearly an hour.
    let mut other = LockState { watermark: state.watermark, ..LockState::default() };
    let request = request(claim(1, 1), 3_000, None, None);
    let back_us = START_US - (HOUR_MS - 1) * 1_000;
    let (reply, _) = other.apply(back_us, &Op::Acquire(request), &all_alive);
    let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("{reply:?}") };
    assert!(fence > greatest, "{fence} after {greatest}");
}

/// Row 23: dead entries cost no more than one operation for each 64 of them.
#[test]
fn an_operation_skips_at_most_64_dead_entries() {
    let mut state = LockState::default();
    let first = held_by_first(&mut state);
    for n in 0..200 {
        state.apply(START_US, &Op::Acquire(waiting(0, n, 10)), &all_alive);
    }
    let live = waiting(0, 999, HOUR_MS);
    state.apply(START_US, &Op::Acquire(live.clone()), &all_alive);
    let later_us = START_US + 1_000_000;
    let (_, notifications) = state.apply(later_us, &free(first), &all_alive);
    assert_eq!(notifications, []);
    assert_eq!(order(&state).len(), 201 - MAX_INSPECTED_ENTRIES);
    let mut replies = (0..).map(|_| state.apply(later_us, &Op::Acquire(live.clone()), &all_alive).0);
    for _ in 0..2 {
        let Some(Reply::Acquire(Acquired::Taken { holder: None, position: Some(_), .. })) = replies.next()
        else {
            panic!("the dead are still before it");
        };
    }
    assert!(matches!(replies.next(), Some(Reply::Acquire(Acquired::Granted { .. }))));
}

/// Row 23, entries leak: entries that left the queue do not block those behind, however many left. Their gaps
/// used to count as entries, so that a lock that was held for long could hardly be granted again.
#[test]
fn withdrawn_entries_do_not_block_the_queue() {
    let mut state = LockState::default();
    let first = held_by_first(&mut state);
    let patient = waiting(0, 1_000_000, HOUR_MS);
    state.apply(START_US, &Op::Acquire(patient.clone()), &all_alive);
    for n in 0..1_000 {
        let request = waiting(0, n, HOUR_MS);
        state.apply(START_US, &Op::Acquire(request.clone()), &all_alive);
        state.apply(START_US, &free(request.claim), &all_alive);
    }
    let last = waiting(0, 2_000_000, HOUR_MS);
    let (reply, _) = state.apply(START_US, &Op::Acquire(last.clone()), &all_alive);
    assert!(matches!(reply, Reply::Acquire(Acquired::Taken { position: Some(1), .. })), "{reply:?}");
    let (_, notifications) = state.apply(START_US, &free(first), &all_alive);
    assert_eq!(notifications.first().map(Notification::to), Some(patient.claim.hold.session()));
    let (_, notifications) = state.apply(START_US, &free(patient.claim), &all_alive);
    assert_eq!(notifications.first().map(Notification::to), Some(last.claim.hold.session()));
    let (reply, _) = state.apply(START_US, &Op::Acquire(last), &all_alive);
    assert!(matches!(reply, Reply::Acquire(Acquired::Granted { others_wait: false, .. })), "{reply:?}");
}

/// Row 2 for a release that frees the lock for others and queues again: sent a second time, late, it used to
/// queue a hold that had been granted or released, so that it could be granted again.
#[test]
fn a_resent_release_does_not_queue_what_was_granted_or_spent() {
    let mut state = LockState::default();
    let first = held_by_first(&mut state);
    let next = request(claim(0, 1), 3_000, Some((1, 3_000)), None);
    let release = Op::Release(Release {
        claim: first,
        action: ReleaseAction::Free,
        next: Some(next.clone()),
        history: 0,
    });
    state.apply(START_US, &release, &all_alive);
    state.apply(START_US, &Op::Acquire(next.clone()), &all_alive);
    let (reply, _) = state.apply(START_US, &release, &all_alive);
    let Reply::Release(released) = reply else { panic!("{reply:?}") };
    assert!(matches!(released.next, Some(Ok(Acquired::Granted { .. }))), "{released:?}");
    assert_eq!(order(&state), []);
    state.apply(START_US, &free(next.claim), &all_alive);
    let (reply, _) = state.apply(START_US, &release, &all_alive);
    let Reply::Release(released) = reply else { panic!("{reply:?}") };
    assert!(matches!(released.next, Some(Ok(Acquired::AlreadyEnded(_)))), "{released:?}");
    assert_eq!(order(&state), []);
}

/// Row 16 with a user-defined value at the key: a resent release used to free the lock of a client of another library that had
/// acquired it since with the same value.
#[test]
fn a_resent_release_spares_a_foreign_lock_with_the_same_value() {
    let mut state = LockState::default();
    let own = claim(0, 2);
    state.apply(START_US, &Op::Acquire(request(own.clone(), 3_000, None, None)), &all_alive);
    state.apply(START_US, &free(own.clone()), &all_alive);
    let foreign = Value { content: Content::Token(own.token()), expires_ms: Some(START_US / 1000 + 9_000) };
    state.value = Some(foreign.clone());
    let extend =
        Extend { claim: own.clone(), lease_ms: 60_000, keep_record: false, reserve: None, fence: None };
    assert_eq!(state.apply(START_US, &Op::Extend(extend), &all_alive).0, Reply::Extend(Extended::NotHeld));
    state.apply(START_US, &free(own.clone()), &all_alive);
    state.evict_session(START_US, own.hold.session(), &watcher());
    assert_eq!(state.value, Some(foreign));
    let (reply, _) = state.apply(START_US, &Op::Inspect(Inspect { claim: None, details: false }), &all_alive);
    let Reply::Inspect(inspection) = reply else { panic!("{reply:?}") };
    assert!(
        inspection.holder.is_some_and(|holder| holder.is_foreign()),
        "it does not count as a hold of Leasehold"
    );
}

/// A holder whose value another client replaced and restored waits for the lock and holds it. The end of the hold is the
/// end of its queue entry, whether an operator ends it or its session is found dead.
#[test]
fn a_hold_that_is_ended_by_another_client_no_longer_waits() {
    for forced in [true, false] {
        let mut state = LockState::default();
        let own = claim(0, 2);
        state.apply(START_US, &Op::Acquire(request(own.clone(), 3_000, None, None)), &all_alive);
        let set = |state: &mut LockState, text: String| {
            state.value =
                Some(Value { content: Content::Token(text), expires_ms: Some(START_US / 1000 + 9_000) });
        };
        set(&mut state, "foreign".into());
        state.apply(START_US, &Op::Acquire(request(own.clone(), 3_000, Some((1, 3_000)), None)), &all_alive);
        set(&mut state, own.token());
        assert!(waits(state.record.as_ref().expect("a record"), &own.hold));
        let fence = state.record.as_ref().and_then(|record| record.last_fence).expect("a token");
        if forced {
            let observed = ObservedHolder::Hold(fence);
            let op = Op::ForceRelease(ForceRelease { observed, actor: watcher() });
            state.apply(START_US, &op, &all_alive);
        } else {
            assert_eq!(state.evict_session(START_US, own.hold.session(), &watcher()), (Some(fence), true));
        }
        let record = state.record.as_ref().expect("a record");
        assert!(!waits(record, &own.hold) && has_ended(&state, &own.hold), "{state:?}");
        assert_eq!(state.value, None, "the lock is not granted to it again");
    }
}

#[test]
fn a_state_that_is_shown_keeps_its_tokens() {
    let hold = HoldId::from_random(SessionId::from_random([1; 12]), [7; 16]);
    let request = Acquire {
        claim: Claim::new(hold),
        lease_ms: 1000,
        label: Label::new("a").expect("a good label"),
        queue: None,
        expire_foreign_ms: None,
        liveness: Liveness::Session { alive_ms: 10_000 },
        predecessor: None,
        mode: LockMode::Exclusive,
    };
    let mut state = LockState::default();
    state.apply(1_762_000_000_000_000, &Op::Acquire(request), &all_alive);
    let shown = format!("{state:?}");
    let secret =
        hold.token().split_once('.').map(|(_, secret)| secret.to_owned()).expect("a token has a dot");
    assert!(state.value.is_some() && !shown.contains(&secret), "{shown}");
}

/// A thousand holds are taken from their holders, and the last 32 are kept, for a week.
#[test]
fn the_audit_is_bounded_and_expires() {
    let mut state = LockState::default();
    let mut now_us = START_US;
    for n in 0..100 {
        now_us = START_US + n * 1_000_000;
        let request = request(Claim::new(HoldId::from_random(many(n), [7; 16])), 60_000, None, None);
        let (reply, _) = state.apply(now_us, &Op::Acquire(request), &all_alive);
        let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("{reply:?}") };
        let free = ForceRelease { observed: ObservedHolder::Hold(fence), actor: watcher() };
        assert_eq!(
            state.apply(now_us, &Op::ForceRelease(free), &all_alive).0,
            Reply::ForceRelease(ForceReleased::Released)
        );
    }
    let found: Vec<_> = entries(&state).iter().map(|entry| entry.at_ms).collect();
    let expected: Vec<_> = (68..100).rev().map(|n| START_US / 1000 + n * 1_000).collect();
    assert_eq!(found, expected);
    let week_us = whole_millis(AUDIT_TTL) * 1000;
    assert!(!state.is_empty_at(now_us + week_us), "as Redis does: it is there in its last millisecond");
    assert!(state.is_empty_at(now_us + week_us + 1000));
}

/// A row of fifty dead sessions is cleared from behind: the live waiter polls once for each, and then holds
/// the lock.
#[test]
fn a_row_of_dead_sessions_is_cleared_from_behind() {
    let mut state = LockState::default();
    let mut requests: Vec<_> = (0..51).map(|n| waiting(0, n, HOUR_MS)).collect();
    for request in &requests {
        state.apply(START_US, &Op::Acquire(request.clone()), &all_alive);
    }
    let live = requests.pop().expect("the last one lives");
    let alive = |session| {
        if session == live.claim.hold.session() {
            SessionStatus::Alive(10_000)
        } else {
            SessionStatus::Lapsed
        }
    };
    let (mut predecessor, mut polls) = (None, 0);
    loop {
        let poll = Acquire { predecessor, ..live.clone() };
        match state.apply(START_US, &Op::Acquire(poll), &alive).0 {
            Reply::Acquire(Acquired::Taken { predecessor: found, .. }) => {
                predecessor = found.map(|found| found.session);
            }
            Reply::Acquire(Acquired::Granted { .. }) => break,
            other => panic!("{other:?}"),
        }
        polls += 1;
    }
    // The first poll only finds the predecessor.
    assert_eq!(polls, requests.len());
    assert_eq!(entries(&state).len(), 1, "one of them held the lock");
}

/// A store that has lost its data does not know which sessions are alive. A client that acquires a lock there
/// with a forgotten session relies on it until its next heartbeat: no other client may take it before.
#[test]
fn a_hold_of_an_unknown_session_is_spared_while_its_client_may_rely_on_it() {
    let holder = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [1; 16]));
    let waiter = Claim::new(HoldId::from_random(SessionId::from_random([2; 12]), [2; 16]));
    let unknown = &|_| SessionStatus::Unknown;
    let mut state = LockState::default();
    let held = Acquire {
        liveness: Liveness::Session { alive_ms: 5_000 },
        ..request(holder.clone(), HOUR_MS, None, None)
    };
    state.apply(START_US, &Op::Acquire(held), unknown);
    let session = holder.hold.session();
    let poll = |waiter: &Claim| {
        let request = request(waiter.clone(), HOUR_MS, Some((1, HOUR_MS)), None);
        Op::Acquire(Acquire { predecessor: Some(session), ..request })
    };
    let (reply, _) = state.apply(START_US + 1_000_000, &poll(&waiter), unknown);
    let Reply::Acquire(Acquired::Taken { predecessor, .. }) = reply else { panic!("{reply:?}") };
    assert_eq!(predecessor, Some(Predecessor { session, alive_ms: Some(4_000) }), "when to poll again");
    let actor = Label::new("").expect("an empty label is a label");
    let (reply, _) = state.apply(START_US + 5_000_999, &Op::Evict(Evict { session, actor }), unknown);
    assert_eq!(reply, Reply::Evict(Evicted::Alive));
    let (reply, _) = state.apply(START_US + 5_001_000, &poll(&waiter), unknown);
    assert!(matches!(reply, Reply::Acquire(Acquired::Granted { .. })), "{reply:?}");
    assert_eq!(state.audit.map(|audit| audit.entries.len()), Some(1));

    // A session that has lapsed for certain knows it itself.
    let mut state = LockState::default();
    let held = request(holder, HOUR_MS, None, None);
    state.apply(START_US, &Op::Acquire(held), unknown);
    let (reply, _) = state.apply(START_US + 1_000, &poll(&waiter), &|_| SessionStatus::Lapsed);
    assert!(matches!(reply, Reply::Acquire(Acquired::Granted { .. })), "{reply:?}");
}
