//! The record beside a lock: its fencing token, its last holder, the holds that ended last, its queue.
//!
//! In Redis this is one key, so that all of it lives and expires together.

use super::ended_holds::EndedHolds;
use crate::{
    Acquire, Claim, Enqueue, FencingToken, HoldId, Kind, Label, Liveness, LockMode, MAX_LISTED_WAITERS,
    QueuedWaiter, RECORD_TTL, RELEASED_TTL, SessionId, whole_millis,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many queue entries one operation inspects, so that no script runs for long.
pub(super) const MAX_INSPECTED_ENTRIES: usize = 64;

/// The period, by fencing tokens, within which only the first grant raises the expiry of a record.
const REFRESH_PERIOD_US: u64 = 100_000_000;

/// For a longer lease every grant raises it.
pub(super) const SHORT_LEASE_MS: u64 = 1_000_000;

/// The record beside a lock.
///
/// Part of [`LockState`](super::LockState); see there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When the record expires, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// The last fencing token that was granted.
    pub last_fence: Option<FencingToken>,
    /// What is reserved for the last granted hold. If the last token is greater, the reservation was for an
    /// earlier hold.
    #[serde(default)]
    pub reserved: Option<Reserved>,
    /// The last client to which the lock was granted. It still holds the lock if its token is at the key.
    pub last_holder: Option<RecordedHolder>,
    /// The holds that ended last other than by their leases, and how.
    pub ended: EndedHolds,
    /// The total number of permits, arrivals or parties, for a lock that counts them.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The number of permits for which the clients ask, if a resize has set another one: 0 if no client has asked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreed: Option<u32>,
    /// The ticket of the next queue entry; 0 while the queue is empty.
    pub next_ticket: i64,
    /// The queue entry of each ticket. Leaving the queue removes the ticket, so it does not delay the entries
    /// behind it.
    pub tickets: BTreeMap<i64, QueueEntryId>,
    /// The queue entries.
    pub entries: BTreeMap<QueueEntryId, QueueEntry>,
}

/// The fencing tokens reserved for the tasks to which a process hands its hold on.
///
/// ```
/// use leasehold_core::FencingToken;
/// use leasehold_core::model::Reserved;
///
/// let reserved = Reserved { last_fence: FencingToken::new(4742), notify_wanted: true };
/// assert!(FencingToken::after(Some(reserved.last_fence), 4711) > reserved.last_fence); // the next token is greater
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The greatest reserved fencing token.
    pub last_fence: FencingToken,
    /// Set if the process is notified when another client requests the lock.
    pub notify_wanted: bool,
}

/// The identity of a queue entry.
///
/// ```
/// use leasehold_core::model::QueueEntryId;
/// use leasehold_core::{HoldId, Kind, SessionId};
///
/// let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
/// assert_eq!(QueueEntryId::of(Kind::Mutex, &hold), QueueEntryId::Session(hold.session()));
/// assert_eq!(QueueEntryId::of(Kind::RwLock, &hold), QueueEntryId::Hold(hold));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum QueueEntryId {
    /// A session, which has one entry in the queue of an exclusive lock: its tasks wait in the local queue in
    /// front of it.
    Session(SessionId),
    /// A hold: for a shared lock, a task does not wait behind others of its own process.
    Hold(HoldId),
}

impl QueueEntryId {
    /// The queue entry for a hold of a lock of that kind.
    pub const fn of(kind: Kind, hold: &HoldId) -> Self {
        if kind.is_shared() { Self::Hold(*hold) } else { Self::Session(hold.session()) }
    }

    /// The word for it in a store's fields; a secret if it is a hold's.
    pub fn encode(&self) -> String {
        match self {
            Self::Session(session) => session.to_string(),
            Self::Hold(hold) => hold.token(),
        }
    }

    /// The session that waits.
    pub const fn session(&self) -> SessionId {
        match self {
            Self::Session(session) => *session,
            Self::Hold(hold) => hold.session(),
        }
    }
}

/// The client to which a lock was granted.
///
/// ```
/// use leasehold_core::model::RecordedHolder;
/// use leasehold_core::{Claim, HoldId, Label, Liveness, SessionId};
///
/// let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
/// let (label, liveness) = (Label::new("billing")?, Liveness::Session { alive_ms: 10_000 });
/// let last_holder = RecordedHolder { claim: Claim::new(hold), since_ms: 1_000, liveness, label };
/// assert_eq!(last_holder.claim.hold.session(), SessionId::from_random([7; 12])); // the session to check for liveness
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedHolder {
    /// The hold, and the value at the key.
    pub claim: Claim,
    /// When it was granted, in milliseconds of the store's clock.
    pub since_ms: u64,
    /// What ends the hold before its time.
    pub liveness: Liveness,
    /// A description of the holder, for people to read.
    pub label: Label,
}

