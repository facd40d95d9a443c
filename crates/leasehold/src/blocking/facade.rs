//! The macro that makes a blocking type of the async type of the same name.
//!
//! It owns what the blocking types have in common: their fields, their settings, and how a call is passed on.
//! What only one of them does is plain code beside its declaration.

use super::runtime_thread::RuntimeThread;
use super::{Error, call};
use crate::error::LostHold;
use crate::error::{AcquireError, ReleaseError, RunError};
use crate::guard::owner::OwnerFactory;
use crate::guard::owner::thread::with_thread_owner;
use crate::inspect::{FullStatus, Leader, Listing, LockInfo, SessionInfo, Status};
use crate::{Attempt, BarrierWaitResult, DetachedHold, MultiAttempt, Released};
use leasehold_core::{FencingToken, LockName};
use std::future::Future;
use std::sync::Arc;

/// Declares a blocking type: a struct of the async value of the same name, and the thread on which that
/// value's connection lives. The async type is at the root of the crate, unless its path is given. Sections list its methods, with signature and documentation. Each method passes
/// its arguments to the async method of the same name. With `impl` instead of a struct, it adds methods.
///
/// | section | its methods |
/// |---|---|
/// | `settings` | the named settings, declared once for all kinds: see `setting` |
/// | `set` | further settings: take the handle, and return it |
/// | `forward` | return at once |
/// | `wait` | block until the async call completes |
/// | `wait_as_owner` | likewise, with the calling thread as owner if there is no scope |
/// | `operator` | those of an operator, which all kinds have; it says what a forced release does |
/// | `end` | likewise, and take the guard |
/// | `guard` | those that most guards have; it names the type that the documentation links to |
/// | `lost_timeout` | the one that waits for a loss, which `guard` includes |
/// | `watch` | those that wait for what a holder reacts to |
/// | `handles` | create a handle of the kind that they return |
macro_rules! facade {
    ($(#[$doc:meta])* pub struct $kind:ident; $($sections:tt)*) => {
        facade! { $(#[$doc])* pub struct $kind: crate::$kind; $($sections)* }
    };
    ($(#[$doc:meta])* pub struct $kind:ident: $inner:ty; $($section:ident { $($methods:tt)* })*) => {
        $(#[$doc])*
        pub struct $kind {
            inner: $inner,
            /// Declared last, so that it is dropped last.
            thread: std::sync::Arc<crate::blocking::runtime_thread::RuntimeThread>,
        }

        impl crate::blocking::facade::IntoBlocking for $inner {
            type Blocking = $kind;
            fn into_blocking(self, thread: &std::sync::Arc<crate::blocking::runtime_thread::RuntimeThread>) -> $kind {
                $kind { inner: self, thread: thread.clone() }
            }
        }

        impl std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(concat!("blocking::", stringify!($kind))).field(&self.inner).finish()
            }
        }

        facade! { impl $kind; $($section { $($methods)* })* }
    };
    (impl $kind:ident; $($section:ident { $($methods:tt)* })*) => {
        $( facade! { @$section $kind $($methods)* } )*
    };
    (@settings $kind:ident $($setting:ident)+) => {
        /// Settings, as of the async type.
        impl $kind {
            $( setting! { $setting $kind } )+
        }
    };
    (@set $kind:ident $($(#[$doc:meta])* pub fn $name:ident(self, $arg:ident: $type:ty) -> Self;)+) => {
        impl $kind { $(
            $(#[$doc])*
            #[must_use]
            pub fn $name(self, $arg: $type) -> Self {
                Self { inner: self.inner.$name($arg), ..self }
            }
        )+ }
    };
    (@forward $kind:ident $(
        $(#[$doc:meta])* pub fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $output:ty;
    )+) => {
        impl $kind { $(
            $(#[$doc])*
            pub fn $name(&self $(, $arg: $type)*) -> $output {
                self.inner.$name($($arg),*)
            }
        )+ }
    };
    (@wait $kind:ident $(
        $(#[$doc:meta])* pub fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $output:ty;
    )+) => {
        /// Each call blocks until the async method of the same name completes.
        impl $kind { $(
            $(#[$doc])*
            pub fn $name(&self $(, $arg: $type)*) -> $output {
                crate::blocking::facade::wait(&self.thread, self.inner.$name($($arg),*))
            }
        )+ }
    };
    (@wait_as_owner $kind:ident $(
        $(#[$doc:meta])* pub fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $output:ty;
    )+) => {
        /// Each call blocks until the async method of the same name completes. Only
        /// [`Client::shutdown`](crate::blocking::Client::shutdown) interrupts a waiting thread.
        impl $kind { $(
            $(#[$doc])*
            pub fn $name(&self $(, $arg: $type)*) -> $output {
                let call = self.inner.$name($($arg),*);
                crate::blocking::facade::wait_as_owner(&self.inner.owners, &self.thread, call)
            }
        )+ }
    };
    (@operator $kind:ident $forced:literal) => {
        facade! {
            impl $kind;

            wait {
                #[doc = see!("Returns the current state, without changing it", $kind::inspect)]
                pub fn inspect(&self) -> Result<crate::inspect::Status, crate::blocking::Error<crate::error::InspectError>>;

                #[doc = see!("Returns the current state with the details an operator needs", $kind::inspect_full)]
                pub fn inspect_full(&self)
                    -> Result<crate::inspect::FullStatus, crate::blocking::Error<crate::error::InspectError>>;

                #[doc = see!($forced, $kind::force_release)]
                pub fn force_release(&self, observed: crate::inspect::ObservedHolder)
                    -> Result<(), crate::blocking::Error<crate::error::ForceReleaseError>>;
            }
        }
    };
    (@end $kind:ident $($(#[$doc:meta])* pub fn $name:ident(self) -> $output:ty;)+) => {
        impl $kind { $(
            $(#[$doc])*
            pub fn $name(self) -> $output {
                let Self { inner, thread } = self;
                crate::blocking::facade::wait(&thread, inner.$name())
            }
        )+ }
    };
    (@guard $kind:ident $by:ident) => {
        facade! {
            impl $kind;

            forward {
                #[doc = see!("Returns until when the hold is valid", $by::valid_until)]
                pub fn valid_until(&self) -> leasehold_core::Moment;

                #[doc = see!("Returns how long the hold is still valid", $by::remaining)]
                pub fn remaining(&self) -> std::time::Duration;

                /// Checks that the lock is still held. Fails once the hold has ended, or is known to be lost.
                /// Needs no network, and never blocks.
                pub fn check(&self) -> Result<(), crate::error::LostHold>;

                #[doc = see!("Returns whether the hold ends at its cap", $by::is_capped)]
                pub fn is_capped(&self) -> bool;

                /// Returns a token that is cancelled when the lock is lost: a flag for loops on any thread
                /// ([`is_cancelled`](tokio_util::sync::CancellationToken::is_cancelled)), and for async code.
                /// It outlives the guard, and a release never cancels it.
                pub fn lost_signal(&self) -> tokio_util::sync::CancellationToken;
            }

            wait {
                #[doc = see!("Extends the hold now", $by::extend)]
                pub fn extend(&self) -> Result<(), crate::blocking::Error<crate::error::ExtendError>>;

                #[doc = see!("Extends the hold so that it lasts `lease` from now, if it would end earlier", $by::extend_to)]
                pub fn extend_to(&self, lease: impl Into<leasehold_core::Lease>)
                    -> Result<(), crate::blocking::Error<crate::error::ExtendError>>;
            }

            lost_timeout { }
        }
    };
    (@lost_timeout $kind:ident) => {
        impl $kind {
            /// Waits for at most `limit` until the lock is lost. Returns the loss, or `None` if the lock is
            /// still held.
            ///
            /// Fails only in an async context.
            pub fn lost_timeout(
                &self,
                limit: std::time::Duration,
            ) -> Result<Option<crate::error::LostHold>, crate::blocking::AsyncContext> {
                let waited = async { tokio::time::timeout(limit, self.inner.lost()).await.ok() };
                // After a suspend of the machine the timer can be late; the clock of `check` is not.
                Ok(self.thread.wait(waited)?.or_else(|| self.inner.check().err()))
            }
        }
    };
    (@watch $kind:ident) => {
        facade! {
            impl $kind;

            wait {
                /// Blocks until the hold would end in less than `left`: see
                /// [`leasehold::Guard::warn_before`](crate::Guard::warn_before), for which `left` to choose. For a
                /// thread beside the one that works; without one, compare [`remaining`](Self::remaining) between
                /// two steps.
                ///
                /// Fails if the lock is lost before. It can wait for as long as the hold is renewed.
                ///
                /// ```
                /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
                /// # fn save() {}
                /// use std::time::Duration;
                ///
                /// let client = leasehold::blocking::Client::connect("memory:")?;
                /// let guard = client.mutex("import")?.lease(Duration::from_millis(100)).acquire()?;
                /// guard.warn_before(Duration::from_millis(80))?;
                /// save(); // there are 80 ms for it
                /// # drop(guard);
                /// # Ok(()) }
                /// ```
                pub fn warn_before(&self, left: std::time::Duration)
                    -> Result<(), crate::blocking::Error<crate::error::LostHold>>;

                /// Blocks until another task, thread, process or host waits for the lock: see
                /// [`leasehold::Guard::wanted`](crate::Guard::wanted), for which waiters are seen.
                ///
                /// Fails if the lock is lost before. It can wait for as long as the hold is renewed.
                pub fn wanted(&self) -> Result<(), crate::blocking::Error<crate::error::LostHold>>;
            }
        }

        impl $kind {
            /// Like [`wanted`](Self::wanted), but waits at most `limit`: returns whether another client waits. For a
            /// holder that lets others in between two steps of its work. Each call sends at least one request, if
            /// `limit` gives it the time.
            ///
            /// Fails if the lock is lost.
            ///
            /// ```
            /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// # fn rebuild_next_part() -> bool { false }
            /// use std::time::Duration;
            ///
            /// let client = leasehold::blocking::Client::connect("memory:")?;
            /// let guard = client.mutex("index")?.acquire()?;
            /// while rebuild_next_part() {
            ///     if guard.wanted_timeout(Duration::from_millis(20))? {
            ///         break; // goes on later
            ///     }
            /// }
            /// guard.release()?;
            /// # Ok(()) }
            /// ```
            pub fn wanted_timeout(
                &self,
                limit: std::time::Duration,
            ) -> Result<bool, crate::blocking::Error<crate::error::LostHold>> {
                let wanted = async { tokio::time::timeout(limit, self.inner.wanted()).await.ok().transpose() };
                Ok(crate::blocking::call(&self.thread, wanted)?.is_some())
            }
        }
    };
    (@handles $client:ident $(
        $(#[$doc:meta])* pub fn $name:ident(name $(, $arg:ident: $type:ty)*) -> $kind:ident;
    )+) => {
        /// Handles of locks.
        impl $client { $(
            $(#[$doc])*
            pub fn $name<N>(&self, name: N $(, $arg: $type)*) -> Result<$kind, crate::error::LockError>
            where
                N: TryInto<crate::LockName>,
                N::Error: Into<crate::error::NameError>,
            {
                Ok(self.inner.$name(name $(, $arg)*)?.into_blocking(&self.thread))
            }
        )+ }
    };
}

/// A setting of several kinds: its signature and its summary. The async method has the details.
macro_rules! setting {
    (lease $kind:ident) => {
        setting! { $kind lease(lease: impl Into<leasehold_core::Lease>), "Sets the lease" }
    };
    (max_hold $kind:ident) => {
        setting! { $kind max_hold(cap: std::time::Duration), "Caps how long a hold lasts, however it is renewed" }
    };
    (max_renewals $kind:ident) => {
        setting! { $kind max_renewals(most: u32), "Caps how often a hold is renewed" }
    };
    (lock_delay $kind:ident) => {
        setting! { $kind lock_delay(delay: std::time::Duration), "Keeps the lock taken for a while after a loss" }
    };
    (history $kind:ident) => {
        setting! { $kind history(entries: u16), "Has the store keep the last holds that were released" }
    };
    (deadlock $kind:ident) => {
        setting! { $kind deadlock(policy: crate::Deadlock), "Sets what an acquire does that waits in a cycle of processes" }
    };
    (max_wait $kind:ident) => {
        setting! { $kind max_wait(limit: std::time::Duration), "Limits how long calls wait, which is forever without it" }
    };
    (retry $kind:ident) => {
        setting! { $kind retry(policy: leasehold_core::RetryPolicy), "Polls by this policy instead of queueing" }
    };
    (low_priority_for $kind:ident) => {
        setting! { $kind low_priority_for(duration: std::time::Duration), "Lets other waiters go first for so long" }
    };
    (expire_foreign $kind:ident) => {
        setting! { $kind expire_foreign(expiry: std::time::Duration),
        "Sets an expiry on the lock's key if a client of another library locked it without one" }
    };
    (sticky $kind:ident) => {
        setting! { $kind sticky(idle: std::time::Duration), "Keeps a released lock in this process for a while" }
    };
    (yield_every $kind:ident) => {
        setting! { $kind yield_every(every: u32),
        "Leaves the lock free at every `every`th release, for clients that do not queue" }
    };
    (class $kind:ident) => {
        setting! { $kind class(class: &str), "Sets the class under which this handle is reported" }
    };
    ($kind:ident $name:ident($arg:ident: $type:ty), $summary:literal) => {
        #[doc = see!($summary, $kind::$name)]
        #[must_use]
        pub fn $name(self, $arg: $type) -> Self {
            Self { inner: self.inner.$name($arg), ..self }
        }
    };
}

/// Documentation that links to an async method.
macro_rules! see {
    ($summary:literal, $kind:ident::$name:ident) => {
        concat!(
            $summary,
            ": see [`leasehold::",
            stringify!($kind),
            "::",
            stringify!($name),
            "`](crate::",
            stringify!($kind),
            "::",
            stringify!($name),
            ").",
        )
    };
}

/// The result of an async call, for the blocking call of the same name.
pub(super) trait IntoBlocking {
    type Blocking;

    /// Gives each handle and guard in it the thread of the client.
    fn into_blocking(self, thread: &Arc<RuntimeThread>) -> Self::Blocking;
}

impl<H: IntoBlocking> IntoBlocking for Attempt<H> {
    type Blocking = Attempt<H::Blocking>;
    fn into_blocking(self, thread: &Arc<RuntimeThread>) -> Self::Blocking {
        self.map(|held| held.into_blocking(thread))
    }
}

impl<G: IntoBlocking> IntoBlocking for MultiAttempt<G> {
    type Blocking = MultiAttempt<G::Blocking>;
    fn into_blocking(self, thread: &Arc<RuntimeThread>) -> Self::Blocking {
        self.map(|held| held.into_blocking(thread))
    }
}

/// Results that need no thread.
macro_rules! without_thread {
    ($($result:ty),+ $(,)?) => { $(
        impl IntoBlocking for $result {
            type Blocking = Self;
            fn into_blocking(self, _: &Arc<RuntimeThread>) -> Self {
                self
            }
        }
    )+ };
}

without_thread! {
    (), bool, u32, u64, BarrierWaitResult, DetachedHold, FullStatus, Option<Leader>, Released, Status, Listing<LockInfo>,
    Listing<SessionInfo>,
}

/// Blocks until an async call completes.
pub(super) fn wait<T: IntoBlocking, E>(
    thread: &Arc<RuntimeThread>,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T::Blocking, Error<E>> {
    call(thread, future).map(|result| result.into_blocking(thread))
}

/// Like [`wait`], with this thread as owner if there is no scope. An owner set on the lock overrides both.
pub(super) fn wait_as_owner<T: IntoBlocking, E>(
    owners: &Arc<OwnerFactory>,
    thread: &Arc<RuntimeThread>,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T::Blocking, Error<E>> {
    with_thread_owner(owners, || wait(thread, future))
}

/// Runs a function under a lock that was acquired for it.
pub(super) fn run<G, T, R>(
    name: &LockName,
    acquired: Result<G, Error<AcquireError>>,
    work: impl FnOnce(&G) -> T,
    guard: (impl FnOnce(&G) -> Result<(), LostHold>, impl FnOnce(&G) -> FencingToken),
    release: impl FnOnce(G) -> Result<R, Error<ReleaseError>>,
) -> Result<T, Error<RunError<T>>> {
    let (check, fencing_token) = guard;
    let guard = acquired.map_err(|error| error.map(RunError::Acquire))?;
    let result = work(&guard);
    if let Err(lost) = check(&guard) {
        return Err(Error::Failed(RunError::LostAtRelease { result, lost }));
    }
    let fence = fencing_token(&guard);
    match release(guard) {
        Ok(_) => Ok(result),
        Err(Error::Failed(ReleaseError::Lost(reason))) => {
            let lost = LostHold { lock: name.clone(), fence, reason };
            Err(Error::Failed(RunError::LostAtRelease { result, lost }))
        }
        Err(error) => {
            tracing::warn!(lock = %name, %error, "not released");
            Ok(result)
        }
    }
}
