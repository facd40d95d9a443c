//! Acquiring a lock: what one session sends, and when, until it holds the lock or gives up.
//!
//! A [`Contender`] is one session's attempt to acquire one lock. Its driver calls [`poll`](Contender::poll),
//! does what the [`ContenderAction`] says, and feeds back what happened through the `handle_*` functions. It does not
//! know how many tasks of the process wait: they queue in front of it.
//!
//! 1. One hold at a time. Requesting the same hold again changes nothing at the store, so a lost reply, a
//!    dropped future or any other doubt is resolved by sending the request again.
//! 2. The validity of a grant counts from the sending of *its* nonce, never from its arrival. An unknown nonce only makes
//!    the contender poll.
//! 3. A hold that was given up is not requested again: [`give_up`](Contender::give_up) returns its claim for the undo and
//!    forgets it.
//! 4. The contender watches its predecessor in the queue, and polls at the moment when that session is dead unless it
//!    sends another heartbeat. So the waiter behind a dead session notices it, and a row of dead sessions is cleared from
//!    behind, one round trip each. If several clients hold the lock, the first waiter in the queue watches each of them:
//!    it names one per request, and next the one that would be dead first.
//! 5. A hold that excludes no other client needs no short first lease: an orphan of it does no harm.
//! 6. Over a quorum each request is for a [hold of its own](AcquireTerms::fresh_hold): the undo of a hold that only a
//!    minority granted may be late, and must never release the next one. A hold that may exist is given up before the next
//!    request is sent.
//! 7. The client never relies on a hold for longer than one of its last requests has asked for: a reply that says otherwise is
//!    not this library's.

mod poll_delay;
mod watched_sessions;

use crate::machine::jitter::{Backoff, Jitter, Random};
use crate::{
    Acquire, Acquired, Claim, Enqueue, Executed, FIRST_LEASE, FencingToken, HoldId, Holder, Label, Liveness,
    LockMode, Moment, Nonce, OwnValue, OwnerHolds, Predecessor, SessionId, drift, whole_millis,
};
use std::collections::VecDeque;
use std::time::Duration;
use watched_sessions::WatchedSessions;

/// The interval between two polls of the first waiter in the queue, whatever notifications arrive.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time for which a queue entry is kept without another poll.
pub const MAX_QUEUE_ENTRY_TTL: Duration = Duration::from_secs(21);

/// Pauses after a fault: the first, and the longest.
const FAULT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// How many nonces the contender remembers. A notification with an older one makes it poll.
const MAX_NONCES: usize = 4;
/// How often in a row a hold may be over before its reply arrives.
const MAX_STALE_GRANTS: u32 = 3;

/// What to acquire, and how.
///
/// See [`Contender`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireTerms {
    /// The minimum time for which the lock is wanted: a hold that excludes others starts with this or [`FIRST_LEASE`],
    /// whichever is less.
    pub lease: Duration,
    /// A description of the client, for people to read.
    pub label: Label,
    /// For a Mutex, set if the user wants a value of their own at the lock's key. For a ReentrantMutex or an
    /// RwLock, the owner.
    pub value: Option<OwnValue>,
    /// Set to give a foreign lock without an expiry this one.
    pub expire_foreign: Option<Duration>,
    /// What ends the hold before its time.
    pub liveness: Liveness,
    /// Set to wait in the store's queue; a single try, or a poll, does not.
    pub queue: bool,
    /// Set to poll as often at the front of the queue as clients that do not queue: if such clients share the lock, or if
    /// no notification can arrive.
    pub poll_often: bool,
    /// How much longer the store keeps the hold than the client relies on it: the [margin](crate::delay_margin) of a lock
    /// delay.
    pub margin: Duration,
    /// How many holds the history of the lock keeps when this one is released: [`Release::history`](crate::Release::history).
    pub history: u16,
    /// The requested mode.
    pub mode: LockMode,
    /// Set if each request is for a new hold, because a store without a queue may have undone the previous
    /// one in part, or be about to.
    pub fresh_hold: bool,
}

