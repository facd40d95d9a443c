//! `cargo xtask mutate lua`: mutants of the scripts, found by the model comparison and by the partial scripts.
//!
//! Owns the list, the two runs and the results. The tests are `mutation.rs` of `crates/redis/tests/scripts` and
//! `crates/redis/tests/partial_scripts`: each runs many mutants in one process, and stops at the first difference.
//!
//! 1. Each program has short checks and long ones. What the short checks of both do not find goes to the long ones, unless the run is
//!    to be quick.
//! 2. A mutant that survives is an error, unless `equivalent.rs` names it. An entry there without a mutant is an error, and so is one
//!    whose mutant is found.
//! 3. Results are kept in a file, a line a mutant, so that shards add up. A line whose fragment has changed since is dropped.

mod equivalent;
mod operators;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Selection;
use crate::{cargo, install, shell};
use operators::Mutant;

/// Below the root.
const FRAGMENTS: &str = "crates/redis/src/lua";
/// The fragment whose constants all others can use.
const FORMAT: &str = "format.lua";
/// The programs, and the test of each.
const PROGRAMS: [&str; 2] = ["scripts", "partial_scripts"];
/// The order (1): a program, and whether its long checks are run.
const PASSES: [(usize, bool); 4] = [(0, false), (1, false), (0, true), (1, true)];
const TEST: &str = "mutation::mutants_are_found";

/// What came of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    /// `found`, `late`, `no Lua`, `survived`, or `unreached`: no test executes it.
    what: String,
    /// What found it.
    by: String,
    /// Stands for the fragment's text (3).
    fragment: String,
}

type Outcomes = BTreeMap<String, Outcome>;

/// All mutants, in the order of the files' names and texts.
pub(super) fn list() -> Result<Vec<Mutant>> {
    let sources = sources()?;
    let shared = operators::constants(sources.get(FORMAT).context("there is a fragment format.lua")?)?;
    let mut mutants = Vec::new();
    for (file, source) in &sources {
        let own = if file == FORMAT { Vec::new() } else { operators::constants(source)? };
        mutants.extend(operators::mutants(file, source, &[&own[..], &shared].concat())?);
    }
    Ok(mutants)
}

/// The fragments, by the names of their files.
fn sources() -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    let directory = shell::root().join(FRAGMENTS);
    for entry in
        fs::read_dir(&directory).with_context(|| format!("failed to read {}", directory.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a file's name is no UTF-8")?;
        if path.extension().is_some_and(|extension| extension == "lua") {
            sources.insert(name.to_owned(), fs::read_to_string(&path)?);
        }
    }
    Ok(sources)
}

/// Runs the selected mutants, and prints what came of them.
pub(super) fn run(selection: &Selection) -> Result<()> {
    let all = list()?;
    equivalent::check(&all)?;
    let has = |(at, mutant): (usize, Mutant)| selection.has(at, &mutant.name()).then_some(mutant);
    let selected: Vec<Mutant> = all.iter().cloned().enumerate().filter_map(has).collect();
    ensure!(!selected.is_empty(), "no mutant is selected");
    if selection.lists {
        for mutant in &selected {
            println!("{}  |  {}", mutant.name(), mutant.line_text);
        }
        return Ok(());
    }
    install::redis()?;
    let (digests, home) = (digests()?, shell::target_directory().join("mutate/lua"));
    fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
    let programs = build()?;
    let (start, mut outcomes) = (Instant::now(), Outcomes::new());
    for (at, is_long) in PASSES.into_iter().filter(|(_, is_long)| !(*is_long && selection.is_quick)) {
        let (target, program) = (PROGRAMS[at], &programs[at]);
        let is_open = |mutant: &&Mutant| {
            outcomes
                .get(&mutant.name())
                .is_none_or(|outcome| matches!(&*outcome.what, "survived" | "unreached"))
        };
        let open: Vec<&Mutant> = selected.iter().filter(is_open).collect();
        println!("{target}{}: {} mutants", if is_long { ", at length" } else { "" }, open.len());
        for (name, outcome) in execute(&open, program, &home, (target, is_long), &digests)? {
            // Not reached by this program, and not found by the one before.
            let is_known = outcome.what == "unreached" && outcomes.contains_key(&name);
            if !is_known {
                outcomes.insert(name, outcome);
            }
        }
    }
    let known = merge(&home.join("results.jsonl"), &outcomes, &digests, &all)?;
    print_table("all shards", &all, &known);
    print_table("this run", &selected, &outcomes);
    println!("in {:.0} s", start.elapsed().as_secs_f64());
    judge(&selected, &outcomes)
}

