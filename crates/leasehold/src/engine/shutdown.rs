//! Shutting a client down: everything is given back within a bound, and all queues are left.
//!
//! 1. First nothing begins any more: the gate and the seats are closed, and the keeper takes nothing in.
//! 2. Then no hold is believed any more, and its holder is told. Only then is anything released.
//! 3. What was asked for is undone when nobody is being polled any more who could send the question: an undo that did
//!    not wait could be executed first.
//! 4. All of it but the sending is done in one go, and the keeper sends: whoever asked for it may leave.
//! 5. A hold whose release is on its way is no guard's any more. It is released once more, behind that, by the user's own
//!    connection: what the store says then is what became of the release. The keeper's connection has it only where that
//!    has no answer.

use super::keeper::farewell::Farewell;
use super::keeper::{Handed, Owed};
use super::{Engine, LostReason};
use leasehold_core::{FIRST_LEASE, LockName, Moment, drift};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// How many locks an error names.
const NAMED: usize = 5;

/// A lock that a shutdown could not give back.
///
/// [`ShutdownError`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreturned {
    /// The lock.
    pub lock: LockName,
    /// Until when the store may have it, or a place in its queue, on the clock of [`Moment`].
    pub until: Moment,
}

/// What a shutdown could not give back within its bound: these locks end with their leases.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let client = leasehold::Client::connect("memory:").await?;
/// # let guard = client.mutex("orders/42")?.acquire().await?;
/// if let Err(error) = client.shutdown(Duration::from_secs(5)).await {
///     for left in &error.unreturned {
///         println!("{} may be held for {:?} more", left.lock, left.until.since(client.now()));
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownError {
    /// Which locks, each once, in the order of their names.
    pub unreturned: Vec<Unreturned>,
    /// When the shutdown ended.
    at: Moment,
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.unreturned.iter().map(|left| left.until).max().unwrap_or(self.at);
        let lasts = Duration::from_millis(u64::try_from(last.since(self.at).as_millis()).unwrap_or(u64::MAX));
        write!(f, "not everything could be given back in time; it ends by itself within {lasts:?}: ")?;
        for (n, left) in self.unreturned.iter().take(NAMED).enumerate() {
            write!(f, "{}`{}`", if n == 0 { "" } else { ", " }, left.lock)?;
        }
        match self.unreturned.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl std::error::Error for ShutdownError {}

impl Engine {
    /// Gives everything back, or as much as can be within `within`.
    ///
    /// Cancel safety: once polled it goes on in the background if the future is dropped.
    pub(crate) async fn shut_down(&self, within: Duration) -> Result<(), ShutdownError> {
        let by = self.world.now() + within;
        if self.gate.close() {
            self.begin_shutdown(by);
        } else {
            self.keeper.hurry(by);
        }
        let (at, owed) = self.keeper.unreturned().await;
        match unreturned(at, owed) {
            unreturned if unreturned.is_empty() => Ok(()),
            unreturned => Err(ShutdownError { unreturned, at }),
        }
    }

    /// Closes everything, and tells everybody (1, 2). The rest is the keeper's.
    fn begin_shutdown(&self, by: Moment) {
        let mut handed = self.keeper.hand_over();
        let mut known: BTreeSet<_> = handed.iter().map(|handed| handed.hold.claim.hold).collect();
        let mut claims = Vec::new();
        for (seat, cleared) in self.seats.close() {
            claims.extend(cleared.claims.into_iter().map(|claim| (seat.lock.clone(), claim)));
            // One that its task has just won, and the keeper has not got yet: it may be lengthening it, to keep it detached.
            let occupants = cleared.occupants.into_iter();
            let fresh = occupants.filter(|hold| known.insert(hold.claim.hold));
            let fresh =
                fresh.map(|hold| Handed { hold, leaving: false, sent_by_user: true, given_back: false });
            handed.extend(fresh);
        }
        // What is given back already is lost by itself, and an errand.
        handed.retain(|handed| !handed.given_back);
        for Handed { hold, .. } in handed.iter().filter(|handed| !handed.leaving) {
            let lapsed = hold.check(&*self.world).err();
            hold.lose(lapsed.unwrap_or(LostReason::ShutDown));
        }
        let (leaving, staying): (Vec<_>, Vec<_>) = handed.into_iter().partition(|handed| handed.leaving);
        let behind = staying.iter().filter(|handed| handed.sent_by_user);
        let behind = behind.map(|handed| handed.hold.clone()).collect();
        let owe = |Handed { hold, .. }: Handed| (self.keeper.owe(&hold), hold);
        let holds = staying.into_iter().map(owe).collect();
        let leaving = leaving.into_iter().map(owe).collect();
        let (gate, main) = (self.gate.clone(), self.store.clone());
        self.keeper.part(Farewell { holds, leaving, behind, claims, gate, main, by }, by);
        // In this order: the keeper may be about to begin another session.
        self.close_mailboxes();
    }
}

/// The locks of what is owed at the end, each once.
fn unreturned(at: Moment, owed: Vec<Owed>) -> Vec<Unreturned> {
    let mut last: BTreeMap<LockName, Moment> = BTreeMap::new();
    for Owed { lock, until, .. } in owed {
        // The store's clock may be slower than ours.
        let until = until + drift(until.since(at).max(FIRST_LEASE));
        last.entry(lock.name).and_modify(|last| *last = until.max(*last)).or_insert(until);
    }
    last.into_iter().map(|(lock, until)| Unreturned { lock, until }).collect()
}
