//! The result of acquiring several locks in one step.

use crate::{Acquired, Refused};

/// The result for one of several locks that were requested together: all are acquired, or none.
///
/// ```
/// use leasehold_core::model::LockState;
/// use leasehold_core::{Acquire, Claim, HoldId, Label, Liveness, Lock, LockMode, SessionId, MultiAcquired};
///
/// let ask = |who: u8| {
///     let claim = Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
///     let (liveness, label) = (Liveness::Session { alive_ms: 10_000 }, Label::new("a worker").expect("it is short"));
///     Acquire { claim, lease_ms: 3_000, label, queue: None, expire_foreign_ms: None, liveness, predecessor: None, mode: LockMode::Exclusive }
/// };
/// let (mut till, mut stock) = (LockState::default(), LockState::default());
/// let both = LockState::acquire_all(&mut [(&mut till, &ask(1)), (&mut stock, &ask(2))], 1_000_000);
/// assert!(both.iter().all(|share| matches!(share, MultiAcquired::Acquired(_))));
///
/// let mut shelf = LockState::default();
/// let results = LockState::acquire_all(&mut [(&mut till, &ask(3)), (&mut shelf, &ask(4))], 2_000_000);
/// assert!(matches!(results[0], MultiAcquired::Blocked(_)) && results[1] == MultiAcquired::Available && shelf.value.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiAcquired {
    /// All locks were acquired, and this is the reply for one of them: [`Acquired::Granted`].
    Acquired(Acquired),
    /// This lock could not be acquired, and the reply says why, as for an acquire that does not queue. None of the locks
    /// was acquired.
    Blocked(Result<Acquired, Refused>),
    /// This lock could have been acquired. None of the locks was.
    Available,
    /// This very hold already exists, from an earlier sending. Nothing was changed.
    Held,
}
