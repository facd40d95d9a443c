//! The record beside a lock: its fencing token, its last holder, the holds that ended last, its queue.
//!
//! In Redis this is one hash, so that all of it lives and expires together.

use super::endings::Endings;
use crate::{
    Acquire, Claim, Enqueue, FencingToken, HoldId, Kind, Label, Liveness, LockMode, RECORD_KEPT, SessionId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many queue entries one operation inspects, so that no script runs for long.
pub(super) const LOOKS_AT_MOST: usize = 64;

/// The period, by fencing tokens, within which only the first grant raises the expiry of a record.
const RAISED_EVERY_US: u64 = 100_000_000;

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
    pub last: Option<FencingToken>,
    /// What is reserved for the last granted hold. If the last token is greater, the reservation was for an
    /// earlier hold.
    #[serde(default)]
    pub reserved: Option<Reserved>,
    /// The last client to which the lock was granted. It still holds the lock if its token is at the key.
    pub tenant: Option<RecordedHolder>,
    /// The holds that ended last other than by their leases, and how.
    pub ended: Endings,
    /// The total number of permits, arrivals or parties, for a lock that counts them.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The ticket of the next queue entry.
    pub tail: i64,
    /// The queue entry of each ticket. Leaving the queue removes the ticket, so it does not delay the entries
    /// behind it.
    pub tickets: BTreeMap<i64, QueueEntryId>,
    /// The queue entries.
    pub places: BTreeMap<QueueEntryId, QueueEntry>,
}

/// The fencing tokens reserved for the tasks to which a process hands its hold on.
///
/// ```
/// use leasehold_core::FencingToken;
/// use leasehold_core::model::Reserved;
///
/// let reserved = Reserved { upto: FencingToken::new(4742), notify_wanted: true };
/// assert!(FencingToken::after(Some(reserved.upto), 4711) > reserved.upto); // the next token is greater
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The greatest reserved fencing token.
    pub upto: FencingToken,
    /// Set if the process is notified when another client requests the lock.
    #[serde(rename = "tells")] // as in the databases that exist
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
/// let tenant = RecordedHolder { claim: Claim::new(hold), since_ms: 1_000, liveness, label };
/// assert_eq!(tenant.claim.hold.session(), SessionId::from_random([7; 12])); // the session to check for liveness
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedHolder {
    /// The hold, and the value at the key.
    pub claim: Claim,
    /// When it was granted, in milliseconds of the store's clock.
    pub since_ms: u64,
    /// What ends the hold before its time.
    #[serde(rename = "life")] // as in the databases that exist
    pub liveness: Liveness,
    /// A description of the holder, for people to read.
    pub label: Label,
}

impl RecordedHolder {
    /// The holder for an acquire that is granted at once.
    pub(super) fn asking(now_ms: u64, ask: &Acquire) -> Self {
        let (claim, label) = (ask.claim.clone(), ask.label.clone());
        Self { claim, since_ms: now_ms, liveness: ask.liveness, label }
    }

    /// The holder for a queue entry that is granted.
    pub(super) fn waiting(now_ms: u64, place: QueueEntry) -> Self {
        Self { claim: place.claim, since_ms: now_ms, liveness: place.liveness, label: place.label }
    }
}

/// An entry in the queue.
///
/// Part of [`LockState`](super::LockState); see there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueEntry {
    /// The number of the entry: smaller ones come first.
    pub ticket: i64,
    /// The nonce of the last look.
    pub nonce: crate::Nonce,
    /// Until when the entry is kept without another look, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// How long the hold lasts when it is granted, in milliseconds.
    pub lease_ms: u64,
    /// What ends the entry, and the hold after it, before its time.
    #[serde(rename = "life")] // as in the databases that exist
    pub liveness: Liveness,
    /// The hold that waits.
    pub claim: Claim,
    /// A description of the waiter, for people to read.
    pub label: Label,
    /// The mode for which it waits.
    #[serde(rename = "portion", default)] // as in the databases that exist
    pub mode: LockMode,
}

impl Record {
    /// An empty record.
    pub(super) fn new(expires_ms: u64) -> Self {
        Self {
            expires_ms,
            last: None,
            reserved: None,
            tenant: None,
            ended: Endings::default(),
            limit: None,
            tail: 0,
            tickets: BTreeMap::new(),
            places: BTreeMap::new(),
        }
    }

    /// When a record expires if it is raised now, for a hold or an entry that lasts `lease_ms`: an hour after
    /// the later of that and of the instant that the last fencing token stands for (which is later than now
    /// if the clock went back).
    pub(super) fn kept_until_ms(last: Option<FencingToken>, now_ms: u64, lease_ms: u64) -> u64 {
        let ahead_ms = last.map_or(0, |last| (last.as_u64() / 1000).saturating_sub(now_ms));
        now_ms + ahead_ms.max(lease_ms) + record_ttl_ms()
    }

