//! A bounded log of client commands.

use std::collections::{BTreeMap, VecDeque};

/// The number of recent commands that are kept.
const RECENT: usize = 4096;

/// How many arguments of a command are kept, and bytes of each.
const ARGUMENTS: usize = 64;
const ARGUMENT_BYTES: usize = 256;

/// How many command names are counted: more than Redis has commands.
const NAMES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Log {
    counts: BTreeMap<Vec<u8>, u64>,
    total: u64,
    recent: VecDeque<Vec<Vec<u8>>>,
}

impl Log {
    pub(super) fn record(&mut self, arguments: &[Vec<u8>]) {
        self.total += 1;
        let name = arguments.first().map(|name| truncate(name).to_ascii_uppercase()).unwrap_or_default();
        if self.counts.len() < NAMES || self.counts.contains_key(&name) {
            *self.counts.entry(name).or_default() += 1;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        let kept = arguments.iter().take(ARGUMENTS).map(|argument| truncate(argument).to_vec());
        self.recent.push_back(kept.collect());
    }

    pub(super) fn count(&self, name: &str) -> u64 {
        self.counts.get(name.to_ascii_uppercase().as_bytes()).copied().unwrap_or_default()
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn recent(&self) -> Vec<Vec<Vec<u8>>> {
        self.recent.iter().cloned().collect()
    }
}

fn truncate(argument: &[u8]) -> &[u8] {
    &argument[..argument.len().min(ARGUMENT_BYTES)]
}
