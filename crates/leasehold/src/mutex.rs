//! The Mutex: one holder at a time.

use crate::detached::DetachedHold;
use crate::engine::Engine;
use crate::error::{AcquireError, FreeError, InspectError, LockError, RunError};
use crate::guard::Guard;
use crate::request::{Asker, Attempt, Request, settings};
use crate::status::{Details, Status};
use leasehold_core::{Lease, Lock, LockName, OwnValue, RetryPolicy, Seen};
use std::sync::Arc;
use std::time::Duration;

/// A lock with one holder at a time, over tasks, processes and hosts.
///
/// In Redis it is the key that other libraries share: `SET name token NX PX`. It does not re-enter: a
/// task that acquires it twice waits for itself.
///
/// Waiting is fair: the tasks of a process in the order in which they came, and processes likewise. A
/// release hands the lock to the next one and tells it so; nobody polls.
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
///         guard.check()?; // still ours? no network needed
///         guard.release().await?;
///     }
///     Attempt::Taken(contention) => println!("somebody else does it: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Mutex {
    request: Request,
    value: Option<OwnValue>,
}

impl Mutex {
    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock) -> Self {
        Self { request: Request::new(engine, lock), value: None }
    }

    settings! {
        /// How long a hold lasts: it ends when the lease ends. Without a lease a watchdog renews the hold for
        /// as long as its guard lives.
        ///
        /// Every hold starts with a short lease of 3 s (or this one, if it is shorter) and is lengthened to this
        /// one in the background, at once.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most, whatever renews it: a cap for tasks that hang, which a watchdog would renew for
        /// ever. It counts from the moment in which the lock was acquired, as its caller sees it.
        ///
        /// At the cap the hold is lost, with [`LostReason::Capped`](crate::LostReason::Capped), and is then released at
        /// the store, so that the next waiter need not wait for the rest of the lease. An
        /// [`extend`](Guard::extend) reaches up to the cap; an [`extend_to`](Guard::extend_to) beyond it fails. A cap
        /// shorter than 1 ms makes acquiring fail with [`AcquireError::Lease`].
        ///
        /// ```
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// use leasehold::{Client, LostReason};
        /// use std::time::Duration;
        ///
        /// let index = Client::connect("memory:").await?.mutex("index")?.max_hold(Duration::from_millis(50));
        /// let guard = index.acquire().await?;
        /// let hangs = std::future::pending::<()>();
        /// tokio::select! {
        ///     () = hangs => guard.release().await?,
        ///     lost = guard.lost() => assert_eq!(lost.reason, LostReason::Capped),
        /// }
        /// # Ok(()) }
        /// ```
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a hold is renewed at most; that it reaches its lease for the first time, after the first 3 s, is not
        /// counted. With 0 it lasts one lease of the watchdog's, with `n` as much longer as `n` renewals make it.
        ///
        /// Extends by the user count, too, if they lengthen the hold. Once the last one is used up,
        /// [`Guard::extend`] fails with [`ExtendError::Capped`](crate::ExtendError::Capped). When a hold that the
        /// watchdog renews then ends it is given up, as by [`max_hold`](Self::max_hold); one with a lease ends with it.
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`acquire`](Self::acquire) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls for the lock by this policy in place of queueing for it. It is then not fair, and costs a
        /// request a try. While it pauses between two tries, tasks of the same client that queue go first.
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Gives the key an expiry if a client of another library has locked it without one.
        pub fn adopt(self, expiry: Duration) -> Self;

        /// Keeps a lock that was released, and that nobody of this client waits for, for `idle` in the process: whoever
        /// of this client acquires it again meanwhile has it without asking the store. As soon as another process asks for
        /// it the store says so, and it is given back; at the latest when `idle` is over, and for no longer than the
        /// hold has its lease.
        ///
        /// For locks that one process uses again and again, and others now and then: they wait for one message more. A
        /// process that dies keeps the lock for as long as its session. [`inspect`](Self::inspect) by others shows
        /// the lock as held. Clients of other libraries do not ask in the queue, so that a lock that they share should not be
        /// kept for long.
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

        /// Lets the lock lie free at every `every`th release of this process in place of handing it to the
        /// next waiter, for clients of other libraries that share it: they do not queue, and would starve.
        /// It also makes the first in the queue look more often. All clients of the lock should set it.
        pub fn share(self, every: u32) -> Self;
    }

    /// The value at the lock's key, in place of a random token. It need not be unique: two holds with the
    /// same value exclude each other all the same. It is as good as a password for the lock.
    pub fn value(mut self, value: impl AsRef<str>) -> Result<Self, LockError> {
        self.value = Some(OwnValue::new(value)?);
        Ok(self)
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.request.name()
    }

    /// Tries once: takes the lock if it is free and nobody waits for it.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the
    /// background.
    pub async fn try_acquire(&self) -> Result<Attempt, AcquireError> {
        Ok(self.request.try_acquire(&self.asker()).await?.map(|kept| kept.guard))
    }

    /// Acquires the lock, however long it takes, or for as long as [`wait`](Self::wait) says.
    ///
    /// Fails with [`AcquireError::TimedOut`] at the limit, and if the store refuses, or does not answer
    /// for as long as the client's outage limit.
    ///
    /// Cancel safety: if the future is dropped, its place in the queue is given up, and an acquisition
    /// that may have happened is undone in the background. Whoever waits in the same process keeps the
    /// process's place.
    pub async fn acquire(&self) -> Result<Guard, AcquireError> {
        self.acquire_within(self.request.wait).await
    }

    /// Acquires the lock within `limit`. Otherwise as [`acquire`](Self::acquire), also as to cancel
    /// safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Guard, AcquireError> {
        self.acquire_within(Some(limit)).await
    }

    /// Tries once, for a hold that no process keeps: see [`acquire_detached`](Self::acquire_detached).
    ///
    /// Fails as that does; that the lock is taken is a value.
    ///
    /// Cancel safety: as [`acquire_detached`](Self::acquire_detached).
    pub async fn try_acquire_detached(&self) -> Result<Attempt<DetachedHold>, AcquireError> {
        self.request.try_acquire_detached(&self.asker()).await
    }

    /// Acquires the lock for a hold that no process keeps, however long it takes, or for as long as
    /// [`wait`](Self::wait) says. Nobody renews the hold: it ends with its [`lease`](Self::lease), which has to be
    /// given, or by [`DetachedHold::release`], by whoever has its text.
    ///
    /// When this returns, the hold has been lengthened from the short first lease to the one that was asked for,
    /// which counts from then. It belongs to no session of this client, and waits as one more: tasks of this client
    /// that want the lock are strangers to it.
    ///
    /// Fails with [`AcquireError::NoLease`] where no lease was set, with [`AcquireError::NotKept`] if the lock was
    /// granted and could not be lengthened, and otherwise as [`acquire`](Self::acquire).
    ///
    /// Cancel safety: if the future is dropped, its place in the queue is given up, and an acquisition that may have
    /// happened is undone in the background. Should the process end before that, the hold ends with the short first
    /// lease, or with its whole lease if that was on its way.
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
    /// // Later, perhaps in another process that was handed the text:
    /// let hold: DetachedHold = secret.parse()?;
    /// hold.release(&client).await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire_detached(&self) -> Result<DetachedHold, AcquireError> {
        self.request.acquire_detached(&self.asker()).await
    }

    /// Runs a future under the lock, and drops it if the lock is lost. The closure is given the fencing
    /// token and the means to check the hold.
    ///
    /// Fails if the lock is not acquired, or lost before the future has ended. If giving it back fails,
    /// that is not an error: the future has ended by then.
    ///
    /// Cancel safety: if the future is dropped, the inner one is dropped with it, and the lock is given
    /// back in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let sum = client.mutex("sums")?.run(async |_guard| 1 + 1).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, RunError> {
        let guard = self.acquire().await?;
        let result = guard.unless_lost(work(&guard)).await?;
        if let Err(error) = guard.release().await {
            tracing::warn!(lock = %self.name(), %error, "not released");
        }
        Ok(result)
    }

    /// How the lock stands. Changes nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.request.inspect().await
    }

    /// How the lock stands, who is behind its holder, and who took it from whom. Changes nothing. A second question goes
    /// to the store's sessions, if the holder has one: for people, and not for every second.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_in_full(&self) -> Result<Details, InspectError> {
        self.request.inspect_in_full().await
    }

    /// Takes the lock from the holder that was [seen](Details::seen), dead or alive; the next in the queue gets it. Who
    /// lost it is told at once, with [`LostReason::Freed`](crate::LostReason::Freed), and believes in it until that
    /// message, its next renewal or the end of its lease: stop it first, if you can. What was done stands in the lock's
    /// audit, with this client's label.
    ///
    /// Nobody loses a lock that has come to him meanwhile: then it fails with [`FreeError::Changed`]. That this client,
    /// or another one of its label, has freed the same hold before is no error. It fails as well if the store does not
    /// answer within the call timeout, or refuses.
    ///
    /// Cancel safety: if the future is dropped, the lock may have been freed, or may be yet.
    pub async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        self.request.free_by_force(seen).await
    }

    pub(crate) fn set(mut self, change: impl Fn(&mut Request)) -> Self {
        change(&mut self.request);
        self
    }

    async fn acquire_within(&self, limit: Option<Duration>) -> Result<Guard, AcquireError> {
        Ok(self.request.acquire(&self.asker(), limit).await?.guard)
    }

    fn asker(&self) -> Asker {
        Asker { value: self.value.clone(), ..Asker::default() }
    }
}