/// Builds the programs.
fn build() -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut build = shell::cargo(["test", "--no-run", "--workspace", "--locked", "--quiet"]);
    build.args(["--test", PROGRAMS[0], "--test", PROGRAMS[1]]);
    build.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped()).stderr(Stdio::inherit());
    eprintln!("xtask: building the tests");
    let output = build.output().context("failed to start cargo")?;
    ensure!(output.status.success(), "the tests were not built ({})", output.status);
    let text = String::from_utf8(output.stdout).context("cargo's messages are no UTF-8")?;
    let directory = cargo::metadata()?.directory("leasehold-redis")?.to_owned();
    let built = cargo::test_executables(&text)?;
    let find = |name: &str| {
        let is_own = |(manifest, executable): &&(PathBuf, PathBuf)| {
            let file = executable.file_name().and_then(|file| file.to_str()).unwrap_or_default();
            let stem = file.rsplit_once('-').map_or(file, |(stem, _)| stem);
            manifest.parent() == Some(&*directory) && stem == name
        };
        let found =
            built.iter().find(is_own).with_context(|| format!("the test target `{name}` was not built"))?;
        Ok((directory.clone(), found.1.clone()))
    };
    PROGRAMS.into_iter().map(find).collect()
}

/// Runs a program with the mutants that are open.
fn execute(
    mutants: &[&Mutant],
    (directory, program): &(PathBuf, PathBuf),
    home: &Path,
    (target, is_long): (&str, bool),
    digests: &BTreeMap<String, String>,
) -> Result<Outcomes> {
    if mutants.is_empty() {
        return Ok(Outcomes::new());
    }
    // A run of another shard may go on at the same time.
    let own = |what: &str| home.join(format!("{target}-{}.{what}", std::process::id()));
    let (list, results) = (own("list"), own("results"));
    let line = |mutant: &&Mutant| {
        let Mutant { file, range, text, .. } = mutant;
        json!({ "name": mutant.name(), "file": file, "start": range.start, "end": range.end, "text": text })
            .to_string()
    };
    fs::write(&list, mutants.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    let mut command = std::process::Command::new(program);
    command.args(["--exact", TEST, "--ignored", "--nocapture"]).current_dir(directory);
    command.env("LEASEHOLD_LUA_MUTANTS", &list).env("LEASEHOLD_LUA_RESULTS", &results);
    if is_long {
        command.env("LEASEHOLD_LUA_LONG", "1");
    }
    shell::run(command)?;
    let text = fs::read_to_string(&results).with_context(|| format!("{target} left no results"))?;
    fs::remove_file(&list)?;
    fs::remove_file(&results)?;
    let mut outcomes = Outcomes::new();
    for line in text.lines() {
        let (name, outcome) = parse(line)?;
        let digest = name.split(':').next().and_then(|file| digests.get(file)).cloned().unwrap_or_default();
        outcomes.insert(name, Outcome { fragment: digest, ..outcome });
    }
    ensure!(outcomes.len() == mutants.len(), "{target} has {} of {} results", outcomes.len(), mutants.len());
    Ok(outcomes)
}

fn parse(line: &str) -> Result<(String, Outcome)> {
    let value: Value = serde_json::from_str(line).with_context(|| format!("`{line}` is no result"))?;
    let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    Ok((text("name"), Outcome { what: text("outcome"), by: text("by"), fragment: text("fragment") }))
}

/// Something that another text of a fragment has not.
fn digests() -> Result<BTreeMap<String, String>> {
    let digest = |source: &String| {
        let mut hasher = DefaultHasher::new();
        source.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    };
    Ok(sources()?.iter().map(|(file, source)| (file.clone(), digest(source))).collect())
}

/// Adds the outcomes to those of other runs (3). Returns all.
fn merge(
    path: &Path,
    outcomes: &Outcomes,
    digests: &BTreeMap<String, String>,
    all: &[Mutant],
) -> Result<Outcomes> {
    let names: BTreeMap<String, &str> = all.iter().map(|mutant| (mutant.name(), &*mutant.file)).collect();
    let mut known = Outcomes::new();
    for line in fs::read_to_string(path).unwrap_or_default().lines() {
        let (name, outcome) = parse(line)?;
        let is_present = names.get(&name).and_then(|file| digests.get(*file)) == Some(&outcome.fragment);
        if is_present {
            known.insert(name, outcome);
        }
    }
    known.extend(outcomes.iter().map(|(name, outcome)| (name.clone(), outcome.clone())));
    let line = |(name, Outcome { what, by, fragment }): (&String, &Outcome)| {
        json!({ "name": name, "outcome": what, "by": by, "fragment": fragment }).to_string() + "\n"
    };
    fs::write(path, known.iter().map(line).collect::<String>())?;
    Ok(known)
}

/// How many mutants of each file came to what.
fn print_table(title: &str, mutants: &[Mutant], outcomes: &Outcomes) {
    let mut files: BTreeMap<&str, [usize; 6]> = BTreeMap::new();
    for mutant in mutants {
        let Some(outcome) = outcomes.get(&mutant.name()) else { continue };
        let column = match &*outcome.what {
            "found" => 0,
            "late" => 1,
            "no Lua" => 2,
            _ if equivalent::reason(mutant).is_some() => 3,
            "survived" => 4,
            _ => 5,
        };
        files.entry(&mutant.file).or_default()[column] += 1;
    }
    let row = |name: &str, [found, late, no_lua, equivalent, survived, unreached]: [usize; 6]| {
        let (killed, counted) = (found + late, found + late + survived + unreached);
        #[allow(clippy::cast_precision_loss, reason = "a percentage")]
        let score = 100.0 * killed as f64 / counted.max(1) as f64;
        println!(
            "{name:<32} {found:>6} {late:>5} {no_lua:>7} {equivalent:>11} {survived:>9} {unreached:>10} {score:>7.1} %"
        );
    };
    println!(
        "\n{title:<32} {:>6} {:>5} {:>7} {:>11} {:>9} {:>10} {:>9}",
        "found", "late", "no Lua", "equivalent", "survived", "unreached", "score"
    );
    let mut sum = [0; 6];
    for (file, counts) in files {
        row(file, counts);
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    row("all", sum);
}

/// Whether each mutant was found, or is equivalent (2).
fn judge(mutants: &[Mutant], outcomes: &Outcomes) -> Result<()> {
    let (mut survivors, mut stale) = (0, BTreeSet::new());
    for mutant in mutants {
        let Some(Outcome { what, by, .. }) = outcomes.get(&mutant.name()) else { continue };
        let is_found = matches!(&**what, "found" | "late");
        match equivalent::reason(mutant) {
            Some(_) if is_found => {
                stale.insert(format!("{} is named as equivalent, and found by {by}", mutant.name()));
            }
            None if !is_found && what != "no Lua" => {
                survivors += 1;
                println!("{what}: {}\n    {}", mutant.name(), mutant.line_text);
            }
            _ => {}
        }
    }
    ensure!(stale.is_empty(), "{}", stale.into_iter().collect::<Vec<_>>().join("\n"));
    ensure!(survivors == 0, "{survivors} mutants were not found");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(what: &str, fragment: &str) -> Outcome {
        Outcome { what: what.to_owned(), by: "a test".to_owned(), fragment: fragment.to_owned() }
    }

    #[test]
    fn shards_add_up_until_a_fragment_changes() {
        let all = list().expect("all fragments");
        let digests = digests().expect("all fragments");
        let path = std::env::temp_dir().join(format!("leasehold-mutants-{}.jsonl", std::process::id()));
        let [one, two] = [&all[0], &all[1]].map(|mutant| (mutant.name(), digests[&mutant.file].clone()));
        let of =
            |(name, digest): &(String, String), what| Outcomes::from([(name.clone(), outcome(what, digest))]);
        let sum = |outcomes: &Outcomes| merge(&path, outcomes, &digests, &all).expect("a file of results");
        sum(&of(&one, "survived"));
        sum(&of(&(two.0.clone(), "another".to_owned()), "found"));
        assert_eq!(sum(&of(&one, "found")), of(&one, "found"));
        assert_eq!(sum(&of(&two, "found")).len(), 2);
        fs::remove_file(&path).expect("it was written");
    }

    #[test]
    fn a_survivor_is_an_error_and_so_is_an_equivalent_that_is_found() {
        let all = list().expect("all fragments");
        let mutant = all.iter().find(|mutant| equivalent::reason(mutant).is_none()).expect("one that is not");
        let of = |mutant: &Mutant, what| Outcomes::from([(mutant.name(), outcome(what, ""))]);
        let judge = |mutant: &Mutant, what| judge(std::slice::from_ref(mutant), &of(mutant, what));
        assert!(
            judge(mutant, "found").is_ok()
                && judge(mutant, "no Lua").is_ok()
                && judge(mutant, "late").is_ok()
        );
        assert!(judge(mutant, "survived").is_err() && judge(mutant, "unreached").is_err());
        if let Some(equivalent) = all.iter().find(|mutant| equivalent::reason(mutant).is_some()) {
            assert!(judge(equivalent, "survived").is_ok() && judge(equivalent, "found").is_err());
        }
    }
}
