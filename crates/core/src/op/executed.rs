//! Whether an operation without a reply was executed.

/// Whether an operation that has no reply was executed.
///
/// It is the one answer to that question: a store gives it beside the fault that it reports, the state machines of this
/// crate decide by it, and it selects the variant of the error that the caller receives.
///
/// It has no `Yes`: only a reply proves that an operation was executed, and with a reply the question does not arise. It is
/// not a `bool`, so that each place that decides by it names [`Unknown`](Self::Unknown), which means neither "no" nor "yes":
/// an operation that is still under way can take effect later.
///
/// ```
/// use leasehold_core::Executed;
///
/// // Sent twice: the first reply was lost, and the second sending was refused.
/// assert_eq!(Executed::No.or(Executed::Unknown), Executed::Unknown);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    /// It was not executed, and will not be.
    No,
    /// It may have been executed, or may still be: the reply was lost or late, or the call was cut short.
    Unknown,
}

impl Executed {
    /// The answer for an operation that was sent more than once, or to more than one server: `No` only if every sending
    /// says so.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, Self::No) => Self::No,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
        }
    }
}
