//! Mutual exclusion: a lock with one holder at a time.

use crate::engine::Engine;
use crate::error::{AcquireError, ForceReleaseError, InspectError, LockError, RunError};
use crate::guard::Guard;
use crate::guard::detached::DetachedHold;
use crate::guard::status::{FullStatus, Status};
use crate::lock::deadlock::Deadlock;
use crate::lock::handle::{AcquireOptions, Attempt, LockHandle, settings};
use crate::lock::observe_ends::HoldEnds;
use crate::lock::run::run_under;
use leasehold_core::{Lease, Lock, LockName, ObservedHolder, OwnValue, RetryPolicy};
use std::sync::Arc;
use std::time::Duration;

/// A mutual exclusion lock across tasks, processes and hosts.
///
/// In Redis it is a plain key, `SET name token NX PX`, which other libraries can share. It is not re-entrant:
/// a task that acquires it twice waits for itself. See [`ReentrantMutex`](crate::ReentrantMutex) for one that
/// is.
///
/// Waiting is fair: tasks of a process acquire the lock in the order of their requests, and so do processes.
/// A release hands the lock to the next waiter and notifies it. Waiters also poll, in case a notification is lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Attempt, Client};
/// use std::time::Duration;
///
/// let client = Client::connect("memory:").await?;
/// let nightly = client.mutex("nightly")?.lease(Duration::from_secs(60));
/// match nightly.try_acquire().await? {
///     Attempt::Granted(guard) => {
///         guard.check()?; // still held? no network needed
///         guard.release().await?;
///     }
///     Attempt::Taken(contention) => println!("another process does it: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Mutex {
    handle: LockHandle,
    value: Option<OwnValue>,
}

