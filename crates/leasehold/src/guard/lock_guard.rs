//! What the guards of all kinds of locks have in common.

use crate::error::{LostHold, ReleaseError};
use crate::guard::Guard;
use futures_util::future::BoxFuture;
use leasehold_core::{FencingToken, LockName};
use std::fmt;
use std::time::Duration;

/// A guard of one lock of any kind, for code that does not depend on the kind, or that receives guards of its own in
/// tests: see [`Locks`](crate::Locks).
///
/// All guards of one lock implement it: [`Guard`], [`ReentrantGuard`](crate::ReentrantGuard),
/// [`ReadGuard`](crate::ReadGuard), [`UpgradableGuard`](crate::UpgradableGuard), [`WriteGuard`](crate::WriteGuard),
/// [`Permit`](crate::Permit), [`KeyedPermit`](crate::KeyedPermit), [`Leadership`](crate::Leadership) and
/// [`PeriodGuard`](crate::PeriodGuard). All but the last and the [`KeyedPermit`](crate::KeyedPermit), which is two holds,
/// also dereference to a [`Guard`]. A [`MultiGuard`](crate::MultiGuard) has several names and tokens, and does not
/// implement it. Blocking guards implement `blocking::LockGuard`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::error::LostHold;
/// use leasehold::{Client, LockGuard};
///
/// fn write(guard: &dyn LockGuard, line: &str) -> Result<(), LostHold> {
///     guard.check()?;
///     println!("{}: {line}", guard.fencing_token());
///     Ok(())
/// }
///
/// let client = Client::connect("memory:").await?;
/// write(&client.mutex("orders/42")?.acquire().await?, "paid")?;
/// write(&client.semaphore("uploads", 3)?.acquire().await?, "sent")?;
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

    /// Waits until the lock is lost: like [`Guard::lost`].
    ///
    /// Cancel safety: dropping the future changes nothing.
    fn lost(&self) -> BoxFuture<'_, LostHold>;

    /// Releases the lock: [`Guard::release`], [`Leadership::resign`](crate::Leadership::resign),
    /// [`PeriodGuard::finish`](crate::PeriodGuard::finish).
    ///
    /// Errors and cancel safety: as for those.
    fn release(self: Box<Self>) -> BoxFuture<'static, Result<(), ReleaseError>>;
}

/// Implements [`LockGuard`] by the methods of the same names of a type, which the guard is or dereferences to, and by the
/// one that releases.
macro_rules! lock_guard {
    ($($guard:ident as $inner:ident by $release:ident),+) => { $(
        impl $crate::guard::lock_guard::LockGuard for $guard {
            fn name(&self) -> &leasehold_core::LockName {
                $inner::name(self)
            }

            fn fencing_token(&self) -> leasehold_core::FencingToken {
                $inner::fencing_token(self)
            }

            fn remaining(&self) -> std::time::Duration {
                $inner::remaining(self)
            }

            fn check(&self) -> Result<(), $crate::error::LostHold> {
                $inner::check(self)
            }

            fn lost(&self) -> futures_util::future::BoxFuture<'_, $crate::error::LostHold> {
                Box::pin($inner::lost(self))
            }

            fn release(
                self: Box<Self>,
            ) -> futures_util::future::BoxFuture<'static, Result<(), $crate::error::ReleaseError>> {
                Box::pin(async move {
                    let guard = *self;
                    guard.$release().await.map(drop)
                })
            }
        }
    )+ };
}
pub(crate) use lock_guard;

lock_guard! { Guard as Guard by release }
