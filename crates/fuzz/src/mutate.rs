//! The engine without coverage: random changes to the inputs of a corpus, from a seed.
//!
//! Finds less than libFuzzer in the same time, and needs no other build than the tests.

use crate::Target;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// How many changes an input gets at most.
const MAX_CHANGES: u32 = 8;

/// An input for which a property does not hold.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The input.
    pub input: Vec<u8>,
    /// What the panic said, and where.
    pub message: String,
}

/// How far a run has come.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// How many inputs were run.
    pub runs: u64,
    /// The first finding, which ends a run.
    pub finding: Option<Finding>,
}

/// Runs all inputs of a corpus, and then random changes of them until the time is over or something is found.
pub fn run(target: &Target, corpus: &[Vec<u8>], seed: u64, time: Duration) -> Report {
    // Panics of other threads are this run's: there is one at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = locked(&ONE);
    let began = Instant::now();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut report = Report::default();
    for at in 0.. {
        let input = match corpus.get(at) {
            Some(input) => input.clone(),
            None if began.elapsed() >= time => break,
            None => changed(corpus, target, &mut rng),
        };
        report.runs += 1;
        if let Some(message) = failure(target, &input) {
            report.finding = Some(Finding { input, message });
            break;
        }
    }
    report
}

/// What a panic says that an input causes: also one of a task, which tokio catches.
pub fn failure(target: &Target, input: &[u8]) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let thread = thread::current();
            match &mut *locked(&PANICS) {
                // Other tests can fail meanwhile.
                Some((runner, panics)) if *runner == thread.id() || is_of_store(&thread) => {
                    panics.push(info.to_string());
                }
                _ => usual(info),
            }
        }));
    });
    let _one_at_a_time = locked(&RUNNING);
    *locked(&PANICS) = Some((thread::current().id(), Vec::new()));
    let result = panic::catch_unwind(AssertUnwindSafe(|| target.check(input)));
    let first = locked(&PANICS).take().and_then(|(_, panics)| panics.into_iter().next());
    first.or_else(|| result.err().map(|_| "a panic without a message".to_owned()))
}

/// Held while an input runs: panics and memory are those of the process, in which tests run side by side.
static RUNNING: Mutex<()> = Mutex::new(());

/// The thread that runs an input, and the panics of that, while one runs.
static PANICS: Mutex<Option<(ThreadId, Vec<String>)>> = Mutex::new(None);

/// Whether it is a thread of a store.
fn is_of_store(thread: &thread::Thread) -> bool {
    thread.name().is_some_and(|name| name.starts_with("leasehold"))
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The inputs of a directory, in the order of their names.
pub fn read_corpus(directory: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(directory)? {
        files.push(entry?.path());
    }
    files.sort();
    files.into_iter().map(fs::read).collect()
}

/// An input of the corpus with some changes.
fn changed(corpus: &[Vec<u8>], target: &Target, rng: &mut StdRng) -> Vec<u8> {
    let of_corpus = |rng: &mut StdRng| match corpus.len() {
        0 => Vec::new(),
        len => corpus[rng.random_range(0..len)].clone(),
    };
    let mut input = of_corpus(rng);
    for _ in 0..rng.random_range(1..=MAX_CHANGES) {
        let at = rng.random_range(0..=input.len());
        let end = (at + rng.random_range(0..=16)).min(input.len());
        match rng.random_range(0..8) {
            0 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
            1 if at < input.len() => input[at] = rng.random(),
            2 => {
                drop(input.splice(
                    at..at,
                    (0..rng.random_range(1..8)).map(|_| rng.random::<u8>()).collect::<Vec<_>>(),
                ));
            }
            3 => drop(input.drain(at..end)),
            4 => {
                let copy = input[at..end].to_vec();
                let to = rng.random_range(0..=input.len());
                drop(input.splice(to..to, copy));
            }
            5 => {
                let other = of_corpus(rng);
                let from = rng.random_range(0..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 => {
                let digits = input.iter().position(u8::is_ascii_digit);
                if let Some(at) = digits {
                    input[at] = b'0' + rng.random_range(0..10_u8);
                }
            }
            _ if !target.words.is_empty() => {
                let word = target.words[rng.random_range(0..target.words.len())];
                let replaced = if rng.random() { at..end } else { at..at };
                drop(input.splice(replaced, word.bytes().collect::<Vec<_>>()));
            }
            _ => {}
        }
    }
    input.truncate(target.max_len);
    input
}
