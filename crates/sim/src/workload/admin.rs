//! Administrative clients: a monitor that evicts lapsed sessions, and an operator that releases locks by force.
//!
//! Both talk to the server as clients do, by a link on which everything can go wrong.

use crate::world::Sim;
use crate::world::store::SimStore;
use leasehold::store::{Lock, Op, Outcome, Reply, SessionOp, SessionReply, Store};
use leasehold_core::{
    Evict, ForceRelease, Inspect, Inspection, Label, ObservedHolder, Partition, SessionEntry,
};
use leasehold_testkit::Random;
use std::time::Duration;

/// How long each of their calls may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Lists the sessions from time to time, and evicts those that have lapsed. An eager monitor also tries live sessions and
/// unlisted locks.
pub(crate) async fn monitor(store: SimStore, random: Random) {
    let sim = store.world.sim.clone();
    let Ok(by) = Label::new("monitor") else { return };
    let is_eager = random.chance(500);
    while sim.scheduler.now() < sim.fault_plan.faults_end_at {
        pause(&sim, &random, Duration::from_millis(1_500)).await;
        let Outcome::Done(SessionReply::List(sessions)) =
            store.execute_session(Partition::ONLY, &SessionOp::List, CALL_TIMEOUT).await
        else {
            continue;
        };
        for SessionEntry { session, alive_ms, held, .. } in sessions.entries {
            let locks = if is_eager { sim.locks.clone() } else { held };
            for lock in locks.iter().filter(|_| is_eager || alive_ms.is_none()) {
                // The outcome does not matter: it lists them again.
                drop(
                    store.execute(lock, &Op::Evict(Evict { session, actor: by.clone() }), CALL_TIMEOUT).await,
                );
            }
        }
    }
}

/// Inspects a lock, pauses, and releases by force the hold that it saw.
pub(crate) async fn operator(store: SimStore, random: Random) {
    let sim = store.world.sim.clone();
    let Ok(by) = Label::new("operator") else { return };
    while sim.scheduler.now() < sim.fault_plan.faults_end_at {
        pause(&sim, &random, Duration::from_secs(6)).await;
        let lock: &Lock = random.pick(&sim.locks);
        let inspect = Op::Inspect(Inspect { claim: None, details: true });
        let Outcome::Done(Reply::Inspect(inspection)) = store.execute(lock, &inspect, CALL_TIMEOUT).await
        else {
            continue;
        };
        let Some(seen) = seen(&inspection, &random) else { continue };
        pause(&sim, &random, Duration::from_millis(700)).await;
        // The outcome does not matter: it inspects again.
        drop(
            store
                .execute(
                    lock,
                    &Op::ForceRelease(ForceRelease { observed: seen, actor: by.clone() }),
                    CALL_TIMEOUT,
                )
                .await,
        );
    }
}

/// A holder of the lock as an inspection shows it.
fn seen(inspection: &Inspection, random: &Random) -> Option<ObservedHolder> {
    if !inspection.shared_holders.is_empty() {
        return random.pick(&inspection.shared_holders).fence.map(ObservedHolder::Hold);
    }
    let holder = inspection.holder.as_ref()?;
    holder
        .fence
        .map(ObservedHolder::Hold)
        .or_else(|| inspection.foreign_fingerprint.map(ObservedHolder::Foreign))
}

async fn pause(sim: &Sim, random: &Random, most: Duration) {
    let us = random.below(u64::try_from(most.as_micros()).unwrap_or(1).max(1));
    sim.scheduler.sleep_until(sim.scheduler.now() + Duration::from_micros(us)).await;
}
