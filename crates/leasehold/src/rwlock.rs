//! The RwLock: readers share it, a writer is alone.

use crate::engine::Engine;
use crate::error::{AcquireError, FreeError, InspectError, ReleaseError, RunError};
use crate::guard::Guard;
use crate::owner::{Owner, Owners};
use crate::request::{Asker, Attempt, Kept, Request, settings};
use crate::status::{Details, Status};
use leasehold_core::{Lease, Lock, LockName, Portion, Refused, RetryPolicy, Seen};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A lock that any number of readers can have at a time, or one writer.
///
/// It is fair to both: readers that came before a writer go before him, all together, and those that came after him wait
/// until he is done. So neither side starves. Each hold ends by itself: a reader who lives keeps no dead one alive, and
/// each has a fencing token of its own.
///
/// Who has it is an [`Owner`], as with a [`ReentrantMutex`](crate::ReentrantMutex): the one that was
/// [given](Self::owned_by), else the one in whose [scope](Owner::scope) the task is, else one of its own. An owner who
/// reads may read once more at once, also past a writer who waits, who would otherwise wait for him for ever; so may the
/// writer. What would make an owner wait for himself fails at once, with [`AcquireError::Impossible`]: to write while he
/// reads, or to write twice. Who reads and may have to write begins with an
/// [upgradable read](Self::upgradable_read).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn look_up() -> bool { false }
/// # async fn rebuild() {}
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
///
/// let reading = index.upgradable_read().await?;
/// if look_up().await {
///     return Ok(reading.release().await?);
/// }
/// let writing = reading.upgrade().await?; // when the other readers are done
/// rebuild().await;
/// let reading = writing.downgrade().await?; // lets the other readers in
/// reading.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct RwLock {
    access: Access,
    owners: Arc<Owners>,
    /// Set if it does not depend on the task.
    owner: Option<Owner>,
}

/// How the parts of a lock are asked for.
#[derive(Debug, Clone)]
struct Access {
    read: Request,
    write: Request,
}

impl Access {
    /// Acquires a part in an owner's name.
    async fn acquire(
        &self,
        owner: &Owner,
        portion: Portion,
        limit: Option<Duration>,
    ) -> Result<Kept, AcquireError> {
        let (request, asker) = (self.request(portion), asker(owner, portion));
        match request.acquire(&asker, limit).await {
            Err(error) if waits_for_himself(&error) => {
                request.undone().await;
                request.acquire(&asker, limit).await
            }
            acquired => acquired,
        }
    }

    /// Tries once to acquire a part in an owner's name.
    async fn try_acquire(&self, owner: &Owner, portion: Portion) -> Result<Attempt<Kept>, AcquireError> {
        let (request, asker) = (self.request(portion), asker(owner, portion));
        match request.try_acquire(&asker).await {
            Err(error) if waits_for_himself(&error) => {
                request.undone().await;
                request.try_acquire(&asker).await
            }
            tried => tried,
        }
    }

    fn request(&self, portion: Portion) -> &Request {
        match portion {
            Portion::Write | Portion::Upgrade => &self.write,
            _ => &self.read,
        }
    }
}

/// Whether an owner is said to wait for himself. It may be for what he has given up a moment ago, which stands in his way
/// until it is undone.
fn waits_for_himself(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Impossible(Refused::WouldDeadlock))
}

fn asker(owner: &Owner, portion: Portion) -> Asker {
    let (value, by_lease) = (Some(owner.text().clone()), owner.has_travelled());
    Asker { value, by_lease, portion, ..Asker::default() }
}

impl RwLock {
    pub(crate) fn new(engine: Arc<Engine>, owners: Arc<Owners>, lock: &Lock) -> Self {
        let read = Request::new(engine, lock);
        Self { access: Access { write: read.clone(), read }, owners, owner: None }
    }

    /// For whom it is acquired, whatever scope the task is in.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    settings! {
        /// How long a hold lasts, of readers and writers: it ends when the lease ends. Without a lease a watchdog renews it
        /// for as long as its guard lives.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most, whatever renews it: as [`Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a hold is renewed at most: as [`Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`read`](Self::read) and the others wait at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;

