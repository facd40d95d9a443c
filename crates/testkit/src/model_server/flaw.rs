//! Ways to be wrong, one at a time.

use leasehold_core::model::{Alive, LockState};
use leasehold_core::{Op, Reply, Wake};

/// What a server does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A release ends whatever hold it finds, without comparing it.
    ReleasesAnybodys,
    /// A hold ends after half of what its holder was told.
    EndsLeasesEarly,
    /// A hold never ends by itself.
    NeverEndsLeases,
    /// Fencing tokens begin again where the data was lost.
    ForgetsTokens,
}

impl Flaw {
    /// The time that the server goes by.
    pub(super) fn clock(self, now_us: u64, lost_us: u64) -> u64 {
        if self == Self::ForgetsTokens { now_us - lost_us } else { now_us }
    }

    /// Executes an operation, wrongly.
    pub(super) fn apply(
        self,
        lock: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: Alive<'_>,
    ) -> (Reply, Vec<Wake>) {
        let tenant = lock.record.as_ref().and_then(|record| record.tenant.as_ref());
        let op = match (self, op, tenant) {
            (Self::ReleasesAnybodys, Op::Release(release), Some(tenant)) if lock.value.is_some() => {
                let mut release = release.clone();
                release.claim = tenant.claim.clone();
                &Op::Release(release)
            }
            _ => op,
        };
        let before = lock.value.clone();
        let result = lock.apply(now_us, op, alive);
        match (self, &mut lock.value) {
            (Self::EndsLeasesEarly, Some(value)) if before.as_ref() != Some(value) => {
                let now_ms = now_us / 1000;
                value.expires_ms = value.expires_ms.map(|at_ms| now_ms + at_ms.saturating_sub(now_ms) / 2);
            }
            (Self::NeverEndsLeases, Some(value)) => value.expires_ms = None,
            _ => {}
        }
        result
    }
}
