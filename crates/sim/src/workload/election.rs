//! The workload on Elections: campaigns, leads, proclaims, resigns, or drops these half-way; and observers.
//!
//! It deliberately judges nothing: it records what it does, and the checks do the rest.

use crate::any_guard::AnyGuard;
use crate::event::{
    AcquireMethod, Event, GuardId, LockId, ObserverEvent, ProclaimedText, SeenLeader, TaskEvent, TaskId,
};
use crate::mutants::Mutant;
use crate::workload::guards::HeldGuard;
use crate::workload::runner::TaskRunner;
use crate::workload::task::{AcquireCall, CallOutcome, attempt, got};
use crate::world::Sim;
use crate::world::time::Instant;
use futures_util::future::{BoxFuture, Either, select};
use leasehold::core::{Kind, LockMode};
use leasehold::error::ProclaimError;
use leasehold::inspect::Leader;
use leasehold::{Client, Election};
use leasehold_testkit::Random;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How long a leader leads without a break after faults have ended, so that every observer must report it.
const LEADS_AFTER_FAULTS: Duration = Duration::from_secs(3);
/// How long a task campaigns for that.
const CAMPAIGNS_AFTER_FAULTS: Duration = Duration::from_secs(4);
/// How long observers observe after faults have ended.
const OBSERVES_AFTER_FAULTS: Duration = Duration::from_secs(8);

