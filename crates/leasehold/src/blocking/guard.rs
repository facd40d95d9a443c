//! The blocking guard.

use super::Error;
use crate::error::ReleaseError;
use leasehold_core::{FencingToken, LockName, Votes};

facade! {
    /// A held lock: [`leasehold::Guard`](crate::Guard), for threads.
    ///
    /// It is renewed whatever its thread does meanwhile. Any thread may use and release it. Dropping it
    /// releases the lock in the background, also in an async context and while a thread panics.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// # let steps = [1, 2];
    /// # fn rebuild(_: &i32, _: u64) {}
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let guard = client.mutex("index")?.acquire()?;
    /// for step in &steps {
    ///     guard.check()?; // stops here if the lock was lost
    ///     rebuild(step, guard.fencing_token().as_u64());
    /// }
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    ///
    /// One thread works while another waits for a loss:
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let items = [1, 2, 3];
    /// use std::time::Duration;
    ///
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let guard = client.mutex("index")?.acquire()?;
    /// let lost = guard.lost_signal();
    /// std::thread::scope(|threads| {
    ///     let working = threads.spawn(move || items.iter().take_while(|_| !lost.is_cancelled()).count());
    ///     let watching = threads.spawn(|| guard.lost_timeout(Duration::from_millis(50)));
    ///     assert_eq!(working.join().expect("no panic"), 3);
    ///     assert_eq!(watching.join().expect("no panic"), Ok(None)); // it was not lost
    /// });
    /// guard.release()?;
    /// # Ok(()) }
    /// ```
    #[must_use = "dropping a guard releases its lock"]
    pub struct Guard;

    guard { Guard }

    watch { }

    forward {
        /// Returns the lock's name.
        pub fn name(&self) -> &LockName;

        /// Returns the fencing token of this hold: a number greater than that of every earlier hold of the
        /// lock.
        pub fn fencing_token(&self) -> FencingToken;

        /// Returns how many nodes of a quorum have the hold, as of its last extend: see
        /// [`leasehold::Guard::votes`](crate::Guard::votes).
        pub fn votes(&self) -> Option<Votes>;
    }

    end {
        /// Releases the lock, and hands it to the next waiter.
        ///
        /// Fails like [`leasehold::Guard::release`](crate::Guard::release). In an async context the lock is
        /// released in the background, as if the guard had been dropped, without waiting for the result.
        pub fn release(self) -> Result<(), Error<ReleaseError>>;
    }
}