        /// Polls by this policy in place of queueing: as [`Mutex::retry`](crate::Mutex::retry).
        pub fn retry(self, policy: RetryPolicy) -> Self;
    }

    /// How long a hold of a reader lasts, upgradable or not: as [`lease`](Self::lease).
    #[must_use]
    pub fn read_lease(mut self, lease: impl Into<Lease>) -> Self {
        self.access.read.lease(lease.into());
        self
    }

    /// How long a hold of a writer lasts: as [`lease`](Self::lease).
    #[must_use]
    pub fn write_lease(mut self, lease: impl Into<Lease>) -> Self {
        self.access.write.lease(lease.into());
        self
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.access.read.name()
    }

    /// Reads: waits until no writer has the lock, nor waits before.
    ///
    /// Fails with [`AcquireError::TimedOut`] where [`wait`](Self::wait) sets a limit, and if the store refuses, or does not
    /// answer for as long as the client's outage limit.
    ///
    /// Cancel safety: if the future is dropped, its place in the queue is given up, and an acquisition that may have
    /// happened is undone in the background.
    pub async fn read(&self) -> Result<ReadGuard, AcquireError> {
        self.read_within(self.access.read.wait).await
    }

    /// Reads within `limit`. Otherwise as [`read`](Self::read), also as to cancel safety.
    pub async fn read_timeout(&self, limit: Duration) -> Result<ReadGuard, AcquireError> {
        self.read_within(Some(limit)).await
    }

    /// Tries once to read.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the background.
    pub async fn try_read(&self) -> Result<Attempt<ReadGuard>, AcquireError> {
        let owner = self.owner();
        let tried = self.access.try_acquire(&owner, Portion::Read).await?;
        Ok(tried.map(|kept| ReadGuard { guard: kept.guard, owner }))
    }

    /// Writes: waits until nobody has the lock, and all who came before are done.
    ///
    /// Fails with [`AcquireError::Impossible`] where its owner has the lock already, and otherwise as [`read`](Self::read).
    ///
    /// Cancel safety: as [`read`](Self::read).
    pub async fn write(&self) -> Result<WriteGuard, AcquireError> {
        self.write_within(self.access.write.wait).await
    }

    /// Writes within `limit`. Otherwise as [`write`](Self::write), also as to cancel safety.
    pub async fn write_timeout(&self, limit: Duration) -> Result<WriteGuard, AcquireError> {
        self.write_within(Some(limit)).await
    }

    /// Tries once to write: as [`try_read`](Self::try_read), also as to cancel safety.
    pub async fn try_write(&self) -> Result<Attempt<WriteGuard>, AcquireError> {
        let owner = self.owner();
        let tried = self.access.try_acquire(&owner, Portion::Write).await?;
        Ok(tried.map(|kept| WriteGuard::new(kept, owner, self.access.clone())))
    }

    /// Reads, with the right to [upgrade](UpgradableGuard::upgrade): beside other readers, but not beside another one who
    /// has that right.
    ///
    /// Fails with [`AcquireError::Impossible`] where its owner reads already, and otherwise as [`read`](Self::read).
    ///
    /// Cancel safety: as [`read`](Self::read).
    pub async fn upgradable_read(&self) -> Result<UpgradableGuard, AcquireError> {
        self.upgradable_within(self.access.read.wait).await
    }

    /// Reads with the right to upgrade, within `limit`. Otherwise as [`upgradable_read`](Self::upgradable_read), also as to
    /// cancel safety.
    pub async fn upgradable_read_timeout(&self, limit: Duration) -> Result<UpgradableGuard, AcquireError> {
        self.upgradable_within(Some(limit)).await
    }

    /// Tries once to read with the right to upgrade: as [`try_read`](Self::try_read), also as to cancel safety.
    pub async fn try_upgradable_read(&self) -> Result<Attempt<UpgradableGuard>, AcquireError> {
        let owner = self.owner();
        let tried = self.access.try_acquire(&owner, Portion::Upgradable).await?;
        Ok(tried.map(|kept| UpgradableGuard { guard: kept.guard, owner, access: self.access.clone() }))
    }

    /// Runs a future as a reader, and drops it if the hold is lost: as [`Mutex::run`](crate::Mutex::run), also as to errors
    /// and cancel safety. Whatever it acquires in the same task is acquired for the same owner.
    pub async fn run_reading<T>(&self, work: impl AsyncFnOnce(&ReadGuard) -> T) -> Result<T, RunError> {
        let held = self.read().await?;
        let result = held.guard.unless_lost(held.owner.scope(work(&held))).await?;
        told(self.name(), held.release().await);
        Ok(result)
    }

    /// Runs a future as the writer: as [`run_reading`](Self::run_reading), also as to errors and cancel safety.
    pub async fn run_writing<T>(&self, work: impl AsyncFnOnce(&WriteGuard) -> T) -> Result<T, RunError> {
        let held = self.write().await?;
        let result = held.guard.unless_lost(held.owner.scope(work(&held))).await?;
        told(self.name(), held.release().await);
        Ok(result)
    }

    /// How the lock stands: all who have it, and how many wait. Changes nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.access.read.inspect().await
    }

    /// The same, and what people want to know beside that: as
    /// [`Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_in_full(&self) -> Result<Details, InspectError> {
        self.access.read.inspect_in_full().await
    }

    /// Takes the lock from one who was [seen](crate::Sharer::seen) to have it, dead or alive, and from nobody else: as
    /// [`Mutex::free_by_force`](crate::Mutex::free_by_force).
    ///
    /// Cancel safety: if the future is dropped, the hold may have been ended, or may be yet.
    pub async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        self.access.read.free_by_force(seen).await
    }

    pub(crate) fn set(mut self, change: impl Fn(&mut Request)) -> Self {
        change(&mut self.access.read);
        change(&mut self.access.write);
        self
    }

    async fn read_within(&self, limit: Option<Duration>) -> Result<ReadGuard, AcquireError> {
        let owner = self.owner();
        let kept = self.access.acquire(&owner, Portion::Read, limit).await?;
        Ok(ReadGuard { guard: kept.guard, owner })
    }

    async fn upgradable_within(&self, limit: Option<Duration>) -> Result<UpgradableGuard, AcquireError> {
        let owner = self.owner();
        let kept = self.access.acquire(&owner, Portion::Upgradable, limit).await?;
        Ok(UpgradableGuard { guard: kept.guard, owner, access: self.access.clone() })
    }

    async fn write_within(&self, limit: Option<Duration>) -> Result<WriteGuard, AcquireError> {
        let owner = self.owner();
        let kept = self.access.acquire(&owner, Portion::Write, limit).await?;
        Ok(WriteGuard::new(kept, owner, self.access.clone()))
    }

    fn owner(&self) -> Owner {
        self.owner.clone().or_else(Owner::current).unwrap_or_else(|| self.owners.make())
    }
}

