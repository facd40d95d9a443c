//! `cargo xtask mutate`: small changes to the code, one at a time. A test must find each, or it is named as equivalent.
//!
//! Owns the arguments. [`lua`] changes the scripts and [`rust`] the crates; `cargo xtask verify mutants` puts back defects that
//! were mended, which neither of them would think of.

mod lua;
mod rust;

use anyhow::{Context, Result, bail, ensure};

const KINDS: &str = "there are lua, core, engine and diff";

/// Which of the mutants to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Selection {
    /// The shard, from 0 on, and how many there are: every so manieth mutant.
    shard: Option<(usize, usize)>,
    /// A part of the name.
    only: Option<String>,
    /// Set to print the names, and to run none.
    lists: bool,
    /// Set to leave out the checks of the scripts that take long.
    is_quick: bool,
    /// The commit whose changes since are mutated.
    base: Option<String>,
}

/// Runs `lua`, `core`, `engine` or `diff`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let Some((kind, rest)) = arguments.split_first() else { bail!("mutate what? {KINDS}") };
    let selection = Selection::read(rest)?;
    ensure!(selection.base.is_none() || kind == "diff", "--base is of `mutate diff`");
    ensure!(!selection.is_quick || kind == "lua", "--quick is of `mutate lua`");
    match kind.as_str() {
        "lua" => lua::run(&selection),
        "core" => rust::run(&rust::CORE, &selection),
        "engine" => rust::run(&rust::ENGINE, &selection),
        "diff" => rust::run_diff(&selection),
        other => bail!("there is nothing called `{other}` to mutate: {KINDS}"),
    }
}

impl Selection {
    fn read(arguments: &[String]) -> Result<Self> {
        let mut selection = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{argument} is followed by a value"));
            match argument.as_str() {
                "--shard" => selection.shard = Some(shard(value()?)?),
                "--only" => selection.only = Some(value()?.clone()),
                "--base" => selection.base = Some(value()?.clone()),
                "--list" => selection.lists = true,
                "--quick" => selection.is_quick = true,
                other => bail!(
                    "there is no option `{other}`: there are --shard, --only, --list, --quick and --base"
                ),
            }
        }
        Ok(selection)
    }

    /// Whether it has the mutant of this name, at this place of the list.
    fn has(&self, at: usize, name: &str) -> bool {
        self.shard.is_none_or(|(own, all)| at % all == own)
            && self.only.as_ref().is_none_or(|only| name.contains(only))
    }
}

/// `K/N`, with K from 0 to N - 1.
fn shard(text: &str) -> Result<(usize, usize)> {
    let numbers = text.split_once('/').and_then(|(own, all)| Some((own.parse().ok()?, all.parse().ok()?)));
    match numbers {
        Some((own, all)) if own < all => Ok((own, all)),
        _ => bail!("`{text}` is no shard: 0/4 is the first of four"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Selection> {
        Selection::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_shards_have_each_mutant_once() {
        let shards = [0, 1, 2].map(|own| read(&format!("--shard {own}/3")).expect("a shard"));
        for at in 0..10 {
            assert_eq!(shards.iter().filter(|shard| shard.has(at, "a")).count(), 1, "{at}");
        }
        let only = read("--only grant.lua").expect("a name");
        assert!(only.has(0, "grant.lua:7:negate") && !only.has(0, "queue.lua:7:negate"));
    }

    #[test]
    fn what_is_no_selection_is_refused() {
        for line in ["--shard 3/3", "--shard 1", "--shard", "--seed 1"] {
            assert!(read(line).is_err(), "{line}");
        }
        let error = run(&["c".to_owned()]).expect_err("nothing to mutate").to_string();
        assert_eq!(error, "there is nothing called `c` to mutate: there are lua, core, engine and diff");
    }
}
