//! `cargo xtask verify`: proofs at their full length. The lanes run a short form of them, or none.

use anyhow::{Result, bail};
use std::ffi::OsString;

use crate::servers::{Server, TEST_SERVER};
use crate::{install, lane, mutants, shell};

/// A proof, which prints its figures.
struct Proof {
    name: &'static str,
    package: &'static str,
    arguments: &'static [&'static str],
    setting: Setting,
}

/// What makes it longer than the short form.
enum Setting {
    /// A variable and its value.
    Variable(&'static str, &'static str),
    /// The test servers are of another version.
    On(Server),
}

const PROOFS: [Proof; 9] = [
    // The rounds of a quorum in many orders of events.
    Proof {
        name: "rounds",
        package: "leasehold-store",
        arguments: &["--test", "quorum", "--", "rounds::", "--nocapture"],
        setting: Setting::Variable("LEASEHOLD_STATES", "30000000"),
    },
    // Four processes count to a thousand over a quorum whose nodes are killed, stopped and emptied.
    Proof {
        name: "quorum",
        package: "leasehold",
        arguments: &["--test", "server", "--", "failures::quorum::", "--nocapture", "--test-threads", "1"],
        setting: Setting::Variable("LEASEHOLD_QUORUM_ROUNDS", "250"),
    },
    // Two primaries at once, with a client at each.
    Proof {
        name: "split",
        package: "leasehold",
        arguments: &["--test", "server", "--", "failures::split_brain::", "--nocapture"],
        setting: Setting::Variable("LEASEHOLD_SPLIT_ROUNDS", "10"),
    },
    // A minute in which the password changes every second, and connections are cut every three.
    Proof {
        name: "rotation",
        package: "leasehold",
        arguments: &["--test", "server", "--", "failures::rotation::", "--nocapture"],
        setting: Setting::Variable("LEASEHOLD_ROTATION_SECONDS", "60"),
    },
    // A minute of load on a cluster while slots move and a primary dies.
    Proof {
        name: "cluster",
        package: "leasehold",
        arguments: &["--test", "server", "--", "failures::cluster_load::", "--nocapture"],
        setting: Setting::Variable("LEASEHOLD_CLUSTER_SECONDS", "60"),
    },
    // Every script in many states, ended after each of its commands.
    Proof {
        name: "cutoffs",
        package: "leasehold-redis",
        arguments: &["--test", "partial_scripts", "--", "a_partial_script", "--nocapture"],
        setting: Setting::Variable("LEASEHOLD_SEQUENCES", "4000"),
    },
    // Random sequences of operations on a server and on the model.
    Proof {
        name: "scripts",
        package: "leasehold-redis",
        arguments: &["--test", "scripts", "--", "the_scripts_of_", "--nocapture"],
        setting: Setting::Variable("LEASEHOLD_SEQUENCES", "10000"),
    },
    // Ten minutes of a browser that shows a thousand locks, of which ten thousand change in a minute.
    Proof {
        name: "board",
        package: "leasehold-cli",
        arguments: &["--test", "program", "--", "board::a_browser_left_open", "--nocapture"],
        setting: Setting::Variable("LEASEHOLD_BOARD_SECONDS", "600"),
    },
    // The rows of docs/reference/failure-modes.md.
    Proof {
        name: "valkey",
        package: "leasehold",
        arguments: &["--test", "server", "--", "failures::"],
        setting: Setting::On(Server::Valkey91),
    },
];

/// Tests that can fail: each finds the defect that it is there for, put back into the source.
const MUTANTS: &str = "mutants";
/// What each version of a server runs a part of in `cargo xtask test --all`, whole on each.
const VERSIONS: &str = "versions";
/// The cases of [`VERSIONS`].
const OF_EACH_VERSION: [&str; 7] = [
    "alone::",
    "by_a_least_user::",
    "in_cluster::",
    "by_resp2::",
    "the_script",
    "a_partial_script_",
    "doctor",
];

/// Runs the named proofs, or all.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let names: Vec<&str> = PROOFS.iter().map(|proof| proof.name).chain([VERSIONS, MUTANTS]).collect();
    if let Some(unknown) = arguments.iter().find(|argument| !names.contains(&argument.as_str())) {
        bail!("there is no proof `{unknown}`: there are {}", names.join(", "));
    }
    install::redis()?;
    install::browser()?;
    let is_named = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == name);
    for Proof { package, arguments, setting, .. } in PROOFS.iter().filter(|proof| is_named(proof.name)) {
        let (name, value) = match setting {
            Setting::Variable(name, value) => (*name, OsString::from(value)),
            Setting::On(server) => (TEST_SERVER, server.install()?.into()),
        };
        let mut cargo = shell::cargo_with_lines(["test", "--release", "--package", package]);
        cargo.args(*arguments).env(name, value);
        shell::run(cargo)?;
    }
    if is_named(VERSIONS) {
        run_versions()?;
    }
    if is_named(MUTANTS) { mutants::run() } else { Ok(()) }
}

/// Runs the cases on each version.
fn run_versions() -> Result<()> {
    for server in Server::ALL {
        for name in OF_EACH_VERSION {
            lane::run_named(name, Some(server), &["--locked".to_owned()])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_proof_is_named_and_the_known_ones_are_listed() {
        let error = run(&["quorom".to_owned()]).expect_err("it is no proof");
        assert_eq!(
            error.to_string(),
            "there is no proof `quorom`: there are rounds, quorum, split, rotation, cluster, cutoffs, scripts, board, valkey, versions, mutants"
        );
    }
}
