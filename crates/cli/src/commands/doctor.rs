//! `leasehold doctor`: what a server reports about itself, and settings that could lose locks.

use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::lines::Lines;
use crate::output::log::{self, LogArgs};
use crate::output::printable::printable;
use crate::output::report::{json_line, print};
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use crate::store::state_file::StateFile;
use anyhow::{Context, anyhow};
use clap::Args;
use leasehold::store::{Diagnosis, Finding, FindingCode, Role, Severity, Trial, TrialOutcome};
use serde::Serialize;
use std::time::Duration;

/// Check a server for settings that could lose locks, and suggest remedies.
///
/// Reads version, role, memory, persistence and clock of the server with INFO, TIME and ACL WHOAMI. Tries what locks need, by
/// scripts on keys that no lock has and that are deleted at once. What the user may not read or try is reported as such.
/// A server is checked whatever its findings are, even if the URL contains `?strict=1`.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct DoctorArgs {
    /// Accept findings of this code on this store, for this user: they are no longer reported, and refuse no server
    #[arg(long, value_name = "CODE", value_delimiter = ',')]
    accept: Vec<FindingCode>,

    /// Print one line of JSON for each server
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// The output for a store that is not a server.
const FILE: &str = "\
the store is a file on this machine, and it works: there is no server whose settings could lose locks
";

/// Prints the findings. Warnings have an exit status of their own.
pub(crate) async fn doctor(args: &DoctorArgs) -> Result<Exit, Failure> {
    let config = ClientConfig::from_args(&args.store)?;
    let store = config.servers().map(str::to_owned);
    if !args.accept.is_empty() && store.is_none() {
        return Err(Failure::usage(anyhow!(
            "--accept is for a server, and this store is a file: it has no findings"
        )));
    }
    let mut diagnoses = config.diagnose().await?;
    if let Some(store) = store.filter(|_| !args.accept.is_empty()) {
        accept(&store, &args.accept)?;
        let findings = diagnoses.iter_mut().flat_map(|server| &mut server.findings);
        findings.for_each(|finding| finding.accepted |= args.accept.contains(&finding.kind.code()));
    }
    let text = match &diagnoses[..] {
        [] if args.json => json_line(&Report::default()),
        [] => FILE.to_owned(),
        servers if args.json => servers.iter().map(|server| json_line(&Report::new(server))).collect(),
        servers => servers.iter().map(text).collect::<Vec<_>>().join("\n"),
    };
    print(&text)?;
    let mut findings = diagnoses.iter().flat_map(|server| &server.findings);
    Ok(if findings.any(Finding::needs_action) { Exit::UNSAFE_SETTINGS } else { Exit::SUCCESS })
}

/// Records that this user accepts these findings about a store, and says where.
fn accept(store: &str, codes: &[FindingCode]) -> Result<(), Failure> {
    let file = StateFile::of_this_user().ok_or_else(|| {
        Failure::unavailable(anyhow!(
            "this user has no directory to record it in: name one by LEASEHOLD_STATE_DIR, or add `accept=` to the URL"
        ))
    })?;
    let path = file.path();
    let recorded = file.accept(store, codes);
    recorded
        .with_context(|| format!("failed to record it in `{}`", path.display()))
        .map_err(Failure::unavailable)?;
    let codes: Vec<_> = codes.iter().map(|code| code.as_str()).collect();
    log::warning(&format!(
        "{} of {store} accepted for this user, in `{}`: remove it there to be warned again",
        codes.join(", "),
        path.display()
    ));
    Ok(())
}

fn severity(finding: &Finding) -> &'static str {
    match finding.severity {
        Severity::Notice => "notice",
        Severity::Critical => "critical",
        _ => "warning",
    }
}

/// The report on one server. The fields of its JSON are stable.
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
    trials: Vec<TrialReport<'a>>,
    #[serde(rename = "hazards")]
    findings: Vec<FindingReport>,
}

/// A trial. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct TrialReport<'a> {
    trial: &'static str,
    outcome: &'static str,
    seen: Option<&'a str>,
}