    /// Whether the grant of the token `last` has raised the expiry for the next one as well: raising it is a
    /// write, and a lock may be granted a thousand times a second. The record then falls short of the hour by
    /// no more than the time between the two grants, plus the difference if the second lease is longer. An
    /// extend leaves it short by at most half an hour.
    pub(super) fn is_raised_by(last: Option<FencingToken>, next: FencingToken) -> bool {
        let period = |token: FencingToken| token.as_u64() / RAISED_EVERY_US;
        last.is_some_and(|last| period(last) == period(next))
    }

    /// The greatest fencing token that was granted or reserved.
    pub fn greatest(&self) -> Option<FencingToken> {
        self.last.max(self.reserved.map(|reserved| reserved.upto))
    }

    /// Whether the last holder is notified when another client requests the lock.
    pub(super) fn notifies_wanted(&self) -> bool {
        self.reserved.is_some_and(|reserved| reserved.notify_wanted && Some(reserved.upto) > self.last)
    }

    /// Raises the expiry when it comes close: less than half of [`RECORD_KEPT`], or less than the hold
    /// itself. It is not raised every time, because that is a write.
    pub(super) fn keep(&mut self, now_ms: u64, lease_ms: u64) {
        let until_ms = Self::kept_until_ms(self.last, now_ms, lease_ms);
        if self.expires_ms < until_ms - record_ttl_ms() / 2 {
            self.expires_ms = until_ms;
        }
    }

    /// Adds an entry to the queue, or renews it. Returns an upper bound of the number of entries before it,
    /// which is exact unless an entry left from the middle: counting them would cost more the longer the
    /// queue.
    pub(super) fn enqueue(&mut self, now_ms: u64, id: QueueEntryId, ask: &Acquire, queue: &Enqueue) -> u64 {
        let ticket = if let Some(place) = self.places.get(&id) {
            place.ticket
        } else {
            let first = self.tickets.first_key_value().map(|(first, _)| *first);
            let ticket = match first {
                Some(first) if ask.mode == LockMode::Upgrade => first - 1,
                _ => {
                    self.tail += 1;
                    self.tail - 1
                }
            };
            self.tickets.insert(ticket, id);
            ticket
        };
        let place = QueueEntry {
            ticket,
            nonce: queue.nonce,
            expires_ms: now_ms + queue.ttl_ms,
            lease_ms: ask.lease_ms,
            liveness: ask.liveness,
            claim: ask.claim.clone(),
            label: ask.label.clone(),
            mode: ask.mode,
        };
        self.places.insert(id, place);
        self.keep(now_ms, queue.ttl_ms);
        self.before_ticket(ticket)
    }

    /// The same bound for an existing entry.
    pub(super) fn position(&self, id: QueueEntryId) -> Option<u64> {
        self.places.get(&id).map(|place| self.before_ticket(place.ticket))
    }

    fn before_ticket(&self, ticket: i64) -> u64 {
        let first = self.tickets.first_key_value().map_or(ticket, |(first, _)| *first);
        ticket.abs_diff(first).min(self.places.len() as u64 - 1)
    }

    /// Removes an entry from the queue.
    pub(super) fn leave(&mut self, id: QueueEntryId) -> Option<QueueEntry> {
        let place = self.places.remove(&id)?;
        self.tickets.remove(&place.ticket);
        Some(place)
    }

    /// The entry right before another.
    pub(super) fn before(&self, id: QueueEntryId) -> Option<&QueueEntry> {
        let own = self.places.get(&id)?;
        let (_, before) = self.tickets.range(..own.ticket).next_back()?;
        self.places.get(before)
    }

    /// Whether a hold has the queue entry that its claim would have in a lock of that kind.
    pub(super) fn waits(&self, kind: Kind, hold: &HoldId) -> bool {
        self.places.get(&QueueEntryId::of(kind, hold)).is_some_and(|place| place.claim.hold == *hold)
    }

    /// The first entry in the queue.
    pub(super) fn first(&self) -> Option<(QueueEntryId, &QueueEntry)> {
        let id = *self.tickets.first_key_value()?.1;
        Some((id, self.places.get(&id)?))
    }

    /// Removes the first entry from the queue.
    pub(super) fn take_first(&mut self) -> Option<QueueEntry> {
        let id = *self.tickets.first_key_value()?.1;
        self.leave(id)
    }

    /// Whether a live entry may be in the queue, as far as one operation inspects it.
    pub(super) fn is_awaited_at(&self, now_ms: u64) -> bool {
        let mut front = self.tickets.values().take(LOOKS_AT_MOST);
        let over = |id| self.places.get(id).is_none_or(|place| place.expires_ms < now_ms);
        self.tickets.len() > LOOKS_AT_MOST || !front.all(over)
    }

    /// Whether the queue has entries, dead or alive.
    pub(super) fn is_awaited(&self) -> bool {
        !self.tickets.is_empty()
    }
}

fn record_ttl_ms() -> u64 {
    u64::try_from(RECORD_KEPT.as_millis()).unwrap_or(u64::MAX)
}
