//! A guard that a task holds, and what the task records of it.

use crate::any_guard::AnyGuard;
use crate::event::{GuardId, LeasePolicy, LockId, LossScope, NewGuard, ReleaseMethod, TaskEvent, Validity};
use crate::workload::runner::TaskRunner;
use crate::world::Sim;
use leasehold::{LockMode, Lost as Loss};
use std::sync::Arc;

/// A guard that a task holds.
pub(crate) struct HeldGuard {
    pub(crate) kept: Arc<AnyGuard>,
    /// Each of the locks, with its token.
    pub(crate) guard_ids: Vec<(LockId, GuardId)>,
    /// Set once its loss was reported.
    pub(crate) is_lost: bool,
    /// For how long it is to last, also after a conversion.
    pub(crate) lease_policy: LeasePolicy,
    /// The lock mode.
    pub(crate) mode: LockMode,
    /// The upgradable read under a write, which is released with it.
    pub(crate) under: Option<GuardId>,
}

impl HeldGuard {
    /// Records a new guard, and watches its validity.
    pub(crate) fn new(
        runner: &TaskRunner,
        kept: AnyGuard,
        lease_policy: LeasePolicy,
        mode: LockMode,
    ) -> Self {
        let (sim, keep_for, kept) = (&runner.sim, kept.keep_for(), Arc::new(kept));
        let owner = kept.owner().map(|owner| sim.owner_id(owner));
        let belief = Validity { until: runner.world.shows_at(kept.valid_until()) };
        let (count, together) = (kept.count(), matches!(*kept, AnyGuard::All(_)));
        let got = kept.fences().into_iter().filter_map(|(name, fence)| {
            let gain = NewGuard { fence, belief, lease_policy, owner, mode, count, together, keep_for };
            Some((lock_of(sim, &name)?, sim.new_grip(), gain))
        });
        let got: Vec<_> = got.collect();
        let guard_ids = got.iter().map(|(lock, guard_id, _)| (*lock, *guard_id)).collect();
        sim.watch_guard(&runner.world, runner.task, &kept, got);
        Self { kept, guard_ids, is_lost: false, lease_policy, mode, under: None }
    }

    pub(crate) fn note(&self, runner: &TaskRunner, what: impl Fn(GuardId) -> TaskEvent) {
        for (lock, guard_id) in &self.guard_ids {
            runner.note(*lock, what(*guard_id));
        }
    }

    /// Records the loss of one of its locks.
    pub(crate) fn loses(&mut self, runner: &TaskRunner, loss: &Loss) {
        self.is_lost = true;
        let lost = lock_of(&runner.sim, loss.lock.as_str());
        for (lock, guard_id) in &self.guard_ids {
            let which = if Some(*lock) == lost { LossScope::This } else { LossScope::Another };
            runner.note(*lock, TaskEvent::LossReported(*guard_id, which));
        }
        if self.kept.check().is_ok() {
            runner
                .sim
                .fail("workload", format!("{} was told of a loss, and its check succeeds", runner.task));
        }
    }

    /// Releases it. The release is dropped if it is pending after `polls` polls.
    pub(crate) async fn release(self, runner: &TaskRunner, polls: u64) {
        self.note(runner, |guard_id| TaskEvent::Releasing(guard_id, ReleaseMethod::Release));
        let lock = self.guard_ids.first().map(|(lock, _)| *lock);
        let under = lock.zip(self.under);
        let Some(kept) = Arc::into_inner(self.kept) else {
            return runner.sim.fail("workload", "the guard is still shared".into());
        };
        let released =
            crate::workload::dropped::DroppedAfter { inner: Box::pin(kept.release()), polls }.await;
        for (lock, guard_id) in self.guard_ids {
            let name = lock.to_string();
            runner.note(
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
        if let Some((lock, under)) = under {
            // Its outcome is not reported.
            runner.note(lock, TaskEvent::Releasing(under, ReleaseMethod::Drop));
        }
    }

    pub(crate) fn drop(self, runner: &TaskRunner) {
        self.note(runner, |guard_id| TaskEvent::Releasing(guard_id, ReleaseMethod::Drop));
        if let (Some((lock, _)), Some(under)) = (self.guard_ids.first(), self.under) {
            runner.note(*lock, TaskEvent::Releasing(under, ReleaseMethod::Drop));
        }
    }
}

fn lock_of(sim: &Sim, name: &str) -> Option<LockId> {
    let at = sim.locks.iter().position(|lock| lock.name.as_str() == name)?;
    u8::try_from(at).ok().map(LockId)
}
