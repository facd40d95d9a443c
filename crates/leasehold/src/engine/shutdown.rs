//! Shutting a client down: releases everything within a time limit and leaves all queues.
//!
//! 1. First, nothing new begins: the gate and the lock entries are closed, and the keeper accepts nothing more.
//! 2. Then every hold becomes invalid and its loss is signaled. Only then is anything released.
//! 3. Requests are undone only when no future that could send them is being polled: an earlier undo could overtake
//!    its request.
//! 4. Everything but the sending happens in one step, and the keeper sends: the caller may drop its future.
//! 5. A hold whose release is in flight, or had no answer, belongs to no guard any more. It is released once more, after that
//!    release, on the user's own connection; the store's reply then says what became of the first one. The keeper's connection
//!    is used only if this is not answered.

use super::keeper::shutdown_report::ShutdownReport;
use super::keeper::{Outstanding, TakenHold, latest_end};
use super::{Engine, LostReason};
use leasehold_core::{LockName, Moment};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// The largest number of locks that an error names.
const NAMED: usize = 5;

/// A lock that a shutdown could not release.
///
/// [`ShutdownError`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreleasedLock {
    /// The lock.
    pub lock: LockName,
    /// Until when the store may keep the hold, or its queue entry, on the clock of [`Moment`].
    pub until: Moment,
}

/// A shutdown could not release these locks in time. They end with their leases.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let client = leasehold::Client::connect("memory:").await?;
/// # let guard = client.mutex("orders/42")?.acquire().await?;
/// if let Err(error) = client.shutdown(Duration::from_secs(5)).await {
///     for unreleased in &error.unreleased {
///         println!("{} may be held for {:?} more", unreleased.lock, unreleased.until.since(client.now()));
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownError {
    /// The locks, each once, ordered by name.
    pub unreleased: Vec<UnreleasedLock>,
    /// When the shutdown ended.
    at: Moment,
}

impl UnreleasedLock {
    /// Creates a lock that was not released, for tests of code that handles a [`ShutdownError`].
    pub const fn new(lock: LockName, until: Moment) -> Self {
        Self { lock, until }
    }
}

impl ShutdownError {
    /// Creates the error of a shutdown that ended `at` and left these locks, for tests of code that handles one.
    ///
    /// ```
    /// use leasehold::error::{ShutdownError, UnreleasedLock};
    /// use leasehold::{LockName, Moment};
    /// use std::time::Duration;
    ///
    /// let left = UnreleasedLock::new(LockName::new("orders/42")?, Moment::ZERO + Duration::from_secs(3));
    /// let error = ShutdownError::new(vec![left], Moment::ZERO);
    /// assert!(error.to_string().contains("expire within 3s: `orders/42`"));
    /// # Ok::<(), leasehold::error::NameError>(())
    /// ```
    pub const fn new(unreleased: Vec<UnreleasedLock>, at: Moment) -> Self {
        Self { unreleased, at }
    }
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.unreleased.iter().map(|left| left.until).max().unwrap_or(self.at);
        let lasts = Duration::from_millis(u64::try_from(last.since(self.at).as_millis()).unwrap_or(u64::MAX));
        write!(f, "not all locks were released in time; they expire within {lasts:?}: ")?;
        for (n, left) in self.unreleased.iter().take(NAMED).enumerate() {
            write!(f, "{}`{}`", if n == 0 { "" } else { ", " }, left.lock)?;
        }
        match self.unreleased.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl std::error::Error for ShutdownError {}

impl Engine {
    /// Releases everything, or as much as possible within `within`.
    ///
    /// Cancel safety: once polled, it continues in the background if the future is dropped.
    pub(crate) async fn shut_down(&self, within: Duration) -> Result<(), ShutdownError> {
        let by = self.environment.now() + within;
        if self.gate.close() {
            self.begin_shutdown(by);
        } else {
            self.keeper.end_by(by);
        }
        let (at, outstanding) = self.keeper.unreleased().await;
        match unreleased(at, outstanding) {
            unreleased if unreleased.is_empty() => Ok(()),
            unreleased => Err(ShutdownError { unreleased, at }),
        }
    }

    /// Closes everything and signals all losses (1, 2). The keeper does the rest.
    fn begin_shutdown(&self, by: Moment) {
        let mut taken = self.keeper.begin_shutdown();
        let mut known: BTreeSet<_> = taken.iter().map(|taken| taken.hold.claim.hold).collect();
        let mut claims = Vec::new();
        for (entry, closed) in self.locks.close() {
            let within = entry.undo_for();
            claims.extend(closed.claims.into_iter().map(|claim| (entry.lock.clone(), claim, within)));
            // A hold that its task has just acquired, before the keeper received it. The task may be extending it in
            // order to detach it.
            let holds = closed.holds.into_iter();
            let fresh = holds.filter(|hold| known.insert(hold.claim.hold));
            let fresh = fresh.map(|hold| TakenHold {
                hold,
                releasing: false,
                sent_by_user: true,
                in_background: false,
            });
            taken.extend(fresh);
        }
        // A hold that is being released already has its own cleanup and its own reason.
        taken.retain(|taken| !taken.in_background);
        let now = self.environment.now();
        let mut left_to_expire = BTreeSet::new();
        for TakenHold { hold, .. } in taken.iter().filter(|taken| !taken.releasing) {
            if !hold.may_release(now) {
                left_to_expire.insert(hold.claim.hold);
            }
            let lapsed = hold.check(&*self.environment).err();
            hold.lose(lapsed.unwrap_or(LostReason::ShutDown));
        }
        taken.retain(|taken| !left_to_expire.contains(&taken.hold.claim.hold));
        let (releasing, staying): (Vec<_>, Vec<_>) = taken.into_iter().partition(|taken| taken.releasing);
        let sent_by_user = staying.iter().filter(|taken| taken.sent_by_user);
        let sent_by_user = sent_by_user.map(|taken| taken.hold.clone()).collect();
        let register = |TakenHold { hold, .. }: TakenHold| (self.keeper.add_outstanding(&hold), hold);
        let holds = staying.into_iter().map(register).collect();
        let releasing = releasing.into_iter().map(register).collect();
        let (gate, main) = (self.gate.clone(), self.store.clone());
        self.keeper
            .finish_shutdown(ShutdownReport { holds, releasing, sent_by_user, claims, gate, main, by }, by);
        // Close the mailboxes last: the keeper may be about to begin another session.
        self.close_mailboxes();
    }
}

/// The locks not released at the end, each once.
fn unreleased(at: Moment, outstanding: Vec<Outstanding>) -> Vec<UnreleasedLock> {
    let mut last: BTreeMap<LockName, Moment> = BTreeMap::new();
    for Outstanding { lock, until, .. } in outstanding {
        let until = latest_end(until, at);
        last.entry(lock.name).and_modify(|last| *last = until.max(*last)).or_insert(until);
    }
    last.into_iter().map(|(lock, until)| UnreleasedLock { lock, until }).collect()
}
