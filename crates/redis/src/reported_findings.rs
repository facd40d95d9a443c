//! Warnings about a server, each logged once.

use leasehold_store::{Finding, FindingKind, Severity};
use std::sync::{Mutex, PoisonError};

/// The findings that were logged, by any of the connections that share this value.
#[derive(Debug, Default)]
pub(crate) struct ReportedFindings(Mutex<Vec<FindingKind>>);

impl ReportedFindings {
    /// Logs the warnings that were not logged yet.
    pub(crate) fn warn(&self, node: &str, findings: &[Finding]) {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for finding in findings.iter().filter(|finding| finding.severity >= Severity::Warning) {
            if !reported.contains(&finding.kind) {
                reported.push(finding.kind.clone());
                tracing::warn!(node, hazard = finding.kind.as_str(), "{finding}");
            }
        }
    }
}
