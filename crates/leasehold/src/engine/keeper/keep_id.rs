//! The id of a hold in the keeper.

/// Identifies a hold of the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeepId(pub(in crate::engine) u64);
