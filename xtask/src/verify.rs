//! `cargo xtask verify`: proofs at their full length, of which the tests have a short form.

use anyhow::Result;

use crate::{install, shell};

/// What is run, and what makes it long. Each prints its figures.
const PROOFS: [(&[&str], &[(&str, &str)]); 3] = [
    // The rounds of a quorum, with the mistakes whose search takes minutes.
    (&["--test", "quorum_rounds", "--", "--include-ignored", "--nocapture"], &[]),
    // Four processes count to a thousand over a quorum whose nodes are killed, stopped and emptied.
    (
        &["--test", "failures", "--", "quorum::", "--nocapture", "--test-threads", "1"],
        &[("LEASEHOLD_QUORUM_ROUNDS", "250")],
    ),
    // A minute of load on a cluster whose slots move and of which a primary dies.
    (&["--test", "failures", "--", "cluster_load::", "--nocapture"], &[("LEASEHOLD_CLUSTER_SECONDS", "60")]),
];

/// Runs all of them, or those whose words contain what is given.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    install::redis()?;
    let is_asked_for = |proof: &[&str]| {
        arguments.is_empty()
            || arguments.iter().any(|part| proof.iter().any(|word| word.contains(part.as_str())))
    };
    for (proof, length) in PROOFS.iter().filter(|(proof, _)| is_asked_for(proof)) {
        let mut cargo = shell::cargo(["test", "--release", "--package", "leasehold"]);
        cargo.args(*proof).envs(length.iter().copied());
        shell::run(cargo)?;
    }
    Ok(())
}
