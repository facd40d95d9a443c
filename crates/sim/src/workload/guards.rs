//! A guard that a task holds, and what the task records of it.

use crate::any_guard::AnyGuard;
use crate::event::{GuardId, LeasePolicy, LockId, LossScope, NewGuard, ReleaseMethod, TaskEvent, Validity};
use crate::workload::runner::TaskRunner;
use crate::world::Sim;
use leasehold::error::LostHold as Loss;
use leasehold::inspect::LockMode;
use std::sync::Arc;
use std::time::Duration;

/// What a task requests of a hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldTerms {
    pub(crate) lease_policy: LeasePolicy,
    /// For how long no other client is granted the lock after a loss.
    pub(crate) lock_delay: Duration,
}

impl From<LeasePolicy> for HoldTerms {
    fn from(lease_policy: LeasePolicy) -> Self {
        Self { lease_policy, lock_delay: Duration::ZERO }
    }
}

/// A guard that a task holds.
pub(crate) struct HeldGuard {
    pub(crate) guard: Arc<AnyGuard>,
    /// Each of the locks, with the number of its guard.
    pub(crate) guard_ids: Vec<(LockId, GuardId)>,
    /// Set once its loss was reported.
    pub(crate) is_lost: bool,
    /// The requested terms, also after a conversion.
    pub(crate) terms: HoldTerms,
    /// The lock mode.
    pub(crate) mode: LockMode,
    /// The upgradable read that a write was converted from, which is released with it.
    pub(crate) source: Option<GuardId>,
}

impl HeldGuard {
    /// Records a new guard, and watches its validity.
    pub(crate) fn new(runner: &TaskRunner, guard: AnyGuard, terms: HoldTerms, mode: LockMode) -> Self {
        let HoldTerms { lease_policy, lock_delay } = terms;
        let (sim, keep_for, guard) = (&runner.sim, guard.keep_for(), Arc::new(guard));
        let owner = guard.owner().map(|owner| sim.owner_id(owner));
        let validity = Validity { until: runner.world.shows_at(guard.valid_until()) };
        let (count, is_multi) = (guard.count(), matches!(*guard, AnyGuard::All(_)));
        let got = guard.fences().into_iter().filter_map(|(name, fence)| {
            let new_guard = NewGuard {
                fence,
                validity,
                lease_policy,
                owner,
                mode,
                count,
                is_multi,
                keep_for,
                lock_delay,
            };
            Some((lock_id_of(sim, &name)?, sim.new_guard_id(), new_guard))
        });
        let got: Vec<_> = got.collect();
        let guard_ids = got.iter().map(|(lock, guard_id, _)| (*lock, *guard_id)).collect();
        sim.watch_guard(&runner.world, runner.task, &guard, got);
        Self { guard, guard_ids, is_lost: false, terms, mode, source: None }
    }

    pub(crate) fn record(&self, runner: &TaskRunner, what: impl Fn(GuardId) -> TaskEvent) {
        for (lock, guard_id) in &self.guard_ids {
            runner.record(*lock, what(*guard_id));
        }
    }

    /// Records the loss of one of its locks.
    pub(crate) fn report_loss(&mut self, runner: &TaskRunner, loss: &Loss) {
        self.is_lost = true;
        let lost = lock_id_of(&runner.sim, loss.lock.as_str());
        for (lock, guard_id) in &self.guard_ids {
            let which = if Some(*lock) == lost { LossScope::This } else { LossScope::Another };
            runner.record(*lock, TaskEvent::LossReported(*guard_id, which));
        }
        if self.guard.check().is_ok() {
            runner
                .sim
                .fail("workload", format!("the check of {} succeeds after a reported loss", runner.task));
        }
    }

    /// Releases it. The release is dropped if it is pending after `polls` polls.
    pub(crate) async fn release(self, runner: &TaskRunner, polls: u64) {
        self.record(runner, |guard_id| TaskEvent::Releasing(guard_id, ReleaseMethod::Release));
        let lock = self.guard_ids.first().map(|(lock, _)| *lock);
        let source = lock.zip(self.source);
        let Some(guard) = Arc::into_inner(self.guard) else {
            return runner.sim.fail("workload", "the guard is still shared".into());
        };
        let released =
            crate::workload::dropped::DroppedAfter { inner: Box::pin(guard.release()), polls }.await;
        for (lock, guard_id) in self.guard_ids {
            let name = lock.to_string();
            runner.record(
                lock,
                match &released {
                    Some(Ok(left)) => TaskEvent::Released(guard_id, Some(*left)),
                    Some(Err(failed)) => {
                        TaskEvent::Released(guard_id, (!failed.contains(&name)).then_some(0))
                    }
                    None => TaskEvent::Releasing(guard_id, ReleaseMethod::Drop),
                },
            );
        }
        if let Some((lock, source)) = source {
            // Its outcome is not reported.
            runner.record(lock, TaskEvent::Releasing(source, ReleaseMethod::Drop));
        }
    }

    pub(crate) fn drop(self, runner: &TaskRunner) {
        self.record(runner, |guard_id| TaskEvent::Releasing(guard_id, ReleaseMethod::Drop));
        if let (Some((lock, _)), Some(source)) = (self.guard_ids.first(), self.source) {
            runner.record(*lock, TaskEvent::Releasing(source, ReleaseMethod::Drop));
        }
    }
}

fn lock_id_of(sim: &Sim, name: &str) -> Option<LockId> {
    let at = sim.locks.iter().position(|lock| lock.name.as_str() == name)?;
    u8::try_from(at).ok().map(LockId)
}
