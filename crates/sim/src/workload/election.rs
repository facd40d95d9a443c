//! What a task does with an Election: campaigns, leads, resigns, or drops that half-method; and what one does who only
//! wants to know who leads.
//!
//! It deliberately judges nothing: it says what it does, and the checks do the rest.

use crate::event::{AcquireMethod, Event, LockId, ObserverEvent, TaskId};
use crate::mutants::Mutant;
use crate::workload::guards::{AnyGuard, HeldGuard};
use crate::workload::task::{AcquireCall, CallOutcome, TaskRunner, attempt, got};
use crate::world::Sim;
use crate::world::time::Instant;
use futures_util::future::{BoxFuture, Either, select};
use leasehold::core::{Kind, Portion};
use leasehold::{Client, Election};
use leasehold_testkit::Random;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How long after everything is well somebody leads without a break, so that all who observe have to be told of him.
const LEADS_AT_LAST: Duration = Duration::from_secs(3);
/// For how long one campaigns for that.
const CAMPAIGNS_AT_LAST: Duration = Duration::from_secs(4);
/// Until when after that everybody observes.
const OBSERVES_AT_LAST: Duration = Duration::from_secs(8);

impl TaskRunner {
    /// Campaigns once, in one of the ways that there are.
    pub(crate) async fn campaign(&self, lock: LockId) -> Option<HeldGuard> {
        let mut election = self.election(lock)?;
        let (lease, lease_policy) = self.lease_policy();
        if let Some(lease) = lease {
            election = election.lease(lease);
        }
        let (method, limit) = self.draw_method();
        // Nobody polls for an Election.
        let method =
            if matches!(method, AcquireMethod::Poll(_)) { AcquireMethod::Wait(limit) } else { method };
        let acquiring: BoxFuture<'static, CallOutcome> = match method {
            AcquireMethod::Try => {
                Box::pin(async move { attempt(election.try_campaign().await, AnyGuard::Leader) })
            }
            AcquireMethod::Wait(_) => {
                Box::pin(async move { got(election.campaign_timeout(limit).await, AnyGuard::Leader) })
            }
            _ => Box::pin(async move { got(election.campaign().await, AnyGuard::Leader) }),
        };
        self.acquire_locks(&[lock], AcquireCall { method, acquiring }, None, lease_policy, Portion::Whole)
            .await
    }

    /// Leads for long once nothing goes wrong any more, if it is elected.
    pub(crate) async fn lead_at_last(&self) {
        let elections = Observer::elections(&self.sim);
        if elections.is_empty() || self.task.number > 0 {
            return;
        }
        let lock = *self.chance.pick(&elections);
        let Some(election) = self.election(lock) else { return };
        let limit = CAMPAIGNS_AT_LAST;
        let acquiring: BoxFuture<'static, CallOutcome> =
            Box::pin(async move { got(election.campaign_timeout(limit).await, AnyGuard::Leader) });
        let call = AcquireCall { method: AcquireMethod::Wait(limit), acquiring };
        let elected = self.acquire_locks(&[lock], call, None, self.renewed(), Portion::Whole).await;
        let Some(held_guard) = elected else { return };
        let mut had = vec![held_guard];
        let leads = self.sim.scheduler.sleep_until(self.sim.scheduler.now() + LEADS_AT_LAST);
        self.meanwhile(&mut had, leads).await;
        self.release_all(had).await;
    }

    fn election(&self, lock: LockId) -> Option<Election> {
        let name = self.sim.locks.get(usize::from(lock.0))?.name.clone();
        self.sim.expect("workload", self.client.election(name))
    }
}

/// One who observes an Election.
pub(crate) struct Observer {
    pub(crate) sim: Arc<Sim>,
    pub(crate) client: Client,
    pub(crate) task: TaskId,
    pub(crate) lock: LockId,
    pub(crate) chance: Random,
}

impl Observer {
    /// Which of the locks somebody may observe.
    pub(crate) fn elections(sim: &Sim) -> Vec<LockId> {
        let all = (0..u8::try_from(sim.locks.len()).unwrap_or(0)).map(LockId);
        all.filter(|lock| sim.kind(*lock) == Kind::Election).collect()
    }

    /// Observes until some time after nothing goes wrong any more. Now and then it drops its question and asks again, and
    /// now and then it begins anew.
    pub(crate) async fn run(self) {
        let until = self.sim.fault_plan.faults_end_at + OBSERVES_AT_LAST;
        let name = self.sim.locks.get(usize::from(self.lock.0)).map(|lock| lock.name.clone());
        let made = name.and_then(|name| self.sim.expect("workload", self.client.election(name)));
        let Some(election) = made else { return };
        let mut leaders = election.observe();
        self.note(ObserverEvent::Begins);
        let mut last = None;
        while self.sim.scheduler.now() < until {
            if self.chance.chance(20) {
                leaders = election.observe();
                self.note(ObserverEvent::Begins);
            }
            let patience = self.sim.scheduler.sleep_until(self.patient_until(until));
            match select(pin!(leaders.next()), patience).await {
                Either::Left((Ok(leader), _)) => {
                    let told = ObserverEvent::Reported(leader.map(|leader| leader.fence));
                    // One who forgets is not to be found by what he is told twice in a row.
                    if self.sim.mutant != Some(Mutant::ObserverForgets) || last.replace(told) != Some(told) {
                        self.note(told);
                    }
                }
                // It is asked again: the next look comes after a pause.
                Either::Left((Err(_), _)) | Either::Right(_) => {}
            }
            if self.sim.mutant == Some(Mutant::ObserverForgets) {
                leaders = election.observe();
            }
        }
        self.note(ObserverEvent::Ends);
    }

    fn patient_until(&self, end: Instant) -> Instant {
        if !self.chance.chance(300) {
            return end;
        }
        let us = self.chance.below(1_500_000);
        end.min(self.sim.scheduler.now() + Duration::from_micros(us))
    }

    fn note(&self, what: ObserverEvent) {
        self.sim.note(&Event::Observer(self.task, self.lock, what));
    }
}
