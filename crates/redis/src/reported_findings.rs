//! Findings about the servers of a configuration: the latest of each server, and which of them were logged.

use leasehold_store::{Finding, FindingKind, ServerFinding};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// More servers than a client has. Addresses of servers that are gone do not add up beyond it.
const MAX_SERVERS: usize = 1024;

/// What was found, by any of the connections that share this value.
#[derive(Debug, Default)]
pub(crate) struct ReportedFindings(Mutex<Reported>);

#[derive(Debug, Default)]
struct Reported {
    logged: Vec<FindingKind>,
    /// The latest findings by server.
    latest: BTreeMap<(String, Source), Vec<Finding>>,
}

/// What findings come from. Each source reports at its own times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// INFO, with each connection.
    Info,
    /// Trials, once for each run of a server.
    Trials,
}

impl ReportedFindings {
    /// Keeps the findings about a server, in place of earlier ones of this source.
    pub(crate) fn record(&self, server: String, source: Source, findings: &[Finding]) {
        let latest = &mut self.0.lock().unwrap_or_else(PoisonError::into_inner).latest;
        if findings.is_empty() {
            latest.remove(&(server, source));
        } else {
            latest.insert((server, source), findings.to_vec());
            if latest.len() > MAX_SERVERS {
                latest.pop_first();
            }
        }
    }

    /// The latest findings about all servers, the most serious of each server first.
    pub(crate) fn latest(&self) -> Vec<ServerFinding> {
        let reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_server = |((server, _), findings): (&(String, Source), &Vec<Finding>)| {
            let found: Vec<_> =
                findings.iter().map(|finding| ServerFinding::new(server, finding.clone())).collect();
            found
        };
        let mut all: Vec<_> = reported.latest.iter().flat_map(of_server).collect();
        all.sort_by(|a, b| (&a.node, b.finding.severity).cmp(&(&b.node, a.finding.severity)));
        all
    }

    /// Logs the warnings that were not logged yet, and were not accepted.
    pub(crate) fn warn(&self, node: &str, findings: &[Finding]) {
        let logged = &mut self.0.lock().unwrap_or_else(PoisonError::into_inner).logged;
        for finding in findings.iter().filter(|finding| finding.needs_action()) {
            if !logged.contains(&finding.kind) {
                logged.push(finding.kind.clone());
                tracing::warn!(node, hazard = finding.kind.as_str(), "{finding}");
            }
        }
    }
}
