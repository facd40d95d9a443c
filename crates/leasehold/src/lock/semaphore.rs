//! Counting semaphore with up to `n` permits, resizable at run time.

use crate::engine::Engine;
use crate::error::{
    AcquireError, ForceReleaseError, InspectError, ReleaseError, ResizeError, ReturnPermitsError, RunError,
};
use crate::guard::Guard;
use crate::guard::detached::DetachedHold;
use crate::guard::lock_guard::lock_guard;
use crate::guard::status::{FullStatus, Status};
use crate::lock::contention::Contention;
use crate::lock::deadlock::Deadlock;
use crate::lock::handle::{AcquireOptions, Attempt, LockHandle, settings};
use crate::lock::observe_ends::HoldEnds;
use crate::lock::run::run_under;
use leasehold_core::{Lease, Lock, LockMode, LockName, Moment, ObservedHolder, Refused, Resize, RetryPolicy};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A counting semaphore across tasks, processes and hosts.
///
/// Permits expire and are renewed like a [`Mutex`](crate::Mutex): those of a dead process are available again
/// when its session ends, and a late release never adds a permit. Waiting is fair: waiters acquire permits in
/// the order of their requests, even if the first wants more than are free and a later one wants fewer. Each
/// hold has its own fencing token.
///
/// The store keeps the number of permits: the one given by the first client that acquires, until no client uses
/// the semaphore any more. While it is used, a client that was given another number gets
/// [`AcquireError::Impossible`], which names both; with [`resize_on_mismatch`](Self::resize_on_mismatch) it
/// changes the number instead. A [resize](Self::resize) sets another number for all clients, which go on asking
/// for their own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Attempt, Client};
///
/// let uploads = Client::connect("memory:").await?.semaphore("uploads", 3)?;
/// let one = uploads.acquire().await?;
/// let two = uploads.acquire_many(2).await?;
/// assert!(matches!(uploads.try_acquire().await?, Attempt::Taken(_)));
/// two.release().await?;
/// one.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Semaphore {
    handle: LockHandle,
    total: u32,
    /// Set if its number replaces that of the other clients.
    resizes: bool,
}

/// How often an acquire changes the number of permits, if other clients change it back.
const MAX_RESIZES: u32 = 3;
/// How often [`Semaphore::drain`] tries, if other clients acquire permits at the same time.
const MAX_DRAINS: u32 = 5;

