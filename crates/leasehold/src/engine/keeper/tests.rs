//! The keeper alone, over a memory store.

use super::*;
use crate::engine::session::{SessionEvents, fresh_id};
use crate::engine::{LockEntry, Session};
use crate::store::{MemoryStore, Outcome};
use crate::telemetry::TelemetrySettings;
use leasehold_core::machine::renewal::RenewalPlan;
use leasehold_core::{
    Acquire, FencingToken, HoldId, Label, LockMode, Notification, Op, Release, ReleaseAction,
};
use leasehold_store::System;
use std::sync::Weak;

const SECOND: Duration = Duration::from_secs(1);

/// Ignores everything.
struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _: Notification) {}
    fn missed_messages(&self, _: Partition) {}
    fn reconnected(&self, _: Partition) {}
}

fn telemetry(environment: &Arc<dyn Environment>) -> Arc<Telemetry> {
    Arc::new(Telemetry::new(TelemetrySettings::default(), environment.clone()))
}

/// A hold at the store with a lease of one minute; here it is valid until `until`.
async fn held(store: &MemoryStore, session: Arc<Session>, until: Moment) -> Arc<Hold> {
    let (lock, hold) = (Lock::mutex("m".parse().expect("a good name")), [7; 16]);
    let claim = Claim::new(HoldId::from_random(session.id, hold));
    let label = Label::new("").expect("a good label");
    let (liveness, predecessor) = (session.liveness, None);
    let request = Acquire {
        claim: claim.clone(),
        lease_ms: 60_000,
        label,
        queue: None,
        expire_foreign_ms: None,
        liveness,
        predecessor,
        mode: LockMode::Exclusive,
    };
    assert!(matches!(store.execute(&lock, &Op::Acquire(request), SECOND).await, Outcome::Done(_)));
    Arc::new(Hold::new(lock, claim, FencingToken::new(1), until, session, Weak::<LockEntry>::new()))
}

#[tokio::test]
async fn a_hastened_hold_reports_at_once_that_it_was_ended() {
    let environment: Arc<dyn Environment> = Arc::new(System);
    let timings = Timings { call: SECOND, outage: SECOND, watchdog: 30 * SECOND, session: Some(10 * SECOND) };
    let end = environment.now() + 60 * SECOND;
    for plan in [RenewalPlan::Until { end }, RenewalPlan::Renew { lease: 180 * SECOND }] {
        let store = MemoryStore::new();
        let (events, metadata) = (Arc::new(Deaf), "".into());
        let session_factory = SessionFactory {
            store: store.fork(),
            environment: environment.clone(),
            events,
            metadata,
            timings,
            telemetry: telemetry(&environment),
        };
        let session = Arc::new(session_factory.not_begun(Partition::ONLY, fresh_id(&*environment)));
        let schedule = session_factory.begin(&session, &[]).await.expect("a store without faults");
        let sessions = Arc::new(Sessions::single(session.clone()));
        let keeper = Keeper::start(store.fork(), session_factory, sessions, schedule).expect("a thread");
        let hold = held(&store, session, end).await;
        let mut schedule = RenewalSchedule::new(plan, end, environment.now());
        // The next scheduled extend is a minute ahead, or there is none.
        schedule.handle_extended(environment.now(), 180 * SECOND, false);
        let id = keeper.track(hold.clone(), schedule).expect("no shutdown has begun");
        keeper.handle().force_released(hold.fence);
        tokio::time::sleep(SECOND / 20).await;
        hold.check(&*environment).expect("the store replied and still keeps it");

        let release =
            Release { claim: hold.claim.clone(), action: ReleaseAction::Grant, next: None, history: 0 };
        assert!(matches!(store.execute(&hold.lock, &Op::Release(release), SECOND).await, Outcome::Done(_)));
        keeper.handle().force_released(hold.fence);
        let reported = tokio::time::timeout(5 * SECOND, hold.signal().cancelled()).await;
        reported.expect("reported at once, not a minute later");
        assert_eq!(hold.reason(environment.now()), LostReason::Released);
        keeper.retire(id);
        keeper.handle().force_released(hold.fence);
        keeper.close();
    }
}

#[tokio::test]
async fn a_hold_registered_after_its_session_lapsed_is_lost_and_not_extended() {
    let environment: Arc<dyn Environment> = Arc::new(System);
    let timings = Timings { call: SECOND, outage: SECOND, watchdog: 30 * SECOND, session: Some(10 * SECOND) };
    let store = MemoryStore::new();
    let session_factory = || SessionFactory {
        store: store.fork(),
        environment: environment.clone(),
        events: Arc::new(Deaf),
        metadata: "".into(),
        timings,
        telemetry: telemetry(&environment),
    };
    let session = || Arc::new(session_factory().not_begun(Partition::ONLY, fresh_id(&*environment)));
    let (old, present) = (session(), session());
    session_factory().begin(&old, &[]).await.expect("a store without faults");
    let schedule = session_factory().begin(&present, &[]).await.expect("a store without faults");
    let sessions = Arc::new(Sessions::single(present));
    let keeper = Keeper::start(store.fork(), session_factory(), sessions, schedule).expect("a thread");
    // The task was suspended between acquiring the hold and registering it, and the keeper has ended the session.
    let end = environment.now() + SECOND;
    let hold = held(&store, old.clone(), end).await;
    old.end();
    let schedule = RenewalSchedule::new(RenewalPlan::Renew { lease: 3 * SECOND }, end, environment.now());
    let _id = keeper.track(hold.clone(), schedule).expect("no shutdown has begun");
    assert_eq!(hold.check(&*environment), Err(LostReason::SessionLapsed));
    let reported = tokio::time::timeout(4 * SECOND, hold.signal().cancelled()).await;
    keeper.close();
    reported.expect("the loss is signaled");
}
