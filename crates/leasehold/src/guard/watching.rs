//! What a holder can wait for while it holds a lock, besides the loss.

use super::Guard;
use crate::error::LostHold;
use leasehold_core::{Inspect, Op, Reply};
use std::time::Duration;

/// The pause before the second look for waiters. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waiting as a holder.
impl Guard {
    /// Waits until the hold would end in less than `left`, unless it is extended: to save work in time, before the lock
    /// may be lost. Does not complete while renewals keep the end further away than that. Fails if the lock is lost before,
    /// as it can be at any moment.
    ///
    /// With a watchdog, choose a second or less. A hold begins with 3 s and is extended a second later; and it is never valid for
    /// longer than the client's session, of which less than its whole time (10 s by default) is left between heartbeats. With a
    /// longer time it completes at once.
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
            self.check()?;
            let until = self.valid_until();
            if until.since(environment.now()) < left {
                return Ok(());
            }
            // A little later, because that much is left at the moment itself.
            let at = until - left + Duration::from_millis(1);
            self.unless_lost(environment.sleep_until(at)).await?;
        }
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
