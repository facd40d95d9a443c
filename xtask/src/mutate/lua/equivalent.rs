//! Mutants that no test can find, with the reason.
//!
//! An entry names the text of a line and not its number, so that it stays when the lines above change.

use anyhow::{Result, bail};

use super::operators::Mutant;

/// Mutants of a line, or several, that mean what the fragment means.
struct Equivalent {
    file: &'static str,
    /// Each is the whole text of the line without its indentation, and its changes, as [`Mutant`] names them.
    lines: &'static [(&'static str, &'static [&'static str])],
    reason: &'static str,
}

const PADS: &[&str] = &["if true", "compare < to <=", "text '00000' to 'x00000'"];
const PADDED: &str = "the last six characters of the padded text are the six digits, however many were there";

const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        file: "acquire_quick.lua",
        lines: &[("if #us < US_DIGITS then us = string.sub('00000' .. us, -US_DIGITS) end", PADS)],
        reason: PADDED,
    },
    Equivalent {
        file: "release_quick.lua",
        lines: &[("if #us < US_DIGITS then us = string.sub('00000' .. us, -US_DIGITS) end", PADS)],
        reason: PADDED,
    },
    Equivalent {
        file: "batch.lua",
        lines: &[("if #us < US_DIGITS then us = sub('00000' .. us, -US_DIGITS) end", PADS)],
        reason: PADDED,
    },
    Equivalent {
        file: "check_record.lua",
        lines: &[(
            "lock.entry_id, lock.queued = id, lock.queued or 0",
            &["field queued to queued_x#2", "or without its left"],
        )],
        reason: "a record is read once, by a table whose `queued` is 0 or absent",
    },
    Equivalent {
        file: "heartbeat.lua",
        lines: &[("local alive_until = record_exists and tonumber(fields[2])", &["and without its left"])],
        reason: "a record without a format has no `until`: both are written by one command; and tonumber(false) is nil",
    },
];

/// Why no test can find a mutant, if it is named here.
pub(super) fn reason(mutant: &Mutant) -> Option<&'static str> {
    let is_named = |entry: &&Equivalent| {
        let names = |(line, changes): &(&str, &[&str])| {
            *line == mutant.line_text && changes.contains(&&*mutant.change)
        };
        entry.file == mutant.file && entry.lines.iter().any(names)
    };
    EQUIVALENTS.iter().find(is_named).map(|entry| entry.reason)
}

/// Whether each entry is about a mutant.
pub(super) fn check(mutants: &[Mutant]) -> Result<()> {
    for Equivalent { file, lines, .. } in EQUIVALENTS {
        for (line, changes) in *lines {
            for change in *changes {
                let is_of = |mutant: &Mutant| {
                    mutant.file == *file && mutant.line_text == *line && mutant.change == *change
                };
                if !mutants.iter().any(is_of) {
                    bail!(
                        "{file} has no mutant `{change}` of `{line}`; mend xtask/src/mutate/lua/equivalent.rs"
                    );
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_is_about_a_mutant() {
        check(&super::super::list().expect("all fragments")).expect("no stale entry");
    }
}
