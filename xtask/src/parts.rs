//! The table of parts: which test target, or which of its cases, runs in which lane.
//!
//! This is the only list of tests. [`check_targets`] and [`check_cases`] keep it complete: a new test target, or a new
//! module of a target that is split, fails every lane until it has a line here.
//!
//! They start in this order: the longest part first, and then, within a lane, those that take longest, so that no long one
//! is left over at the end.

use anyhow::{Result, bail};

use crate::servers::Server;

use Cases::{All, Except, Only};
use Lane::{Check, Full, Test};
use Target::{File, Unit};

/// A set of tests that are run together. Each lane contains the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// `cargo xtask check`: needs no server.
    Check,
    /// `cargo xtask test`: real servers, the program and the examples.
    Test,
    /// `cargo xtask test --all`: what CI runs.
    Full,
}

/// What is built as one test binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The unit tests of a package: of its library and of its programs.
    Unit,
    /// A file or directory below `tests/`.
    File(&'static str),
}

/// Which cases of a target, by parts of their names, as libtest matches its filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cases {
    All,
    /// Those whose name contains one of these.
    Only(&'static [&'static str]),
    /// Those whose name contains none of these.
    Except(&'static [&'static str]),
}

/// Cases of one test target that run in one process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) lane: Lane,
    pub(crate) package: &'static str,
    pub(crate) target: Target,
    pub(crate) cases: Cases,
    /// The server that the tests boot where they do not choose one themselves.
    pub(crate) server: Server,
    /// Set if each server runs its share of the random sequences, so that all together run each once.
    pub(crate) is_shared: bool,
    /// How many cases run at a time, if not one a core.
    pub(crate) threads: Option<&'static str>,
    /// Set if nothing runs beside it: its cases judge what took too long.
    pub(crate) is_alone: bool,
}

const fn part(lane: Lane, package: &'static str, target: Target, cases: Cases) -> Part {
    let (server, is_shared, threads, is_alone) = (Server::Redis70, false, None, false);
    Part { lane, package, target, cases, server, is_shared, threads, is_alone }
}

/// Cases in memory that wait for leases and take next to no processor time.
const fn waiting(package: &'static str, target: Target, cases: Cases) -> Part {
    Part { threads: Some("8"), ..part(Check, package, target, cases) }
}

/// Cases that run on a server of another version, too, or only there.
const fn on(server: Server, package: &'static str, target: Target, cases: Cases) -> Part {
    Part { server, ..part(Full, package, target, cases) }
}

/// A server's share of random sequences.
const fn share(server: Server, target: Target, cases: Cases) -> Part {
    Part { server, is_shared: true, ..part(Full, "leasehold-redis", target, cases) }
}

/// The conformance suite of all kinds of locks: alone, as a user with minimal permissions, and of two kinds in a cluster.
const OF_EACH_VERSION: &[&str] =
    &["alone::", "by_a_least_user::", "in_cluster::mutex::", "in_cluster::semaphore::"];
/// Random states whose scripts are cut off.
const SEQUENCES_CUT_OFF: &[&str] = &["a_partial_script_"];
/// Takes as long as all other cases of the scripts, and runs on Redis 7.0 and Valkey 9.1 only.
const LONG_SCRIPTS: &[&str] = &["many_holders_are_visited_in_bounded_steps"];
/// What is found about a server, and what is tried.
const DIAGNOSIS: &[&str] = &["findings::", "products::"];
/// Without a fake: a node of Redis 6.2 does not announce the port of a relay to its own clients.
const DIAGNOSIS_6_2: &[&str] =
    &["findings::", "products::a", "products::every_", "products::what_", "products::without_wait_a_server_"];
/// The same by the program.
const DOCTOR: &[&str] = &["doctor"];
/// Runs of `leasehold verify`, and a browser whose memory is measured.
const ALONE: &[&str] = &["verify::", "board::a_browser_left_open"];