impl RecordedHolder {
    /// The holder for an acquire that is granted at once.
    pub(super) fn from_request(now_ms: u64, request: &Acquire) -> Self {
        let (claim, label) = (request.claim.clone(), request.label.clone());
        Self { claim, since_ms: now_ms, liveness: request.liveness, label }
    }

    /// The holder for a queue entry that is granted.
    pub(super) fn from_entry(now_ms: u64, entry: QueueEntry) -> Self {
        Self { claim: entry.claim, since_ms: now_ms, liveness: entry.liveness, label: entry.label }
    }
}

/// An entry in the queue.
///
/// Part of [`LockState`](super::LockState); see there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueEntry {
    /// The number of the entry: smaller ones come first.
    pub ticket: i64,
    /// The nonce of the last request.
    pub nonce: crate::Nonce,
    /// Until when the entry is kept without another request, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// How long the hold lasts when it is granted, in milliseconds.
    pub lease_ms: u64,
    /// What ends the entry, and the hold after it, before its time.
    pub liveness: Liveness,
    /// The hold that waits.
    pub claim: Claim,
    /// A description of the waiter, for people to read.
    pub label: Label,
    /// The mode for which it waits.
    #[serde(default)]
    pub mode: LockMode,
}

impl Record {
    /// An empty record.
    pub(super) fn new(expires_ms: u64) -> Self {
        Self {
            expires_ms,
            last_fence: None,
            reserved: None,
            last_holder: None,
            ended: EndedHolds::default(),
            limit: None,
            agreed: None,
            next_ticket: 0,
            tickets: BTreeMap::new(),
            entries: BTreeMap::new(),
        }
    }

    /// Whether the numbers of a record from a file are such that `is_small` holds of them, and each ticket is that of an entry.
    pub(super) fn is_plausible(&self, is_small: impl Fn(u64) -> bool) -> bool {
        let is_ticket = |ticket: i64| is_small(ticket.unsigned_abs());
        let of_entries = self.entries.values().flat_map(|entry| [entry.expires_ms, entry.lease_ms]);
        let of_holder = self.last_holder.iter().map(|holder| holder.since_ms);
        // The tickets are those of the entries.
        is_ticket(self.next_ticket)
            && self.tickets.keys().all(|ticket| is_ticket(*ticket))
            && self.tickets.len() == self.entries.len()
            && self
                .tickets
                .iter()
                .all(|(ticket, id)| self.entries.get(id).is_some_and(|entry| entry.ticket == *ticket))
            && of_entries.chain(of_holder).chain([self.expires_ms]).all(is_small)
    }

    /// When a record expires if it is raised now, for a hold or an entry that lasts `lease_ms`: an hour after
    /// the later of that and of the instant that the last fencing token stands for (which is later than now
    /// if the clock went back).
    pub(super) fn expiry_ms(last_fence: Option<FencingToken>, now_ms: u64, lease_ms: u64) -> u64 {
        let ahead_ms = last_fence.map_or(0, |last_fence| (last_fence.as_u64() / 1000).saturating_sub(now_ms));
        now_ms + ahead_ms.max(lease_ms) + record_ttl_ms()
    }

    /// Whether the grant of the token `last_fence` has raised the expiry for the next one as well: raising it is a
    /// write, and a lock may be granted a thousand times a second. The record then falls short of the hour by
    /// no more than the time between the two grants, plus the difference if the second lease is longer. An
    /// extend leaves it short by at most half an hour.
    pub(super) fn is_refreshed_by(last_fence: Option<FencingToken>, next: FencingToken) -> bool {
        let period = |token: FencingToken| token.as_u64() / REFRESH_PERIOD_US;
        last_fence.is_some_and(|last_fence| period(last_fence) == period(next))
    }

    /// The greatest fencing token that was granted or reserved.
    pub fn greatest_fence(&self) -> Option<FencingToken> {
        self.last_fence.max(self.reserved.map(|reserved| reserved.last_fence))
    }

    /// Whether the last holder is notified when another client requests the lock.
    pub(super) fn notifies_wanted(&self) -> bool {
        self.reserved
            .is_some_and(|reserved| reserved.notify_wanted && Some(reserved.last_fence) > self.last_fence)
    }

    /// Raises the expiry when it comes close: less than half of [`RECORD_TTL`], or less than the hold
    /// itself. It is not raised every time, because that is a write.
    pub(super) fn refresh_expiry(&mut self, now_ms: u64, lease_ms: u64) {
        let until_ms = Self::expiry_ms(self.last_fence, now_ms, lease_ms);
        if self.expires_ms < until_ms - record_ttl_ms() / 2 {
            self.expires_ms = until_ms;
        }
    }

