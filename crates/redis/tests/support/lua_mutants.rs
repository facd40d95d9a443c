//! Runs tests against mutants of the Lua fragments, for `cargo xtask mutate lua`, which makes the list.
//!
//! Owns which mutant is present, the run over all of them, and its results. Does not own the tests, nor how a script
//! reaches the server: the taps of the test programs pass each script through [`mutated`].
//!
//! 1. All mutants run in one process, without a build. A test that fails drops its servers, so that none has what a mutant
//!    left.
//! 2. A test runs for a mutant only if, without one, it executed a script with that fragment. It must pass without one.
//! 3. A mutant has a bounded time: the servers of a test that is late are killed, which ends a loop in a script.

use serde_json::{Value, json};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What the store does to its fragments.
#[allow(dead_code, reason = "the store alone joins fragments")]
#[path = "../../src/lua/strip.rs"]
mod strip;

/// The list of mutants, a JSON object a line; and where the results go.
const LIST: &str = "LEASEHOLD_LUA_MUTANTS";
const RESULTS: &str = "LEASEHOLD_LUA_RESULTS";
/// Set for the checks that take long, and are for the mutants that the short ones do not find.
const IS_LONG: &str = "LEASEHOLD_LUA_LONG";

/// Longer than any fragment.
const LONGEST: usize = 1 << 15;

/// How much longer than without a mutant a test may take (3).
const SLOWER: u32 = 20;
const AT_LEAST: Duration = Duration::from_secs(3);

/// A test: its name, what it does, and the scripts that it executed without a mutant.
pub(crate) struct Check {
    name: String,
    run: Box<dyn FnMut() -> Result<(), String>>,
    /// Drops the servers that it keeps for the next check.
    reset: Box<dyn Fn()>,
    scripts: BTreeSet<Arc<str>>,
    took: Duration,
}

/// Which checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    Short,
    Long,
}

impl Check {
    /// A check that keeps its servers until `reset`.
    pub(crate) fn new(
        name: impl Into<String>,
        run: impl FnMut() -> Result<(), String> + 'static,
        reset: impl Fn() + 'static,
    ) -> Self {
        let (name, scripts, took) = (name.into(), BTreeSet::new(), Duration::ZERO);
        Self { name, run: Box::new(run), reset: Box::new(reset), scripts, took }
    }

    /// A test that starts its own servers, and panics if it fails.
    pub(crate) fn test(name: &str, run: impl Fn() + 'static) -> Self {
        Self::new(
            name,
            move || {
                run();
                Ok(())
            },
            || {},
        )
    }
}

/// A mutant of a fragment.
#[derive(Debug)]
struct Mutant {
    name: String,
    /// The fragment as it is in the scripts, and what replaces it.
    fragment: String,
    edited: String,
}

/// What is known about the present run.
#[derive(Default)]
struct Run {
    /// Whether there is a list of mutants.
    is_enabled: bool,
    mutant: Option<Arc<Mutant>>,
    /// The scripts that were executed since a check began.
    executed: BTreeSet<Arc<str>>,
    /// Set if the server did not load the mutant.
    refused: Option<String>,
    /// When the servers are killed, and whether they were.
    deadline: Option<Instant>,
    is_late: bool,
}

static RUN: Mutex<Option<Run>> = Mutex::new(None);
static GENERATION: AtomicU64 = AtomicU64::new(0);
static IS_NOTING: AtomicBool = AtomicBool::new(false);

fn with_run<T>(action: impl FnOnce(&mut Run) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<Run>> = RUN.lock().unwrap_or_else(PoisonError::into_inner);
    action(guard.get_or_insert_default())
}

/// Whether this process runs mutants, so that scripts must go through a tap.
#[allow(dead_code, reason = "one of the test programs has a tap anyway")]
pub(crate) fn is_enabled() -> bool {
    with_run(|run| run.is_enabled)
}

/// A number that is another one for each mutant.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Notes that a script is executed.
pub(crate) fn note(script: &Arc<str>) {
    if IS_NOTING.load(Ordering::Acquire) {
        with_run(|run| run.executed.insert(Arc::clone(script)));
    }
}

/// A script of the store with the present mutant.
pub(crate) fn mutated(script: &str) -> String {
    match with_run(|run| run.mutant.clone()) {
        Some(mutant) => script.replace(&mutant.fragment, &mutant.edited),
        None => script.to_owned(),
    }
}

/// Notes that the server did not load a script: the mutant is no Lua.
pub(crate) fn refuse(error: &str) {
    with_run(|run| run.refused.get_or_insert_with(|| error.to_owned()).truncate(300));
}

