//! What a listing leaves out.

use std::fmt;

/// What a listing leaves out because it cannot be read: no client of this library has written it like that.
///
/// ```
/// use leasehold_core::Skipped;
///
/// let mut skipped = Skipped::default();
/// skipped.add(|| "the lock `job`: its record is damaged".into());
/// skipped.add(|| "the lock `other`: its record is damaged".into());
/// assert_eq!(skipped.to_string(), "2 entries cannot be read, the first of them: the lock `job`: its record is damaged");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many entries there are.
    pub count: u64,
    /// What is wrong with the first one.
    pub first: Option<String>,
}

impl Skipped {
    /// Counts an entry.
    pub fn add(&mut self, reason: impl FnOnce() -> String) {
        self.count = self.count.saturating_add(1);
        self.first.get_or_insert_with(reason);
    }

    /// Counts the entries of another listing as well.
    pub fn merge(&mut self, other: Self) {
        // A store may report any number.
        self.count = self.count.saturating_add(other.count);
        self.first = self.first.take().or(other.first);
    }

    /// Whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.as_deref().unwrap_or("unknown");
        match self.count {
            1 => write!(f, "1 entry cannot be read: {first}"),
            count => write!(f, "{count} entries cannot be read, the first of them: {first}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_counted_together_and_the_first_entry_of_all_is_named() {
        let one = |reason: &str| Skipped { count: 1, first: Some(reason.to_owned()) };
        let mut skipped = Skipped::default();
        skipped.merge(one("a"));
        skipped.merge(one("b"));
        skipped.merge(Skipped::default());
        assert_eq!(skipped, Skipped { count: 2, first: Some("a".to_owned()) });
    }

    #[test]
    fn any_count_of_a_store_can_be_added() {
        let damaged = || Skipped { count: u64::MAX - 1, first: Some("a holder".to_owned()) };
        let mut skipped = damaged();
        skipped.merge(damaged());
        skipped.add(|| "another".to_owned());
        assert_eq!(skipped, Skipped { count: u64::MAX, ..damaged() });
    }
}
