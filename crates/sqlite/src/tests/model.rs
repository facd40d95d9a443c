//! Random histories: the store against the model.

use super::{
    HOUR_US, RecordingSink, SECOND_US, TestHost, WALL_US, WITHIN, acquire, claim, done, evict,
    execute_session, inspect, label, lock, session,
};
use leasehold_core::{
    Acquire, Enqueue, Extend, FencingToken, ForceRelease, Heartbeat, Inspect, Nonce, ObservedHolder, Op,
    Partition, Release, ReleaseAction, Reserve, SessionOp, TokenBlock,
};
use leasehold_store::{MemoryStore, Store};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    AdvanceClock(u64),
    Do(&'static str, Box<Op>),
    /// An operator releases a lock by force, as seen by an inspection.
    Free(&'static str),
}

fn any_acquire() -> impl Strategy<Value = Acquire> {
    (0..5_u8, 0..3_u8, any::<Option<u64>>(), 1..5000_u64, 1..5000_u64).prop_map(
        |(of, hold, nonce, lease_ms, ttl_ms)| Acquire {
            lease_ms,
            queue: nonce.map(|nonce| Enqueue { nonce: Nonce::new(0, nonce), ttl_ms }),
            ..acquire(of, hold, false)
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let claims = || (0..5_u8, 0..3_u8).prop_map(|(of, hold)| claim(of, hold));
    let reserve = proptest::option::of((0..=TokenBlock::MAX_LEN, any::<bool>()))
        .prop_map(|reserve| reserve.map(|(tokens, notify_wanted)| Reserve { tokens, notify_wanted }));
    let extend = (claims(), 1..9000_u64, any::<bool>(), reserve).prop_map(
        |(claim, lease_ms, keep_record, reserve)| {
            Op::Extend(Extend { claim, lease_ms, keep_record, reserve, fence: None })
        },
    );
    let release =
        (claims(), any::<bool>(), proptest::option::of(any_acquire())).prop_map(|(claim, grant, next)| {
            let action = if grant { ReleaseAction::Grant } else { ReleaseAction::Free };
            Op::Release(Release { claim, action, next, history: 0 })
        });
    let inspect = (proptest::option::of(claims()), any::<bool>())
        .prop_map(|(claim, details)| Op::Inspect(Inspect { claim, details }));
    let op = prop_oneof![
        1 => (0..5_u8).prop_map(evict),
        1 => any::<u64>().prop_map(|fence| {
            Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(FencingToken::new(fence)), actor: label("a guess") })
        }),
        4 => any_acquire().prop_map(Op::Acquire),
        1 => extend,
        3 => release,
        1 => inspect,
    ];
    prop_oneof![
        3 => prop_oneof![Just(1), Just(999), Just(1000), 1..4 * SECOND_US, Just(HOUR_US)].prop_map(Step::AdvanceClock),
        12 => (prop_oneof![Just("a"), Just("b")], op).prop_map(|(name, op)| Step::Do(name, Box::new(op))),
        1 => prop_oneof![Just("a"), Just("b")].prop_map(Step::Free),
    ]
}

async fn agrees_with_the_model(steps: Vec<Step>) {
    let host = TestHost::new();
    host.clock.store(WALL_US, Ordering::Relaxed);
    let store = host.open("boot-1", WALL_US).await;
    let clock = host.clock.clone();
    let model = MemoryStore::with_clock(move || clock.load(Ordering::Relaxed));
    let (ours, theirs) = (Arc::new(RecordingSink::default()), Arc::new(RecordingSink::default()));
    for n in 0..5 {
        store.open_mailbox(Partition::ONLY, session(n), ours.clone(), WITHIN).await.expect("a fresh session");
        model
            .open_mailbox(Partition::ONLY, session(n), theirs.clone(), WITHIN)
            .await
            .expect("it never fails");
        // The model needs heartbeats to keep sessions alive; here their files do.
        let begin = Some(String::new());
        let alive_ms = u64::MAX / 4;
        let heartbeat = Heartbeat {
            session: session(n),
            alive_ms,
            begin,
            acquired: vec![],
            released: vec![],
            renew_listing: true,
            activity: None,
        };
        execute_session(&model, SessionOp::Heartbeat(heartbeat)).await;
    }
    for step in steps {
        let step = match step {
            Step::Free(name) => {
                let holder = inspect(&model, &lock(name)).await.holder;
                let observed = ObservedHolder::Hold(
                    holder.and_then(|holder| holder.fence).unwrap_or(FencingToken::new(0)),
                );
                Step::Do(
                    name,
                    Box::new(Op::ForceRelease(ForceRelease { observed, actor: label("a person") })),
                )
            }
            other => other,
        };
        match step {
            Step::Free(_) => unreachable!("it has become an operation"),
            Step::AdvanceClock(us) => host.advance(us),
            Step::Do(name, op) => {
                let expected = done(&model, &lock(name), (*op).clone()).await;
                assert_eq!(done(&store, &lock(name), (*op).clone()).await, expected, "{op:?}");
                assert_eq!(ours.take(), theirs.take(), "{op:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_is_the_models(steps in proptest::collection::vec(any_step(), 1..160)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(agrees_with_the_model(steps));
    }
}
