//! Which hold of the keeper's.

/// Which hold of the keeper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeepId(pub(in crate::engine) u64);
