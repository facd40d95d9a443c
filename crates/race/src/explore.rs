//! Runs one race under many schedules, or replays one schedule.
//!
//! `LEASEHOLD_ITERATIONS` is the number of schedules of each kind, `LEASEHOLD_SEED` selects them, and
//! `LEASEHOLD_SCHEDULE` is a schedule printed by a failure: it runs alone and prints everything that the server
//! executes. `cargo xtask shuttle` sets them from its options of the same names.

use crate::fixture::Fixture;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::env;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// As many as CI has time for.
const ITERATIONS: usize = 2_000;
const SEED: u64 = 1;

/// The number of preemptions in a schedule by priorities. Races that need more are left to chance.
const PREEMPTIONS: usize = 3;

/// More steps than any schedule without a livelock takes.
const STEPS: usize = 50_000;

/// Runs a race under random schedules, and under schedules by priorities that change a few times: each kind finds
/// what the other rarely does.
pub(crate) fn explore(race: impl AsyncFn(&Fixture) + Copy + Send + Sync + 'static) {
    if let Ok(schedule) = env::var("LEASEHOLD_SCHEDULE") {
        return run("replayed", ReplayScheduler::new_from_encoded(&schedule), true, race);
    }
    let (seed, iterations) = (setting("LEASEHOLD_SEED", SEED), setting("LEASEHOLD_ITERATIONS", ITERATIONS));
    println!("seed {seed}, {iterations} schedules at random, and as many by priorities");
    run("at random", RandomScheduler::new_from_seed(seed, iterations), false, race);
    run("by priorities", PctScheduler::new_from_seed(seed, PREEMPTIONS, iterations), false, race);
}

/// The expected failure of a race.
pub(crate) fn failure(race: impl AsyncFn(&Fixture) + Copy + Send + Sync + 'static) -> String {
    let failure = catch_unwind(AssertUnwindSafe(|| explore(race))).expect_err("some schedule detects it");
    let fixed = failure.downcast_ref::<&str>().map(ToString::to_string);
    fixed.or_else(|| failure.downcast_ref().cloned()).expect("a failure is a text")
}

fn run(
    kind: &'static str,
    scheduler: impl Scheduler + 'static,
    is_shown: bool,
    race: impl AsyncFn(&Fixture) + Copy + Send + Sync + 'static,
) {
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    // Shuttle would print that it treats all orderings as the strongest; docs/explanation/verification.md says so.
    config.silence_warnings = true;
    let begun = Arc::new(AtomicUsize::new(0));
    let _tally = Tally { kind, begun: begun.clone() };
    Runner::new(scheduler, config).run(move || {
        begun.fetch_add(1, SeqCst);
        let fixture = Fixture::new(is_shown);
        shuttle::future::block_on(race(&fixture));
        fixture.end();
    });
}

/// Prints the schedule of a failure on drop.
struct Tally {
    kind: &'static str,
    begun: Arc<AtomicUsize>,
}

impl Drop for Tally {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("failed under schedule {} {}", self.begun.load(SeqCst), self.kind);
        }
    }
}

fn setting<T: FromStr<Err: Display>>(name: &str, otherwise: T) -> T {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{name} is `{text}`: {error}")),
        Err(_) => otherwise,
    }
}
