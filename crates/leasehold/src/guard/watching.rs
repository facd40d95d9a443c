//! What a holder can wait for while it holds a lock, besides the loss.

use super::Guard;
use crate::error::LostHold;
use leasehold_core::{Inspect, Moment, Op, Reply};
use std::time::Duration;

/// The pause before the second look for waiters. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waiting as a holder.
impl Guard {
    /// Waits until the hold ends in less than `left`, if nothing extends it meanwhile: to save work before the lock is lost.
    /// Does not complete while the hold is extended in time. Fails if the lock is lost before, as it can be at any moment.
    ///
    /// The end of a fixed lease, and of a [cap](crate::Mutex::max_hold), is known: the warning comes `left` before it. A
    /// renewal that fails is noticed later than that allows if `left` is long. A watchdog extends its lease (30 s by default)
    /// every third of it, and heartbeats extend the client's [session](crate::ClientBuilder::session_ttl) (10 s by default),
    /// which a hold never outlives, every quarter. When these fail, `left` counts as **at most half** of the lease, or of the
    /// session's time: more than that is left at every moment while all is well. By default the warning thus comes 5 s
    /// before the end, and within the first second, when the hold has a lease of 3 s, 1.5 s before it. For a longer warning
    /// set a longer session and a longer [lease](crate::ClientBuilder::watchdog_lease).
    ///
    /// After a warning the hold may still be extended; then another call waits for the next one. Until then another call
    /// warns at once, so do not call it in a loop without a pause.
    ///
    /// Cancel safety: dropping the future changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn import() {}
    /// # async fn save() {}
    /// use std::time::Duration;
    ///
    /// let import_lock = leasehold::Client::connect("memory:").await?.mutex("import")?;
    /// let guard = import_lock.lease(Duration::from_millis(300)).acquire().await?;
    /// tokio::select! {
    ///     () = import() => {}
    ///     warned = guard.warn_before(Duration::from_millis(200)) => {
    ///         warned?;
    ///         save().await; // there are 200 ms for it
    ///     }
    /// }
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn warn_before(&self, left: Duration) -> Result<(), LostHold> {
        let environment = &self.engine.environment;
        loop {
            self.check_with_reason().await?;
            let warn_at = self.warn_at(left);
            if environment.now() > warn_at {
                return Ok(());
            }
            // A little later, because that much is left at the moment itself.
            self.unless_lost(environment.sleep_until(warn_at + Duration::from_millis(1))).await?;
        }
    }

    /// The moment from which on the hold is in danger, by its own lease and by its session.
    fn warn_at(&self, left: Duration) -> Moment {
        // A hold that is not tracked is about to be lost.
        let by_lease = self.engine.keeper.warn_at(self.tracking, left);
        by_lease.unwrap_or_else(|| self.valid_until() - left).min(self.hold.session.warn_at(left))
    }

    /// Waits until another task, process or host waits for the lock: for a holder that can let others in between two steps
    /// of its work. Fails if the lock is lost before.
    ///
    /// It asks the store: at once, after 50 ms, 100 ms and so on, and then every second. Clients that do not queue, which
    /// are those of other libraries and those with a [retry policy](crate::Mutex::retry), are not seen; and over a
    /// quorum, which has no queue, only tasks of this client. While the store does not answer, the future goes on waiting.
    ///
    /// Cancel safety: dropping the future changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn rebuild_next_part() {}
    /// let mutex = leasehold::Client::connect("memory:").await?.mutex("index")?;
    /// let guard = mutex.acquire().await?;
    /// let other = tokio::spawn({
    ///     let mutex = mutex.clone();
    ///     async move { mutex.acquire().await?.release().await.map_err(leasehold::Error::from) }
    /// });
    /// {
    ///     let mut wanted = std::pin::pin!(guard.wanted());
    ///     loop {
    ///         tokio::select! {
    ///             wanted = &mut wanted => break wanted?,
    ///             () = rebuild_next_part() => {}
    ///         }
    /// #       tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    ///     }
    /// }
    /// guard.release().await?;
    /// other.await??;
    /// # Ok(()) }
    /// ```
    pub async fn wanted(&self) -> Result<(), LostHold> {
        let mut pause = FIRST_PAUSE;
        loop {
            if self.unless_lost(self.has_waiters()).await? {
                return Ok(());
            }
            let environment = &self.engine.environment;
            self.unless_lost(environment.sleep_until(environment.now() + pause)).await?;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn has_waiters(&self) -> bool {
        if self.entry.has_waiters() {
            return true;
        }
        if !self.engine.store.capabilities().queue {
            return false;
        }
        let op = Op::Inspect(Inspect { claim: None, details: false });
        match self.engine.call(&self.hold.lock, &op, self.engine.timings.call).await {
            Ok(Reply::Inspect(seen)) => seen.waiters > 0,
            Ok(_) => false,
            Err(failed) => {
                tracing::debug!(lock = %self.hold.lock, fault = %failed.fault, "cannot ask for waiters");
                false
            }
        }
    }
}