impl AcquireTerms {
    /// The lease that a request asks for: [`FIRST_LEASE`] at most, but for a pass at a latch or a barrier, which excludes no
    /// client.
    pub fn requested_lease(&self) -> Duration {
        if self.mode.excludes() { self.lease.min(FIRST_LEASE) } else { self.lease }
    }
}

/// What to do next.
///
/// See [`Contender`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContenderAction {
    /// Send this, and pass its reply to [`Contender::handle_reply`] with this nonce.
    Send(Nonce, Acquire),
    /// Nothing to do before this moment, unless something is handled.
    Sleep(Moment),
    /// The lock is held.
    Granted(Grant),
    /// The lease is shorter than the time that its reply takes.
    LeaseTooShort,
    /// Release this at the store, and poll again (6).
    Undo(Claim),
}

/// A hold, fresh from the store.
///
/// See [`Contender`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The hold.
    pub claim: Claim,
    /// Its fencing token.
    pub fence: FencingToken,
    /// Until when the client may rely on the hold, unless it is extended.
    pub valid_until: Moment,
    /// Until when the store may keep the hold, unless it is extended: at the latest it was granted just before the reply or
    /// the notification arrived, however long ago the request was sent.
    pub may_last_until: Moment,
    /// Set if others are known to wait for the lock.
    pub others_wait: bool,
    /// What the owner of a ReentrantMutex holds now, if a reply has reported it. A message does not report
    /// it, and then the owner has this hold alone.
    pub owner_holds: Option<OwnerHolds>,
}

/// What is known about the clients before a waiter.
///
/// See [`Contender`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WaitStatus {
    /// The holder of the lock, as of the last reply.
    pub holder: Option<Holder>,
    /// How many sessions wait before this one, if it has queued.
    pub position: Option<u64>,
    /// The session whose death would bring the lock closer, as of the last reply.
    pub predecessor: Option<Predecessor>,
    /// When the reply was received.
    pub received_at: Option<Moment>,
}

/// One session's attempt to acquire one lock.
///
/// ```
/// use leasehold_core::machine::contender::{Contender, ContenderAction, AcquireTerms};
/// use leasehold_core::{Acquired, FencingToken, Label, Liveness, Moment, LockMode, SessionId};
/// use std::time::Duration;
///
/// let terms = AcquireTerms {
///     lease: Duration::from_secs(30),
///     label: Label::new("billing on web-3")?,
///     value: None,
///     expire_foreign: None,
///     liveness: Liveness::Session { alive_ms: 10_000 },
///     queue: true,
///     poll_often: false,
///     margin: Duration::ZERO,
///     history: 0,
///     mode: LockMode::Exclusive,
///     fresh_hold: false,
/// };
/// let mut random = { let mut drawn = 0; move || { drawn += 1; drawn } }; // use unpredictable bits in production
/// let mut contender = Contender::new(SessionId::from_random([7; 12]), 0);
/// let now = Moment::from_micros(5_000_000);
///
/// let ContenderAction::Send(nonce, request) = contender.poll(now, &terms, &mut random) else { panic!("it sends first") };
/// assert_eq!(request.lease_ms, 3_000); // every hold starts with a short lease
///
/// let taken = Acquired::Taken { holder: None, position: Some(0), predecessor: None, other_holders: Vec::new() };
/// contender.handle_reply(nonce, &taken, now, &mut random);
/// assert!(matches!(contender.poll(now, &terms, &mut random), ContenderAction::Sleep(_)));
///
/// contender.handle_grant(nonce, FencingToken::new(4711), now + Duration::from_millis(400));
/// let grant = contender.take_grant().expect("a grant with the nonce of the request is valid");
/// assert!(grant.valid_until < now + Duration::from_secs(3)); // it counts from the request
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug)]
pub struct Contender {
    session: SessionId,
    index: u32,
    state: ContenderState,
    /// The requested hold, if it may exist at the store.
    requested: Option<RequestedHold>,
    wait_status: WaitStatus,
    /// The sessions whose death would bring the lock closer (4).
    watched: WatchedSessions,
    faults: u32,
    /// When the first of the unanswered requests was sent.
    unresponsive_since: Option<Moment>,
    stale_grants: u32,
    /// How often in a row the predecessor was not the session that the request named.
    predecessor_changes: u32,
    /// How often in a row the vote was split (6).
    split_votes: u32,
    /// Set while the driver passes on releases by clients of other libraries.
    subscribed: bool,
}