impl<'a> TrialReport<'a> {
    fn new(trial: &'a Trial) -> Self {
        let (outcome, seen) = match &trial.outcome {
            TrialOutcome::Passed => ("passed", None),
            TrialOutcome::Failed(seen) => ("failed", Some(seen.as_str())),
            TrialOutcome::NotTried(why) => ("not_tried", Some(why.as_str())),
            _ => ("unknown", None),
        };
        Self { trial: trial.kind.as_str(), outcome, seen }
    }
}

/// A finding. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct FindingReport {
    #[serde(rename = "hazard")]
    kind: &'static str,
    severity: &'static str,
    accepted: bool,
    message: String,
    remedy: String,
}

impl FindingReport {
    fn new(finding: &Finding) -> Self {
        let kind = &finding.kind;
        Self {
            kind: kind.as_str(),
            severity: severity(finding),
            accepted: finding.accepted,
            message: kind.to_string(),
            remedy: kind.remedy(),
        }
    }
}

impl<'a> Report<'a> {
    fn new(server: &'a Diagnosis) -> Self {
        Self {
            store: Some(&server.node),
            product: server.product.as_deref(),
            version: server.version.as_deref(),
            role: server.role.map(|role| if role == Role::Primary { "primary" } else { "replica" }),
            replicas: server.replicas,
            append_only: server.append_only,
            snapshots: server.snapshots,
            eviction_policy: server.eviction_policy.as_deref(),
            maxmemory: server.maxmemory,
            used_memory: server.used_memory,
            clock_ahead_us: server.clock.map(|clock| clock.ahead_us),
            clock_uncertainty_us: server.clock.map(|clock| micros(clock.uncertainty)),
            round_trip_us: Some(micros(server.round_trip)),
            user: server.user.as_deref(),
            trials: server.trials.iter().map(TrialReport::new).collect(),
            findings: server.findings.iter().map(FindingReport::new).collect(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn text(server: &Diagnosis) -> String {
    let mut lines = Lines::default();
    lines.push("store", &printable(&server.node));
    lines.push("server", &or_unknown(product(server)));
    lines.push("role", &or_unknown(role(server)));
    lines.push("persists", &or_unknown(persistence(server)));
    lines.push("memory", &or_unknown(memory(server)));
    lines.push("clock", &or_unknown(server.clock.map(|clock| clock.to_string())));
    lines.push("answers", &format!("in {:?}", server.round_trip));
    lines.push("user", &or_unknown(server.user.as_deref().map(printable)));
    for trial in &server.trials {
        let outcome = printable(&trial.outcome.to_string());
        lines.push("tried", &format!("{}: {} ({outcome})", trial.kind, trial.kind.description()));
    }
    for finding in &server.findings {
        let label = if finding.accepted { "accepted" } else { severity(finding) };
        lines.push(label, &format!("{}: {}", finding.kind.as_str(), finding.kind));
        lines.push("", &format!("to do: {}", finding.kind.remedy()));
    }
    if server.findings.is_empty() {
        lines.push("findings", "none");
    }
    lines.into_text()
}

fn or_unknown(text: Option<String>) -> String {
    text.unwrap_or_else(|| "unknown".to_owned())
}

fn product(server: &Diagnosis) -> Option<String> {
    let (product, version) = (server.product.as_deref()?, server.version.as_deref()?);
    Some(format!("{} {}", printable(product), printable(version)))
}

fn role(server: &Diagnosis) -> Option<String> {
    let role = server.role?;
    Some(match server.replicas {
        Some(1) => format!("{role}, with 1 replica"),
        Some(replicas) if replicas > 0 => format!("{role}, with {replicas} replicas"),
        _ if role == Role::Primary => format!("{role}, without replicas"),
        _ => role.to_string(),
    })
}

fn persistence(server: &Diagnosis) -> Option<String> {
    let file = if server.append_only? { "an append-only file" } else { "no append-only file" };
    Some(match server.snapshots {
        Some(snapshots) => format!("{file}; snapshots since its start: {snapshots}"),
        None => file.to_owned(),
    })
}

fn memory(server: &Diagnosis) -> Option<String> {
    let (used, policy) = (server.used_memory?, printable(server.eviction_policy.as_deref()?));
    Some(match server.maxmemory? {
        0 => format!("{used} bytes, without a limit; policy {policy}"),
        most => format!("{used} bytes of {most}; policy {policy}"),
    })
}

const AFTER_HELP: &str = "\
Findings:
  A warning means that locks can be lost although all seems well. `run`, `lead`,
  `acquire` and `wait` show each once a day. With `?strict=1` in the URL the
  server is rejected. A critical finding always rejects it. A notice may be
  intended. A finding is accepted with --accept, for this user and store, or
  with `?accept=CODE,CODE` in the URL, for those who use it. Notices and what is
  accepted do not change the exit status.
    eviction        an eviction policy that can remove locks (critical); only a
                    notice while there is no `maxmemory`
    eviction_unknown
                    the server does not report its policy (notice)
    replica         a replica, which has the data of a primary, and refuses
                    writes or loses them
    lua_vulnerabilities
                    a version whose Lua has known vulnerabilities; distributions
                    may have fixed them
    restore_vulnerabilities
                    the same of its RESTORE, which no lock needs (notice)
    unreachable     one of several servers does not answer, or refuses the login
    memory_full     no client can acquire a lock (notice)
    not_persistent  a restart loses locks (notice)
    writes_without_replicas
                    cut off from its replicas it goes on granting and renewing
                    (notice)
    clock_differs   its clock is certainly off by more than a second (notice)
    info_denied     the user may not run INFO (notice)
    untested_product
                    a product that Leasehold is not tested with
    not_exclusive   a product that does not keep locks apart (critical)
    failed_trial    what locks need was tried, and failed (critical); only
                    messages do not arrive (notice)

JSON (--json), one line for each server; later versions may add fields and
words:
  store           its address; null for a file, which has nothing to report
  product, version, role (primary or replica), replicas, append_only, snapshots
  (since its start), eviction_policy, maxmemory (0: no limit), used_memory,
  clock_ahead_us (less than 0: behind), clock_uncertainty_us, round_trip_us,
  user: each null if it is unknown
  trials          what was tried: trial (a word), outcome (passed, failed or
                  not_tried), seen (what was seen instead, or why not)
  hazards         the findings: hazard (a word of those above), severity
                  (critical, warning or notice), accepted (true or false),
                  message, remedy

Exit status:
    0  no warning, or none that is not accepted
    2  the URL or another setting cannot be used
   69  the store cannot be reached, or refuses the request
   78  there is a warning, or a critical finding

Examples:
  leasehold doctor --store redis://db.example.org
  leasehold doctor --accept lua_vulnerabilities      after looking into it
  leasehold doctor --json | jq -r '.hazards[].remedy'";

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::store::FindingKind;

    #[test]
    fn what_is_not_reported_is_unknown() {
        let mut server = Diagnosis::new("locks:6379");
        server.findings.push(Finding::new(FindingKind::InfoDenied, Severity::Notice));
        let wanted = "\
            store    locks:6379\nserver   unknown\nrole     unknown\npersists unknown\nmemory   unknown\n\
            clock    unknown\nanswers  in 0ns\nuser     unknown\n\
            notice   info_denied: the user may not run INFO: its settings are unknown\n         \
            to do: allow INFO to the user, or connect as another one\n";
        assert_eq!(text(&server), wanted);
    }

    #[test]
    fn texts_of_a_server_cannot_control_a_terminal() {
        let mut server = Diagnosis::new("locks:6379");
        server.user = Some("\x1b[2Jmallory".to_owned());
        (server.product, server.version) = (Some("Redis".to_owned()), Some("\x1b]0;".to_owned()));
        assert!(!text(&server).contains('\x1b'));
    }
}
