//! Changing the number of permits of a Semaphore.

/// Set the number of permits of a Semaphore, whatever number is held now.
///
/// The operation compares the number that the caller has seen, so a late one does not undo a later resize.
/// Holders keep their permits even if there are now more than the limit; no other client is admitted until
/// enough permits are free.
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{Kind, Op, Reply, Resize, Resized};
///
/// let mut lock = LockState::new(Kind::Semaphore);
/// let (reply, _) = lock.apply(1_000_000, &Op::Resize(Resize { observed: None, limit: 5, agreed: false }), &all_alive);
/// assert_eq!(reply, Reply::Resize(Resized::Done));
/// let (reply, _) = lock.apply(2_000_000, &Op::Resize(Resize { observed: Some(3), limit: 4, agreed: false }), &all_alive);
/// assert_eq!(reply, Reply::Resize(Resized::Changed { limit: Some(5) }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// The number of permits that the caller has seen; `None` if the store knew no number.
    pub observed: Option<u32>,
    /// The new number of permits.
    pub limit: u32,
    /// Set if this is also the number for which clients ask from now on. Otherwise they ask for the same number as before,
    /// and get the new one.
    pub agreed: bool,
}

/// The result of a [`Resize`].
///
/// See [`Resize`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resized {
    /// The Semaphore now has the requested number of permits.
    Done,
    /// The number of permits is neither the one that the caller has seen nor the requested one. Nothing was
    /// changed.
    Changed {
        /// The number of permits.
        limit: Option<u32>,
    },
}
