//! `leasehold doctor`: what a server reports about itself, and settings that could lose locks.

use crate::args::DoctorArgs;
use crate::output::exit::{Exit, Failure};
use crate::output::report::{json_line, print};
use crate::output::session_info::plain;
use crate::store::Partition;
use leasehold::store::{Diagnosis, Finding, Role, Severity};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// The output for a store that is not a server.
const FILE: &str = "\
the store is a file on this machine, and it works: there is no server whose settings could lose locks
";

/// Prints the findings. Warnings have an exit status of their own.
pub(crate) async fn doctor(args: &DoctorArgs) -> Result<Exit, Failure> {
    let found = Partition::of(&args.store)?.diagnose().await?;
    let text = match &found[..] {
        [] if args.json => json_line(&Report::default()),
        [] => FILE.to_owned(),
        found if args.json => found.iter().map(|found| json_line(&Report::of(found))).collect(),
        found => found.iter().map(text).collect::<Vec<_>>().join("\n"),
    };
    print(&text).map_err(|error| Failure::new(Exit::UNAVAILABLE, error))?;
    let findings = found.iter().flat_map(|found| &found.findings);
    Ok(if findings.into_iter().any(is_serious) { Exit::HAZARDOUS } else { Exit::SUCCESS })
}

fn is_serious(hazard: &Finding) -> bool {
    hazard.severity >= Severity::Warning
}

fn severity(hazard: &Finding) -> &'static str {
    if is_serious(hazard) { "warning" } else { "notice" }
}

/// The report. The fields of its JSON are stable.
#[derive(Debug, Default, Serialize)]
struct Report<'a> {
    store: Option<&'a str>,
    product: Option<&'a str>,
    version: Option<&'a str>,
    role: Option<&'static str>,
    replicas: Option<u32>,
    append_only: Option<bool>,
    snapshots: Option<u64>,
    eviction_policy: Option<&'a str>,
    maxmemory: Option<u64>,
    used_memory: Option<u64>,
    clock_ahead_us: Option<i64>,
    clock_uncertainty_us: Option<u64>,
    round_trip_us: Option<u64>,
    user: Option<&'a str>,
    #[serde(rename = "hazards")]
    findings: Vec<Told>,
}

/// A finding. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct Told {
    hazard: &'static str,
    severity: &'static str,
    message: String,
    remedy: String,
}

impl Told {
    fn of(hazard: &Finding) -> Self {
        let Finding { kind, .. } = hazard;
        let (message, remedy) = (kind.to_string(), kind.remedy());
        Self { hazard: kind.as_str(), severity: severity(hazard), message, remedy }
    }
}

impl<'a> Report<'a> {
    fn of(found: &'a Diagnosis) -> Self {
        Self {
            store: Some(&found.node),
            product: found.product.as_deref(),
            version: found.version.as_deref(),
            role: found.role.map(|role| if role == Role::Primary { "primary" } else { "replica" }),
            replicas: found.replicas,
            append_only: found.append_only,
            snapshots: found.snapshots,
            eviction_policy: found.eviction_policy.as_deref(),
            maxmemory: found.maxmemory,
            used_memory: found.used_memory,
            clock_ahead_us: found.clock.map(|clock| clock.ahead_us),
            clock_uncertainty_us: found.clock.map(|clock| micros(clock.uncertainty)),
            round_trip_us: Some(micros(found.round_trip)),
            user: found.user.as_deref(),
            findings: found.findings.iter().map(Told::of).collect(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn text(found: &Diagnosis) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| {
        writeln!(text, "{label:<9}{value}").expect("writing to a string cannot fail");
    };
    line("store", &plain(&found.node));
    line("server", &known(server(found)));
    line("role", &known(role(found)));
    line("persists", &known(persistence(found)));
    line("memory", &known(memory(found)));
    line("clock", &known(found.clock.map(|clock| clock.to_string())));
    line("answers", &format!("in {:?}", found.round_trip));
    line("user", &known(found.user.as_deref().map(plain)));
    for hazard in &found.findings {
        line(severity(hazard), &format!("{}: {}", hazard.kind.as_str(), hazard.kind));
        line("", &format!("to do: {}", hazard.kind.remedy()));
    }
    if found.findings.is_empty() {
        line("findings", "none");
    }
    text
}

fn known(text: Option<String>) -> String {
    text.unwrap_or_else(|| "unknown".to_owned())
}

fn server(found: &Diagnosis) -> Option<String> {
    let (product, version) = (found.product.as_deref()?, found.version.as_deref()?);
    Some(format!("{} {}", plain(product), plain(version)))
}

fn role(found: &Diagnosis) -> Option<String> {
    let role = found.role?;
    Some(match found.replicas {
        Some(1) => format!("{role}, with 1 replica"),
        Some(replicas) if replicas > 0 => format!("{role}, with {replicas} replicas"),
        _ if role == Role::Primary => format!("{role}, without replicas"),
        _ => role.to_string(),
    })
}

fn persistence(found: &Diagnosis) -> Option<String> {
    let file = if found.append_only? { "an append-only file" } else { "no append-only file" };
    Some(match found.snapshots {
        Some(snapshots) => format!("{file}; snapshots since its start: {snapshots}"),
        None => file.to_owned(),
    })
}

fn memory(found: &Diagnosis) -> Option<String> {
    let (used, policy) = (found.used_memory?, plain(found.eviction_policy.as_deref()?));
    Some(match found.maxmemory? {
        0 => format!("{used} bytes, without a limit; policy {policy}"),
        most => format!("{used} bytes of {most}; policy {policy}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::store::FindingKind;

    #[test]
    fn what_is_not_reported_is_unknown() {
        let mut found = Diagnosis::new("locks:6379");
        found.findings.push(Finding::new(FindingKind::InfoDenied, Severity::Notice));
        let wanted = "\
            store    locks:6379\nserver   unknown\nrole     unknown\npersists unknown\nmemory   unknown\n\
            clock    unknown\nanswers  in 0ns\nuser     unknown\n\
            notice   not_told: the user may not run INFO: its settings are unknown\n         \
            to do: allow INFO to the user, or connect as another one\n";
        assert_eq!(text(&found), wanted);
    }

    #[test]
    fn texts_of_a_server_cannot_control_a_terminal() {
        let mut found = Diagnosis::new("locks:6379");
        found.user = Some("\x1b[2Jmallory".to_owned());
        (found.product, found.version) = (Some("Redis".to_owned()), Some("\x1b]0;".to_owned()));
        assert!(!text(&found).contains('\x1b'));
    }
}