pub(crate) const PARTS: &[Part] = &[
    // Takes longest, and mostly waits: for leases, outages and elections.
    part(Test, "leasehold", File("server"), Only(&["failures::"])),
    // Check: no server.
    part(Check, "leasehold-core", File("model"), All),
    part(Check, "leasehold-history", File("judges"), All),
    part(Check, "leasehold-store", File("quorum"), All),
    waiting("leasehold-store", File("memory"), All),
    waiting("leasehold", File("api"), All),
    part(Check, "leasehold", File("engine"), All),
    part(Check, "leasehold", Unit, All),
    part(Check, "leasehold-sqlite", Unit, All),
    part(Check, "leasehold-redis", Unit, All),
    part(Check, "leasehold-store", Unit, All),
    part(Check, "leasehold-core", Unit, All),
    part(Check, "leasehold-core", File("watching"), All),
    part(Check, "leasehold-core", File("lock_table"), All),
    part(Check, "leasehold-store", File("toy_store"), All),
    part(Check, "leasehold-testkit", Unit, All),
    part(Check, "leasehold-sim", Unit, All),
    part(Check, "leasehold-cli", Unit, All),
    part(Check, "leasehold-bench", Unit, All),
    part(Check, "leasehold-interop", Unit, All),
    part(Check, "leasehold-history", Unit, All),
    part(Check, "leasehold-fuzz", Unit, All),
    part(Check, "leasehold-book", File("documents"), All),
    part(Check, "xtask", Unit, All),
    // Test: every primitive on real servers, failure rows, the program, the examples.
    part(Test, "leasehold", File("server"), Only(&["::redis::"])),
    part(Test, "leasehold-cli", File("program"), Except(ALONE)),
    Part { is_alone: true, ..part(Test, "leasehold-cli", File("program"), Only(ALONE)) },
    part(Test, "leasehold-redis", File("store"), All),
    part(Test, "leasehold", File("server"), Only(&["::sqlite::"])),
    part(Test, "leasehold-sqlite", File("store"), All),
    part(Test, "leasehold", File("examples"), All),
    part(Test, "leasehold", File("adopt"), All),
    part(Test, "leasehold", File("server"), Except(&["failures::", "cases::", "valkey_9::", "durable::"])),
    part(Test, "leasehold-testkit", File("server"), All),
    part(Test, "leasehold-testkit", File("worker"), All),
    part(Test, "leasehold-testkit", File("proxy"), All),
    part(Test, "leasehold-testkit", File("clock"), All),
    // Full: conformance on all servers, scripts against the model, partial scripts, simulators, mutants.
    part(Full, "leasehold-redis", File("conformance"), All),
    part(Full, "leasehold-interop", File("mutants"), All),
    share(Server::Redis70, File("partial_scripts"), All),
    share(Server::Redis70, File("scripts"), All),
    part(Full, "leasehold-sim", File("sim"), All),
    part(Full, "leasehold-sim", File("quorum"), All),
    part(Full, "leasehold-testkit", File("conformance"), All),
    part(Full, "leasehold-redis", File("turmoil"), All),
    part(Full, "leasehold-sqlite", File("conformance"), All),
    part(Full, "leasehold-fuzz", File("corpus"), All),
    part(Full, "leasehold-bench", File("short"), All),
    part(Full, "leasehold-examples", File("job_queue"), All),
    // The other versions: the same cases of all kinds of locks, the findings, the permissions, and shares of the sequences.
    on(Server::Valkey91, "leasehold-redis", File("store"), All),
    on(Server::Redis62, "leasehold-redis", File("conformance"), Only(OF_EACH_VERSION)),
    on(Server::Redis82, "leasehold-redis", File("conformance"), Only(OF_EACH_VERSION)),
    on(Server::Valkey81, "leasehold-redis", File("conformance"), Only(OF_EACH_VERSION)),
    on(Server::Valkey91, "leasehold-redis", File("conformance"), Only(OF_EACH_VERSION)),
    share(Server::Redis62, File("partial_scripts"), Only(SEQUENCES_CUT_OFF)),
    share(Server::Redis82, File("partial_scripts"), Only(SEQUENCES_CUT_OFF)),
    share(Server::Valkey81, File("partial_scripts"), Only(SEQUENCES_CUT_OFF)),
    share(Server::Valkey91, File("partial_scripts"), Only(SEQUENCES_CUT_OFF)),
    share(Server::Redis62, File("scripts"), Except(LONG_SCRIPTS)),
    share(Server::Redis82, File("scripts"), Except(LONG_SCRIPTS)),
    share(Server::Valkey81, File("scripts"), Except(LONG_SCRIPTS)),
    share(Server::Valkey91, File("scripts"), All),
    on(Server::Valkey91, "leasehold", File("server"), Only(&["valkey_9::"])),
    on(Server::Redis82, "leasehold", File("server"), Only(&["durable::"])),
    on(Server::Redis62, "leasehold-redis", File("store"), Only(DIAGNOSIS_6_2)),
    on(Server::Redis82, "leasehold-redis", File("store"), Only(DIAGNOSIS)),
    on(Server::Valkey81, "leasehold-redis", File("store"), Only(DIAGNOSIS)),
    on(Server::Redis62, "leasehold-cli", File("program"), Only(DOCTOR)),
    on(Server::Redis82, "leasehold-cli", File("program"), Only(DOCTOR)),
    on(Server::Valkey81, "leasehold-cli", File("program"), Only(DOCTOR)),
    on(Server::Valkey91, "leasehold-cli", File("program"), Only(DOCTOR)),
];

impl Part {
    /// What the reports call it.
    pub(crate) fn title(&self) -> String {
        let target = match self.target {
            Unit => "unit tests",
            File(name) => name,
        };
        let cases = match self.cases {
            All => String::new(),
            Only(names) => format!(" ({})", names.join(", ")),
            Except(names) => format!(" (without {})", names.join(", ")),
        };
        let server = match self.server {
            Server::Redis70 => String::new(),
            other => format!(" on {}", other.name()),
        };
        format!("{} {target}{cases}{server}", self.package)
    }