impl TaskRunner {
    /// Campaigns once, in a random way.
    pub(crate) async fn campaign(&self, lock: LockId) -> Option<HeldGuard> {
        let mut election = self.election(lock)?;
        let (lease, terms) = self.draw_terms();
        election = election.lock_delay(self.requested_delay(terms));
        if let Some(lease) = lease {
            election = election.lease(lease);
        }
        let (method, limit) = self.draw_method();
        // An Election has no polling.
        let method =
            if matches!(method, AcquireMethod::Poll(_)) { AcquireMethod::WaitTimeout(limit) } else { method };
        let acquiring: BoxFuture<'static, CallOutcome> = match method {
            AcquireMethod::Try => {
                Box::pin(async move { attempt(election.try_campaign().await, AnyGuard::Leader) })
            }
            AcquireMethod::WaitTimeout(_) => {
                Box::pin(async move { got(election.campaign_timeout(limit).await, AnyGuard::Leader) })
            }
            _ => Box::pin(async move { got(election.campaign().await, AnyGuard::Leader) }),
        };
        self.acquire_locks(&[lock], AcquireCall { method, acquiring }, None, terms, LockMode::Exclusive).await
    }

    /// Proclaims some texts, one after another. Each future may be dropped, and its request arrive later.
    pub(crate) async fn proclaim(&self, lock: LockId, guard_id: GuardId, guard: &Arc<AnyGuard>) {
        for _ in 0..self.random.below(4) {
            let text = self.sim.new_text();
            self.record(lock, TaskEvent::Proclaiming(guard_id, text));
            let leader = guard.clone();
            let proclaiming = Box::pin(async move {
                match leader.leadership() {
                    Some(leadership) => leadership.proclaim(text.to_string()).await,
                    None => Ok(()),
                }
            });
            match self.maybe_dropped(proclaiming).await {
                Some(Ok(())) => self.record(lock, TaskEvent::Proclaimed(guard_id, text)),
                Some(Err(ProclaimError::Lost(_))) if guard.check().is_ok() => {
                    let what =
                        format!("the check of {} succeeds after a proclaim that found a loss", self.task);
                    self.sim.fail("workload", what);
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Campaigns after faults have ended, and leads for some time if elected.
    pub(crate) async fn lead_after_faults(&self) {
        let elections = Observer::elections(&self.sim);
        if elections.is_empty() || self.task.number > 0 {
            return;
        }
        let lock = *self.random.pick(&elections);
        let Some(election) = self.election(lock) else { return };
        let limit = CAMPAIGNS_AFTER_FAULTS;
        let acquiring: BoxFuture<'static, CallOutcome> =
            Box::pin(async move { got(election.campaign_timeout(limit).await, AnyGuard::Leader) });
        let call = AcquireCall { method: AcquireMethod::WaitTimeout(limit), acquiring };
        let elected =
            self.acquire_locks(&[lock], call, None, self.resubscribed().into(), LockMode::Exclusive).await;
        let Some(held_guard) = elected else { return };
        let mut guards = vec![held_guard];
        let as_election = self.sim.scheduler.sleep_until(self.sim.scheduler.now() + LEADS_AFTER_FAULTS);
        self.meanwhile(&mut guards, as_election).await;
        self.release_all(guards).await;
    }

    fn election(&self, lock: LockId) -> Option<Election> {
        let name = self.sim.locks.get(usize::from(lock.0))?.name.clone();
        self.sim.expect("workload", self.client.election(name))
    }
}

/// An observer of an Election.
pub(crate) struct Observer {
    pub(crate) sim: Arc<Sim>,
    pub(crate) client: Client,
    pub(crate) task: TaskId,
    pub(crate) lock: LockId,
    pub(crate) random: Random,
}

impl Observer {
    /// The locks that can be observed.
    pub(crate) fn elections(sim: &Sim) -> Vec<LockId> {
        let all = (0..u8::try_from(sim.locks.len()).unwrap_or(0)).map(LockId);
        all.filter(|lock| sim.kind(*lock) == Kind::Election).collect()
    }

    /// Observes until some time after faults have ended. Sometimes drops the call and repeats it, sometimes starts a
    /// new observer.
    pub(crate) async fn run(self) {
        let until = self.sim.fault_plan.faults_end_at + OBSERVES_AFTER_FAULTS;
        let name = self.sim.locks.get(usize::from(self.lock.0)).map(|lock| lock.name.clone());
        let made = name.and_then(|name| self.sim.expect("workload", self.client.election(name)));
        let Some(election) = made else { return };
        let mut leaders = election.observe();
        self.record(ObserverEvent::Begins);
        let mut last = None;
        while self.sim.scheduler.now() < until {
            if self.random.chance(20) {
                leaders = election.observe();
                self.record(ObserverEvent::Begins);
            }
            if self.random.chance(200) {
                self.ask(&election, until).await;
            }
            let patience = self.sim.scheduler.sleep_until(self.next_pause(until));
            match select(pin!(leaders.next()), patience).await {
                Either::Left((Ok(leader), _)) => {
                    let reported = ObserverEvent::Reported(leader.as_ref().map(seen));
                    // A check must find the mutant by more than a repeated report.
                    if self.sim.mutant != Some(Mutant::ObserverForgets)
                        || last.replace(reported) != Some(reported)
                    {
                        self.record(reported);
                    }
                }
                // The call is repeated: the next poll follows after a pause.
                Either::Left((Err(_), _)) | Either::Right(_) => {}
            }
            if self.sim.mutant == Some(Mutant::ObserverForgets) {
                leaders = election.observe();
            }
        }
        self.record(ObserverEvent::Ends);
    }

    /// Asks once for the leader.
    async fn ask(&self, election: &Election, end: Instant) {
        let patience = self.sim.scheduler.sleep_until(self.next_pause(end));
        if let Either::Left((Ok(leader), _)) = select(pin!(election.leader()), patience).await {
            self.record(ObserverEvent::Asked(leader.as_ref().map(seen)));
        }
    }

    fn next_pause(&self, end: Instant) -> Instant {
        if !self.random.chance(300) {
            return end;
        }
        let us = self.random.below(1_500_000);
        end.min(self.sim.scheduler.now() + Duration::from_micros(us))
    }

    fn record(&self, what: ObserverEvent) {
        self.sim.record(&Event::Observer(self.task, self.lock, what));
    }
}

fn seen(leader: &Leader) -> SeenLeader {
    SeenLeader { fence: leader.fence, text: ProclaimedText::of(&leader.label) }
}
