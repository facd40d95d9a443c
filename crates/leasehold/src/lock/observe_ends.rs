//! An observer of the ends of holds, for a client that does not hold the lock.
//!
//! 1. It polls: no store announces an expiry. A hold that begins and ends between two polls is not seen, and not reported.
//! 2. The audit says of a hold that it was evicted or released by force. Otherwise a hold that is gone before its lease can have
//!    ended was released, and one that is gone later expired.
//! 3. A poll just before the lease ends makes the second almost exact: a release within the last of these intervals counts as an
//!    expiry. Without that poll the ending is unknown.

use crate::error::InspectError;
use crate::lock::handle::LockHandle;
use leasehold_core::model::Audit;
use leasehold_core::{Ended, FencingToken, Holder, Inspection, Moment};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

/// The pause between two polls, unless a lease ends.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The shortest pause between two polls, however many leases end.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
/// How long before and after the end of a lease it polls (3).
const AROUND_EXPIRY: Duration = Duration::from_millis(50);

/// How a hold ended, as far as other clients can tell.
///
/// See [`HoldEnds`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldEnding {
    /// Its client released it, or another client deleted its key.
    Released,
    /// Its lease ended without another extension. A release in the last tenth of a second of the lease may count as this.
    Expired,
    /// Another client took it from a dead session.
    Evicted,
    /// An operator released it by force.
    ForceReleased,
    /// Not known: [`next`](HoldEnds::next) was not awaited, or the store did not answer, while its lease ended; or more holds
    /// were ended at once by other clients than their list keeps, which is 32.
    Unknown,
}

/// The end of one hold.
///
/// See [`HoldEnds`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldEnd {
    /// The label of the client that held the lock; not known for a client of another library.
    pub holder: Option<String>,
    /// The fencing token of the hold; a client of another library has none.
    pub fence: Option<FencingToken>,
    /// How the hold ended.
    pub ending: HoldEnding,
}

/// The ends of a lock's holds, for a client that need not hold it: [`Mutex::observe_ends`](crate::Mutex::observe_ends).
///
/// Each end of a hold that it saw is reported once. It polls twice a second, and when a lease ends, so that a hold that begins and
/// ends between two polls is not reported; and each observer costs the server these requests. A hold that is handed from
/// one task of a process to the next is one hold, with the token of the first. A lock that stays taken after its release for a
/// [cooldown](crate::OncePer) has been released.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::inspect::HoldEnding;
///
/// # let client = Client::builder("memory:").label("web-3").connect().await?;
/// let nightly = client.mutex("nightly")?;
/// let guard = nightly.acquire().await?;
/// let fence = guard.fencing_token();
///
/// // In a program that watches over the jobs:
/// let mut ends = nightly.observe_ends().await?;
/// guard.release().await?;
/// let end = ends.next().await?;
/// assert_eq!((end.fence, end.ending), (Some(fence), HoldEnding::Released));
/// # Ok(()) }
/// ```
#[must_use = "nothing is observed until `next` is called"]
pub struct HoldEnds {
    handle: LockHandle,
    /// The holds of the last poll; those of clients of other libraries share a place, as a lock has one at a time.
    seen: BTreeMap<Option<FencingToken>, SeenHold>,
    /// When the last poll was answered.
    seen_at: Moment,
    polled_at: Moment,
    ended: VecDeque<HoldEnd>,
}

#[derive(Debug, Clone)]
struct SeenHold {
    holder: Option<String>,
    /// When its lease ends at the earliest and at the latest, by this client's clock; `None` if it has none.
    lease: Option<(Moment, Moment)>,
}

impl HoldEnds {
    /// The next end of a hold.
    ///
    /// Fails if a poll gets no reply within the call timeout, or is refused. It can be called again, and reports what has ended
    /// meanwhile.
    ///
    /// Cancel safety: if the future is dropped, nothing is lost: the next call returns what this one would have.
    pub async fn next(&mut self) -> Result<HoldEnd, InspectError> {
        loop {
            if let Some(end) = self.ended.pop_front() {
                return Ok(end);
            }
            self.handle.engine.environment.sleep_until(self.next_poll()).await;
            self.poll().await?;
        }
    }

