//! Nothing is left at the store at the end.
//!
//! Once all is released and all leases have ended, the coordinator lists what the store still holds under the prefix of the run and
//! should not. Every such key or row is a violation. No fault excuses one: what a fault leaves behind has a lease, which is over.

use super::Findings;
use crate::margins::Margins;
use crate::timeline::Timeline;
use crate::verdict::Violation;

pub(super) fn check(timeline: &Timeline<'_>, _margins: &Margins) -> Findings {
    let mut findings = Findings { judged: timeline.left.len() as u64, ..Findings::default() };
    for (at_us, keys) in &timeline.left {
        findings.violations.extend(keys.iter().map(|key| Violation {
            check: "",
            lock: None,
            at_us: *at_us,
            until_us: None,
            what: format!("Left at the store: {key}"),
            calls: Vec::new(),
            faults: Vec::new(),
            refused: Vec::new(),
            fencing: None,
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Script;
    use crate::event::{LockKind, What};

    #[test]
    fn an_empty_store_is_in_order_and_each_key_is_a_violation() {
        let mut script = Script::of(LockKind::Mutex);
        assert_eq!(script.outcome("left_behind"), (0, 0));
        script.push(10, 0, What::Left { keys: Vec::new() });
        assert_eq!(script.outcome("left_behind"), (1, 0));
        script.push(20, 0, What::Left { keys: vec!["a".to_owned(), "b without an expiry".to_owned()] });
        assert_eq!(script.outcome("left_behind"), (2, 2));
    }
}