impl Semaphore {
    /// The largest number of permits.
    pub const MAX_PERMITS: u32 = u32::MAX;

    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock, total: u32) -> Self {
        Self { handle: LockHandle::new(engine, lock), total, resizes: false }
    }

    /// The semaphore of another name, with another number of permits, of the same class, and with no other setting than
    /// whether its number replaces that of the other clients.
    pub(crate) fn sibling(&self, lock: &Lock, total: u32) -> Self {
        let mut sibling =
            Self { resizes: self.resizes, ..Self::new(self.handle.engine.clone(), lock, total) };
        sibling.handle.share_class(&self.handle);
        sibling.handle.share_deadlock(&self.handle);
        sibling
    }

    pub(crate) const fn handle(&self) -> &LockHandle {
        &self.handle
    }

    settings! {
        /// Sets the lease: a hold ends when its lease ends. Without this setting, a watchdog renews the hold
        /// for as long as its [`Permit`] lives.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long a hold lasts, however it is renewed: like
        /// [`Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often a hold is renewed: like [`Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// Keeps the lock taken for at least `delay` after a loss of a hold: like
        /// [`Mutex::lock_delay`](crate::Mutex::lock_delay).
        pub fn lock_delay(self, delay: Duration) -> Self;

        /// Has the store keep the last `entries` holds that were released: like
        /// [`Mutex::history`](crate::Mutex::history).
        pub fn history(self, entries: u16) -> Self;

        /// Sets what an acquire does that waits in a cycle: other processes wait, directly or not, for a lock of the one that
        /// acquires, and hold this one. Without this setting, it goes on waiting.
        pub fn deadlock(self, policy: Deadlock) -> Self;

        /// Limits how long [`acquire`](Self::acquire) waits. Without this setting, it waits forever.
        pub fn max_wait(self, limit: Duration) -> Self;

        /// Polls by this policy instead of queueing: like [`Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;

        /// Lets other waiters go first for so long: like
        /// [`Mutex::low_priority_for`](crate::Mutex::low_priority_for).
        pub fn low_priority_for(self, duration: Duration) -> Self;

        /// Sets the class under which this handle is reported: like [`Mutex::class`](crate::Mutex::class).
        pub fn class(self, class: &str) -> Self;
    }

    /// Makes an acquire change the number of permits where other clients use another one than this handle, as after
    /// a deploy with a new number. That ends a [resize](Self::resize) by an operator as well. From then on the clients with the old number are those that get
    /// [`AcquireError::Impossible`], unless they change it back.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use leasehold::error::{AcquireError, Refused};
    ///
    /// let client = Client::connect("memory:").await?;
    /// let old = client.semaphore("uploads", 3)?.acquire().await?;
    ///
    /// let refused = client.semaphore("uploads", 5)?.try_acquire().await;
    /// let Err(AcquireError::Impossible(Refused::Disagreement { requested: 5, known: 3, .. })) = refused else { panic!() };
    /// let new = client.semaphore("uploads", 5)?.resize_on_mismatch().acquire_many(4).await?;
    /// # new.release().await?;
    /// # old.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn resize_on_mismatch(self) -> Self {
        Self { resizes: true, ..self }
    }

    /// Returns the semaphore's name.
    pub fn name(&self) -> &LockName {
        self.handle.name()
    }

    /// Tries once to acquire a permit: succeeds if one is free and no other client waits. Like
    /// [`try_acquire_many`](Self::try_acquire_many).
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the
    /// background.
    pub async fn try_acquire(&self) -> Result<Attempt<Permit>, AcquireError> {
        self.try_acquire_many(1).await
    }

    /// Tries once to acquire `count` permits: succeeds if they are free and no other client waits.
    ///
    /// Fails with [`AcquireError::Impossible`] if `count` is zero or exceeds the number of permits, or if other
    /// clients use another number; and if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the
    /// background.
    pub async fn try_acquire_many(&self, count: u32) -> Result<Attempt<Permit>, AcquireError> {
        let ((limit, _), mut resizes) = (self.handle.limit(Some(Duration::ZERO), self.handle.now()), 0);
        loop {
            match self.handle.try_acquire(&self.options(count)).await {
                Err(AcquireError::Impossible(refused)) => self.agree(refused, &mut resizes, limit).await?,
                tried => return Ok(tried?.map(|acquired| Permit::new(acquired.guard, count))),
            }
        }
    }

    /// Acquires a permit, and waits for as long as [`max_wait`](Self::max_wait) allows, or without a limit.
    /// Like [`acquire_many`](Self::acquire_many), including cancel safety.
    pub async fn acquire(&self) -> Result<Permit, AcquireError> {
        self.acquire_many(1).await
    }

    /// Acquires `count` permits, all at once, and waits for as long as [`max_wait`](Self::max_wait) allows, or
    /// without a limit.
    ///
    /// Fails with [`AcquireError::Impossible`] if `count` is zero or exceeds the number of permits, or if other
    /// clients use another number; with [`AcquireError::TimedOut`] at the limit; and if the store refuses the request or does not reply for
    /// the client's [outage limit](crate::ClientBuilder::outage_limit).
    ///
    /// Cancel safety: if the future is dropped, its queue entry is given up, and an acquisition that may have
    /// happened is undone in the background.
    pub async fn acquire_many(&self, count: u32) -> Result<Permit, AcquireError> {
        self.acquire_within(count, self.handle.max_wait).await
    }

    /// Acquires `count` permits within `limit`. Otherwise like [`acquire_many`](Self::acquire_many),
    /// including cancel safety.
    pub async fn acquire_many_timeout(&self, count: u32, limit: Duration) -> Result<Permit, AcquireError> {
        self.acquire_within(count, Some(limit)).await
    }

    /// Acquires a permit within `limit`. Otherwise like [`acquire_many`](Self::acquire_many), including
    /// cancel safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Permit, AcquireError> {
        self.acquire_within(1, Some(limit)).await
    }

    /// Acquires `count` permits as a detached hold, which no process renews: like
    /// [`Mutex::acquire_detached`](crate::Mutex::acquire_detached), including errors and cancel safety.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, DetachedHold};
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let gpus = client.semaphore("gpus", 8)?.lease(Duration::from_secs(3600));
    /// let secret = gpus.acquire_detached(2).await?.to_secret_text();
    /// assert_eq!(gpus.available_permits().await?, 6);
    ///
    /// // When the job is done, in another process:
    /// secret.parse::<DetachedHold>()?.release(&client).await?;
    /// assert_eq!(gpus.available_permits().await?, 8);
    /// # Ok(()) }
    /// ```
    pub async fn acquire_detached(&self, count: u32) -> Result<DetachedHold, AcquireError> {
        let (start, mut resizes) = (self.handle.now(), 0);
        let (limit, _) = self.handle.limit(self.handle.max_wait, start);
        loop {
            match self.handle.acquire_detached_since(&self.options(count), start).await {
                Err(AcquireError::Impossible(refused)) => self.agree(refused, &mut resizes, limit).await?,
                acquired => return acquired,
            }
        }
    }

    /// Tries once to acquire `count` permits as a detached hold: see [`acquire_detached`](Self::acquire_detached).
    ///
    /// Cancel safety: as for that.
    pub async fn try_acquire_detached(&self, count: u32) -> Result<Attempt<DetachedHold>, AcquireError> {
        let ((limit, _), mut resizes) = (self.handle.limit(Some(Duration::ZERO), self.handle.now()), 0);
        loop {
            match self.handle.try_acquire_detached(&self.options(count)).await {
                Err(AcquireError::Impossible(refused)) => self.agree(refused, &mut resizes, limit).await?,
                tried => return tried,
            }
        }
    }

    /// Returns how many permits are free. Waiters may want some of them. They are counted of the number that the store knows;
    /// of this handle's, if no client uses the semaphore, so that the next acquire sets the number. The store reports 4096
    /// holders: those of further ones count as free.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn available_permits(&self) -> Result<u32, InspectError> {
        let status = self.handle.inspect().await?;
        let is_idle = status.shared_holders.is_empty() && status.waiting == 0;
        let is_agreed = status.limit == Some(self.total)
            || status.agreed.is_some_and(|agreed| agreed == 0 || agreed == self.total);
        let limit = status.limit.filter(|_| is_agreed || !is_idle).unwrap_or(self.total);
        Ok(limit.saturating_sub(u32::try_from(status.taken()).unwrap_or(u32::MAX)))
    }

    /// Acquires all permits that are free at this moment, as one hold. Permits that others hold are free again once they
    /// release them. Gives [`Attempt::Taken`] if none is free, if clients wait, or if others acquire permits or change their
    /// number at the same time again and again. Otherwise like [`try_acquire_many`](Self::try_acquire_many), including errors
    /// and cancel safety.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let uploads = leasehold::Client::connect("memory:").await?.semaphore("uploads", 5)?;
    /// let one = uploads.acquire().await?;
    /// let rest = uploads.drain().await?.granted().expect("four are free");
    /// assert_eq!((rest.count(), uploads.available_permits().await?), (4, 0));
    /// # rest.release().await?;
    /// # one.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn drain(&self) -> Result<Attempt<Permit>, AcquireError> {
        let ((limit, _), mut resizes) = (self.handle.limit(Some(Duration::ZERO), self.handle.now()), 0);
        for _ in 0..MAX_DRAINS {
            let free =
                self.available_permits().await.map_err(|InspectError(fault)| AcquireError::Store(fault))?;
            // Without a free permit, this says what keeps them.
            let count = free.max(1);
            match self.handle.try_acquire(&self.options(count)).await {
                Ok(Attempt::Granted(acquired)) => {
                    return Ok(Attempt::Granted(Permit::new(acquired.guard, count)));
                }
                Ok(Attempt::Taken(contention)) if free == 0 => return Ok(Attempt::Taken(contention)),
                // Others have acquired some meanwhile, or there are fewer by now.
                Ok(Attempt::Taken(_)) => {}
                Err(AcquireError::Impossible(Refused::OutOfRange { .. })) if free > 0 => {}
                Err(AcquireError::Impossible(refused)) => self.agree(refused, &mut resizes, limit).await?,
                Err(error) => return Err(error),
            }
        }
        Ok(Attempt::Taken(Contention { holder: None, ahead: None }))
    }

    /// Runs a future with a permit, and drops the future if the permit is lost: like
    /// [`Mutex::run`](crate::Mutex::run), including errors and cancel safety.
    pub async fn run<F: Future>(
        &self,
        work: impl FnOnce(Arc<Permit>) -> F,
    ) -> Result<F::Output, RunError<F::Output>> {
        run_under(self.acquire().await?, work).await
    }

    /// Changes the number of permits for all processes. If it grows, waiters are admitted at once. If it
    /// shrinks, current holders keep their permits, and no waiter is admitted until there is room; a waiter
    /// that wants more permits than there are now fails with [`AcquireError::Impossible`].
    ///
    /// Fails with [`ResizeError::Impossible`] for 0; with [`ResizeError::Contended`] if other clients kept
    /// changing the number meanwhile; and if the store does not reply within the call timeout, or refuses the
    /// request.
    ///
    /// Cancel safety: if the future is dropped, the number may have been changed, or may still be; but it
    /// never overwrites a later change by another client.
    pub async fn resize(&self, permits: u32) -> Result<(), ResizeError> {
        self.handle.resize(permits).await
    }

    /// Observes the ends of holds, by whichever client: like [`Mutex::observe_ends`](crate::Mutex::observe_ends), including
    /// errors and cancel safety.
    pub async fn observe_ends(&self) -> Result<HoldEnds, InspectError> {
        HoldEnds::begin(&self.handle).await
    }

    /// Returns the current state of the semaphore: all holders of permits, the number of permits, and the
    /// number of waiters. Changes nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        let status = self.handle.inspect().await?;
        Ok(self.with_limit(status))
    }

    /// Returns the current state with the details an operator needs: like
    /// [`Mutex::inspect_full`](crate::Mutex::inspect_full).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
        let mut full = self.handle.inspect_full().await?;
        full.status = self.with_limit(full.status);
        Ok(full)
    }

    /// Releases by force the permits of one hold that was [observed](crate::inspect::SharedHolder::observed), dead or
    /// alive: like [`Mutex::force_release`](crate::Mutex::force_release).
    ///
    /// Cancel safety: if the future is dropped, the hold may have been ended, or may still be.
    pub async fn force_release(&self, observed: ObservedHolder) -> Result<(), ForceReleaseError> {
        self.handle.force_release(observed).await
    }

    pub(crate) fn set(mut self, change: impl Fn(&mut LockHandle)) -> Self {
        change(&mut self.handle);
        self
    }

    /// Adds the number of permits that the first acquire sets, where the store does not have one yet.
    fn with_limit(&self, status: Status) -> Status {
        Status { limit: status.limit.or(Some(self.total)), ..status }
    }

    async fn acquire_within(&self, count: u32, limit: Option<Duration>) -> Result<Permit, AcquireError> {
        self.acquire_since(count, limit, self.handle.now()).await
    }

    /// Acquires `count` permits by a call that began at `start`: its limit counts from then.
    pub(crate) async fn acquire_since(
        &self,
        count: u32,
        limit: Option<Duration>,
        start: Moment,
    ) -> Result<Permit, AcquireError> {
        let mut resizes = 0;
        let (until, _) = self.handle.limit(limit, start);
        loop {
            match self.handle.acquire_since(&self.options(count), limit, start).await {
                Err(AcquireError::Impossible(refused)) => self.agree(refused, &mut resizes, until).await?,
                acquired => return Ok(Permit::new(acquired?.guard, count)),
            }
        }
    }

    /// Replaces the number that the other clients use by that of this handle, if it may; or ends what dead ones hold, which use
    /// none; until the limit of the acquire. Otherwise returns the refusal.
    async fn agree(
        &self,
        refused: Refused,
        resizes: &mut u32,
        until: Option<Moment>,
    ) -> Result<(), AcquireError> {
        let Refused::Disagreement { limit, .. } = refused else {
            return Err(AcquireError::Impossible(refused));
        };
        let is_over = until.is_some_and(|until| until <= self.handle.now());
        if is_over || *resizes >= MAX_RESIZES {
            return Err(AcquireError::Impossible(refused));
        }
        *resizes += 1;
        if !self.resizes {
            // A refusal names no session to watch, as a wait does.
            let ended = self.handle.evict_dead(until).await;
            return if ended { Ok(()) } else { Err(AcquireError::Impossible(refused)) };
        }
        let resize = Resize { observed: Some(limit), limit: self.total, agreed: true };
        match self.handle.resize_until(resize, until).await {
            // If another client has changed it meanwhile, the next attempt says so.
            Ok(_) => Ok(()),
            Err(ResizeError::Store(fault) | ResizeError::Unknown(fault)) => Err(AcquireError::Store(fault)),
            Err(_) => Err(AcquireError::Impossible(refused)),
        }
    }

    fn options(&self, count: u32) -> AcquireOptions {
        AcquireOptions { mode: LockMode::Permits { count, total: self.total }, ..AcquireOptions::default() }
    }
}

