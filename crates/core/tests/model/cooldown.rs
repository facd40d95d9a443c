//! Properties of locks in a cooldown, and of elections, over random operations.
//!
//! 1. An Election behaves as a Mutex does: the same operations have the same replies and messages, and leave
//!    the same records. Only the value at the key has another form.
//! 2. A lock in a cooldown is taken until its time is over, whatever operation arrives, except a forced release:
//!    its end does not move, and it is not granted.

use crate::workload::{START_US, any_claim, any_op, session};
use leasehold_core::model::{Content, LockState, SessionStatus};
use leasehold_core::{
    Claim, ForceRelease, HoldId, HoldStatus, Kind, Label, Notification, ObservedHolder, Op, OwnValue,
    Release, ReleaseAction, Reply,
};
use proptest::prelude::*;

/// Some claims have a user-defined value.
fn claim(s: u8, n: u8) -> Claim {
    let value = if n == 2 { OwnValue::new("mine").ok() } else { None };
    Claim { hold: HoldId::from_random(session(s), [n; 16]), value }
}

fn any_step() -> impl Strategy<Value = (u64, Op)> {
    let for_ms = prop_oneof![Just(1_u64), Just(3_000), 1..60_000_u64];
    let cooldown = (any_claim(claim), for_ms).prop_map(|(claim, for_ms)| {
        Op::Release(Release { claim, action: ReleaseAction::Cooldown { for_ms }, next: None, history: 0 })
    });
    let op = prop_oneof![4 => any_op(claim), 1 => cooldown];
    (prop_oneof![2 => Just(0_u64), 3 => 0..4_000_000_u64, 1 => 0..90_000_000_u64], op)
}

/// The value at the key, without the mark of its kind.
fn unmarked(state: &LockState) -> Option<(String, Option<u64>)> {
    let value = state.value.as_ref()?;
    let Content::Token(token) = &value.content else { panic!("a string stands there") };
    assert!(state.kind.matches_token(token), "{token}");
    Some((token.strip_prefix(state.kind.token_prefix()).expect("a mark").to_owned(), value.expires_ms))
}

/// The end of the cooldown, if the lock is in one.
fn cooldown_end_ms(state: &LockState) -> Option<u64> {
    let (token, expires_ms) = unmarked(state)?;
    token.starts_with("cooldown\n").then(|| expires_ms.expect("a cooldown ends"))
}

proptest! {
    #[test]
    fn an_election_behaves_as_a_mutex_does(steps in proptest::collection::vec(any_step(), 1..60)) {
        let (mut mutex, mut election) = (LockState::new(Kind::Mutex), LockState::new(Kind::Election));
        let mut now_us = START_US;
        let alive = |_| SessionStatus::Alive(10_000);
        for (by_us, op) in steps {
            now_us += by_us;
            prop_assert_eq!(mutex.apply(now_us, &op, &alive), election.apply(now_us, &op, &alive), "{:?}", op);
            prop_assert_eq!(unmarked(&mutex), unmarked(&election));
            prop_assert_eq!(&mutex.record, &election.record);
            prop_assert_eq!(&mutex.audit, &election.audit);
        }
    }

    #[test]
    fn a_cooldown_lasts_whatever_is_sent(
        steps in proptest::collection::vec(any_step(), 1..60),
        kind in prop_oneof![Just(Kind::Mutex), Just(Kind::Election)],
        dead in any::<bool>(),
    ) {
        let (mut state, mut now_us) = (LockState::new(kind), START_US);
        let alive = |_| if dead { SessionStatus::Lapsed } else { SessionStatus::Alive(10_000) };
        for (by_us, op) in steps {
            now_us += by_us;
            state.is_empty_at(now_us);
            let (before, cooldown) = (state.clone(), cooldown_end_ms(&state));
            let (reply, notifications) = state.apply(now_us, &op, &alive);
            if let Some(until_ms) = cooldown {
                prop_assert_eq!(cooldown_end_ms(&state), Some(until_ms), "{:?}", op);
                prop_assert!(!notifications.iter().any(|notification| matches!(notification, Notification::Grant { .. })), "{:?}", op);
                prop_assert_eq!(state.holders_at(now_us), vec![]);
            } else if let (Some(until_ms), Op::Release(Release { action: ReleaseAction::Cooldown { for_ms }, .. })) = (cooldown_end_ms(&state), &op) {
                let Reply::Release(released) = &reply else { panic!("{reply:?}") };
                prop_assert_eq!(released.status, HoldStatus::Held);
                // Counted from the grant, and never already over.
                let since_ms = before.record.and_then(|record| record.last_holder).map_or(0, |recorded| recorded.since_ms);
                prop_assert_eq!(until_ms, since_ms + for_ms);
                prop_assert!(until_ms > now_us / 1000);
            } else {
                prop_assert_eq!(cooldown_end_ms(&state), None, "{:?}", op);
            }
        }
        // An operator can always end it.
        if cooldown_end_ms(&state).is_some() {
            let last = state.record.as_ref().and_then(|record| record.last_fence).expect("it was given");
            let free = ForceRelease { observed: ObservedHolder::Hold(last), actor: Label::new("a person").expect("a plain text") };
            state.apply(now_us, &Op::ForceRelease(free), &alive);
            prop_assert_eq!(cooldown_end_ms(&state), None);
        }
    }
}