#[derive(Debug)]
enum ContenderState {
    /// Send a request as soon as the lock is wanted.
    Idle,
    /// A request is in flight, or its task was dropped. `poll_soon` is set if another poll must follow its
    /// reply at once.
    InFlight { poll_soon: bool },
    /// Wait for a notification, or until this moment.
    Sleeping(Moment),
    /// The lock is acquired, and ready to be taken.
    Granted(Grant),
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all of them can be true")]
struct RequestedHold {
    claim: Claim,
    liveness: Liveness,
    margin: Duration,
    /// For how long the queue entry was requested.
    queue_ttl: Duration,
    poll_often: bool,
    mode: LockMode,
    /// Set if no other request is for this hold, or none is any more.
    fresh_hold: bool,
    /// The last few requests.
    sent_requests: VecDeque<SentRequest>,
    /// Whether the hold may exist at the store, granted or queued.
    may_exist: bool,
    /// The same, before the request that is in flight.
    may_have_existed: bool,
}

/// One request.
#[derive(Debug, Clone, Copy)]
struct SentRequest {
    nonce: Nonce,
    /// When it was sent.
    sent_at: Moment,
    /// How long the client may rely on the hold if the request is granted.
    lease: Duration,
    /// The session that the request named as the predecessor.
    predecessor: Option<SessionId>,
}

impl Contender {
    /// A contender for one lock. The nonce of every message for it repeats `index`.
    pub fn new(session: SessionId, index: u32) -> Self {
        Self {
            session,
            index,
            state: ContenderState::Idle,
            requested: None,
            wait_status: WaitStatus::default(),
            watched: WatchedSessions::default(),
            faults: 0,
            unresponsive_since: None,
            stale_grants: 0,
            predecessor_changes: 0,
            split_votes: 0,
            subscribed: false,
        }
    }

    /// The session that acquires the lock.
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// Switches to another session, because the old one has lapsed. The caller must release the returned
    /// claim at the store (3).
    pub fn change_session(&mut self, session: SessionId) -> Option<Claim> {
        let claim = self.give_up();
        self.session = session;
        claim
    }

    /// What to do now. A request that was in flight is sent again: its task is gone (1).
    pub fn poll(&mut self, now: Moment, terms: &AcquireTerms, random: Random<'_>) -> ContenderAction {
        match &self.state {
            ContenderState::Granted(grant) if grant.valid_until > now => {
                return ContenderAction::Granted(grant.clone());
            }
            ContenderState::Sleeping(until) if *until > now => return ContenderAction::Sleep(*until),
            _ if self.stale_grants >= MAX_STALE_GRANTS => {
                // The next caller may request a longer lease.
                self.stale_grants = 0;
                return ContenderAction::LeaseTooShort;
            }
            _ => {}
        }
        if let Some(claim) = self.give_up_fresh() {
            return ContenderAction::Undo(claim);
        }
        let (nonce, request) = self.request(now, terms, random);
        ContenderAction::Send(nonce, request)
    }

    /// Gives up the hold of a request that was not granted, if the next request is for another hold (6).
    /// The caller must release the returned claim at the store.
    pub fn give_up_fresh(&mut self) -> Option<Claim> {
        let is_over = |requested: &mut RequestedHold| requested.fresh_hold;
        if matches!(self.state, ContenderState::Granted(_)) {
            return None;
        }
        let requested = self.requested.take_if(is_over)?;
        if matches!(self.state, ContenderState::InFlight { .. }) {
            // The task that sent it is gone.
            self.state = ContenderState::Idle;
        }
        requested.may_exist.then_some(requested.claim)
    }