/// One or more permits of a [`Semaphore`], held as one hold.
///
/// [Releasing](Self::release) or dropping it returns the permits. A hold can end before its permit is
/// dropped: the methods of [`Guard`] check for that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn upload() {}
/// let uploads = leasehold::Client::connect("memory:").await?.semaphore("uploads", 3)?;
/// let permit = uploads.acquire().await?;
/// tokio::select! {
///     lost = permit.lost() => eprintln!("stopped: {lost}"),
///     () = upload() => permit.release().await?,
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a permit releases it"]
pub struct Permit {
    guard: Guard,
    /// How many permits the hold has at least.
    count: u32,
    /// Set while the store may have more, after a return without an answer.
    is_returning: bool,
}

impl Permit {
    fn new(guard: Guard, count: u32) -> Self {
        Self { guard, count, is_returning: false }
    }

    /// Returns the number of permits in this hold.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns `count` of the permits, and admits the next waiters. The hold goes on with the others, and its fencing token.
    ///
    /// Fails with [`ReturnPermitsError::TooMany`] if no permit would be left; if the hold was lost; with
    /// [`ReturnPermitsError::Store`] if the store was not reached or refuses the request, so that the hold has as many as
    /// before; and with [`ReturnPermitsError::Unknown`] if it does not reply within the call timeout. Then other clients may
    /// have the permits already, so [`count`](Self::count) no longer counts them, and the next call, also one of 0, returns
    /// them if they are not returned yet.
    ///
    /// Cancel safety: if the future is dropped after its first poll, it is as with `Unknown`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpus = leasehold::Client::connect("memory:").await?.semaphore("gpus", 8)?;
    /// let mut permit = gpus.acquire_many(8).await?;
    /// // The second half of the job needs less:
    /// permit.return_permits(6).await?;
    /// assert_eq!((permit.count(), gpus.available_permits().await?), (2, 6));
    /// # permit.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn return_permits(&mut self, count: u32) -> Result<(), ReturnPermitsError> {
        let too_many = ReturnPermitsError::TooMany { returned: count, held: self.count };
        let kept = self.count.checked_sub(count).filter(|kept| *kept > 0).ok_or(too_many)?;
        if count == 0 && !self.is_returning {
            return Ok(());
        }
        // From here on other clients may have them, whatever becomes of the reply.
        let before = std::mem::replace(&mut self.count, kept);
        let was_returning = std::mem::replace(&mut self.is_returning, true);
        let returned = self.guard.keep_permits(kept).await;
        match &returned {
            Ok(()) => self.is_returning = false,
            Err(ReturnPermitsError::Store(_)) => (self.count, self.is_returning) = (before, was_returning),
            Err(_) => {}
        }
        returned
    }

    pub(crate) fn into_guard(self) -> Guard {
        self.guard
    }

    /// Releases the permits, and admits the next waiters: like [`Guard::release`], including errors and
    /// cancel safety.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl Deref for Permit {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

lock_guard! { Permit as Guard by release }

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("guard", &self.guard)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
