//! The guarded counters: what the locks of the workload protect.
//!
//! 1. A counter remembers the greatest fencing token that wrote it, and refuses a write with a smaller one: what a store of data
//!    does that checks tokens (docs/how-to/guard-writes.md).

use leasehold_history::What;
use std::collections::BTreeMap;

/// All counters, by the name of their lock.
#[derive(Debug, Default)]
pub(crate) struct Counters(BTreeMap<String, Counter>);

#[derive(Debug, Default)]
struct Counter {
    value: u64,
    /// The greatest token that wrote it (1).
    fence: u64,
}

impl Counters {
    /// The value.
    pub(crate) fn read(&self, lock: &str) -> u64 {
        self.0.get(lock).map_or(0, |counter| counter.value)
    }

    /// The write of the value after the one that was read, if the token is accepted. Returns what to record.
    pub(crate) fn write(&mut self, call: u64, lock: String, fence: u64, read: u64) -> What {
        let counter = self.0.entry(lock.clone()).or_default();
        let (found, fenced) = (counter.value, fence >= counter.fence);
        if fenced {
            *counter = Counter { value: read + 1, fence };
        }
        What::Wrote { call, lock, fence, read, found, fenced }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_comes_late_is_refused_by_its_token() {
        let mut counters = Counters::default();
        let next = counters.write(8, "a".to_owned(), 2, 0);
        assert!(matches!(next, What::Wrote { found: 0, fenced: true, .. }), "{next:?}");
        let late = counters.write(7, "a".to_owned(), 1, 0);
        assert!(matches!(late, What::Wrote { found: 1, fenced: false, .. }), "{late:?}");
        assert_eq!(counters.read("a"), 1);
        let again = counters.write(9, "a".to_owned(), 2, 1);
        assert!(matches!(again, What::Wrote { found: 1, fenced: true, .. }), "{again:?}");
        assert_eq!((counters.read("a"), counters.read("b")), (2, 0));
    }
}