    pub(crate) async fn begin(handle: &LockHandle) -> Result<Self, InspectError> {
        let (handle, now) = (handle.clone(), handle.now());
        let mut ends =
            Self { handle, seen: BTreeMap::new(), seen_at: now, polled_at: now, ended: VecDeque::new() };
        ends.poll().await?;
        Ok(ends)
    }

    fn next_poll(&self) -> Moment {
        let around = self
            .seen
            .values()
            .filter_map(|seen| seen.lease)
            .flat_map(|(earliest, latest)| [earliest - AROUND_EXPIRY, latest + AROUND_EXPIRY]);
        let next = self.polled_at + POLL_INTERVAL;
        around.filter(|at| *at > self.polled_at).fold(next, Moment::min).max(self.polled_at + MIN_INTERVAL)
    }

    async fn poll(&mut self) -> Result<(), InspectError> {
        let sent_at = self.handle.now();
        // Also after a failure, so that a loop of calls does not spin.
        self.polled_at = sent_at;
        let inspection = self.handle.inspect_store(false).await?;
        let seen_at = self.handle.now();
        let now = holds(&inspection, sent_at, seen_at);
        let gone = || self.seen.iter().filter(|(fence, _)| !now.contains_key(fence));
        // Read afterwards: an entry is written together with the end.
        let audit =
            if gone().next().is_some() { self.handle.inspect_store(true).await?.audit } else { Vec::new() };
        let is_gone = |fence| self.seen.contains_key(&fence) && !now.contains_key(&fence);
        // The audit may have lost the entries of others.
        let may_lack_some =
            audit.len() >= Audit::MAX_ENTRIES && audit.iter().all(|entry| is_gone(entry.fence));
        let ends: Vec<_> = gone()
            .map(|(fence, seen)| {
                let entry = audit.iter().find(|entry| entry.fence.is_some() && entry.fence == *fence);
                let over_since = seen.lease.map(|(earliest, _)| earliest).filter(|at| sent_at >= *at);
                let ending = match (entry.map(|entry| entry.ended), over_since) {
                    (Some(Ended::Evicted), _) => HoldEnding::Evicted,
                    (Some(Ended::ForceReleased), _) => HoldEnding::ForceReleased,
                    _ if may_lack_some => HoldEnding::Unknown,
                    (_, None) => HoldEnding::Released,
                    (_, Some(at)) if self.seen_at + AROUND_EXPIRY * 2 >= at => HoldEnding::Expired,
                    // It may have been renewed since, and released.
                    (_, Some(_)) => HoldEnding::Unknown,
                };
                HoldEnd { holder: seen.holder.clone(), fence: *fence, ending }
            })
            .collect();
        self.ended.extend(ends);
        (self.seen, self.seen_at) = (now, seen_at);
        Ok(())
    }
}

/// The holds that an inspection shows, which was sent and answered at these moments.
fn holds(
    inspection: &Inspection,
    sent_at: Moment,
    answered_at: Moment,
) -> BTreeMap<Option<FencingToken>, SeenHold> {
    let shared = &inspection.shared_holders;
    let one = inspection.holder.as_ref().filter(|_| shared.is_empty());
    let seen = |holder: &Holder| SeenHold {
        holder: holder.label.as_ref().map(ToString::to_string),
        lease: holder
            .remaining_ms
            .map(Duration::from_millis)
            .map(|left| (sent_at + left, answered_at + left)),
    };
    one.into_iter()
        .chain(shared)
        .filter(|holder| !holder.in_cooldown)
        .map(|holder| (holder.fence, seen(holder)))
        .collect()
}

impl fmt::Debug for HoldEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldEnds").field("lock", self.handle.name()).finish_non_exhaustive()
    }
}