/// Runs the short checks or the long ones against all mutants of the list, in this order, until one fails. Does nothing without
/// a list.
pub(crate) fn run(make_checks: impl FnOnce(Length) -> Vec<Check>) {
    let Some(list) = env::var_os(LIST) else { return };
    let results = env::var_os(RESULTS).unwrap_or_else(|| panic!("{RESULTS} says where the results go"));
    let mut results = File::create(results).expect("the results can be written");
    with_run(|run| run.is_enabled = true);
    let mut checks = make_checks(if env::var_os(IS_LONG).is_some() { Length::Long } else { Length::Short });
    IS_NOTING.store(true, Ordering::Release);
    for check in &mut checks {
        let start = Instant::now();
        let (outcome, _) = execute(check, Duration::from_secs(120));
        outcome.unwrap_or_else(|what| panic!("without a mutant, {} fails: {what}", check.name));
        check.took = start.elapsed();
        check.scripts = with_run(|run| std::mem::take(&mut run.executed));
    }
    IS_NOTING.store(false, Ordering::Release);
    let list = fs::read_to_string(list).expect("a list of mutants");
    let mut sources = BTreeMap::new();
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    for line in list.lines() {
        let start = Instant::now();
        let mutant = Arc::new(read(line, &mut sources));
        let (outcome, by) = judge(&mut checks, &mutant);
        let took_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let result = json!({ "name": mutant.name, "outcome": outcome, "by": by, "took_ms": took_ms });
        writeln!(results, "{result}").expect("the results can be written");
    }
    set_hook(hook);
}

/// What comes of a mutant, and by what it was found.
fn judge(checks: &mut [Check], mutant: &Arc<Mutant>) -> (&'static str, String) {
    with_run(|run| run.mutant = Some(Arc::clone(mutant)));
    GENERATION.fetch_add(1, Ordering::AcqRel);
    let reset = |checks: &[Check]| checks.iter().for_each(|check| (check.reset)());
    let mut result = ("unreached", String::new());
    for check in checks.iter_mut() {
        if !check.scripts.iter().any(|script| script.contains(&mutant.fragment)) {
            continue;
        }
        result = ("survived", String::new());
        let limit = AT_LEAST.max(check.took * SLOWER);
        let (outcome, is_late) = execute(check, limit);
        let Err(what) = outcome else { continue };
        result = match with_run(|run| run.refused.take()) {
            Some(error) => ("no Lua", error),
            None if is_late => ("late", check.name.clone()),
            None => ("found", format!("{}: {what}", check.name)),
        };
        break;
    }
    with_run(|run| (run.mutant, run.refused) = (None, None));
    GENERATION.fetch_add(1, Ordering::AcqRel);
    if result.0 != "unreached" {
        // Servers also keep the scripts of mutants that no check found.
        reset(checks);
    }
    result
}

/// Runs a check for so long at most. Returns how it failed, and whether it was late.
fn execute(check: &mut Check, limit: Duration) -> (Result<(), String>, bool) {
    with_run(|run| (run.deadline, run.is_late) = (Some(Instant::now() + limit), false));
    let watch = thread::spawn(watch);
    let outcome = catch_unwind(AssertUnwindSafe(&mut check.run));
    with_run(|run| run.deadline = None);
    watch.thread().unpark();
    watch.join().expect("the watch does not panic");
    let is_late = with_run(|run| run.is_late);
    (outcome.unwrap_or_else(|panic| Err(said(&*panic))).map_err(|text| shortened(&text)), is_late)
}

/// Kills the servers of this process at the deadline (3), again and again: a test may start another one.
fn watch() {
    while let Some(deadline) = with_run(|run| run.deadline) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            with_run(|run| run.is_late = true);
            kill_children();
            thread::park_timeout(Duration::from_millis(200));
        } else {
            thread::park_timeout(left);
        }
    }
}

fn kill_children() {
    let tasks = fs::read_dir("/proc/self/task").expect("a process has threads");
    let children = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    for child in children.collect::<String>().split_whitespace() {
        // One that has ended meanwhile is no error.
        drop(Command::new("kill").args(["-9", child]).status());
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

fn shortened(text: &str) -> String {
    let line = text.lines().take(3).collect::<Vec<_>>().join(" ");
    line.chars().take(160).collect()
}

/// A mutant of the list. `sources` has the fragments that were read before.
fn read(line: &str, sources: &mut BTreeMap<String, String>) -> Mutant {
    let value: Value = serde_json::from_str(line).expect("an object a line");
    let text = |field: &str| value[field].as_str().expect("a text").to_owned();
    let place = |field: &str| usize::try_from(value[field].as_u64().expect("a number")).expect("a place");
    let file = text("file");
    let source = sources.entry(file).or_insert_with_key(|file| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lua").join(file);
        fs::read_to_string(path).expect("a fragment")
    });
    let mut edited = source.clone();
    edited.replace_range(place("start")..place("end"), &text("text"));
    let stripped = |source: &str| strip::strip::<LONGEST>(source).text().to_owned();
    Mutant { name: text("name"), fragment: stripped(source), edited: stripped(&edited) }
}
