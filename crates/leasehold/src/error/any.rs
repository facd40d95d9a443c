//! One type for all errors, for functions that call several operations.

use super::{
    AcquireError, AttachError, ConnectError, ConversionError, DetachedTextError, ExtendError,
    ForceReleaseError, InspectError, LockError, LostHold, MultiReleaseError, OwnerError, ProclaimError,
    ReleaseError, ResizeError, ReturnPermitsError, RunError, ShutdownError,
};
use crate::blocking::{self, AsyncContext};
use crate::store::{Fault, StoreUrlError};
use leasehold_core::{KeyError, LabelError, LeaseError, NameError, OwnValueError};
use std::fmt;

/// Any error of this crate. Each operation has an error of its own, which `?` converts into this one, for a function
/// that acquires a lock, works under it and releases it.
///
/// The variants hold the operation's error. Most callers need only to know what to do about it:
/// [`is_contended`](Self::is_contended), [`is_transient`](Self::is_transient), [`is_lost`](Self::is_lost).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use std::time::Duration;
///
/// # async fn send_reports() {}
/// async fn reports(client: &Client) -> Result<(), leasehold::Error> {
///     let nightly = client.mutex("nightly")?;
///     let guard = nightly.acquire_timeout(Duration::from_millis(20)).await?;
///     send_reports().await;
///     guard.check()?;
///     Ok(guard.release().await?)
/// }
///
/// let client = Client::connect("memory:").await?;
/// let _other = client.mutex("nightly")?.acquire().await?;
/// match reports(&client).await {
///     Ok(()) => println!("sent"),
///     Err(error) if error.is_contended() => println!("another process sends them: {error}"),
///     Err(error) if error.is_lost() => println!("another process may have sent them, too: {error}"),
///     Err(error) if error.is_transient() => println!("try again later: {error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A client could not connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A lock could not be created from its name and settings.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A lock was not acquired.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// A hold was not extended.
    #[error(transparent)]
    Extend(#[from] ExtendError),
    /// A leader did not publish another value.
    #[error(transparent)]
    Proclaim(#[from] ProclaimError),
    /// A lock was not released. The error may have the hold, to try again.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// Some locks of a set were not released.
    #[error(transparent)]
    ReleaseMany(#[from] MultiReleaseError),
    /// A hold was lost.
    #[error(transparent)]
    Lost(#[from] LostHold),
    /// A lock could not be inspected.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A lock was not released by force.
    #[error(transparent)]
    ForceRelease(#[from] ForceReleaseError),
    /// The number of a Semaphore's permits was not changed.
    #[error(transparent)]
    Resize(#[from] ResizeError),
    /// Some permits of a hold were not returned.
    #[error(transparent)]
    ReturnPermits(#[from] ReturnPermitsError),
    /// A detached hold could not be turned into a guard.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A text does not describe a detached hold.
    #[error(transparent)]
    DetachedText(#[from] DetachedTextError),
    /// A text is not a valid owner.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// A lease is invalid.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A text is not a valid label.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// A shutdown left locks behind.
    #[error(transparent)]
    Shutdown(#[from] ShutdownError),
    /// A shutdown on a signal failed.
    #[cfg(feature = "signal")]
    #[error(transparent)]
    Stop(#[from] super::StopError),
    /// A [blocking](crate::blocking) call was made inside an async context.
    #[error(transparent)]
    AsyncContext(#[from] AsyncContext),
}

impl Error {
    /// Whether the lock was taken, or its queue too long, for the time allowed. Nothing failed.
    pub fn is_contended(&self) -> bool {
        match self {
            Self::Acquire(error) => {
                matches!(error, AcquireError::TimedOut { .. } | AcquireError::RetriesExhausted { .. })
            }
            Self::Resize(error) => matches!(error, ResizeError::Contended { .. }),
            _ => false,
        }
    }

    /// Whether the same call may succeed later although neither program nor configuration has changed: the store could
    /// not be reached, did not reply, or cannot serve requests for the moment. Not set for a lock that is
    /// [taken](Self::is_contended) or [lost](Self::is_lost).
    pub fn is_transient(&self) -> bool {
        // Of several locks, one may be lost and the release of another may have failed.
        !self.is_lost() && self.fault().is_some_and(Fault::is_transient)
    }

    /// Whether a hold was lost: what was done under it may have overlapped with the work of another client.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Lost(_) | Self::Acquire(AcquireError::Lost(_)) => true,
            Self::Acquire(AcquireError::NotExtended(error)) => matches!(**error, ExtendError::Lost(_)),
            Self::Extend(error) | Self::Attach(AttachError::NotExtended { error, .. }) => {
                matches!(error, ExtendError::Lost(_))
            }
            Self::Proclaim(error) => matches!(error, ProclaimError::Lost(_)),
            Self::Release(error) => matches!(error, ReleaseError::Lost(_)),
            Self::ReturnPermits(error) => matches!(error, ReturnPermitsError::Lost(_)),
            Self::ReleaseMany(MultiReleaseError { failed }) => {
                failed.iter().any(|(_, error)| matches!(error, ReleaseError::Lost(_)))
            }
            _ => false,
        }
    }

    /// Returns what happened between the client and its store, if that is the cause: at which node, and in which phase
    /// of a call.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Connect(ConnectError::Store(fault))
            | Self::Acquire(
                AcquireError::Store(fault) | AcquireError::Unknown(fault) | AcquireError::Unconfirmed(fault),
            )
            | Self::ForceRelease(ForceReleaseError::Store(fault) | ForceReleaseError::Unknown(fault))
            | Self::Resize(ResizeError::Store(fault) | ResizeError::Unknown(fault))
            | Self::ReturnPermits(ReturnPermitsError::Store(fault) | ReturnPermitsError::Unknown(fault)) => {
                Some(fault)
            }
            Self::Acquire(AcquireError::NotExtended(error)) => error.fault(),
            Self::Extend(error) | Self::Attach(AttachError::NotExtended { error, .. }) => error.fault(),
            Self::Proclaim(error) => error.fault(),
            Self::Release(error) => error.fault(),
            Self::ReleaseMany(MultiReleaseError { failed }) => {
                failed.iter().find_map(|(_, error)| error.fault())
            }
            Self::Inspect(error) => Some(error.fault()),
            _ => None,
        }
    }
}

/// The errors that are part of another operation's error.
macro_rules! through {
    ($($part:ty => $whole:ty),+ $(,)?) => { $(
        impl From<$part> for Error {
            fn from(error: $part) -> Self {
                <$whole>::from(error).into()
            }
        }
    )+ };
}

through! {
    NameError => LockError,
    KeyError => LockError,
    OwnValueError => LockError,
    StoreUrlError => ConnectError,
}

impl<T> From<RunError<T>> for Error {
    /// Drops the result of a future whose hold was found lost at its release.
    fn from(error: RunError<T>) -> Self {
        match error {
            RunError::Acquire(error) => error.into(),
            RunError::Lost(lost) | RunError::LostAtRelease { lost, .. } => lost.into(),
        }
    }
}

impl<G: fmt::Debug> From<ConversionError<G>> for Error {
    /// Drops the guard, which releases its lock in the background.
    fn from(error: ConversionError<G>) -> Self {
        error.error.into()
    }
}

impl<E: Into<Self>> From<blocking::Error<E>> for Error {
    fn from(error: blocking::Error<E>) -> Self {
        match error {
            blocking::Error::AsyncContext(error) => error.into(),
            blocking::Error::Failed(error) => error.into(),
        }
    }
}

impl<G: fmt::Debug> From<blocking::ConversionError<G>> for Error {
    /// Drops the guard, which releases its lock in the background.
    fn from(error: blocking::ConversionError<G>) -> Self {
        error.error.into()
    }
}

impl From<blocking::AttachError> for Error {
    fn from(error: blocking::AttachError) -> Self {
        match error {
            blocking::AttachError::AsyncContext { .. } => AsyncContext.into(),
            blocking::AttachError::Failed(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Detached;
    use crate::guard::detached::DetachedHold;
    use crate::lock::contention::Contention;
    use crate::lost_reason::LostReason;
    use crate::store::{FaultKind, Phase};
    use leasehold_core::{Claim, FencingToken, HoldId, Label, Lock, LockName, Moment, Refused, SessionId};
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    fn busy() -> Fault {
        Fault::new(FaultKind::Busy, Phase::Reply, "here")
    }

    fn forbidden() -> Fault {
        Fault::new(FaultKind::Forbidden, Phase::Reply, "here")
    }

    fn name() -> LockName {
        "a".parse().expect("a good name")
    }

    fn lost() -> LostHold {
        LostHold::new(name(), FencingToken::new(7), LostReason::Evicted)
    }

    fn bad_label() -> LabelError {
        Label::new("x".repeat(1_000)).expect_err("too long")
    }

    fn contention() -> Box<Contention> {
        Box::default()
    }

    fn not_released(failed: impl IntoIterator<Item = ReleaseError>) -> MultiReleaseError {
        MultiReleaseError { failed: failed.into_iter().map(|error| (name(), error)).collect() }
    }

    fn store(fault: Fault) -> ReleaseError {
        ReleaseError::Store { fault, unreleased: None }
    }

    fn unknown(fault: Fault) -> ReleaseError {
        ReleaseError::Unknown { fault, unreleased: None }
    }

    fn not_attached(error: ExtendError) -> AttachError {
        let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [2; 16]));
        let (fence, lease, margin) = (FencingToken::new(7), Duration::from_secs(60), Duration::ZERO);
        let detached = Detached { claim, fence, lease, margin, valid_until: Moment::ZERO };
        let hold = DetachedHold::new(Lock::mutex(name()), detached, SystemTime::UNIX_EPOCH);
        AttachError::NotExtended { hold: Box::new(hold), error }
    }

    /// What a caller should do about an error.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Class {
        /// The lock is taken.
        Contended,
        /// The store failed, and may work later.
        Transient,
        /// The store refused.
        Permanent,
        /// The hold is lost.
        Lost,
        /// Neither: a mistake of the program or its configuration, or the end of the client.
        Other,
    }

    /// Checks every question about an error. A loss may have a fault beside it, the others have one only if it is theirs.
    #[track_caller]
    fn check(class: Class, error: impl Into<Error>) {
        let error = error.into();
        let answers = (error.is_contended(), error.is_transient(), error.is_lost());
        let expected = (class == Class::Contended, class == Class::Transient, class == Class::Lost);
        assert_eq!(answers, expected, "{error:?}");
        match class {
            Class::Transient => assert_eq!(error.fault(), Some(&busy()), "{error:?}"),
            Class::Permanent => assert_eq!(error.fault(), Some(&forbidden()), "{error:?}"),
            Class::Contended | Class::Other => assert_eq!(error.fault(), None, "{error:?}"),
            Class::Lost => {}
        }
    }

    #[test]
    fn errors_of_an_acquire_are_classified() {
        use AcquireError as E;
        use Class::{Contended, Lost, Other, Permanent, Transient};
        let waited = Duration::from_secs(1);
        check(Contended, E::TimedOut { lock: name(), waited, contention: contention() });
        check(Contended, E::RetriesExhausted { lock: name(), contention: contention() });
        for (class, fault) in [(Transient, busy()), (Permanent, forbidden())] {
            check(class, ConnectError::Store(fault.clone()));
            check(class, E::Store(fault.clone()));
            check(class, E::Unknown(fault.clone()));
            check(class, E::Unconfirmed(fault.clone()));
            check(class, E::NotExtended(Box::new(ExtendError::Store(fault.clone()))));
            check(class, RunError::<()>::Acquire(E::Store(fault.clone())));
            check(class, ConversionError { guard: (), error: E::Store(fault.clone()) });
            check(class, blocking::Error::Failed(E::Store(fault.clone())));
            let error = blocking::Error::Failed(E::Store(fault));
            check(class, blocking::ConversionError { guard: (), error });
        }
        check(Lost, E::Lost(lost()));
        check(Lost, E::NotExtended(Box::new(ExtendError::Lost(lost()))));
        check(Lost, RunError::<()>::Lost(lost()));
        check(Lost, RunError::LostAtRelease { result: 3, lost: lost() });
        check(Other, E::Impossible(Refused::Unsupported));
        check(Other, E::Closed);
        check(Other, E::NoLease);
        check(Other, E::Lease(LeaseError::TooShort(Duration::ZERO)));
        check(Other, E::LeaseTooShort { lease: Duration::from_millis(1) });
        check(Other, E::NotExtended(Box::new(ExtendError::Capped { remaining: Duration::ZERO })));
        check(Other, ConnectError::Url("nonsense".into()));
        check(Other, ConnectError::Setting("nonsense".into()));
        check(Other, ConnectError::Keeper(Arc::new(std::io::Error::other("no thread"))));
        check(Other, ConnectError::Thread(Arc::new(std::io::Error::other("no thread"))));
        check(Other, LockError::NoName);
        check(Other, NameError::Empty);
        check(Other, blocking::Error::<AcquireError>::AsyncContext(AsyncContext));
    }

    #[test]
    fn errors_of_a_hold_are_classified() {
        use Class::{Lost, Other, Permanent, Transient};
        for (class, fault) in [(Transient, busy()), (Permanent, forbidden())] {
            check(class, ExtendError::Store(fault.clone()));
            check(class, not_attached(ExtendError::Store(fault.clone())));
            check(class, blocking::AttachError::Failed(not_attached(ExtendError::Store(fault.clone()))));
            check(class, ProclaimError::Store(fault.clone()));
            check(class, ReturnPermitsError::Store(fault.clone()));
            check(class, ReturnPermitsError::Unknown(fault.clone()));
            check(class, store(fault.clone()));
            check(class, unknown(fault.clone()));
            check(class, not_released([store(fault.clone())]));
            check(class, not_released([ReleaseError::Impossible(Refused::Unsupported), unknown(fault)]));
        }
        check(Lost, lost());
        check(Lost, ExtendError::Lost(lost()));
        check(Lost, not_attached(ExtendError::Lost(lost())));
        check(Lost, ProclaimError::Lost(lost()));
        check(Lost, ReturnPermitsError::Lost(lost()));
        check(Lost, ReleaseError::Lost(LostReason::Evicted));
        check(Lost, not_released([ReleaseError::Lost(LostReason::Evicted)]));
        // Whatever became of the other locks.
        check(Lost, not_released([store(busy()), ReleaseError::Lost(LostReason::Evicted)]));
        check(Lost, not_released([ReleaseError::Lost(LostReason::Evicted), unknown(forbidden())]));
        check(Other, ExtendError::Capped { remaining: Duration::ZERO });
        check(Other, ExtendError::Lease(LeaseError::TooShort(Duration::ZERO)));
        check(Other, not_attached(ExtendError::Capped { remaining: Duration::ZERO }));
        check(Other, AttachError::AlreadyAttached { lock: name() });
        check(Other, ProclaimError::Value(bad_label()));
        check(Other, ReturnPermitsError::TooMany { returned: 3, held: 2 });
        check(Other, ReleaseError::Impossible(Refused::Unsupported));
        check(Other, DetachedTextError::Malformed);
        check(Other, LeaseError::TooShort(Duration::ZERO));
        check(Other, bad_label());
        check(Other, OwnerError::Reserved);
    }

    #[test]
    fn errors_of_an_operator_are_classified() {
        use Class::{Contended, Other, Permanent, Transient};
        for (class, fault) in [(Transient, busy()), (Permanent, forbidden())] {
            check(class, InspectError(fault.clone()));
            check(class, ForceReleaseError::Store(fault.clone()));
            check(class, ForceReleaseError::Unknown(fault.clone()));
            check(class, ResizeError::Store(fault.clone()));
            check(class, ResizeError::Unknown(fault));
        }
        check(Contended, ResizeError::Contended { limit: Some(3) });
        check(Other, ResizeError::Impossible(Refused::Unsupported));
        check(Other, ForceReleaseError::Changed { contention: contention() });
    }
}