    /// Creates a request, which counts as sent now: for [`ContenderAction::Send`], or to accompany the release of another
    /// hold.
    pub fn request(&mut self, now: Moment, terms: &AcquireTerms, random: Random<'_>) -> (Nonce, Acquire) {
        let nonce = Nonce::new(self.index, random());
        let lease = terms.requested_lease();
        let queue_ttl = (self.poll_interval() * 2 + POLL_INTERVAL).min(MAX_QUEUE_ENTRY_TTL);
        let (session, predecessor) = (self.session, self.watched.next().map(|(session, _)| session));
        let requested = self.requested.get_or_insert_with(|| RequestedHold {
            claim: Claim { hold: new_hold_id(session, random), value: terms.value.clone() },
            liveness: terms.liveness,
            margin: terms.margin,
            queue_ttl,
            poll_often: terms.poll_often,
            mode: terms.mode,
            fresh_hold: terms.fresh_hold,
            sent_requests: VecDeque::with_capacity(MAX_NONCES),
            may_exist: false,
            may_have_existed: false,
        });
        requested.queue_ttl = queue_ttl;
        requested.poll_often = terms.poll_often;
        if requested.sent_requests.len() == MAX_NONCES {
            requested.sent_requests.pop_front();
        }
        requested.sent_requests.push_back(SentRequest { nonce, sent_at: now, lease, predecessor });
        requested.may_have_existed = requested.may_exist;
        requested.may_exist = true;
        self.state = ContenderState::InFlight { poll_soon: false };
        let queue = terms.queue.then(|| Enqueue { nonce, ttl_ms: whole_millis(queue_ttl) });
        let request = Acquire {
            claim: requested.claim.clone(),
            lease_ms: whole_millis(lease + terms.margin),
            label: terms.label.clone(),
            queue,
            expire_foreign_ms: terms.expire_foreign.map(whole_millis),
            liveness: terms.liveness,
            predecessor,
            mode: terms.mode,
        };
        (nonce, request)
    }

    /// Whether the requested hold matches these terms. If it does not, the caller must give it up.
    pub fn matches(&self, terms: &AcquireTerms) -> bool {
        let fits = |requested: &RequestedHold| {
            (&requested.claim.value, requested.liveness, requested.margin, requested.mode)
                == (&terms.value, terms.liveness, terms.margin, terms.mode)
        };
        self.requested.as_ref().is_none_or(fits)
    }

