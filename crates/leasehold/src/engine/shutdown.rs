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

use super::gate::Gate;
use super::keeper::{Handed, Owed, Shared};
use super::{Engine, Hold, LostReason};
use crate::store::{Outcome, Store};
use leasehold_core::contend::LONGEST_PLACE;
use leasehold_core::{Claim, FIRST_LEASE, Lock, LockName, Moment, Op, Pass, Release, Released, Reply, drift};
use leasehold_store::jitter;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
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

/// What the keeper has to send before it ends.
pub(super) struct Farewell {
    /// Holds, by the numbers under which they are owed.
    holds: Vec<Debt>,
    /// The same of those whose release is on its way (5).
    leaving: Vec<Debt>,
    /// Those of the former about which the user may have sent something else that is on its way.
    behind: Vec<Arc<Hold>>,
    /// What was asked for, and may have been given.
    claims: Vec<(Lock, Claim)>,
    gate: Arc<Gate>,
    main: Arc<dyn Store>,
    /// When the keeper ends.
    by: Moment,
}

/// A hold that is to be released, and the number under which it is owed.
type Debt = (u64, Arc<Hold>);

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

/// Says farewell to the store: releases all holds in one batch, and undoes what was asked for (3).
pub(super) async fn part(shared: Arc<Shared>, farewell: Farewell) {
    let Farewell { holds, leaving, behind, claims, gate, main, by } = farewell;
    let shared = &shared;
    let after_the_user = async {
        gate.still().await;
        // A place may be kept for so long, and be given the lock at the end.
        let until = shared.world.now() + LONGEST_PLACE + FIRST_LEASE;
        for (lock, claim) in claims {
            shared.post(lock, claim, until, Some(main.clone()));
        }
        let unanswered = release_behind(shared, &*main, leaving, &behind, by).await;
        release_all(shared, unanswered).await;
    };
    futures_util::future::join(after_the_user, release_all(shared, holds)).await;
}

/// Releases holds by the connection of the user's, so that what he sent has been executed when this is answered. Gives
/// those of the leaving ones that have had no answer (5); of the others the keeper's own connection learns it.
async fn release_behind(
    shared: &Shared,
    main: &dyn Store,
    leaving: Vec<Debt>,
    behind: &[Arc<Hold>],
    by: Moment,
) -> Vec<Debt> {
    let all = leaving.iter().map(|(_, hold)| hold).chain(behind);
    let ops: Vec<_> = all.map(|hold| (hold.lock.clone(), release(hold))).collect();
    if ops.is_empty() {
        return Vec::new();
    }
    // Half of what is left, so that there is time for the other way.
    let left = by.since(shared.world.now());
    let within = shared.timings.call.min(left / 2).max(Duration::from_millis(1));
    let outcomes = main.execute_all(&ops, within).await;
    let mut unanswered = Vec::new();
    for (debt, outcome) in leaving.into_iter().zip(outcomes) {
        match outcome {
            Outcome::Done(Reply::Release(released)) => settle(shared, &debt, released),
            _ => unanswered.push(debt),
        }
    }
    unanswered
}

/// Releases holds in one batch, and in a further one those of which nothing is known, until the keeper ends.
async fn release_all(shared: &Shared, mut holds: Vec<Debt>) {
    let mut pause = Duration::from_millis(10);
    while !holds.is_empty() {
        let ops: Vec<_> = holds.iter().map(|(_, hold)| (hold.lock.clone(), release(hold))).collect();
        let outcomes = shared.store.execute_all(&ops, shared.timings.call).await;
        let mut again = Vec::new();
        for (debt, outcome) in holds.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Done(Reply::Release(released)) => settle(shared, &debt, released),
                Outcome::Failed(_, fault) if fault.is_transient() => again.push(debt),
                // What is owed when the keeper ends was not given back.
                _ => {}
            }
        }
        holds = again;
        if !holds.is_empty() {
            let at = shared.world.now() + pause / 2 + jitter(&*shared.world, pause / 2);
            shared.world.sleep_until(at).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }
}

fn release(hold: &Hold) -> Op {
    Op::Release(Release { claim: hold.claim.clone(), pass: Pass::Grant, next: None })
}

/// A hold is not owed any more. Whose release was cut off learns from this what became of it (5).
fn settle(shared: &Shared, (id, hold): &Debt, released: Released) {
    shared.note(hold, released);
    shared.settle(*id, true);
}
