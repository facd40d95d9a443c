//! Which hazards have been told.

use leasehold_store::{Finding, FindingKind, Severity};
use std::sync::{Mutex, PoisonError};

/// Which hazards have been told: each once, however many connections are made, and how often.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Vec<FindingKind>>);

impl Told {
    /// Warns of what nobody was warned of yet.
    pub(super) fn tell(&self, node: &str, findings: &[Finding]) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for hazard in findings.iter().filter(|hazard| hazard.severity >= Severity::Warning) {
            if !told.contains(&hazard.kind) {
                told.push(hazard.kind.clone());
                tracing::warn!(node, hazard = hazard.kind.word(), "{hazard}");
            }
        }
    }
}