    /// Handles the reply to a request.
    pub fn handle_reply(&mut self, nonce: Nonce, reply: &Acquired, now: Moment, random: Random<'_>) {
        let granted = matches!(self.state, ContenderState::Granted(_));
        let poll_soon = matches!(self.state, ContenderState::InFlight { poll_soon: true });
        let Some((requested, sent)) = self.sent_request(nonce).filter(|_| !granted) else { return };
        let is_newest = requested.sent_requests.back().is_some_and(|last| last.nonce == nonce);
        match reply {
            Acquired::Granted { fence, remaining_ms, others_wait, owner_holds } => {
                let margin = requested.margin;
                // No request has asked for a longer one, whatever the reply says (7).
                let longest =
                    requested.sent_requests.iter().map(|sent| sent.lease).max().unwrap_or(sent.lease);
                let remaining = Duration::from_millis(*remaining_ms).saturating_sub(margin).min(longest);
                let claim = requested.claim.clone();
                let valid_until = sent.sent_at + remaining - drift(remaining);
                self.note_reply();
                // Less than this is too short to be of use. A wait for an event has a long lease (5), of which
                // the client needs only the moment.
                let least = sent.lease.min(FIRST_LEASE) / 10;
                self.state = if valid_until > now + least {
                    ContenderState::Granted(Grant {
                        claim,
                        fence: *fence,
                        valid_until,
                        may_last_until: now + remaining + margin,
                        others_wait: *others_wait,
                        owner_holds: *owner_holds,
                    })
                } else if sent.sent_at + sent.lease - drift(sent.lease) <= now + least {
                    // Even a whole lease would have been over before its reply arrived.
                    self.stale_grants += 1;
                    ContenderState::Sleeping(now)
                } else if remaining > least * 2 {
                    // This reply was slow, but the next one may not be.
                    ContenderState::Sleeping(now)
                } else if !margin.is_zero() {
                    // An old hold that the store keeps for the margin. No task has relied on it: it is given up.
                    if let Some(requested) = &mut self.requested {
                        requested.fresh_hold = true;
                    }
                    ContenderState::Sleeping(now)
                } else {
                    // An old hold that is almost over can be requested anew after its end.
                    ContenderState::Sleeping(now.max(sent.sent_at + remaining + Duration::from_millis(1)))
                };
            }
            Acquired::Taken { holder, position, predecessor, other_holders } => {
                // A request that does not queue leaves the entry of an earlier request in place.
                requested.may_exist = position.is_some() || requested.may_have_existed;
                self.note_reply();
                let (holder, holder_is_there) = (holder.clone(), holder.is_some());
                // To a store that has lost its data, this session is dead, and would be evicted with its queue entry.
                let predecessor = predecessor.filter(|predecessor| predecessor.session != self.session);
                let others = other_holders.iter().copied().filter(|other| *other != self.session);
                self.wait_status =
                    WaitStatus { holder, position: *position, predecessor, received_at: Some(now) };
                // The reply may be late, and the next request takes as long to arrive as this one did.
                self.watched.update(predecessor, others, sent.sent_at);
                self.split_votes = if holder_is_there { 0 } else { self.split_votes.saturating_add(1) };
                let poll_delay =
                    if poll_soon { Duration::ZERO } else { self.poll_delay(sent.predecessor, now, random) };
                // A request that was sent since may have been granted, and its task may be gone.
                if is_newest || !matches!(self.state, ContenderState::InFlight { .. }) {
                    self.state = ContenderState::Sleeping(now + poll_delay);
                }
            }
            Acquired::AlreadyEnded(_) => {
                self.requested = None;
                self.state = ContenderState::Idle;
                self.note_reply();
            }
        }
    }

    /// Handles a request that had no reply, or whose reply says that it was not executed.
    pub fn handle_fault(&mut self, nonce: Nonce, executed: Executed, now: Moment, random: Random<'_>) {
        let Some((requested, sent)) = self.sent_request(nonce) else { return };
        if executed == Executed::No {
            requested.may_exist = requested.may_have_existed;
        }
        if !matches!(self.state, ContenderState::InFlight { .. }) {
            return;
        }
        self.faults += 1;
        self.unresponsive_since.get_or_insert(sent.sent_at);
        let pause = FAULT_BACKOFF.pause(self.faults);
        self.state = ContenderState::Sleeping(now + Jitter::upper_half(pause).pick(random()));
    }

    /// The request was not sent after all, or the store replied that it did nothing. This is no fault: the contender may
    /// send it again at once.
    pub fn cancel_request(&mut self, nonce: Nonce) {
        let Some(requested) = &mut self.requested else { return };
        let Some(at) = requested.sent_requests.iter().position(|sent| sent.nonce == nonce) else { return };
        requested.sent_requests.remove(at);
        requested.may_exist = requested.may_have_existed;
        if matches!(self.state, ContenderState::InFlight { .. }) {
            self.state = ContenderState::Sleeping(Moment::ZERO);
        }
    }

    /// Handles the notification of a grant, which is valid only as long as its own nonce allows (2).
    pub fn handle_grant(&mut self, nonce: Nonce, fence: FencingToken, now: Moment) {
        if matches!(self.state, ContenderState::Granted(_)) {
            return;
        }
        let Some((requested, sent)) = self.sent_request(nonce) else { return self.poll_soon(now) };
        let (claim, margin) = (requested.claim.clone(), requested.margin);
        let valid_until = sent.sent_at + sent.lease - drift(sent.lease);
        // If the request was sent long ago, little or nothing is left of its lease. The reply to a new
        // request carries the whole lease, because the store counts from the grant.
        if valid_until.since(now) < sent.lease / 3 {
            return self.poll_soon(now);
        }
        self.note_reply();
        self.state = ContenderState::Granted(Grant {
            claim,
            fence,
            valid_until,
            may_last_until: now + sent.lease + margin,
            others_wait: true,
            owner_holds: None,
        });
    }

