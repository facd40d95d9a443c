//! What tasks and threads of a client share state by: the primitives of std and tokio, and nothing of our own.
//!
//! Tests that explore schedules (`cargo xtask shuttle`) are built with stand-ins of the same meaning, before each
//! operation of which another thread may go first. Nothing else is built with them, this library as a dependency
//! included.
//!
//! What shuttle has no stand-in for: `Arc`, whose counting is taken for one step with what went before it, and tokio's
//! `CancellationToken`, which users see. A token only ever goes from one state to the other, and whoever cancels or
//! looks at one does so next to an operation that is interrupted.

#[cfg(not(all(test, shuttle)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard, OnceLock,
    atomic::{AtomicBool, AtomicU64},
};
#[cfg(not(all(test, shuttle)))]
pub(crate) use tokio::sync::Notify;

#[cfg(all(test, shuttle))]
pub(crate) use interrupted::{Notify, OnceLock};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64},
};

/// The stand-ins that shuttle does not bring along.
#[cfg(all(test, shuttle))]
mod interrupted {
    use shuttle::sync::atomic::{AtomicBool, Ordering};

    /// A point at which another thread may go first.
    #[derive(Default)]
    struct Point(AtomicBool);

    impl Point {
        const fn new() -> Self {
            Self(AtomicBool::new(false))
        }

        fn pass(&self) {
            self.0.load(Ordering::SeqCst);
        }
    }

    pub(crate) struct OnceLock<T> {
        point: Point,
        inner: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        pub(crate) const fn new() -> Self {
            Self { point: Point::new(), inner: std::sync::OnceLock::new() }
        }

        pub(crate) fn get(&self) -> Option<&T> {
            self.point.pass();
            self.inner.get()
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            self.point.pass();
            self.inner.set(value)
        }

        pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            self.point.pass();
            self.inner.get_or_init(make)
        }
    }

    #[derive(Default)]
    pub(crate) struct Notify {
        point: Point,
        inner: tokio::sync::Notify,
    }

    impl Notify {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notify_one(&self) {
            self.point.pass();
            self.inner.notify_one();
        }

        pub(crate) fn notify_waiters(&self) {
            self.point.pass();
            self.inner.notify_waiters();
        }

        /// As in tokio, what is notified between the making of the future and its first poll counts.
        pub(crate) fn notified(&self) -> impl Future<Output = ()> {
            self.point.pass();
            let notified = self.inner.notified();
            async {
                self.point.pass();
                notified.await;
            }
        }
    }
}
