//! A listing: what was found, and what cannot be read.

use crate::store::{Fault, FaultKind};
use leasehold_core::Skipped;
use std::ops::Deref;

/// What a store lists: [`Client::sessions`](crate::Client::sessions), [`Client::locks`](crate::Client::locks). It can be used
/// like a slice.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let locks = client.locks().await?;
/// if !locks.skipped.is_empty() {
///     eprintln!("warning: {}", locks.skipped);
/// }
/// println!("{} locks are held", locks.len());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing<T> {
    /// What was found.
    pub items: Vec<T>,
    /// What was left out because it cannot be read: no client of this library has written it like that.
    pub skipped: Skipped,
}

impl<T> Listing<T> {
    pub(crate) fn new(items: Vec<T>, skipped: Skipped) -> Self {
        if !skipped.is_empty() {
            tracing::warn!(%skipped, "a listing is incomplete");
        }
        Self { items, skipped }
    }
}

impl<T> Deref for Listing<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> IntoIterator for Listing<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Listing<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

/// Whether a fault may concern the data of one lock alone, and other locks can be read.
pub(crate) fn may_be_of_one_lock(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::Failed(_))
}
