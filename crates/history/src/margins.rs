//! How long what is correct may take.

/// How long what is correct may take. The defaults suit a machine that is busy; all are in microseconds.
///
/// ```
/// use leasehold_history::Margins;
///
/// let patient = Margins { wake_up_us: 10_000_000, ..Margins::default() };
/// assert!(patient.wake_up_us > Margins::default().wake_up_us);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Margins {
    /// `order`: how much later the second of two waiters must have asked, and how much longer the first must have waited.
    pub order_us: u64,
    /// `wake_ups`: how long a lock may be free while a process waits for it.
    pub wake_up_us: u64,
    /// `answers`: how long after its limit a call may return.
    pub answer_us: u64,
    /// `answers`: how long after its limit a call may return whose process, connection or store was in a fault.
    pub answer_in_fault_us: u64,
    /// How long after the end of a fault, besides the lease and the session, what it hit may need to recover.
    pub recovery_us: u64,
}

impl Default for Margins {
    fn default() -> Self {
        Self {
            order_us: 250_000,
            wake_up_us: 2_000_000,
            answer_us: 1_000_000,
            answer_in_fault_us: 10_000_000,
            recovery_us: 2_000_000,
        }
    }
}
