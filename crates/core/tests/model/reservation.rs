//! Properties of the fencing tokens reserved for handing a hold on, over random operations on a Mutex, and of
//! the notifications to its holder.
//!
//! 1. The tokens of a block are greater than all that were granted or reserved before; what is granted or
//!    reserved later is greater than the block. This holds over releases, expiries, evictions, forced
//!    releases and foreign clients, and where the store loses its data and its clock has advanced by a
//!    block's length when it returns.
//! 2. No token is further ahead of the clock than a block is long, where each operation takes a microsecond.
//! 3. Only the current holder, to which the lock was granted last, gets a block, of at most as many tokens as
//!    it requested; nothing else is changed by that.
//! 4. A holder that subscribed is notified of each acquire of another session that finds its lock taken, and
//!    of nothing else: not of one from its own session, nor about an earlier hold, nor by the request that is
//!    granted.

use crate::workload::{
    START_US, any_claim, any_lease_ms, any_op, any_reserve, any_session_op, request, session, watcher,
};
use leasehold_core::model::{Content, LockState, Sessions, Value, all_alive};
use leasehold_core::{
    Acquire, Acquired, Claim, Extend, Extended, FencingToken, ForceRelease, HoldId, HoldStatus, Inspect,
    Kind, LockMode, Notification, ObservedHolder, Op, OwnValue, Refused, Release, Reply, Reserve, SessionOp,
    TokenBlock,
};
use proptest::prelude::*;