    /// Polls at once, or at once after the reply to the request that is in flight: a notification may have been missed, for
    /// example before a new subscription.
    pub fn poll_soon(&mut self, now: Moment) {
        match &mut self.state {
            ContenderState::Sleeping(until) => *until = now.min(*until),
            // The reply may be older than the missed notification.
            ContenderState::InFlight { poll_soon } => *poll_soon = true,
            ContenderState::Idle | ContenderState::Granted(_) => {}
        }
    }

    /// Sets whether the driver receives a notification when a client of another library releases the lock, and passes it on
    /// through [`poll_soon`](Self::poll_soon). While it does, the contender polls no more often than with a holder of
    /// Leasehold.
    pub fn set_subscribed(&mut self, subscribed: bool) {
        self.subscribed = subscribed;
    }

    /// Whether this session waits at the front of the queue for a client of another library, which does not
    /// grant the lock on release.
    pub fn waits_for_foreign_holder(&self) -> bool {
        let foreign = self.wait_status.holder.as_ref().is_some_and(Holder::is_foreign);
        foreign && self.wait_status.position == Some(0)
    }

    /// Whether the lock is acquired, and ready to be taken.
    pub fn is_granted(&self, now: Moment) -> bool {
        matches!(&self.state, ContenderState::Granted(grant) if grant.valid_until > now)
    }

    /// Takes the hold: from here on the caller extends and releases it.
    pub fn take_grant(&mut self) -> Option<Grant> {
        match std::mem::replace(&mut self.state, ContenderState::Idle) {
            ContenderState::Granted(grant) => {
                self.reset();
                Some(grant)
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Ends the attempt. The caller must release the returned claim at the store (3).
    pub fn give_up(&mut self) -> Option<Claim> {
        let requested = self.requested.take();
        self.reset();
        requested.filter(|requested| requested.may_exist).map(|requested| requested.claim)
    }

    /// Whether nothing is requested and nothing is held.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, ContenderState::Idle) && self.requested.is_none()
    }

    /// Whether the reply to a request is missing, as far as this session knows.
    pub fn is_in_flight(&self) -> bool {
        matches!(self.state, ContenderState::InFlight { .. })
    }

    /// For how long the store has not replied, since the first request without a reply.
    pub fn unresponsive_for(&self, now: Moment) -> Duration {
        self.unresponsive_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// What the last reply reported about the clients before this one.
    pub fn wait_status(&self) -> &WaitStatus {
        &self.wait_status
    }

    fn reset(&mut self) {
        self.state = ContenderState::Idle;
        self.requested = None;
        self.wait_status = WaitStatus::default();
        self.watched.clear();
        self.note_reply();
        self.stale_grants = 0;
        self.predecessor_changes = 0;
        self.split_votes = 0;
        self.subscribed = false;
    }

    fn note_reply(&mut self) {
        self.faults = 0;
        self.unresponsive_since = None;
    }

    fn sent_request(&mut self, nonce: Nonce) -> Option<(&mut RequestedHold, SentRequest)> {
        let requested = self.requested.as_mut()?;
        let sent = *requested.sent_requests.iter().find(|sent| sent.nonce == nonce)?;
        Some((requested, sent))
    }
}

fn new_hold_id(session: SessionId, random: Random<'_>) -> HoldId {
    let mut bits = [0; 16];
    bits[..8].copy_from_slice(&random().to_ne_bytes());
    bits[8..].copy_from_slice(&random().to_ne_bytes());
    HoldId::from_random(session, bits)
}

#[cfg(test)]
mod tests;
