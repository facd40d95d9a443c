//! The synchronization primitives that tasks and threads of a client share state with: those of std and
//! tokio.
//!
//! Tests that explore schedules (`cargo xtask shuttle`) are built with equivalents that let another thread
//! run before each operation. Nothing else is built with them, including this library as a dependency.
//!
//! Shuttle has no equivalent for `Arc`, whose counting is treated as one step with the operation before it,
//! nor for tokio's `CancellationToken`, which is part of the public API. A token only changes state once, and
//! code that cancels or reads one does so next to an interrupted operation.

#[cfg(not(shuttle))]
pub use std::sync::{
    Mutex, MutexGuard, OnceLock,
    atomic::{AtomicBool, AtomicU64},
};
#[cfg(not(shuttle))]
pub use tokio::sync::Notify;

#[cfg(shuttle)]
pub use interrupted::{Notify, OnceLock};
#[cfg(shuttle)]
pub use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64},
};

/// Equivalents that shuttle does not provide.
#[cfg(shuttle)]
#[allow(missing_debug_implementations, reason = "they are not printed")]
mod interrupted {
    use shuttle::sync::atomic::{AtomicBool, Ordering};

    /// A point at which another thread may run.
    #[derive(Default)]
    struct Point(AtomicBool);

    impl Point {
        const fn new() -> Self {
            Self(AtomicBool::new(false))
        }

        fn action(&self) {
            self.0.load(Ordering::SeqCst);
        }
    }

    pub struct OnceLock<T> {
        point: Point,
        inner: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        pub const fn new() -> Self {
            Self { point: Point::new(), inner: std::sync::OnceLock::new() }
        }

        pub fn get(&self) -> Option<&T> {
            self.point.action();
            self.inner.get()
        }

        pub fn set(&self, value: T) -> Result<(), T> {
            self.point.action();
            self.inner.set(value)
        }

        pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            self.point.action();
            self.inner.get_or_init(make)
        }
    }

    #[derive(Default)]
    pub struct Notify {
        point: Point,
        inner: tokio::sync::Notify,
    }

    impl Notify {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn notify_one(&self) {
            self.point.action();
            self.inner.notify_one();
        }

        pub fn notify_waiters(&self) {
            self.point.action();
            self.inner.notify_waiters();
        }

        /// As in tokio, what is notified between the making of the future and its first poll counts.
        pub fn notified(&self) -> impl Future<Output = ()> {
            self.point.action();
            let notified = self.inner.notified();
            async {
                self.point.action();
                notified.await;
            }
        }
    }
}
