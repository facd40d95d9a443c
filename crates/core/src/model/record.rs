//! What is kept beside a lock: its fencing token, its last holder, the holds that were ended last, its queue.
//!
//! In Redis this is one hash, so that all of it lives and expires together.

use super::endings::Endings;
use crate::{
    Acquire, Claim, Enqueue, FencingToken, HoldId, Kind, Label, Life, Portion, RECORD_KEPT, SessionId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many places one operation looks at, so that no script runs for long.
pub(super) const LOOKS_AT_MOST: usize = 64;

/// Within how long, by its fencing tokens, the expiry of a record is raised by the first alone who is given the lock.
const RAISED_EVERY_US: u64 = 100_000_000;

/// For a longer lease it is raised each time.
pub(super) const SHORT_LEASE_MS: u64 = 1_000_000;

/// The record beside a lock.
///
/// [`LockState`](super::LockState) has it, and shows what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When the record expires, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// The fencing token that was given last.
    pub last: Option<FencingToken>,
    /// What is reserved for the hold that was given last, unless that has a greater token: then it was for an earlier one.
    #[serde(default)]
    pub reserved: Option<Reserved>,
    /// Who was given the lock last. Holds it still, if its token stands at the key.
    pub tenant: Option<Tenant>,
    /// The holds that were ended last other than by their leases, and how.
    pub ended: Endings,
    /// How many permits, arrivals or parties there are in all, of a lock that counts them.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The ticket of the next place.
    pub tail: i64,
    /// Whose place a ticket is. A place that was left leaves nothing here: those behind it are not kept
    /// waiting by it.
    pub tickets: BTreeMap<i64, PlaceId>,
    /// The places.
    pub places: BTreeMap<PlaceId, Place>,
}

/// What is reserved for those to whom a hold is handed on by its process.
///
/// ```
/// use leasehold_core::FencingToken;
/// use leasehold_core::model::Reserved;
///
/// let reserved = Reserved { upto: FencingToken::new(4742), tells: true };
/// assert!(FencingToken::after(Some(reserved.upto), 4711) > reserved.upto); // what comes next is greater
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The greatest fencing token that is.
    pub upto: FencingToken,
    /// Set if its process is to be told when another asks for the lock.
    pub tells: bool,
}

/// Whose a place in the queue is.
///
/// ```
/// use leasehold_core::model::PlaceId;
/// use leasehold_core::{HoldId, Kind, SessionId};
///
/// let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
/// assert_eq!(PlaceId::of(Kind::Mutex, &hold), PlaceId::Session(hold.session()));
/// assert_eq!(PlaceId::of(Kind::RwLock, &hold), PlaceId::Hold(hold));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PlaceId {
    /// A session's, which has one before a lock that one has at a time: its tasks stand in line before it.
    Session(SessionId),
    /// A hold's: who may have a lock beside others does not wait behind his own process for it.
    Hold(HoldId),
}

impl PlaceId {
    /// The place of whoever asks for a hold of a lock of that kind.
    pub const fn of(kind: Kind, hold: &HoldId) -> Self {
        if kind.is_shared() { Self::Hold(*hold) } else { Self::Session(hold.session()) }
    }

    /// The word for it in a store's fields: a secret, where it is a hold's.
    pub fn word(&self) -> String {
        match self {
            Self::Session(session) => session.to_string(),
            Self::Hold(hold) => hold.token(),
        }
    }

    /// Whose session's it is.
    pub const fn session(&self) -> SessionId {
        match self {
            Self::Session(session) => *session,
            Self::Hold(hold) => hold.session(),
        }
    }
}

/// Who was given a lock.
///
/// ```
/// use leasehold_core::model::Tenant;
/// use leasehold_core::{Claim, HoldId, Label, Life, SessionId};
///
/// let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
/// let (label, life) = (Label::new("billing")?, Life::Session { alive_ms: 10_000 });
/// let tenant = Tenant { claim: Claim::new(hold), since_ms: 1_000, life, label };
/// assert_eq!(tenant.claim.hold.session(), SessionId::from_random([7; 12])); // who to ask whether he lives
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// The hold, and the value at the key.
    pub claim: Claim,
    /// Since when, in milliseconds of the store's clock.
    pub since_ms: u64,
    /// What ends the hold before its time.
    pub life: Life,
    /// Who it is, for others to read.
    pub label: Label,
}

impl Tenant {
    /// One who asks for himself.
    pub(super) fn asking(now_ms: u64, ask: &Acquire) -> Self {
        let (claim, label) = (ask.claim.clone(), ask.label.clone());
        Self { claim, since_ms: now_ms, life: ask.life, label }
    }

    /// One whose turn has come.
    pub(super) fn waiting(now_ms: u64, place: Place) -> Self {
        Self { claim: place.claim, since_ms: now_ms, life: place.life, label: place.label }
    }
}

/// A place in the queue.
///
/// [`LockState`](super::LockState) has it, and shows what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The number of the place: smaller ones come first.
    pub ticket: i64,
    /// The nonce of the last look.
    pub nonce: crate::Nonce,
    /// Until when the place is kept without another look, in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// How long the hold lasts when it is granted, in milliseconds.
    pub lease_ms: u64,
    /// What ends the place, and the hold after it, before its time.
    pub life: Life,
    /// The hold that waits.
    pub claim: Claim,
    /// Who waits, for others to read.
    pub label: Label,
    /// What part of the lock it waits for.
    #[serde(default)]
    pub portion: Portion,
}

