//! `cargo xtask interop [NEIGHBOUR…]`: the locks of other libraries against ours, with the libraries installed first.
//!
//! A neighbour is skipped only if a program is missing that its library cannot be installed or run without. That is said
//! when it happens, and counted in the last line. Redisson is never skipped: no other neighbour has its format, and ours
//! is made after it.

use anyhow::{Result, bail};

use crate::driver::{self, Chosen, Driver, Need};
use crate::{install, shell};

static NEIGHBOURS: [Driver; 5] = [
    Driver {
        name: "redis-py",
        tools: &["python3", "pip3"],
        needed: Need::WhereItCan,
        prepare: driver::redis_py,
    },
    Driver { name: "redsync", tools: &["go"], needed: Need::WhereItCan, prepare: driver::redsync },
    Driver {
        name: "node-redlock",
        tools: &["node", "npm"],
        needed: Need::WhereItCan,
        prepare: driver::node_redlock,
    },
    Driver {
        name: "rslock",
        tools: &["cargo"],
        needed: Need::WhereItCan,
        prepare: |source, home| driver::rslock(source, home, "dev"),
    },
    Driver {
        name: "redisson",
        tools: &["java", "javac", "mvn"],
        needed: Need::Always,
        prepare: |source, home| {
            driver::redisson(source, home, &["src/main/java/Driver.java", "src/main/java/Holder.java"])
        },
    },
];

/// Installs what is missing, and tries the neighbours that are named, or all.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let chosen = choose(arguments, |tool| shell::find(tool).is_some())?;
    for (neighbour, tool) in &chosen.skipped {
        eprintln!("xtask: SKIPPED {}: there is no `{tool}` on the path", neighbour.name);
    }
    install::redis()?;
    let drivers = chosen.prepare("interop", "interop")?;
    // `cargo run` builds one program, which starts the others of its package.
    shell::run(shell::cargo(["build", "--quiet", "--package", "leasehold-interop", "--bins"]))?;
    let mut interop = shell::cargo(["run", "--quiet", "--package", "leasehold-interop", "--", "--drivers"]);
    interop.arg(drivers).args(chosen.tried.iter().map(|neighbour| neighbour.name));
    let status = shell::status(interop)?;
    println!("interop: {} neighbours tried, {} skipped", chosen.tried.len(), chosen.skipped.len());
    if !status.success() {
        bail!("a lock was not exclusive, or could not be tried: see VIOLATION above");
    }
    Ok(())
}

fn choose(names: &[String], is_there: impl Fn(&str) -> bool) -> Result<Chosen> {
    driver::choose(&NEIGHBOURS, "neighbour", names, is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(chosen: &Chosen) -> (Vec<&str>, Vec<&str>) {
        let skipped = chosen.skipped.iter().map(|(neighbour, _)| neighbour.name);
        (chosen.tried.iter().map(|neighbour| neighbour.name).collect(), skipped.collect())
    }

    #[test]
    fn only_who_lacks_a_tool_is_skipped() {
        let all = choose(&[], |_| true).expect("a choice");
        assert_eq!(names(&all), (vec!["redis-py", "redsync", "node-redlock", "rslock", "redisson"], vec![]));
        let no_npm = choose(&[], |tool| tool != "npm").expect("a choice");
        assert_eq!(names(&no_npm), (vec!["redis-py", "redsync", "rslock", "redisson"], vec!["node-redlock"]));
    }

    #[test]
    fn redisson_is_never_skipped() {
        for missing in ["java", "javac", "mvn"] {
            let error = choose(&[], |tool| tool != missing).err().expect("a refusal").to_string();
            assert!(
                error.starts_with(&format!("redisson cannot be tried: there is no `{missing}`")),
                "{error}"
            );
        }
    }

    #[test]
    fn who_is_named_is_not_skipped() {
        let named = |name: &str| [name.to_owned()];
        let chosen = choose(&named("redsync"), |tool| tool == "go").expect("a choice");
        assert_eq!(names(&chosen), (vec!["redsync"], vec![]));
        assert!(choose(&named("redsync"), |tool| tool != "go").is_err());
        assert!(choose(&named("redlock"), |_| true).is_err());
        assert!(choose(&[], |_| false).is_err());
    }
}