fn told(name: &LockName, released: Result<(), ReleaseError>) {
    if let Err(error) = released {
        tracing::warn!(lock = %name, %error, "not released");
    }
}

/// A reader's hold of an [`RwLock`].
///
/// It tells by the methods of [`Guard`] whether it is held still.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
/// let (one, other) = (index.read().await?, index.read().await?);
/// one.check()?;
/// one.release().await?;
/// other.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped gives the lock back"]
pub struct ReadGuard {
    guard: Guard,
    owner: Owner,
}

impl ReadGuard {
    /// Who has the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Gives the lock back, and lets in who waits: as [`Guard::release`], also as to errors and cancel safety.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

/// A reader's hold of an [`RwLock`], with the right to become the writer.
///
/// It tells by the methods of [`Guard`] whether it is held still. [`RwLock`] shows it in use.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct UpgradableGuard {
    guard: Guard,
    owner: Owner,
    access: Access,
}

/// An upgrade that failed, or a downgrade: the hold is what it was.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
/// let (reading, other) = (index.upgradable_read().await?, index.read().await?);
/// let not = reading.upgrade_timeout(Duration::from_millis(20)).await.expect_err("another one reads");
/// println!("{not}"); // "timed out after 20ms: held by …"
/// let reading = not.guard;
/// other.release().await?;
/// reading.upgrade().await?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotShifted<G: fmt::Debug> {
    /// What is held as before, unless it was lost meanwhile.
    pub guard: G,
    /// Why it is no more, or less, than that.
    #[source]
    pub error: AcquireError,
}

impl UpgradableGuard {
    /// Who has the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Becomes the writer, when all other readers are done: before all who wait, and nobody new is let in until then. The
    /// write has a hold, a lease and a fencing token of its own; the read lies under it until it is released.
    ///
    /// Fails with the guard as it was, and the error of [`RwLock::write`]; with [`AcquireError::Impossible`] or
    /// [`AcquireError::Lost`] also where the upgradable read was lost.
    ///
    /// Cancel safety: if the future is dropped, the upgradable read is dropped with it. With
    /// [`upgrade_timeout`](Self::upgrade_timeout) one waits for a while and keeps it.
    pub async fn upgrade(self) -> Result<WriteGuard, NotShifted<Self>> {
        let limit = self.access.write.wait;
        self.upgrade_within(limit).await
    }

    /// Becomes the writer within `limit`. Otherwise as [`upgrade`](Self::upgrade), also as to cancel safety.
    pub async fn upgrade_timeout(self, limit: Duration) -> Result<WriteGuard, NotShifted<Self>> {
        self.upgrade_within(Some(limit)).await
    }