impl Mutex {
    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock) -> Self {
        Self { handle: LockHandle::new(engine, lock), value: None }
    }

    settings! {
        /// Sets the lease: the hold ends when its lease ends. Without this setting, a watchdog renews the
        /// hold for as long as its guard lives.
        ///
        /// Every hold starts with a short lease of 3 s, or this lease if it is shorter, and is extended to
        /// this lease in the background at once.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long a hold lasts, however it is renewed. Without a cap, the watchdog renews the hold of
        /// a hung task forever. The cap counts from the moment the caller acquired the lock.
        ///
        /// At the cap the hold is lost with [`LostReason::Capped`](crate::LostReason::Capped) and is then
        /// released at the store, so that the next waiter does not wait for the rest of the lease.
        /// [`extend`](Guard::extend) reaches at most up to the cap; [`extend_to`](Guard::extend_to) beyond
        /// the cap fails. With a cap shorter than 1 ms, acquiring fails with [`AcquireError::Lease`].
        ///
        /// ```
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// use leasehold::{Client, LostReason};
        /// use std::time::Duration;
        ///
        /// let index = Client::connect("memory:").await?.mutex("index")?.max_hold(Duration::from_secs(2));
        /// let guard = index.acquire().await?;
        /// let hangs = std::future::pending::<()>();
        /// tokio::select! {
        ///     () = hangs => guard.release().await?,
        ///     lost = guard.lost() => assert_eq!(lost.reason, LostReason::Capped),
        /// }
        /// # Ok(()) }
        /// ```
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often a hold is renewed. The first extension, from the initial 3 s to the full lease,
        /// does not count. With 0 the hold lasts for one watchdog lease. Each renewal moves its end to one
        /// watchdog lease from then, and happens after a third of that lease.
        ///
        /// Calls of [`extend`](Guard::extend) count too, if they lengthen the hold. After the last renewal,
        /// [`Guard::extend`] fails with [`ExtendError::Capped`](crate::error::ExtendError::Capped). When a hold
        /// renewed by the watchdog then reaches its end, it is given up as with [`max_hold`](Self::max_hold);
        /// a hold with a lease ends with that lease.
        pub fn max_renewals(self, most: u32) -> Self;

        /// Keeps the lock taken for at least `delay` after a loss, for resources that cannot compare
        /// [fencing tokens](Guard::fencing_token): what a holder that is late has still under way has that long to end. Consul
        /// calls this the lock-delay.
        ///
        /// The client requests each lease longer by `delay` and a little, and relies on the hold without that. So whenever
        /// the hold ends at its holder first, by its lease, by a [cap](Self::max_hold), in an outage or a suspend, another client
        /// is granted the lock `delay` later at the earliest. After that the guard sends no release: it fails with
        /// [`ReleaseError::Lost`](crate::error::ReleaseError::Lost), and the lock ends by its time.
        ///
        /// A release in time frees the lock at once, and so does a shutdown of the client. There is no delay where the hold ends at
        /// the store first: a forced release, a key that was removed, lost data, a fail-over. The price: the hold does not
        /// end with the client's [session](crate::ClientBuilder::session_ttl). After the death of its process the lock
        /// stays taken for the rest of the lease and the delay, so set a shorter
        /// [watchdog lease](crate::ClientBuilder::watchdog_lease). A grant that a dead waiter receives lasts for 3 s and the
        /// delay.
        ///
        /// A delay of more than 366 days is refused by the acquire, with [`AcquireError::Lease`].
        ///
        /// ```
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// use leasehold::Client;
        /// use std::time::Duration;
        ///
        /// let client = Client::connect("memory:").await?;
        /// let export = client.mutex("export")?.lock_delay(Duration::from_millis(500));
        /// let guard = export.clone().lease(Duration::from_millis(200)).acquire().await?;
        /// let lost = guard.lost().await; // a write to a disk that knows no tokens may still be under way
        /// drop(guard);
        /// assert!(export.try_acquire().await?.granted().is_none(), "{lost}, and still taken");
        /// # Ok(()) }
        /// ```
        pub fn lock_delay(self, delay: Duration) -> Self;

        /// Has the store keep a history of the lock: its last `entries` holds that were released, 100 at most, for 7 days
        /// after the last of them. [`inspect_full`](Self::inspect_full) returns it. 0, the default, keeps none.
        ///
        /// The release itself writes it, in the same step, so it takes no further request. Without a history a release
        /// costs nothing more. A hold that the tasks of one process hand on to each other is one entry,
        /// and so is a hold that was kept [idle](Self::sticky). Holds that others ended are in the audit; one that expired,
        /// or was detached, is in neither. A quorum keeps no history.
        ///
        /// ```
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let nightly = leasehold::Client::connect("memory:").await?.mutex("nightly")?.history(20);
        /// nightly.acquire().await?.release().await?;
        /// for held in nightly.inspect_full().await?.history {
        ///     println!("{} held it for {} ms", held.label, held.to_ms - held.from_ms);
        /// }
        /// # Ok(()) }
        /// ```
        pub fn history(self, entries: u16) -> Self;

        /// Sets what an acquire does that waits in a cycle: other processes wait, directly or not, for a lock of the one that
        /// acquires, and hold this one. Without this setting, it goes on waiting.
        pub fn deadlock(self, policy: Deadlock) -> Self;

        /// Limits how long [`acquire`](Self::acquire) waits. Without this setting, it waits forever.
        pub fn max_wait(self, limit: Duration) -> Self;

        /// Polls for the lock by this policy instead of queueing for it. Polling is not fair and costs one
        /// request per attempt. During the pause between two attempts, queued tasks of the same client go
        /// first.
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Lets other waiters go first for so long, counted from the call: a waiter of low priority. Until then it is in no
        /// queue, and acquires only what no other client waits for, with a try about every second. After that it
        /// queues like any other, so it does not wait for ever: its priority ages. Several priorities are several durations.
        pub fn low_priority_for(self, duration: Duration) -> Self;

        /// Sets an expiry on the lock's key if a client of another library locked it without one.
        pub fn expire_foreign(self, expiry: Duration) -> Self;

        /// Keeps a released lock in this process for up to `idle` if no task of this client waits for it. A
        /// task of this client that acquires the lock within that time gets it without a request to the
        /// store. The lock is released at the store as soon as another process requests it, of which the
        /// store notifies this client, and at the latest after `idle` or when the lease of the hold ends.
        ///
        /// Use it for a lock that one process acquires again and again, and other processes now and then:
        /// they wait for one more message. If this process dies, it keeps the lock until its session ends. To
        /// other clients, [`inspect`](Self::inspect) shows the lock as held. Clients of other libraries do
        /// not queue and cannot request the lock this way, so do not use a long `idle` for a lock shared with
        /// them.
        ///
        /// ```
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// use std::time::Duration;
        ///
        /// let client = leasehold::Client::connect("memory:").await?;
        /// let shard = client.mutex("shard/7")?.sticky(Duration::from_millis(200));
        /// let mut last = None;
        /// for _ in 0..100 {
        ///     let guard = shard.acquire().await?; // one request for dozens of these
        ///     assert!(last.replace(guard.fencing_token()) < Some(guard.fencing_token()));
        ///     guard.release().await?;
        /// }
        /// # Ok(()) }
        /// ```
        pub fn sticky(self, idle: Duration) -> Self;

        /// Leaves the lock free at every `every`th release of this process, instead of handing it to the next
        /// waiter. Clients of other libraries do not queue, and would starve without this. The first waiter
        /// in the queue also polls more often. All clients of the lock should use this setting.
        pub fn yield_every(self, every: u32) -> Self;

        /// Sets the class under which this handle's acquires and holds are reported to an
        /// [observer](crate::ClientBuilder::observer), in metrics and in spans, at most 80 bytes of it. Without this setting, or
        /// with an empty class, it is made from the name, with `*` in place of what looks like an id: `orders/42` is of class `orders/*`.
        /// A client has at most 200 classes, and then `other`.
        ///
        /// ```
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let client = leasehold::Client::connect("memory:").await?;
        /// let order = client.mutex("bestellung-xvii")?.class("orders");
        /// # order.acquire().await?.release().await?;
        /// # Ok(()) }
        /// ```
        pub fn class(self, class: &str) -> Self;
    }

    /// Sets the value stored at the lock's key, in place of a random token. It need not be unique: two holds
    /// with the same value still exclude each other. Treat it like a password: a client that knows the value
    /// can release the lock.
    pub fn value(mut self, value: impl AsRef<str>) -> Result<Self, LockError> {
        self.value = Some(OwnValue::new(value)?);
        Ok(self)
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        self.handle.name()
    }

    /// Tries to acquire the lock once: succeeds if it is free and no other client waits for it. If this client is still
    /// releasing the lock, after a guard was dropped, waits for that, at most for the call timeout, and tries once more.
    ///
    /// A taken lock is not an error: it is [`Attempt::Taken`]. Fails if the store does not reply within the
    /// call timeout, or refuses the request.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the
    /// background.
    pub async fn try_acquire(&self) -> Result<Attempt, AcquireError> {
        Ok(self.handle.try_acquire(&self.options()).await?.map(|acquired| acquired.guard))
    }

    /// Acquires the lock, and waits for it for as long as [`max_wait`](Self::max_wait) allows, or without a
    /// limit.
    ///
    /// Fails with [`AcquireError::TimedOut`] at the limit, and if the store refuses the request or does not
    /// reply for the client's [outage limit](crate::ClientBuilder::outage_limit).
    ///
    /// Cancel safety: if the future is dropped, its queue entry is given up, and an acquisition that may have
    /// happened is undone in the background. If other tasks of the same process wait, the process keeps its
    /// place in the queue.
    pub async fn acquire(&self) -> Result<Guard, AcquireError> {
        self.acquire_within(self.handle.max_wait).await
    }

    /// Acquires the lock within `limit`. Otherwise like [`acquire`](Self::acquire), including cancel safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Guard, AcquireError> {
        self.acquire_within(Some(limit)).await
    }

    /// Tries once to acquire a detached hold: see [`acquire_detached`](Self::acquire_detached).
    ///
    /// Fails like that method, except that a taken lock is a value.
    ///
    /// Cancel safety: as for [`acquire_detached`](Self::acquire_detached).
    pub async fn try_acquire_detached(&self) -> Result<Attempt<DetachedHold>, AcquireError> {
        self.handle.try_acquire_detached(&self.options()).await
    }

    /// Acquires the lock as a detached hold, which no process renews. Waits for as long as
    /// [`max_wait`](Self::max_wait) allows, or without a limit. The hold ends with its
    /// [`lease`](Self::lease), which must be set, or when a process that has its text calls
    /// [`DetachedHold::release`].
    ///
    /// When this returns, the hold has already been extended from the short initial lease to the requested
    /// one, which counts from that moment. The hold belongs to no session of this client and queues
    /// separately: tasks of this client that want the lock compete with it like any other client.
    ///
    /// Fails with [`AcquireError::NoLease`] if no lease is set, with [`AcquireError::NotExtended`] if the lock
    /// was granted but the hold could not be extended, and otherwise like [`acquire`](Self::acquire).
    ///
    /// Cancel safety: if the future is dropped, its queue entry is given up, and an acquisition that may have
    /// happened is undone in the background. If the process exits before that, the hold ends with the short
    /// initial lease, or with its full lease if that extension was already sent.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, DetachedHold};
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let migration = client.mutex("migration")?.lease(Duration::from_secs(600));
    /// let secret = migration.acquire_detached().await?.to_secret_text();
    ///
    /// // Later, perhaps in another process that received the text:
    /// let hold: DetachedHold = secret.parse()?;
    /// hold.release(&client).await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire_detached(&self) -> Result<DetachedHold, AcquireError> {
        self.handle.acquire_detached(&self.options()).await
    }

    /// Runs a future under the lock, and drops the future if the lock is lost. The closure receives the
    /// guard, for its fencing token and for checks of the hold. If the future passes a clone of it to a task that
    /// goes on, or returns it, the lock is held until the last clone is dropped.
    ///
    /// Fails if the lock is not acquired, or is lost before the future completes. If the release finds the lock lost,
    /// the error has the future's result as well: [`RunError::LostAtRelease`]. A release that fails otherwise is not
    /// an error, since the future has completed by then; it is logged as a warning, and goes on in the background.
    ///
    /// Cancel safety: if the future is dropped, the inner future is dropped with it, and the lock is released
    /// in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// # async fn write(_fence: u64) -> u32 { 2 }
    /// let written = client.mutex("sums")?.run(|guard| async move { write(guard.fencing_token().as_u64()).await }).await?;
    /// assert_eq!(written, 2);
    /// # Ok(()) }
    /// ```
    pub async fn run<F: Future>(
        &self,
        work: impl FnOnce(Arc<Guard>) -> F,
    ) -> Result<F::Output, RunError<F::Output>> {
        run_under(self.acquire().await?, work).await
    }

    /// Observes the ends of holds of this lock, by whichever client: released, expired, evicted or released by force. From now on;
    /// see [`HoldEnds`] for what it sees and costs.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn observe_ends(&self) -> Result<HoldEnds, InspectError> {
        HoldEnds::begin(&self.handle).await
    }

    /// Returns the current state of the lock, without changing it.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.handle.inspect().await
    }

    /// Returns the current state of the lock, its queue, the sessions of the holder and the waiters, and the audit of holds
    /// that other clients ended, without changing anything. If there are such sessions, this sends a second request to read
    /// them. Meant for operators, not for a call every second.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
        self.handle.inspect_full().await
    }

    /// Releases the lock by force from the holder that was [observed](FullStatus::observed), dead or alive,
    /// and hands it to the next waiter. The holder is notified at once and loses its hold with
    /// [`LostReason::ForceReleased`](crate::LostReason::ForceReleased). Until that message, its next renewal
    /// or the end of its lease, it still considers the lock held, so stop it first if you can. The forced
    /// release is recorded in the lock's audit, with this client's label.
    ///
    /// Fails with [`ForceReleaseError::Changed`] if the lock has a different hold by then: no other holder
    /// loses it. If this client, or another client with its label, already released the same hold by force,
    /// the call succeeds. Fails as well if the store does not reply within the call timeout, or refuses the
    /// request.
    ///
    /// Cancel safety: if the future is dropped, the lock may have been released, or may still be.
    pub async fn force_release(&self, observed: ObservedHolder) -> Result<(), ForceReleaseError> {
        self.handle.force_release(observed).await
    }

    fn set(mut self, change: impl Fn(&mut LockHandle)) -> Self {
        change(&mut self.handle);
        self
    }

    async fn acquire_within(&self, limit: Option<Duration>) -> Result<Guard, AcquireError> {
        Ok(self.handle.acquire(&self.options(), limit).await?.guard)
    }

    fn options(&self) -> AcquireOptions {
        AcquireOptions { value: self.value.clone(), ..AcquireOptions::default() }
    }
}