/// One event.
#[derive(Debug, Clone)]
enum Event {
    Op(Op),
    /// Reserves tokens for the last holder.
    Reserve {
        lease_ms: u64,
        keep_record: bool,
        reserve: Reserve,
    },
    /// An operator takes the lock from its holder.
    ForceRelease,
    /// A foreign client sets the key, or deletes it.
    Set(&'static str),
    Delete,
    SessionOp(SessionOp),
    /// The store loses all its data, and returns after that many microseconds.
    Lose(u64),
}

/// A step: by how many microseconds the clock advances before the event, and the event.
type Step = (u64, Event);

/// The third hold of every session has a user-defined value, which is the same for all.
fn claim(s: u8, n: u8) -> Claim {
    let value = if n == 2 { OwnValue::new("shared").ok() } else { None };
    Claim { hold: HoldId::from_random(session(s), [n; 16]), value }
}

fn any_event() -> impl Strategy<Value = Event> {
    let extend = (any_claim(claim), any_lease_ms(), any::<bool>(), any_reserve()).prop_map(
        |(claim, lease_ms, keep_record, reserve)| {
            Op::Extend(Extend { claim, lease_ms, keep_record, reserve: Some(reserve), fence: None })
        },
    );
    prop_oneof![
        12 => any_op(claim).prop_map(Event::Op),
        2 => extend.prop_map(Event::Op),
        8 => (any_lease_ms(), any::<bool>(), any_reserve())
            .prop_map(|(lease_ms, keep_record, reserve)| Event::Reserve { lease_ms, keep_record, reserve }),
        1 => Just(Event::ForceRelease),
        1 => Just(Event::Set("shared")),
        1 => Just(Event::Delete),
        3 => any_session_op().prop_map(Event::SessionOp),
        1 => (0..100_u64).prop_map(|longer| Event::Lose(u64::from(TokenBlock::MAX_LEN) + longer)),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    // A block is 32 us long, so most steps come before the clock has passed the previous one.
    let by_us =
        prop_oneof![8 => 1..50_u64, 3 => 1..5_000_u64, 2 => 1..10_000_000_u64, 1 => 1..10_000_000_000_u64];
    proptest::collection::vec((by_us, any_event()), 1..80)
}

/// The model, and what the observer remembers of it.
struct Environment {
    state: LockState,
    sessions: Sessions,
    now_us: u64,
    /// The greatest token that was granted or reserved (1).
    greatest: u64,
    observer: NotificationObserver,
}

impl Environment {
    fn new() -> Self {
        let (state, sessions) = (LockState::default(), Sessions::default());
        Self { state, sessions, now_us: START_US, greatest: 0, observer: NotificationObserver::default() }
    }

    fn step(&mut self, (by_us, event): &Step) {
        self.now_us += by_us;
        self.state.is_empty_at(self.now_us);
        let now_ms = self.now_us / 1000;
        match event {
            Event::Op(op) => self.execute(op),
            Event::Reserve { lease_ms, keep_record, reserve } => {
                let recorded = self.state.record.as_ref().and_then(|record| record.last_holder.as_ref());
                let claim = recorded.map_or_else(|| claim(0, 0), |recorded| recorded.claim.clone());
                let (lease_ms, keep_record, reserve) = (*lease_ms, *keep_record, Some(*reserve));
                self.execute(&Op::Extend(Extend { claim, lease_ms, keep_record, reserve, fence: None }));
            }
            Event::ForceRelease => {
                let last = last(&self.state).unwrap_or(FencingToken::new(0));
                self.execute(&Op::ForceRelease(ForceRelease {
                    observed: ObservedHolder::Hold(last),
                    actor: watcher(),
                }));
            }
            Event::Set(text) => {
                let content = Content::Token((*text).to_owned());
                self.state.value = Some(Value { content, expires_ms: Some(now_ms + 9_000) });
            }
            Event::Delete => self.state.value = None,
            Event::SessionOp(op) => drop(self.sessions.apply(now_ms, op)),
            Event::Lose(for_us) => {
                (self.state, self.sessions) = (LockState::default(), Sessions::default());
                self.observer = NotificationObserver::default();
                self.now_us += for_us;
            }
        }
    }

    fn execute(&mut self, op: &Op) {
        let before = self.state.clone();
        let (sessions, now_us) = (&self.sessions, self.now_us);
        let alive = |session| sessions.status(now_us / 1000, session);
        let (reply, notifications) = self.state.apply(now_us, op, &alive);
        self.observer.check(&before, &self.state, (now_us, op), &reply, &notifications);
        let given = last(&self.state).filter(|last| Some(*last) != self::last(&before));
        let mut tokens: Vec<_> = given.into_iter().map(FencingToken::as_u64).collect();
        if let Reply::Extend(Extended::Reserved { mut block, .. }) = reply {
            tokens.extend(std::iter::from_fn(|| block.pop_first()).map(FencingToken::as_u64));
        }
        for token in tokens {
            assert!(token > self.greatest, "(1) {token} after {} by {op:?} on {before:#?}", self.greatest);
            assert!(token < now_us + u64::from(TokenBlock::MAX_LEN), "(2) {token} at {now_us} by {op:?}");
            self.greatest = token;
        }
    }
}

/// Which hold has a block, and which holder is to be notified.
#[derive(Default)]
pub(super) struct NotificationObserver {
    /// The hold that subscribed to notifications, and its token.
    subscriber: Option<(Claim, FencingToken)>,
}

impl NotificationObserver {
    /// Checks what an operation on a Mutex did to the reservation, and which sessions it notified.
    pub(super) fn check(
        &mut self,
        before: &LockState,
        after: &LockState,
        (now_us, op): (u64, &Op),
        reply: &Reply,
        notifications: &[Notification],
    ) {
        self.check_block(before, after, (now_us, op), reply);
        if last(before) != last(after) {
            self.subscriber = None;
        }
        self.check_notes(after, (now_us, op), reply, notifications);
    }

    /// (3)
    fn check_block(
        &mut self,
        before: &LockState,
        after: &LockState,
        (now_us, op): (u64, &Op),
        reply: &Reply,
    ) {
        let Op::Extend(extend) = op else {
            assert!(!matches!(reply, Reply::Extend(_)));
            let reserved = |state: &LockState| state.record.as_ref().and_then(|record| record.reserved);
            // The watermark has taken over the token of an idle lock.
            let is_kept = last(after).is_some();
            assert!(!is_kept || reserved(after) == reserved(before), "by {op:?}");
            return;
        };
        let held = hold_status(before, now_us, &extend.claim) == Some(HoldStatus::Held);
        let recorded = before.record.as_ref().and_then(|record| record.last_holder.as_ref());
        let knows = held && recorded.is_some_and(|recorded| recorded.claim == extend.claim);
        let reserve = extend.reserve.filter(|_| knows);
        // Apart from the reservation it is the same extend.
        let mut plain = before.clone();
        let (expected, _) =
            plain.apply(now_us, &Op::Extend(Extend { reserve: None, ..extend.clone() }), &all_alive);
        if let (Some(_), Some(plain), Some(record)) = (reserve, &mut plain.record, &after.record) {
            plain.reserved = record.reserved;
        }
        assert_eq!(*after, plain, "by {op:?} on {before:#?}");
        match (reply, reserve) {
            (Reply::Extend(Extended::Reserved { block, others_wait }), Some(reserve)) => {
                assert_eq!(expected, Reply::Extend(Extended::Extended));
                assert!(
                    (1..=reserve.tokens.clamp(1, TokenBlock::MAX_LEN)).contains(&block.remaining()),
                    "{block:?}"
                );
                assert_eq!(*others_wait, before.waiter_sessions().next().is_some());
                if reserve.notify_wanted {
                    self.subscriber = Some(extend.claim.clone()).zip(last(after));
                }
            }
            (reply, None) => assert_eq!(*reply, expected, "to {op:?} on {before:#?}"),
            other => panic!("{other:?} to {op:?} on {before:#?}"),
        }
    }

    /// (4)
    fn check_notes(
        &self,
        after: &LockState,
        (now_us, op): (u64, &Op),
        reply: &Reply,
        notifications: &[Notification],
    ) {
        let asked = match (op, reply) {
            (Op::Acquire(request), Reply::Acquire(acquired)) => Some((request, acquired)),
            (Op::Release(Release { next: Some(request), .. }), Reply::Release(released)) => {
                released.next.as_ref().and_then(|next| Some((request, next.as_ref().ok()?)))
            }
            _ => None,
        };
        let found_taken = asked.filter(|(_, acquired)| matches!(acquired, Acquired::Taken { .. }));
        let expected = found_taken.and_then(|(request, _)| {
            // A lost record has lost the subscription.
            let (claim, fence) = self.subscriber.as_ref().filter(|(_, fence)| last(after) == Some(*fence))?;
            let to = claim.hold.session();
            let is_held = hold_status(after, now_us, claim) == Some(HoldStatus::Held);
            (is_held && to != request.claim.hold.session())
                .then_some(Notification::Wanted { to, fence: *fence })
        });
        let found: Vec<_> = notifications.iter().copied().filter(is_note).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "by {op:?} on {after:#?}");
    }
}

fn last(state: &LockState) -> Option<FencingToken> {
    state.record.as_ref().and_then(|record| record.last_fence)
}

/// Whether a message reports that another session requests the lock.
pub(super) const fn is_note(notification: &Notification) -> bool {
    matches!(notification, Notification::Wanted { .. })
}

fn hold_status(state: &LockState, now_us: u64, claim: &Claim) -> Option<HoldStatus> {
    let inspect = Inspect { claim: Some(claim.clone()), details: false };
    match state.clone().apply(now_us, &Op::Inspect(inspect), &all_alive).0 {
        Reply::Inspect(inspection) => inspection.hold_status,
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tokens_grow_over_what_is_reserved(steps in any_steps()) {
        let mut environment = Environment::new();
        for step in &steps {
            environment.step(step);
        }
    }
}

/// The operation has no effect: it does not even extend the hold.
#[test]
fn nothing_is_reserved_for_a_lock_of_another_kind() {
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Mutex) {
        let mut state = LockState::new(kind);
        let value = if kind.has_owners() { OwnValue::new("ada").ok() } else { None };
        let claim = Claim { value, ..claim(0, 0) };
        let mode = [LockMode::Exclusive, LockMode::Permits { count: 1, total: 1 }, LockMode::Write]
            .into_iter()
            .chain([LockMode::CountDown { count: 1, total: 1 }, LockMode::BarrierWait { total: 1 }])
            .find(|mode| mode.applies_to(kind));
        let mode = mode.expect("each kind has parts of its own");
        let take = Op::Acquire(Acquire { mode, ..request(claim.clone(), 3_000, None, None) });
        let (reply, _) = state.apply(START_US, &take, &all_alive);
        assert!(matches!(reply, Reply::Acquire(Acquired::Granted { .. })), "{kind:?}: {reply:?}");
        let before = state.clone();
        for notify_wanted in [false, true] {
            let reserve = Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted });
            let extend =
                Extend { claim: claim.clone(), lease_ms: 60_000, keep_record: true, reserve, fence: None };
            let (reply, notifications) = state.apply(START_US, &Op::Extend(extend), &all_alive);
            assert_eq!((reply, notifications), (Reply::Refused(Refused::Unsupported), vec![]), "{kind:?}");
            assert_eq!(state, before, "{kind:?}");
        }
    }
}
