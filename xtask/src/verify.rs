//! `cargo xtask verify`: proofs at their full length, of which the tests have a short form, or none.

use anyhow::{Result, bail};
use std::ffi::OsString;

use crate::{install, shell};

/// One of them, which prints its figures.
struct Proof {
    name: &'static str,
    words: &'static [&'static str],
    /// What makes it long.
    length: Length,
}

enum Length {
    Is(&'static str, &'static str),
    /// That it is on a server of Valkey's.
    OnValkey,
}

const PROOFS: [Proof; 6] = [
    // The rounds of a quorum in many orders.
    Proof {
        name: "rounds",
        words: &["--test", "quorum_rounds", "--", "--nocapture"],
        length: Length::Is("LEASEHOLD_STATES", "30000000"),
    },
    // Four processes count to a thousand over a quorum whose nodes are killed, stopped and emptied.
    Proof {
        name: "quorum",
        words: &["--test", "failures", "--", "quorum::", "--nocapture", "--test-threads", "1"],
        length: Length::Is("LEASEHOLD_QUORUM_ROUNDS", "250"),
    },
    // A minute of load on a cluster whose slots move and of which a primary dies.
    Proof {
        name: "cluster",
        words: &["--test", "failures", "--", "cluster_load::", "--nocapture"],
        length: Length::Is("LEASEHOLD_CLUSTER_SECONDS", "60"),
    },
    // Every command of every script, in many states, as the last one that is executed.
    Proof {
        name: "cutoffs",
        words: &["--test", "partial_scripts", "--", "a_script", "--nocapture"],
        length: Length::Is("LEASEHOLD_SEQUENCES", "4000"),
    },
    // Random sequences of operations, sent to a server and to the model.
    Proof {
        name: "scripts",
        words: &["--test", "redis_model", "--", "the_scripts_of_", "--nocapture"],
        length: Length::Is("LEASEHOLD_SEQUENCES", "10000"),
    },
    // How locks fail.
    Proof { name: "valkey", words: &["--test", "failures"], length: Length::OnValkey },
];

/// Runs those that are named, or all of them.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let names = PROOFS.map(|Proof { name, .. }| name);
    if let Some(unknown) = arguments.iter().find(|argument| !names.contains(&argument.as_str())) {
        bail!("there is no proof `{unknown}`: there are {}", names.join(", "));
    }
    install::redis()?;
    let is_wanted = |proof: &&Proof| arguments.is_empty() || arguments.iter().any(|name| name == proof.name);
    for Proof { words, length, .. } in PROOFS.iter().filter(is_wanted) {
        let (name, value) = match length {
            Length::Is(name, value) => (*name, OsString::from(value)),
            Length::OnValkey => ("LEASEHOLD_TEST_SERVER", install::valkey()?.into()),
        };
        let mut cargo = shell::cargo(["test", "--release", "--package", "leasehold"]);
        cargo.args(*words).env(name, value);
        shell::run(cargo)?;
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
            "there is no proof `quorom`: there are rounds, quorum, cluster, cutoffs, scripts, valkey"
        );
    }
}