impl Record {
    /// A record that nothing is in yet.
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

    /// When a record expires whose expiry is raised now, for a hold or a place that lasts `lease_ms`: an hour
    /// after the later of that and of the instant that the last fencing token stands for (which is
    /// later than now where the clock went back).
    pub(super) fn kept_until_ms(last: Option<FencingToken>, now_ms: u64, lease_ms: u64) -> u64 {
        let ahead_ms = last.map_or(0, |last| (last.as_u64() / 1000).saturating_sub(now_ms));
        now_ms + ahead_ms.max(lease_ms) + kept_ms()
    }

    /// Whether whoever was given the token `last` has raised the expiry for the next one as well: to raise it is a write, and a
    /// lock may be given a thousand times a second. What is short of the hour then is no more than the time between the two, and
    /// by how much the lease of the second is longer: as much as an extend leaves it short at most is half an hour.
    pub(super) fn is_raised_by(last: Option<FencingToken>, next: FencingToken) -> bool {
        let period = |token: FencingToken| token.as_u64() / RAISED_EVERY_US;
        last.is_some_and(|last| period(last) == period(next))
    }

    /// The greatest fencing token that was given or reserved.
    pub fn greatest(&self) -> Option<FencingToken> {
        self.last.max(self.reserved.map(|reserved| reserved.upto))
    }

    /// Whether whoever was given the lock last wants to be told when another asks for it.
    pub(super) fn tells(&self) -> bool {
        self.reserved.is_some_and(|reserved| reserved.tells && Some(reserved.upto) > self.last)
    }

    /// Raises the expiry where it has come near: less than half of [`RECORD_KEPT`], or less than the
    /// hold itself. It is not raised every time, since that is a write.
    pub(super) fn keep(&mut self, now_ms: u64, lease_ms: u64) {
        let until_ms = Self::kept_until_ms(self.last, now_ms, lease_ms);
        if self.expires_ms < until_ms - kept_ms() / 2 {
            self.expires_ms = until_ms;
        }
    }

    /// Puts one who asks into the queue, or renews his place. Gives a bound on how many are before it, which
    /// is exact where nobody left from the middle: counting them would cost the more the longer the queue.
    pub(super) fn enqueue(&mut self, now_ms: u64, id: PlaceId, ask: &Acquire, queue: &Enqueue) -> u64 {
        let ticket = if let Some(place) = self.places.get(&id) {
            place.ticket
        } else {
            let first = self.tickets.first_key_value().map(|(first, _)| *first);
            let ticket = match first {
                Some(first) if ask.portion == Portion::Upgrade => first - 1,
                _ => {
                    self.tail += 1;
                    self.tail - 1
                }
            };
            self.tickets.insert(ticket, id);
            ticket
        };
        let place = Place {
            ticket,
            nonce: queue.nonce,
            expires_ms: now_ms + queue.kept_ms,
            lease_ms: ask.lease_ms,
            life: ask.life,
            claim: ask.claim.clone(),
            label: ask.label.clone(),
            portion: ask.portion,
        };
        self.places.insert(id, place);
        self.keep(now_ms, queue.kept_ms);
        self.before_ticket(ticket)
    }

    /// The same bound for a place that is there.
    pub(super) fn position(&self, id: PlaceId) -> Option<u64> {
        self.places.get(&id).map(|place| self.before_ticket(place.ticket))
    }

    fn before_ticket(&self, ticket: i64) -> u64 {
        let first = self.tickets.first_key_value().map_or(ticket, |(first, _)| *first);
        ticket.abs_diff(first).min(self.places.len() as u64 - 1)
    }

    /// Takes a place out of the queue.
    pub(super) fn leave(&mut self, id: PlaceId) -> Option<Place> {
        let place = self.places.remove(&id)?;
        self.tickets.remove(&place.ticket);
        Some(place)
    }

    /// The place right before another.
    pub(super) fn before(&self, id: PlaceId) -> Option<&Place> {
        let own = self.places.get(&id)?;
        let (_, before) = self.tickets.range(..own.ticket).next_back()?;
        self.places.get(before)
    }

    /// Whether a hold has the place that its claim would have in a lock of that kind.
    pub(super) fn waits(&self, kind: Kind, hold: &HoldId) -> bool {
        self.places.get(&PlaceId::of(kind, hold)).is_some_and(|place| place.claim.hold == *hold)
    }

    /// The first place in the queue.
    pub(super) fn first(&self) -> Option<(PlaceId, &Place)> {
        let id = *self.tickets.first_key_value()?.1;
        Some((id, self.places.get(&id)?))
    }

    /// Takes the first place out of the queue.
    pub(super) fn take_first(&mut self) -> Option<Place> {
        let id = *self.tickets.first_key_value()?.1;
        self.leave(id)
    }

    /// Whether anybody may be in the queue who is alive, as far as one operation looks.
    pub(super) fn is_awaited_at(&self, now_ms: u64) -> bool {
        let mut front = self.tickets.values().take(LOOKS_AT_MOST);
        let over = |id| self.places.get(id).is_none_or(|place| place.expires_ms < now_ms);
        self.tickets.len() > LOOKS_AT_MOST || !front.all(over)
    }

    /// Whether anybody is in the queue, dead or alive.
    pub(super) fn is_awaited(&self) -> bool {
        !self.tickets.is_empty()
    }
}

fn kept_ms() -> u64 {
    u64::try_from(RECORD_KEPT.as_millis()).unwrap_or(u64::MAX)
}