    /// Gives the lock back, and lets in who waits: as [`Guard::release`], also as to errors and cancel safety.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }

    async fn upgrade_within(self, limit: Option<Duration>) -> Result<WriteGuard, NotShifted<Self>> {
        match self.access.acquire(&self.owner, Portion::Upgrade, limit).await {
            Ok(kept) => {
                // Another may have written before, if the read was lost meanwhile: what it has read is not what is there.
                if let Err(lost) = self.guard.check() {
                    return Err(NotShifted { guard: self, error: AcquireError::Lost(lost) });
                }
                let (owner, access) = (self.owner.clone(), self.access.clone());
                Ok(WriteGuard { guard: kept.guard, owner, access, under: Some(Box::new(self)) })
            }
            Err(error) => Err(NotShifted { guard: self, error }),
        }
    }
}

/// The writer's hold of an [`RwLock`].
///
/// It tells by the methods of [`Guard`] whether it is held still. [`RwLock`] shows it in use.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct WriteGuard {
    // First, so that it is dropped before what is under it: nobody may write between the two.
    guard: Guard,
    owner: Owner,
    access: Access,
    /// The upgradable read from which it came.
    under: Option<Box<UpgradableGuard>>,
}

impl WriteGuard {
    fn new(kept: Kept, owner: Owner, access: Access) -> Self {
        Self { guard: kept.guard, owner, access, under: None }
    }

    /// Who has the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Becomes a reader, and lets in the readers who wait first: nobody writes in between. The read has a hold, a lease and
    /// a fencing token of its own.
    ///
    /// Fails with the guard as it was, if the store does not answer or refuses, or if the write is lost before the read is
    /// had. That the write could not be given back afterwards is no error: it ends with its lease.
    ///
    /// Cancel safety: if the future is dropped, the lock is given back in the background.
    pub async fn downgrade(self) -> Result<ReadGuard, NotShifted<Self>> {
        if let Err(lost) = self.guard.check() {
            // What it would read could be another's by now.
            return Err(NotShifted { guard: self, error: AcquireError::Lost(lost) });
        }
        // While the write is there the read is had at once; longer than that nobody may wait for it.
        let limit = Some(self.guard.remaining());
        let kept = match self.access.acquire(&self.owner, Portion::Read, limit).await {
            Ok(kept) => kept,
            Err(error) => return Err(NotShifted { guard: self, error }),
        };
        // The write may have ended while the read was asked for, and another have written in between. That it was held yet
        // when the read was had proves that nobody has; its own clock is not ahead of the store's.
        match self.guard.check() {
            Ok(()) => {
                let owner = self.owner.clone();
                let name = self.guard.name().clone();
                told(&name, self.hand_on().await);
                Ok(ReadGuard { guard: kept.guard, owner })
            }
            Err(lost) => Err(NotShifted { guard: self, error: AcquireError::Lost(lost) }),
        }
    }

    /// Gives the lock back, with the upgradable read from which it may have come, and lets in who waits: as
    /// [`Guard::release`], also as to errors and cancel safety. Errors are those of the write; the read is given back in the
    /// background where the store does not answer.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let Self { guard, under, .. } = self;
        let released = guard.release().await;
        let_go(under, &released).await;
        released
    }

    /// The same where nobody is told: the keeper goes on with what the store does not answer.
    async fn hand_on(self) -> Result<(), ReleaseError> {
        let Self { guard, under, .. } = self;
        let released = guard.hand_on().await;
        let_go(under, &released).await;
        released
    }
}

/// Gives back what lay under a write, once that was given back. Nobody is told what becomes of it, so the keeper goes on with
/// it; and where the store has not answered before, it is not waited for once more.
async fn let_go(under: Option<Box<UpgradableGuard>>, written: &Result<(), ReleaseError>) {
    let Some(under) = under else { return };
    match written {
        Ok(()) | Err(ReleaseError::Lost(_)) => {
            let name = under.guard.name().clone();
            told(&name, under.guard.hand_on().await);
        }
        Err(ReleaseError::Store(_) | ReleaseError::Unknown(_)) => drop(under),
    }
}

/// What the guards have in common.
macro_rules! held {
    ($($guard:ident)+) => { $(
        impl Deref for $guard {
            type Target = Guard;

            fn deref(&self) -> &Guard {
                &self.guard
            }
        }

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("guard", &self.guard)
                    .field("owner", &self.owner)
                    .finish_non_exhaustive()
            }
        }
    )+ };
}

held! { ReadGuard UpgradableGuard WriteGuard }
