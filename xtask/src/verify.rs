//! `cargo xtask verify`: proofs at their full length, of which the tests have a short form.

use anyhow::Result;

use crate::{install, shell};

/// One of them, which prints its figures.
struct Proof {
    words: &'static [&'static str],
    /// What makes it long.
    length: Option<(&'static str, &'static str)>,
}

const PROOFS: [Proof; 3] = [
    // The rounds of a quorum, with the mistakes whose search takes minutes.
    Proof { words: &["--test", "quorum_rounds", "--", "--include-ignored", "--nocapture"], length: None },
    // Four processes count to a thousand over a quorum whose nodes are killed, stopped and emptied.
    Proof {
        words: &["--test", "failures", "--", "quorum::", "--nocapture", "--test-threads", "1"],
        length: Some(("LEASEHOLD_QUORUM_ROUNDS", "250")),
    },
    // A minute of load on a cluster whose slots move and of which a primary dies.
    Proof {
        words: &["--test", "failures", "--", "cluster_load::", "--nocapture"],
        length: Some(("LEASEHOLD_CLUSTER_SECONDS", "60")),
    },
];

/// Runs all of them, or those whose words contain what is given; and how locks fail, on a server of Valkey's.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    install::redis()?;
    let is_asked_for = |proof: &&Proof| {
        let named = |part: &String| proof.words.iter().any(|word| word.contains(part.as_str()));
        arguments.is_empty() || arguments.iter().any(named)
    };
    for Proof { words, length } in PROOFS.iter().filter(is_asked_for) {
        let mut cargo = shell::cargo(["test", "--release", "--package", "leasehold"]);
        cargo.args(*words).envs(*length);
        shell::run(cargo)?;
    }
    if arguments.is_empty() || arguments.iter().any(|part| "valkey".contains(part.as_str())) {
        let mut cargo = shell::cargo(["test", "--release", "--package", "leasehold", "--test", "failures"]);
        cargo.env("LEASEHOLD_TEST_SERVER", install::valkey()?);
        shell::run(cargo)?;
    }
    Ok(())
}
