//! What a scan of the keys of a store finds.

use leasehold_core::LockName;

/// The names that a scan found: [`Store::scan_names`](crate::Store::scan_names).
///
/// ```
/// use leasehold::store::NameScan;
///
/// let found = NameScan::new(vec!["orders/42".parse()?], true);
/// assert!(found.is_complete && found.names.len() == 1);
/// # Ok::<(), leasehold::error::NameError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameScan {
    /// The names, each once, in no particular order.
    pub names: Vec<LockName>,
    /// Whether the scan came to its end. Otherwise it took too long or found too much.
    pub is_complete: bool,
}

impl NameScan {
    /// The result of a scan.
    pub const fn new(names: Vec<LockName>, is_complete: bool) -> Self {
        Self { names, is_complete }
    }

    /// Adds what another server has.
    pub(crate) fn merge(&mut self, other: Self) {
        self.is_complete &= other.is_complete;
        self.names.extend(other.names);
    }
}
