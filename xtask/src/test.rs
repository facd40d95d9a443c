//! `cargo xtask test`: all tests, with what they need installed first.

use anyhow::Result;

use crate::{install, shell};

/// What is tested once more on a server of Valkey's, beside the suite of all stores, which has it always, alone and as a
/// cluster. How locks fail there is for `verify`: it takes minutes.
const ON_VALKEY: [&str; 6] = ["test", "--workspace", "--test", "redis_store", "--test", "redis_reentrant"];

/// Installs what is missing and runs all tests. Further arguments go to `cargo test`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    install::redis()?;
    install::openssl()?;
    let valkey = install::valkey()?;
    let mut targets = shell::cargo(["test", "--workspace", "--all-targets"]);
    targets.args(arguments).env(install::VALKEY, &valkey);
    shell::run(targets)?;
    // Whoever names what is to be tested has named all of it.
    if arguments.iter().all(|argument| argument.starts_with("--") && argument != "--") {
        let mut on_valkey = shell::cargo(ON_VALKEY);
        on_valkey.args(arguments).env(install::VALKEY, &valkey).env("LEASEHOLD_TEST_SERVER", &valkey);
        shell::run(on_valkey)?;
    }
    // `--all-targets` leaves the examples in the docs out.
    let mut examples = shell::cargo(["test", "--workspace", "--doc"]);
    examples.args(arguments);
    shell::run(examples)
}
