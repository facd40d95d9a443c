//! The source mutants: which text of which file is replaced, and which test must then fail.
//!
//! Owns the table, and the checks that it fits the tree: the unit tests run them, so that no line of it becomes stale.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cargo::Metadata;

/// A defect that was mended once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// The file to change, from the root.
    pub(crate) file: &'static str,
    /// Texts that are in the file exactly once, each with its replacement.
    pub(crate) edits: &'static [(&'static str, &'static str)],
    pub(crate) test: Test,
    /// A part of the failed test's output, since a test may also fail for another reason.
    pub(crate) report: &'static str,
}

/// A test in a file or directory below `tests/` of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) package: &'static str,
    pub(crate) target: &'static str,
    /// With its modules.
    pub(crate) name: &'static str,
}

const fn program(name: &'static str) -> Test {
    Test { package: "leasehold-cli", target: "program", name }
}

const fn engine(name: &'static str) -> Test {
    Test { package: "leasehold", target: "engine", name }
}

const fn server(name: &'static str) -> Test {
    Test { package: "leasehold", target: "server", name }
}

/// Those of one crate follow one another, since each is built with what depends on it. The first are those of the crates on which
/// fewest others depend.
pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "row 53: `run --wait` does not try again to connect",
        file: "crates/cli/src/store/client.rs",
        edits: &[("self.connect_until(Some(limit)).await?;", "(self.connect().await?, None::<Duration>);")],
        test: program("unreachable::a_store_that_is_down_is_tried_again_within_the_wait"),
        report: "failed to open the store",
    },
    Mutant {
        name: "row 53: `lead` does not try again to connect",
        file: "crates/cli/src/store/client.rs",
        edits: &[("Ok(self.connect_until(None).await?.0)", "self.connect().await")],
        test: program("unreachable::a_signal_ends_a_program_that_tries_to_connect"),
        report: "failed to open the store",
    },
    Mutant {
        name: "row 52: `lead` does not campaign again after a hold that was lost unconfirmed",
        file: "crates/cli/src/commands/lead.rs",
        edits: &[(
            "AcquireError::LeaseTooShort { .. } | AcquireError::Closed => false,",
            "AcquireError::LeaseTooShort { .. } | AcquireError::Lost(_) | AcquireError::Closed => false,",
        )],
        test: program("lead::row_52_a_leader_campaigns_on_when_its_hold_is_lost_unconfirmed"),
        report: " ended after ",
    },
    Mutant {
        name: "row 52: a hold that was lost unconfirmed is reported as a lease that is too short",
        file: "crates/leasehold/src/guard/mod.rs",
        edits: &[(
            "|lost: LostHold| AcquireFailure::Lost(lost.fence, Box::new(lost.reason));",
            "|_: LostHold| AcquireFailure::LeaseTooShort;",
        )],
        test: program("lead::row_52_a_leader_campaigns_on_when_its_hold_is_lost_unconfirmed"),
        report: "is shorter than a round trip",
    },
    Mutant {
        name: "row 47: a session that the store has forgotten has lapsed",
        file: "crates/leasehold/src/engine/keeper/heartbeat.rs",
        edits: &[(
            "if begins(op) || now >= self.schedule.valid_until() {",
            "if begins(op) || now >= self.schedule.valid_until() || !self.is_forgotten {",
        )],
        test: engine("sessions::a_forgotten_session_begins_again_and_keeps_what_the_store_has"),
        report: "the store has it",
    },
    Mutant {
        name: "row 48: what was released before a reconnect is not released again",
        file: "crates/leasehold/src/engine/keeper/reconnect.rs",
        edits: &[(
            "work.repeated_releases = releases.chunks(BATCH).map(<[_]>::to_vec).collect();",
            "work.repeated_releases = releases.chunks(BATCH).map(<[_]>::to_vec).take(0).collect();",
        )],
        test: server("failures::older_data::row_48_what_was_released_is_released_again_at_a_server_with_older_data"),
        report: "the lock was released late",
    },
    Mutant {
        name: "row 49: a release without an answer ends with its error",
        file: "crates/leasehold/src/engine/release.rs",
        edits: &[(
            "engine.keeper.release(hold);\n        engine.keeper.unanswered_is_settled(hold);",
            "engine.keeper.unanswered_is_settled(hold);",
        )],
        test: engine("unanswered_release::a_release_without_an_answer_goes_on_when_its_error_is_dropped"),
        report: "freed long before the lease is over",
    },
    Mutant {
        name: "row 54: a period is started although no replica has it",
        file: "crates/leasehold/src/engine/detached.rs",
        edits: &[
            // The store has replicas confirm the extend as well.
            (
                "Err(failed) => Err(ExtendFailure::Fault(failed.fault)),",
                "Err(failed) if matches!(failed.fault.kind, FaultKind::Unconfirmed { .. }) => Ok(sent_at + lease - drift(lease)),
                Err(failed) => Err(ExtendFailure::Fault(failed.fault)),",
            ),
            (
                "confirm(engine, hold, Some(limit)).await.map_err(NotDetached::AcquireFailure)?;",
                "let _ = confirm(engine, hold, Some(limit)).await;",
            ),
        ],
        test: server("failures::replicas::row_54_a_confirmed_turn_is_taken_once"),
        report: "Ok(Granted",
    },
    Mutant {
        name: "row 51: a renewal counts although no replica has it",
        file: "crates/redis/src/store/confirmation.rs",
        edits: &[(
            "*extended == Extended::NotHeld || extend.lease_ms <= 1",
            "*extended == Extended::NotHeld || extend.lease_ms > 0",
        )],
        test: server("failures::replicas::row_51_no_kind_of_lock_is_extended_without_the_replica"),
        report: "right: [false, false, false, false, false]",
    },
    Mutant {
        name: "row 51: a heartbeat counts although no replica has it",
        file: "crates/redis/src/store/confirmation.rs",
        edits: &[(
            "Some(Unconfirmed::heartbeat(self.session_keys_at(partition), heartbeat))",
            "Some(Unconfirmed::heartbeat(self.session_keys_at(partition), heartbeat)).filter(|_| false)",
        )],
        test: server("failures::replicas::row_51_a_heartbeat_counts_once_a_replica_has_it"),
        report: "it took longer than 10s",
    },
    Mutant {
        name: "`doctor` does not report a primary without `min-replicas-to-write`",
        file: "crates/redis/src/diagnose.rs",
        edits: &[(
            "is_primary.then(|| Finding::new(FindingKind::WritesWithoutReplicas",
            "(is_primary && replicas == 0).then(|| Finding::new(FindingKind::WritesWithoutReplicas",
        )],
        test: program("doctor::a_replica_and_the_primary_that_sentinels_name"),
        report: "it takes writes without its replica",
    },
    Mutant {
        name: "row 50: an extend gives the hold to no node that lacks it",
        file: "crates/store/src/quorum/repair.rs",
        edits: &[(
            "let is_incomplete = held_at.len() >= self.needed && !lacking_at.is_empty();",
            "let is_incomplete = held_at.len() >= self.needed && lacking_at.len() > self.nodes.len();",
        )],
        test: Test {
            package: "leasehold-store",
            target: "quorum",
            name: "repair::row_50_nodes_that_are_back_get_the_hold_with_the_next_extend",
        },
        report: "assertion `left == right` failed",
    },
];

