//! `cargo xtask bench peers [PEER…]`: the drivers of other libraries, made ready to be measured beside ours.
//!
//! A peer is skipped only if a program is missing that its library cannot be installed or run without; the measuring
//! program is told, and says so among its figures. What is measured is its own.

use anyhow::Result;

use crate::driver::{self, Chosen, Driver, Need};
use crate::shell;

static PEERS: [Driver; 5] = [
    Driver {
        name: "rslock",
        tools: &["cargo"],
        needed: Need::WhereItCan,
        prepare: |source, home| driver::rslock(source, home, "release"),
    },
    Driver {
        name: "redisson",
        tools: &["java", "javac", "mvn"],
        needed: Need::WhereItCan,
        prepare: |source, home| driver::redisson(source, home, &["src/main/java/Driver.java"]),
    },
    Driver { name: "redsync", tools: &["go"], needed: Need::WhereItCan, prepare: driver::redsync },
    Driver {
        name: "redis-py",
        tools: &["python3", "pip3"],
        needed: Need::WhereItCan,
        prepare: driver::redis_py,
    },
    Driver {
        name: "node-redlock",
        tools: &["node", "npm"],
        needed: Need::WhereItCan,
        prepare: driver::node_redlock,
    },
];

/// What the measuring program is told after `peers`: the names that lead the arguments stand for peers, which are made
/// ready, or all; the rest is its own.
pub(crate) fn arguments(arguments: &[String]) -> Result<Vec<String>> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(arguments.to_vec());
    }
    let (names, rest) = split(arguments);
    let chosen = choose(names, |tool| shell::find(tool).is_some())?;
    let drivers = chosen.prepare("benches/peers", "peers")?;
    let mut told = vec![format!("--drivers={}", drivers.display())];
    told.extend(options(&chosen));
    told.extend_from_slice(rest);
    Ok(told)
}

fn split(arguments: &[String]) -> (&[String], &[String]) {
    let names = arguments.iter().take_while(|argument| !argument.starts_with('-')).count();
    arguments.split_at(names)
}

fn choose(names: &[String], is_there: impl Fn(&str) -> bool) -> Result<Chosen> {
    driver::choose(&PEERS, "peer", names, is_there)
}

fn options(chosen: &Chosen) -> Vec<String> {
    let skipped = chosen.skipped.iter().map(|(peer, tool)| format!("--skipped={}:{tool}", peer.name));
    chosen.tried.iter().map(|peer| format!("--peer={}", peer.name)).chain(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn only_who_lacks_a_tool_is_skipped_and_the_tool_is_named() {
        let all = choose(&[], |_| true).expect("a choice");
        assert_eq!(
            options(&all),
            words("--peer=rslock --peer=redisson --peer=redsync --peer=redis-py --peer=node-redlock")
        );
        let no_mvn = choose(&[], |tool| tool != "mvn").expect("a choice");
        assert_eq!(
            options(&no_mvn),
            words("--peer=rslock --peer=redsync --peer=redis-py --peer=node-redlock --skipped=redisson:mvn")
        );
    }

    #[test]
    fn who_is_named_is_not_skipped() {
        let chosen = choose(&words("rslock redisson"), |_| true).expect("a choice");
        assert_eq!(options(&chosen), words("--peer=rslock --peer=redisson"));
        let error = choose(&words("redsync"), |tool| tool != "go").err().expect("a refusal").to_string();
        assert!(error.starts_with("redsync cannot be tried: there is no `go`"), "{error}");
        let error = choose(&words("redlock"), |_| true).err().expect("a refusal").to_string();
        assert!(error.starts_with("there is no peer `redlock`: there are rslock, "), "{error}");
        assert!(choose(&[], |_| false).is_err());
    }

    #[test]
    fn names_lead_and_the_rest_is_for_the_measuring_program() {
        let line = words("rslock redis-py --rounds 7 --json");
        assert_eq!(split(&line), (&line[..2], &line[2..]));
        let line = words("--rounds 7");
        assert_eq!(split(&line), (&line[..0], &line[..]));
    }
}