    /// What an idle lock needs of its record: how holds have ended, for a short time.
    pub(super) fn ended_only(self, now_ms: u64) -> Self {
        Self { ended: self.ended, ..Self::new(now_ms + whole_millis(RELEASED_TTL)) }
    }

    /// Adds an entry to the queue, or renews it. Returns an upper bound of the number of entries before it,
    /// which is exact unless an entry left from the middle: counting them would cost more the longer the
    /// queue.
    pub(super) fn enqueue(
        &mut self,
        now_ms: u64,
        id: QueueEntryId,
        request: &Acquire,
        queue: &Enqueue,
    ) -> u64 {
        let ticket = if let Some(entry) = self.entries.get(&id) {
            entry.ticket
        } else {
            let first = self.tickets.first_key_value().map(|(first, _)| *first);
            let ticket = match first {
                Some(first) if request.mode == LockMode::Upgrade => first - 1,
                _ => {
                    self.next_ticket += 1;
                    self.next_ticket - 1
                }
            };
            self.tickets.insert(ticket, id);
            ticket
        };
        let entry = QueueEntry {
            ticket,
            nonce: queue.nonce,
            expires_ms: now_ms + queue.ttl_ms,
            lease_ms: request.lease_ms,
            liveness: request.liveness,
            claim: request.claim.clone(),
            label: request.label.clone(),
            mode: request.mode,
        };
        self.entries.insert(id, entry);
        self.refresh_expiry(now_ms, queue.ttl_ms);
        self.entries_before(ticket)
    }

    /// The same bound for an existing entry.
    pub(super) fn position(&self, id: QueueEntryId) -> Option<u64> {
        self.entries.get(&id).map(|entry| self.entries_before(entry.ticket))
    }

    fn entries_before(&self, ticket: i64) -> u64 {
        let first = self.tickets.first_key_value().map_or(ticket, |(first, _)| *first);
        ticket.abs_diff(first).min(self.entries.len() as u64 - 1)
    }

    /// Removes an entry from the queue.
    pub(super) fn remove(&mut self, id: QueueEntryId) -> Option<QueueEntry> {
        let entry = self.entries.remove(&id)?;
        self.tickets.remove(&entry.ticket);
        if self.tickets.is_empty() {
            self.next_ticket = 0;
        }
        Some(entry)
    }

    /// The entry right before another.
    pub(super) fn predecessor(&self, id: QueueEntryId) -> Option<&QueueEntry> {
        let own = self.entries.get(&id)?;
        let (_, predecessor) = self.tickets.range(..own.ticket).next_back()?;
        self.entries.get(predecessor)
    }

    /// Whether a hold has the queue entry that its claim would have in a lock of that kind.
    pub(super) fn has_entry(&self, kind: Kind, hold: &HoldId) -> bool {
        self.entries.get(&QueueEntryId::of(kind, hold)).is_some_and(|entry| entry.claim.hold == *hold)
    }

    /// The first entry in the queue.
    pub(super) fn first(&self) -> Option<(QueueEntryId, &QueueEntry)> {
        let id = *self.tickets.first_key_value()?.1;
        Some((id, self.entries.get(&id)?))
    }

    /// Removes the first entry from the queue.
    pub(super) fn pop_first(&mut self) -> Option<QueueEntry> {
        let id = *self.tickets.first_key_value()?.1;
        self.remove(id)
    }

    /// Whether a live entry may be in the queue, as far as one operation inspects it.
    pub(super) fn may_have_live_entry(&self, now_ms: u64) -> bool {
        let mut front = self.tickets.values().take(MAX_INSPECTED_ENTRIES);
        let over = |id| self.entries.get(id).is_none_or(|entry| entry.expires_ms < now_ms);
        self.tickets.len() > MAX_INSPECTED_ENTRIES || !front.all(over)
    }

    /// The first waiters, in their order.
    pub(super) fn waiters(&self, now_ms: u64) -> impl Iterator<Item = QueuedWaiter> {
        let front = self.tickets.values().take(MAX_LISTED_WAITERS);
        let live = move |id: &QueueEntryId| {
            let entry = self.entries.get(id).filter(|entry| entry.expires_ms >= now_ms)?;
            let label = Some(entry.label.clone());
            Some(QueuedWaiter { session: id.session(), label, mode: entry.mode, since_ms: None })
        };
        front.filter_map(live)
    }

    /// Whether the queue has entries, dead or alive.
    pub(super) fn has_entries(&self) -> bool {
        !self.tickets.is_empty()
    }
}

fn record_ttl_ms() -> u64 {
    whole_millis(RECORD_TTL)
}