impl Mutant {
    /// The file's text with the defect. Fails unless each text to be replaced is there exactly once.
    pub(crate) fn apply_to(&self, source: &str) -> Result<String> {
        let mut changed = source.to_owned();
        for (old, new) in self.edits {
            match changed.matches(old).count() {
                1 => changed = changed.replacen(old, new, 1),
                count => bail!(
                    "{}: `{old}` is {count} times in {}, and must be there once; mend it in xtask/src/mutants/table.rs",
                    self.name,
                    self.file
                ),
            }
        }
        Ok(changed)
    }
}

impl Test {
    /// The file that contains it, from the directory of its package: of its module, or of the target.
    fn files(&self) -> [PathBuf; 2] {
        let tests = Path::new("tests").join(self.target);
        match self.name.rsplit_once("::") {
            None => [tests.with_extension("rs"), tests.join("main.rs")],
            Some((modules, _)) => {
                let module = tests.join(modules.replace("::", "/"));
                [module.with_extension("rs"), module.join("mod.rs")]
            }
        }
    }

    /// Fails unless there is such a test in a package's directory.
    pub(crate) fn check(&self, directory: &Path) -> Result<()> {
        let function = self.name.rsplit("::").next().unwrap_or(self.name);
        let texts = self.files().map(|file| fs::read_to_string(directory.join(file)).unwrap_or_default());
        if !texts.iter().any(|text| text.contains(&format!("fn {function}("))) {
            bail!("{} {} has no test `{}`", self.package, self.target, self.name);
        }
        Ok(())
    }
}

/// Whether each mutant can be applied to the tree below `root`, and its test exists.
pub(crate) fn check(root: &Path, metadata: &Metadata) -> Result<()> {
    for mutant in MUTANTS {
        let source = fs::read_to_string(root.join(mutant.file))
            .with_context(|| format!("{}: failed to read {}", mutant.name, mutant.file))?;
        mutant.apply_to(&source)?;
        let Test { package, .. } = mutant.test;
        mutant.test.check(metadata.directory(package)?).context(mutant.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cargo, shell};

    #[test]
    fn each_mutant_fits_its_file_and_has_its_test() {
        let metadata = cargo::metadata().expect("metadata of the workspace");
        check(shell::root(), &metadata).expect("a table without stale lines");
    }

    #[test]
    fn a_text_that_is_not_there_once_is_an_error_that_names_the_mutant() {
        let mutant = Mutant { edits: &[("a == b", "true"), ("c", "d")], ..MUTANTS[0] };
        assert_eq!(mutant.apply_to("if a == b { c }").expect("applied"), "if true { d }");
        for (source, count) in [("if a != b { c }", "0 times"), ("a == b && a == b", "2 times")] {
            let error = mutant.apply_to(source).expect_err("a refusal").to_string();
            assert!(error.starts_with(mutant.name) && error.contains(count), "{error}");
        }
    }

    #[test]
    fn a_test_that_is_not_there_is_an_error() {
        let metadata = cargo::metadata().expect("metadata of the workspace");
        let directory = metadata.directory("leasehold").expect("a package");
        for name in ["loss::no_such_test", "no_such_module::it_is_tested", "no_such_test"] {
            let error = engine(name).check(directory).expect_err("a refusal").to_string();
            assert_eq!(error, format!("leasehold engine has no test `{name}`"));
        }
    }
}
