//! Fuzz targets for everything that Leasehold reads from outside.
//!
//! A [target](Target) is a function from bytes to nothing that panics if a property does not hold. Two engines run them:
//! libFuzzer, guided by coverage (`cargo xtask fuzz`), and a short one of [random changes](mutate) to the corpus, which needs no
//! other build than the tests (`tests/corpus.rs`). Inputs that are worth keeping are in `corpus/`, a directory for each target.
//!
//! Not here: what is not read from outside. The operations of a lock are compared with the model by the tests of the stores.

mod input;
mod memory;
pub mod mutate;
pub mod server;
mod sqlite;
mod texts;
mod urls;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long one input may take at most, on a machine on which other builds run.
const TOO_LONG: Duration = Duration::from_secs(20);

/// Something that reads bytes from outside, and what must hold for all of them.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name, as on the command line and of the directory below `corpus/`.
    pub name: &'static str,
    /// Panics if a property does not hold for these bytes.
    pub run: fn(&[u8]),
    /// By how much the memory in use may grow meanwhile, in bytes.
    pub max_memory: usize,
    /// How long an input may be, in bytes.
    pub max_len: usize,
    /// What such inputs are made of.
    pub words: &'static [&'static str],
}

const MIB: usize = 1 << 20;

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "urls", run: urls::run, max_memory: 16 * MIB, max_len: 1024, words: urls::WORDS },
    Target {
        name: "names",
        run: texts::names,
        max_memory: 16 * MIB,
        max_len: 1024,
        words: texts::NAME_WORDS,
    },
    Target {
        name: "durations",
        run: texts::durations,
        max_memory: 16 * MIB,
        max_len: 128,
        words: texts::DURATION_WORDS,
    },
    Target {
        name: "detached",
        run: texts::detached,
        max_memory: 16 * MIB,
        max_len: 2048,
        words: texts::DETACHED_WORDS,
    },
    Target {
        name: "owners",
        run: texts::owners,
        max_memory: 16 * MIB,
        max_len: 1024,
        words: texts::OWNER_WORDS,
    },
    Target {
        name: "statistics",
        run: texts::statistics,
        max_memory: 16 * MIB,
        max_len: 4096,
        words: texts::STATISTICS_WORDS,
    },
    Target { name: "sqlite", run: sqlite::run, max_memory: 64 * MIB, max_len: 4096, words: sqlite::WORDS },
    Target {
        name: "replies",
        run: server::replies,
        max_memory: server::MAX_MEMORY,
        max_len: 8192,
        words: server::WORDS,
    },
    Target {
        name: "server",
        run: server::faults,
        max_memory: server::MAX_MEMORY,
        max_len: 512,
        words: server::WORDS,
    },
];

impl Target {
    /// The target of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Runs an input. Panics if a property of the target does not hold, or if it used too much memory or time.
    pub fn check(&self, input: &[u8]) {
        let began = Instant::now();
        let growth = memory::growth(|| (self.run)(input));
        assert!(growth <= self.max_memory, "memory grew by {growth} bytes");
        let took = began.elapsed();
        assert!(took < TOO_LONG, "it took {took:?}");
    }

    /// The directory of the inputs that are kept.
    pub fn corpus(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }
}