    pub(crate) fn selects(&self, case: &str) -> bool {
        match self.cases {
            All => true,
            Only(names) => names.iter().any(|name| case.contains(name)),
            Except(names) => !names.iter().any(|name| case.contains(name)),
        }
    }
}

/// Whether each test target of the workspace is in the table, and each line of the table is a target.
pub(crate) fn check_targets(targets: &[(String, TargetName)], parts: &[Part]) -> Result<()> {
    let missing: Vec<String> = targets
        .iter()
        .filter(|(package, target)| {
            !parts.iter().any(|part| part.package == package && *target == part.target)
        })
        .map(|(package, target)| format!("{package} {target}"))
        .collect();
    if !missing.is_empty() {
        bail!("in no lane: {}; add a line to xtask/src/parts.rs", missing.join(", "));
    }
    let stale = |part: &&Part| {
        !targets.iter().any(|(package, target)| part.package == package && *target == part.target)
    };
    let stale: Vec<String> = parts.iter().filter(stale).map(Part::title).collect();
    if !stale.is_empty() {
        bail!("no such test target: {}; remove the line from xtask/src/parts.rs", stale.join(", "));
    }
    Ok(())
}

/// Whether each case of a target is in a part, in one at most for each server, and each part has a case.
pub(crate) fn check_cases(
    package: &str,
    target: &TargetName,
    cases: &[String],
    parts: &[Part],
) -> Result<()> {
    let own: Vec<&Part> =
        parts.iter().filter(|part| part.package == package && *target == part.target).collect();
    for case in cases {
        let selecting: Vec<&&Part> = own.iter().filter(|part| part.selects(case)).collect();
        if selecting.is_empty() {
            bail!("{package} {target}: `{case}` is in no lane; mend its lines in xtask/src/parts.rs");
        }
        for server in Server::ALL {
            let on_it = selecting.iter().filter(|part| part.server == server);
            let titles: Vec<String> = on_it.map(|part| part.title()).collect();
            if titles.len() > 1 {
                bail!("{package} {target}: `{case}` is in several parts: {}", titles.join(", "));
            }
        }
    }
    if let Some(empty) =
        own.iter().find(|part| part.cases != All && !cases.iter().any(|case| part.selects(case)))
    {
        bail!("{} has no case", empty.title());
    }
    Ok(())
}

/// A target as cargo names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TargetName {
    Unit,
    File(String),
}

impl std::fmt::Display for TargetName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unit => f.write_str("unit tests"),
            Self::File(name) => f.write_str(name),
        }
    }
}

impl PartialEq<Target> for TargetName {
    fn eq(&self, other: &Target) -> bool {
        match (self, other) {
            (Self::Unit, Unit) => true,
            (Self::File(name), File(other)) => name == other,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPLIT: &[Part] = &[
        part(Check, "a", File("locks"), Except(&["redis::"])),
        part(Test, "a", File("locks"), Only(&["redis::"])),
        part(Check, "a", Unit, All),
        on(Server::Valkey91, "a", File("locks"), Only(&["redis::"])),
    ];

    fn targets(names: &[&str]) -> Vec<(String, TargetName)> {
        let target = |name: &&str| match *name {
            "unit" => ("a".to_owned(), TargetName::Unit),
            name => ("a".to_owned(), TargetName::File(name.to_owned())),
        };
        names.iter().map(target).collect()
    }

    fn refusal(result: Result<()>) -> String {
        result.expect_err("a refusal").to_string()
    }

    #[test]
    fn the_table_names_every_test_target_of_the_workspace() {
        let targets = crate::cargo::metadata().expect("metadata of the workspace").test_targets();
        check_targets(&targets, PARTS).expect("each target in a lane");
    }

    #[test]
    fn a_target_without_a_lane_is_refused() {
        check_targets(&targets(&["locks", "unit"]), SPLIT).expect("complete");
        let error = refusal(check_targets(&targets(&["locks", "unit", "new"]), SPLIT));
        assert!(error.starts_with("in no lane: a new"), "{error}");
    }

    #[test]
    fn a_line_without_a_target_is_refused() {
        let error = refusal(check_targets(&targets(&["locks"]), SPLIT));
        assert!(error.starts_with("no such test target: a unit tests"), "{error}");
    }

    #[test]
    fn each_case_is_in_exactly_one_part() {
        let target = TargetName::File("locks".into());
        let cases = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let both = cases(&["redis::one", "memory::one"]);
        check_cases("a", &target, &both, SPLIT).expect("one part each");
        let twice = [SPLIT[0], SPLIT[1], part(Full, "a", File("locks"), Only(&["one"]))];
        let error = refusal(check_cases("a", &target, &both, &twice));
        assert!(error.contains("`redis::one` is in several parts"), "{error}");
        let error = refusal(check_cases("a", &target, &both, &SPLIT[1..]));
        assert!(error.contains("`memory::one` is in no lane"), "{error}");
        let error = refusal(check_cases("a", &target, &cases(&["memory::one"]), SPLIT));
        assert!(error.contains("has no case"), "{error}");
    }
}
