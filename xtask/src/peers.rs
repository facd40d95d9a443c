//! `cargo xtask bench peers [LIBRARY…]`: prepares the drivers of other libraries, which are measured beside Leasehold.
//!
//! A library is skipped only if a program that it needs is missing. The benchmark lists it among its results.

use anyhow::Result;

use crate::driver::{self, Chosen};
use crate::shell;

/// The arguments of the benchmark after `peers`. The names at the front choose libraries, whose drivers are prepared; without
/// names it is all of them. The rest is passed on.
pub(crate) fn arguments(arguments: &[String]) -> Result<Vec<String>> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(arguments.to_vec());
    }
    let (names, rest) = split(arguments);
    let chosen = driver::choose(names, &[], |tool| shell::find(tool).is_some())?;
    let drivers = chosen.prepare()?;
    let mut passed = vec![format!("--drivers={}", drivers.display())];
    passed.extend(options(&chosen));
    passed.extend_from_slice(rest);
    Ok(passed)
}

fn split(arguments: &[String]) -> (&[String], &[String]) {
    let names = arguments.iter().take_while(|argument| !argument.starts_with('-')).count();
    arguments.split_at(names)
}

fn options(chosen: &Chosen) -> Vec<String> {
    let skipped = chosen.skipped.iter().map(|(peer, tool)| format!("--skipped={}:{tool}", peer.name));
    chosen.run.iter().map(|peer| format!("--peer={}", peer.name)).chain(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_skipped_library_is_named_with_the_missing_tool() {
        let options = |names: &str, missing: &str| {
            options(&driver::choose(&words(names), &[], |tool| tool != missing).expect("a choice"))
        };
        assert_eq!(
            options("", ""),
            words("--peer=rslock --peer=redisson --peer=redsync --peer=redis-py --peer=node-redlock")
        );
        assert_eq!(
            options("", "mvn"),
            words("--peer=rslock --peer=redsync --peer=redis-py --peer=node-redlock --skipped=redisson:mvn")
        );
        assert_eq!(options("redisson rslock", ""), words("--peer=rslock --peer=redisson"));
    }

    #[test]
    fn names_lead_and_the_rest_is_passed_on() {
        let line = words("rslock redis-py --rounds 7 --json");
        assert_eq!(split(&line), (&line[..2], &line[2..]));
        let line = words("--rounds 7");
        assert_eq!(split(&line), (&line[..0], &line[..]));
    }
}
