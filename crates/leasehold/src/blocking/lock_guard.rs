//! One trait over the blocking guards of one lock.

use super::{
    AsyncContext, Error, Guard, KeyedPermit, Leadership, PeriodGuard, Permit, ReadGuard, ReentrantGuard,
    UpgradableGuard, WriteGuard,
};
use crate::error::{LostHold, ReleaseError};
use leasehold_core::{FencingToken, LockName};
use std::fmt;
use std::time::Duration;

/// A guard of one lock of any kind, for threads: [`leasehold::LockGuard`](crate::LockGuard). For code that does not depend on
/// the kind, or that receives guards of its own in tests.
///
/// All blocking guards of one lock implement it. A [`MultiGuard`](super::MultiGuard) has several names and tokens, and does
/// not.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::error::LostHold;
/// use leasehold::blocking::{Client, LockGuard};
///
/// fn write(guard: &dyn LockGuard, line: &str) -> Result<(), LostHold> {
///     guard.check()?;
///     println!("{}: {line}", guard.fencing_token());
///     Ok(())
/// }
///
/// let client = Client::connect("memory:")?;
/// write(&client.mutex("orders/42")?.acquire()?, "paid")?;
/// write(&client.semaphore("uploads", 3)?.acquire()?, "sent")?;
/// # Ok(()) }
/// ```
pub trait LockGuard: fmt::Debug + Send + Sync {
    /// Returns the lock's name.
    fn name(&self) -> &LockName;

    /// Returns the fencing token of the hold: like [`Guard::fencing_token`].
    fn fencing_token(&self) -> FencingToken;

    /// Returns how long the hold is still valid: like [`Guard::remaining`].
    fn remaining(&self) -> Duration;

    /// Checks that the lock is still held: like [`Guard::check`].
    fn check(&self) -> Result<(), LostHold>;

    /// Waits for at most `limit` until the lock is lost: like [`Guard::lost_timeout`].
    fn lost_timeout(&self, limit: Duration) -> Result<Option<LostHold>, AsyncContext>;

    /// Releases the lock: [`Guard::release`], [`Leadership::resign`], [`PeriodGuard::finish`].
    ///
    /// Errors: as for those. Of two errors of a [`KeyedPermit`], it returns the loss; the other hold, if it was not released,
    /// is released in the background.
    fn release(self: Box<Self>) -> Result<(), Error<ReleaseError>>;
}

/// Implements the trait by the methods of the same names, and by the one that releases.
macro_rules! lock_guard {
    ($($guard:ident by $release:ident),+) => { $(
        impl LockGuard for $guard {
            fn name(&self) -> &LockName {
                $guard::name(self)
            }

            fn fencing_token(&self) -> FencingToken {
                $guard::fencing_token(self)
            }

            fn remaining(&self) -> Duration {
                $guard::remaining(self)
            }

            fn check(&self) -> Result<(), LostHold> {
                $guard::check(self)
            }

            fn lost_timeout(&self, limit: Duration) -> Result<Option<LostHold>, AsyncContext> {
                $guard::lost_timeout(self, limit)
            }

            fn release(self: Box<Self>) -> Result<(), Error<ReleaseError>> {
                let guard = *self;
                guard.$release().map(drop)
            }
        }
    )+ };
}

lock_guard! {
    Guard by release,
    ReentrantGuard by release,
    ReadGuard by release,
    UpgradableGuard by release,
    WriteGuard by release,
    Permit by release,
    KeyedPermit by release_worst,
    PeriodGuard by finish,
    Leadership by resign
}
