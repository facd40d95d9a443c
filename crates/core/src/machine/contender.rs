//! Acquiring a lock: what one session sends, and when, until it holds the lock or gives up.
//!
//! A [`Contender`] is one session's attempt to acquire one lock. Its driver calls [`poll`](Contender::poll),
//! does what the [`ContenderAction`] says, and feeds back what happened through the `handle_*` functions. It does not
//! know how many tasks of the process wait: they queue in front of it.
//!
//! 1. One hold at a time. Requesting the same hold again changes nothing at the store, so a lost reply, a
//!    dropped future or any other doubt is resolved by sending the request again.
//! 2. A grant counts from the sending of *its* nonce, never from its arrival. An unknown nonce only makes the
//!    contender look.
//! 3. A hold that was given up is spent: [`give_up`](Contender::give_up) returns its claim for the undo and
//!    forgets it.
//! 4. The contender watches its predecessor in the queue, and looks at the moment when that session is dead
//!    unless it sends another heartbeat. So every dead session is noticed by the waiter behind it, and a row
//!    of dead sessions is cleared from behind, one round trip each. Where several clients hold the lock, the
//!    first waiter in the queue watches each of them: it names one per request, and next the one that would
//!    be dead first.
//! 5. A hold that excludes no other client needs no short first lease: an orphan of it does no harm.
//! 6. Over a quorum each request is for a [hold of its own](AcquireTerms::fresh): the undo of a hold that only a
//!    minority granted may be late, and must never hit the next one. What a request may have left is given up
//!    before the next request is sent.

use crate::{
    Acquire, Acquired, Claim, Enqueue, Executed, FIRST_LEASE, FencingToken, HoldId, Holder, Label, Liveness,
    LockMode, Moment, Nonce, OwnValue, OwnerHolds, Predecessor, SessionId, drift, whole_millis,
};
use std::collections::VecDeque;
use std::time::Duration;

/// How often the first waiter in the queue looks, whatever messages arrive.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How much longer the interval between two looks is for each further position.
const LOOK_STEP: Duration = Duration::from_millis(250);
/// The longest interval between two looks.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// For how long a queue entry is kept at most without another look.
pub const LONGEST_PLACE: Duration = Duration::from_secs(21);
/// How often the first waiter looks while no client can grant the lock: the holder is a client of another
/// library.
const STRANGER_LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));
/// When to request the remaining life of a session that has just become the predecessor.
const AHEAD_LOOK: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(300));
/// How often in a row the next look follows immediately because the predecessor is not the session that the
/// request named.
const AT_ONCE: u32 = 64;
/// The pause after that.
const AHEAD_PAUSE: Duration = Duration::from_millis(20);
/// Pauses after a fault: the first, and the longest.
const FAULT_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How many nonces are remembered: a message that answers an older one makes the contender look.
const NONCES: usize = 4;
/// How long to wait after a split vote, where no client got the lock: the range of the first pause, and how
/// often it doubles.
const SPLIT_LOOK: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
const SPLIT_DOUBLINGS: u32 = 3;
/// How often in a row a hold may be over before its reply arrives.
const STALE_GRANTS: u32 = 3;

/// A source of random bits.
pub type Random<'a> = &'a mut dyn FnMut() -> u64;

/// What to acquire, and how.
///
/// See [`Contender`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireTerms {
    /// The minimum time for which the lock is wanted: the hold starts with this or [`FIRST_LEASE`], whichever
    /// is less.
    pub lease: Duration,
    /// A description of the client, for people to read.
    pub label: Label,
    /// For a Mutex, set if the user wants a value of their own at the lock's key. For a ReentrantMutex or an
    /// RwLock, the owner.
    pub value: Option<OwnValue>,
    /// Set to give a foreign lock without an expiry this one.
    pub adopt: Option<Duration>,
    /// What ends the hold before its time.
    pub liveness: Liveness,
    /// Set to wait in the store's queue; a single try, or a poll, does not.
    pub queue: bool,
    /// Set to look as often at the head of the queue as clients do that do not queue: where such clients
    /// share the lock, or where no message can arrive.
    pub poll_often: bool,
    /// The requested mode.
    pub mode: LockMode,
    /// Set if each request is for a new hold, because a store without a queue may have undone the previous
    /// one in part, or be about to.
    pub fresh: bool,
}

/// What to do next.
///
/// See [`Contender`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContenderAction {
    /// Send this, and pass its reply to [`Contender::handle_reply`] with this nonce.
    Ask(Nonce, Acquire),
    /// Nothing to do before this moment, unless something is handled.
    Sleep(Moment),
    /// The lock is held.
    Granted(Grant),
    /// The lease is shorter than the time that its reply takes.
    TooSlow,
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
    /// Set if others are known to wait for the lock.
    pub others_wait: bool,
    /// What the owner of a ReentrantMutex holds now, if a reply has reported it. A message does not report
    /// it, and then the owner has this hold alone.
    pub owner_holds: Option<OwnerHolds>,
}

/// What is known about the clients ahead of a waiter.
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
    pub as_of: Option<Moment>,
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
///     adopt: None,
///     liveness: Liveness::Session { alive_ms: 10_000 },
///     queue: true,
///     poll_often: false,
///     mode: LockMode::Exclusive,
///     fresh: false,
/// };
/// let mut random = { let mut drawn = 0; move || { drawn += 1; drawn } }; // use unpredictable bits in production
/// let mut contender = Contender::new(SessionId::from_random([7; 12]), 0);
/// let now = Moment::from_micros(5_000_000);
///
/// let ContenderAction::Ask(nonce, ask) = contender.poll(now, &terms, &mut random) else { panic!("it asks first") };
/// assert_eq!(ask.lease_ms, 3_000); // every hold starts with a short lease
///
/// let taken = Acquired::Taken { holder: None, position: Some(0), predecessor: None, other_holders: Vec::new() };
/// contender.handle_reply(nonce, &taken, now, &mut random);
/// assert!(matches!(contender.poll(now, &terms, &mut random), ContenderAction::Sleep(_)));
///
/// contender.handle_wake(nonce, FencingToken::new(4711), now + Duration::from_millis(400));
/// let grant = contender.take().expect("a grant with the nonce of the question is believed");
/// assert!(grant.valid_until < now + Duration::from_secs(3)); // it counts from the request
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug)]
pub struct Contender {
    session: SessionId,
    slot: u32,
    phase: Phase,
    /// The requested hold, if the store may know anything of it.
    attempt: Option<Attempt>,
    standing: WaitStatus,
    /// The sessions whose death would bring the lock closer, in the order of the reply, and until when each
    /// is alive without another heartbeat; `None` where that is not known yet (4).
    watched: Vec<(SessionId, Option<Moment>)>,
    faults: u32,
    /// When the first of the unanswered requests was sent.
    silent_since: Option<Moment>,
    stale_grants: u32,
    /// How often in a row the predecessor was not the session that the request named.
    surprises: u32,
    /// How often in a row the vote was split (6).
    splits: u32,
    /// Set while a release by a client of another library would be reported to it.
    hears: bool,
}

#[derive(Debug)]
enum Phase {
    /// Send a request as soon as the lock is wanted.
    Idle,
    /// A request is in flight, or its task was dropped. `news` is set if a hint arrived since it was sent.
    Asking { news: bool },
    /// Wait for a message, or for this moment.
    Waiting(Moment),
    /// The lock is acquired, and ready to be taken.
    Won(Grant),
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all of them can be true")]
struct Attempt {
    claim: Claim,
    liveness: Liveness,
    /// For how long the queue entry was requested.
    kept: Duration,
    poll_often: bool,
    mode: LockMode,
    /// Set if no other request is for this hold.
    fresh: bool,
    /// The last few requests.
    sent: VecDeque<Asked>,
    /// Whether the store may have anything of the hold: a queue entry, or the lock.
    may_be_there: bool,
    /// The same, before the request that is in flight.
    may_have_been_there: bool,
}

/// One request.
#[derive(Debug, Clone, Copy)]
struct Asked {
    nonce: Nonce,
    /// When it was sent.
    at: Moment,
    /// How long the hold lasts if the request is granted.
    lease: Duration,
    /// The session that the request named as the predecessor.
    predecessor: Option<SessionId>,
}

impl Contender {
    /// A contender for one lock. The nonce of every message for it repeats `slot`.
    pub fn new(session: SessionId, slot: u32) -> Self {
        Self {
            session,
            slot,
            phase: Phase::Idle,
            attempt: None,
            standing: WaitStatus::default(),
            watched: Vec::new(),
            faults: 0,
            silent_since: None,
            stale_grants: 0,
            surprises: 0,
            splits: 0,
            hears: false,
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
        match &self.phase {
            Phase::Won(grant) if grant.valid_until > now => return ContenderAction::Granted(grant.clone()),
            Phase::Waiting(until) if *until > now => return ContenderAction::Sleep(*until),
            _ if self.stale_grants >= STALE_GRANTS => {
                // The next caller may request a longer lease.
                self.stale_grants = 0;
                return ContenderAction::TooSlow;
            }
            _ => {}
        }
        if let Some(claim) = self.renounce() {
            return ContenderAction::Undo(claim);
        }
        let (nonce, ask) = self.ask(now, terms, random);
        ContenderAction::Ask(nonce, ask)
    }

    /// Gives up the hold of a request that was not granted, where the next request is for another hold (6).
    /// The caller must release the returned claim at the store.
    pub fn renounce(&mut self) -> Option<Claim> {
        let is_over = |attempt: &mut Attempt| attempt.fresh;
        if matches!(self.phase, Phase::Won(_)) {
            return None;
        }
        let attempt = self.attempt.take_if(is_over)?;
        if matches!(self.phase, Phase::Asking { .. }) {
            // The task that sent it is gone.
            self.phase = Phase::Idle;
        }
        attempt.may_be_there.then_some(attempt.claim)
    }

    /// Creates a request, which counts as sent now: for [`ContenderAction::Ask`], or to accompany the release of another
    /// hold.
    pub fn ask(&mut self, now: Moment, terms: &AcquireTerms, random: Random<'_>) -> (Nonce, Acquire) {
        let nonce = Nonce::new(self.slot, random());
        let keeps_out = !matches!(terms.mode, LockMode::LatchWait { .. } | LockMode::BarrierWait { .. });
        let lease = if keeps_out { terms.lease.min(FIRST_LEASE) } else { terms.lease };
        let kept = (self.look_interval() * 2 + LOOK_EVERY).min(LONGEST_PLACE);
        let (session, predecessor) = (self.session, self.next_watched().map(|(session, _)| session));
        let attempt = self.attempt.get_or_insert_with(|| Attempt {
            claim: Claim { hold: fresh_hold(session, random), value: terms.value.clone() },
            liveness: terms.liveness,
            kept,
            poll_often: terms.poll_often,
            mode: terms.mode,
            fresh: terms.fresh,
            sent: VecDeque::with_capacity(NONCES),
            may_be_there: false,
            may_have_been_there: false,
        });
        attempt.kept = kept;
        attempt.poll_often = terms.poll_often;
        if attempt.sent.len() == NONCES {
            attempt.sent.pop_front();
        }
        attempt.sent.push_back(Asked { nonce, at: now, lease, predecessor });
        attempt.may_have_been_there = attempt.may_be_there;
        attempt.may_be_there = true;
        self.phase = Phase::Asking { news: false };
        let queue = terms.queue.then(|| Enqueue { nonce, ttl_ms: whole_millis(kept) });
        let ask = Acquire {
            claim: attempt.claim.clone(),
            lease_ms: whole_millis(lease),
            label: terms.label.clone(),
            queue,
            adopt_ms: terms.adopt.map(whole_millis),
            liveness: terms.liveness,
            predecessor,
            mode: terms.mode,
        };
        (nonce, ask)
    }

    /// Whether the requested hold fits other terms; if it does not, the caller must give it up.
    pub fn suits(&self, terms: &AcquireTerms) -> bool {
        let fits = |attempt: &Attempt| {
            (&attempt.claim.value, attempt.liveness, attempt.mode)
                == (&terms.value, terms.liveness, terms.mode)
        };
        self.attempt.as_ref().is_none_or(fits)
    }

    /// Handles the reply to a request.
    pub fn handle_reply(&mut self, nonce: Nonce, reply: &Acquired, now: Moment, random: Random<'_>) {
        let won = matches!(self.phase, Phase::Won(_));
        let news = matches!(self.phase, Phase::Asking { news: true });
        let Some((attempt, asked)) = self.sent(nonce).filter(|_| !won) else { return };
        match reply {
            Acquired::Granted { fence, remaining_ms, others_wait, owner_holds } => {
                let remaining = Duration::from_millis(*remaining_ms);
                let claim = attempt.claim.clone();
                let valid_until = asked.at + remaining - drift(remaining);
                self.answered();
                // Less than this is too short to be of use.
                let least = asked.lease / 10;
                self.phase = if valid_until > now + least {
                    Phase::Won(Grant {
                        claim,
                        fence: *fence,
                        valid_until,
                        others_wait: *others_wait,
                        owner_holds: *owner_holds,
                    })
                } else if asked.at + asked.lease - drift(asked.lease) <= now + least {
                    // Even a whole lease would have been over before its reply arrived.
                    self.stale_grants += 1;
                    Phase::Waiting(now)
                } else if remaining > least * 2 {
                    // This reply was slow, but the next one may not be.
                    Phase::Waiting(now)
                } else {
                    // An old hold that is almost over can be requested anew after its end.
                    Phase::Waiting(now.max(asked.at + remaining + Duration::from_millis(1)))
                };
            }
            Acquired::Taken { holder, position, predecessor, other_holders } => {
                // A request that does not queue leaves the entry of an earlier one in place.
                attempt.may_be_there = position.is_some() || attempt.may_have_been_there;
                self.answered();
                let (holder, holder_is_there) = (holder.clone(), holder.is_some());
                self.standing =
                    WaitStatus { holder, position: *position, predecessor: *predecessor, as_of: Some(now) };
                self.watch(*predecessor, other_holders, now);
                self.splits = if holder_is_there { 0 } else { self.splits.saturating_add(1) };
                let pause = if news { Duration::ZERO } else { self.pause(asked.predecessor, now, random) };
                self.phase = Phase::Waiting(now + pause);
            }
            Acquired::AlreadyEnded(_) => {
                self.attempt = None;
                self.phase = Phase::Idle;
                self.answered();
            }
        }
    }

    /// Handles a request that had no reply, or whose reply says that it was not executed.
    pub fn handle_fault(&mut self, nonce: Nonce, executed: Executed, now: Moment, random: Random<'_>) {
        let Some((attempt, asked)) = self.sent(nonce) else { return };
        if executed == Executed::No {
            attempt.may_be_there = attempt.may_have_been_there;
        }
        if !matches!(self.phase, Phase::Asking { .. }) {
            return;
        }
        self.faults += 1;
        self.silent_since.get_or_insert(asked.at);
        let (first, most) = FAULT_PAUSE;
        let pause = first.saturating_mul(1 << self.faults.saturating_sub(1).min(10)).min(most);
        self.phase = Phase::Waiting(now + between(pause / 2, pause, random()));
    }

    /// The request was not sent after all, or the store replied that it did nothing. This is no fault: it may
    /// be sent again at once.
    pub fn unask(&mut self, nonce: Nonce) {
        let Some(attempt) = &mut self.attempt else { return };
        let Some(at) = attempt.sent.iter().position(|asked| asked.nonce == nonce) else { return };
        attempt.sent.remove(at);
        attempt.may_be_there = attempt.may_have_been_there;
        if matches!(self.phase, Phase::Asking { .. }) {
            self.phase = Phase::Waiting(Moment::ZERO);
        }
    }

    /// Handles the message of a grant. It is valid only as far as its own nonce carries (2).
    pub fn handle_wake(&mut self, nonce: Nonce, fence: FencingToken, now: Moment) {
        if matches!(self.phase, Phase::Won(_)) {
            return;
        }
        let Some((attempt, asked)) = self.sent(nonce) else { return self.handle_news(now) };
        let claim = attempt.claim.clone();
        let valid_until = asked.at + asked.lease - drift(asked.lease);
        // If the request was sent long ago, little or nothing is left of its lease. The reply to a new
        // request carries the whole lease, because the store counts from the grant.
        if valid_until.since(now) < asked.lease / 3 {
            return self.handle_news(now);
        }
        self.answered();
        self.phase = Phase::Won(Grant { claim, fence, valid_until, others_wait: true, owner_holds: None });
    }

    /// A message may have been missed (for example, after a new subscription): look at once.
    pub fn handle_news(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Waiting(until) => *until = now.min(*until),
            // The reply may be older than the missed message.
            Phase::Asking { news } => *news = true,
            Phase::Idle | Phase::Won(_) => {}
        }
    }

    /// Sets whether the driver receives a message when a client of another library releases the lock, and
    /// passes it on through `handle_news`. While it does, the contender looks no more often than with a
    /// holder of Leasehold.
    pub fn hear(&mut self, hears: bool) {
        self.hears = hears;
    }

    /// Whether this session waits at the head of the queue for a client of another library, which does not
    /// grant the lock on release.
    pub fn waits_for_stranger(&self) -> bool {
        let stranger = self.standing.holder.as_ref().is_some_and(Holder::is_foreign);
        stranger && self.standing.position == Some(0)
    }

    /// Whether the lock is acquired, and ready to be taken.
    pub fn is_won(&self, now: Moment) -> bool {
        matches!(&self.phase, Phase::Won(grant) if grant.valid_until > now)
    }

    /// Takes the hold: from here on the caller extends and releases it.
    pub fn take(&mut self) -> Option<Grant> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Won(grant) => {
                self.reset();
                Some(grant)
            }
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Ends the attempt. The caller must release the returned claim at the store (3).
    pub fn give_up(&mut self) -> Option<Claim> {
        let attempt = self.attempt.take();
        self.reset();
        attempt.filter(|attempt| attempt.may_be_there).map(|attempt| attempt.claim)
    }

    /// Whether nothing is requested and nothing is held.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.attempt.is_none()
    }

    /// For how long the store has not replied, since the first request without a reply.
    pub fn silence(&self, now: Moment) -> Duration {
        self.silent_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// What the last reply reported about the clients ahead.
    pub fn standing(&self) -> &WaitStatus {
        &self.standing
    }

    fn reset(&mut self) {
        self.phase = Phase::Idle;
        self.attempt = None;
        self.standing = WaitStatus::default();
        self.watched.clear();
        self.answered();
        self.stale_grants = 0;
        self.surprises = 0;
        self.splits = 0;
        self.hears = false;
    }

    fn answered(&mut self) {
        self.faults = 0;
        self.silent_since = None;
    }

    fn sent(&mut self, nonce: Nonce) -> Option<(&mut Attempt, Asked)> {
        let attempt = self.attempt.as_mut()?;
        let asked = *attempt.sent.iter().find(|asked| asked.nonce == nonce)?;
        Some((attempt, asked))
    }

    /// Records the sessions that a reply named as being ahead (4).
    fn watch(&mut self, predecessor: Option<Predecessor>, others: &[SessionId], now: Moment) {
        let known = std::mem::take(&mut self.watched);
        let until = |session| known.iter().find(|(of, _)| *of == session).and_then(|(_, until)| *until);
        let first = predecessor.map(|Predecessor { session, alive_ms }| {
            let told = alive_ms.map(|alive_ms| now + Duration::from_millis(alive_ms));
            (session, told.or(until(session)))
        });
        self.watched.extend(first);
        self.watched.extend(others.iter().map(|session| (*session, until(*session))));
    }

    /// The session to name in the next request, and until when it is alive: the first one of unknown life, or
    /// else the one that would be dead first. The reply continues from that session, so naming the first also
    /// reaches holders beyond those of a single reply.
    fn next_watched(&self) -> Option<(SessionId, Option<Moment>)> {
        self.watched.iter().min_by_key(|(_, alive)| *alive).copied()
    }

    /// How long to wait for a message after a "taken" reply to a request that named `asked`.
    fn pause(&mut self, asked: Option<SessionId>, now: Moment, random: Random<'_>) -> Duration {
        let usual = self.usual_pause(random);
        let Some(predecessor) = self.standing.predecessor else { return usual };
        let surprise = asked.is_some_and(|asked| asked != predecessor.session);
        self.surprises = if surprise { self.surprises.saturating_add(1) } else { 0 };
        let watch = match self.next_watched().and_then(|(_, alive)| alive) {
            Some(alive) => {
                let dead = alive.since(now).saturating_add(Duration::from_millis(1));
                dead.saturating_add(between(Duration::ZERO, Duration::from_millis(5), random()))
            }
            // The session that the request named is gone, perhaps dead, and a whole row of others may be dead
            // as well (4).
            None if surprise && self.surprises <= AT_ONCE => Duration::ZERO,
            None if surprise => AHEAD_PAUSE,
            None => between(AHEAD_LOOK.0, AHEAD_LOOK.1, random()),
        };
        usual.min(watch)
    }

    /// The same, as if no session could die.
    fn usual_pause(&self, random: Random<'_>) -> Duration {
        let holder = self.standing.holder.as_ref();
        let fresh = self.attempt.as_ref().is_some_and(|attempt| attempt.fresh);
        if fresh && holder.is_none() {
            let most = SPLIT_LOOK.1 * (1 << self.splits.saturating_sub(1).min(SPLIT_DOUBLINGS));
            return between(SPLIT_LOOK.0, most, random());
        }
        let head = self.standing.position.unwrap_or(0) == 0;
        let poll_often = self.attempt.as_ref().is_some_and(|attempt| attempt.poll_often);
        let unheard = !self.hears && holder.is_some_and(Holder::is_foreign);
        // The lock is free with this client behind it: it was left free, or the waiters before are long dead,
        // so no grant would arrive. At a latch or a barrier there is nothing to take; the arriving clients
        // cause the grant.
        let gathers = self.attempt.as_ref().is_some_and(|attempt| {
            matches!(attempt.mode, LockMode::LatchWait { .. } | LockMode::BarrierWait { .. })
        });
        let often = (holder.is_none() && !gathers) || (head && (poll_often || unheard));
        let pause = if often {
            between(STRANGER_LOOK.0, STRANGER_LOOK.1, random())
        } else {
            let kept = self.attempt.as_ref().map_or(FIRST_LEASE, |attempt| attempt.kept);
            let longest = self.look_interval().min(kept.saturating_sub(LOOK_EVERY) / 2);
            between(longest * 4 / 5, longest, random())
        };
        match holder.and_then(|holder| holder.remaining_ms) {
            Some(remaining_ms) if head => {
                let expiry = Duration::from_millis(remaining_ms + 1);
                pause.min(expiry + between(Duration::ZERO, Duration::from_millis(5), random()))
            }
            _ => pause,
        }
    }

    /// The longest interval between two looks: longer further back in the queue.
    fn look_interval(&self) -> Duration {
        let steps = self.standing.position.unwrap_or(0).min(64);
        let steps = u32::try_from(steps).unwrap_or(64);
        (LOOK_EVERY + LOOK_STEP * steps).min(LOOK_AT_LEAST_EVERY)
    }
}

fn fresh_hold(session: SessionId, random: Random<'_>) -> HoldId {
    let mut bits = [0; 16];
    bits[..8].copy_from_slice(&random().to_ne_bytes());
    bits[8..].copy_from_slice(&random().to_ne_bytes());
    HoldId::from_random(session, bits)
}

/// A random duration between two bounds.
fn between(least: Duration, most: Duration, random: u64) -> Duration {
    let span = most.saturating_sub(least);
    #[allow(clippy::cast_precision_loss, reason = "a jitter needs no more than the leading bits")]
    let share = random as f64 / u64::MAX as f64;
    least + span.mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    fn terms() -> AcquireTerms {
        AcquireTerms {
            lease: Duration::from_secs(30),
            label: Label::new("test").expect("a plain text"),
            value: None,
            adopt: None,
            liveness: Liveness::Session { alive_ms: 10_000 },
            queue: true,
            poll_often: false,
            mode: LockMode::Exclusive,
            fresh: false,
        }
    }

    fn counter() -> impl FnMut() -> u64 {
        let mut n = 0_u64;
        move || {
            n += 1;
            n << 32
        }
    }

    fn asked(step: ContenderAction) -> (Nonce, Acquire) {
        match step {
            ContenderAction::Ask(nonce, ask) => (nonce, ask),
            other => panic!("expected a request, got {other:?}"),
        }
    }

    fn taken(position: u64) -> Acquired {
        let label = Label::new("other").ok();
        let holder = Holder {
            label,
            owner: None,
            count: 1,
            remaining_ms: Some(60_000),
            fence: None,
            since_ms: None,
            session: None,
            mode: LockMode::Exclusive,
            in_cooldown: false,
        };
        Acquired::Taken {
            holder: Some(holder),
            position: Some(position),
            predecessor: None,
            other_holders: Vec::new(),
        }
    }

    fn fence() -> FencingToken {
        FencingToken::new(7)
    }

    #[test]
    fn a_grant_counts_from_the_sending_of_its_nonce() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 9);
        let (first, ask) = asked(contender.poll(ms(0), &terms(), random));
        assert_eq!((ask.lease_ms, first.slot()), (3000, 9));
        let taken = taken(0);
        contender.handle_reply(first, &taken, ms(1), random);
        assert!(matches!(contender.poll(ms(1), &terms(), random), ContenderAction::Sleep(_)));
        let (second, again) = asked(contender.poll(ms(1001), &terms(), random));
        assert_eq!(again.claim, ask.claim, "a look requests the same hold");
        contender.handle_wake(first, fence(), ms(1500));
        let ContenderAction::Granted(grant) = contender.poll(ms(1500), &terms(), random) else {
            panic!("not granted")
        };
        assert_eq!(grant.valid_until, ms(3000) - drift(FIRST_LEASE), "not from {second:?}, nor from now");
        assert_eq!(contender.take().map(|grant| grant.claim), Some(ask.claim));
        assert!(contender.is_idle());
    }

    #[test]
    fn what_was_not_asked_after_all_is_no_fault_and_leaves_nothing() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
        contender.unask(nonce);
        assert_eq!(contender.silence(ms(9_000)), Duration::ZERO);
        let (nonce, ask) = asked(contender.poll(ms(1), &terms(), random));
        contender.unask(nonce);
        assert_eq!(contender.give_up(), None, "nothing of it can be at the store");
        // Something of an earlier request may be at the store.
        let (first, again) = asked(contender.poll(ms(2), &terms(), random));
        assert_ne!(again.claim, ask.claim);
        contender.handle_fault(first, Executed::Unknown, ms(3), random);
        let (nonce, _) = asked(contender.poll(ms(1_000), &terms(), random));
        contender.unask(nonce);
        assert_eq!(contender.silence(ms(1_002)), Duration::from_millis(1_000), "the store is still silent");
        assert_eq!(contender.give_up(), Some(again.claim));
    }

    #[test]
    fn a_message_out_of_date_or_unknown_only_makes_it_look() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
        let taken = taken(40);
        contender.handle_reply(nonce, &taken, ms(1), random);
        contender.handle_wake(Nonce::new(0, 0xbad), fence(), ms(2));
        let (nonce, ask) = asked(contender.poll(ms(2), &terms(), random));
        assert_eq!(ask.queue.map(|queue| queue.ttl_ms), Some(21_000), "further back an entry is kept longer");
        contender.handle_reply(nonce, &taken, ms(3), random);
        contender.handle_wake(nonce, fence(), ms(3100));
        assert!(
            matches!(contender.poll(ms(3100), &terms(), random), ContenderAction::Ask(..)),
            "nothing is left of it"
        );
    }

    #[test]
    fn a_grant_of_which_little_is_left_makes_it_look() {
        for (now, believed) in [(1_000, true), (1_900, true), (2_000, false), (2_900, false), (3_100, false)]
        {
            let random = &mut counter();
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
            contender.handle_reply(nonce, &taken(40), ms(1), random);
            contender.handle_wake(nonce, fence(), ms(now));
            let step = contender.poll(ms(now), &terms(), random);
            assert_eq!(matches!(step, ContenderAction::Granted(_)), believed, "{now}: {step:?}");
            assert_eq!(matches!(step, ContenderAction::Ask(..)), !believed, "{now}: {step:?}");
        }
    }

    #[test]
    fn an_answer_that_is_older_than_a_stale_grant_does_not_put_off_the_look() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
        // The process was suspended: both messages were in its buffers, and the grant overtook the reply.
        contender.handle_wake(nonce, fence(), ms(3100));
        contender.handle_reply(nonce, &taken(0), ms(3100), random);
        assert!(matches!(contender.poll(ms(3100), &terms(), random), ContenderAction::Ask(..)));
    }

    #[test]
    fn what_may_be_at_the_store_is_given_up_by_its_claim() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
        contender.handle_fault(nonce, Executed::No, ms(1), random);
        assert_eq!(contender.give_up(), None, "it was not executed");
        let (nonce, ask) = asked(contender.poll(ms(2), &terms(), random));
        contender.handle_fault(nonce, Executed::Unknown, ms(3), random);
        let (nonce, _) = asked(contender.poll(ms(5000), &terms(), random));
        contender.handle_fault(nonce, Executed::No, ms(5001), random);
        assert_eq!(contender.give_up(), Some(ask.claim.clone()), "the first may have been");
        let (_, other) = asked(contender.poll(ms(6000), &terms(), random));
        assert_ne!(other.claim, ask.claim, "a hold that was given up is spent");
    }

    #[test]
    fn looks_are_spread_and_bounded() {
        // Failure row 24.
        let mut pauses = std::collections::BTreeSet::new();
        for seed in 1..=64_u64 {
            let random = &mut move || seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
            let taken = taken(0);
            contender.handle_reply(nonce, &taken, ms(0), random);
            let ContenderAction::Sleep(until) = contender.poll(ms(0), &terms(), random) else {
                panic!("not asleep")
            };
            assert!(until >= ms(800) && until <= ms(1000), "{until:?}");
            pauses.insert(until);
        }
        assert!(pauses.len() > 32, "{} different pauses", pauses.len());
    }

    #[test]
    fn the_head_looks_often_where_no_message_would_arrive() {
        let stranger = Holder {
            label: None,
            owner: None,
            count: 1,
            remaining_ms: None,
            fence: None,
            since_ms: None,
            session: None,
            mode: LockMode::Exclusive,
            in_cooldown: false,
        };
        let ours = Holder { label: Label::new("other").ok(), ..stranger.clone() };
        for (holder, position, poll_often, soon) in [
            (Some(stranger.clone()), 0, false, true),
            (Some(stranger), 1, false, false),
            (Some(ours.clone()), 0, true, true),
            (Some(ours), 0, false, false),
            (None, 7, false, true),
        ] {
            let random = &mut counter();
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let (nonce, _) = asked(contender.poll(ms(0), &AcquireTerms { poll_often, ..terms() }, random));
            let taken = Acquired::Taken {
                holder: holder.clone(),
                position: Some(position),
                predecessor: None,
                other_holders: Vec::new(),
            };
            contender.handle_reply(nonce, &taken, ms(0), random);
            let ContenderAction::Sleep(until) = contender.poll(ms(0), &terms(), random) else {
                panic!("not asleep")
            };
            let often = until >= ms(50) && until <= ms(250);
            assert_eq!(often, soon, "{holder:?} at {position}: {until:?}");
        }
    }

    #[test]
    fn the_head_looks_when_the_holders_lease_ends() {
        for label in [None, Label::new("other").ok()] {
            let random = &mut counter();
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
            let holder = Some(Holder {
                label,
                owner: None,
                count: 1,
                remaining_ms: Some(20),
                fence: None,
                since_ms: None,
                session: None,
                mode: LockMode::Exclusive,
                in_cooldown: false,
            });
            contender.handle_reply(
                nonce,
                &Acquired::Taken { holder, position: Some(0), predecessor: None, other_holders: Vec::new() },
                ms(0),
                random,
            );
            let ContenderAction::Sleep(until) = contender.poll(ms(0), &terms(), random) else {
                panic!("not asleep")
            };
            assert!(until > ms(20) && until <= ms(26), "{until:?}");
        }
    }

    #[test]
    fn a_hold_in_its_last_milliseconds_says_nothing_about_the_lease() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let granted = |remaining_ms| Acquired::Granted {
            fence: fence(),
            remaining_ms,
            others_wait: false,
            owner_holds: None,
        };
        let (mut nonce, _) = asked(contender.poll(ms(0), &terms(), random));
        // The process was suspended after the grant; its looks find what is left of that hold.
        for now in 2_999..3_003 {
            let at = ms(now);
            contender.handle_reply(nonce, &granted(3_000_u64.saturating_sub(now)), at, random);
            assert!(
                matches!(
                    contender.poll(at, &terms(), random),
                    ContenderAction::Sleep(_) | ContenderAction::Ask(..)
                ),
                "{now}"
            );
            (nonce, _) = contender.ask(at, &terms(), random);
        }
        contender.handle_reply(nonce, &granted(3_000), ms(3_004), random);
        assert!(matches!(contender.poll(ms(3_004), &terms(), random), ContenderAction::Granted(_)));
    }

    #[test]
    fn a_lease_shorter_than_the_round_trip_is_reported() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let terms = || AcquireTerms { lease: Duration::from_millis(1), ..terms() };
        for round in 0..STALE_GRANTS {
            let sent = ms(u64::from(round) * 100);
            let (nonce, _) = asked(contender.poll(sent, &terms(), random));
            let granted =
                Acquired::Granted { fence: fence(), remaining_ms: 1, others_wait: false, owner_holds: None };
            contender.handle_reply(nonce, &granted, sent + Duration::from_millis(2), random);
        }
        assert_eq!(contender.poll(ms(1000), &terms(), random), ContenderAction::TooSlow);
        assert!(contender.give_up().is_some());
    }

    #[test]
    fn a_lease_that_is_too_short_does_not_affect_the_next_attempt() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let short = AcquireTerms { lease: Duration::from_millis(1), ..terms() };
        for round in 0..STALE_GRANTS {
            let sent = ms(u64::from(round) * 100);
            let (nonce, _) = asked(contender.poll(sent, &short, random));
            let granted =
                Acquired::Granted { fence: fence(), remaining_ms: 1, others_wait: false, owner_holds: None };
            contender.handle_reply(nonce, &granted, sent + Duration::from_millis(2), random);
        }
        assert_eq!(contender.poll(ms(1000), &short, random), ContenderAction::TooSlow);
        assert!(matches!(contender.poll(ms(1000), &terms(), random), ContenderAction::Ask(..)));
    }

    #[test]
    fn a_question_that_does_not_queue_leaves_the_place_of_an_earlier_one_to_be_given_up() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, ask) = asked(contender.poll(ms(0), &terms(), random));
        contender.handle_reply(nonce, &taken(3), ms(1), random);
        let polls = AcquireTerms { queue: false, ..terms() };
        for t in [100, 200] {
            contender.handle_news(ms(t));
            let (nonce, _) = asked(contender.poll(ms(t), &polls, random));
            let Acquired::Taken { holder, .. } = taken(0) else { panic!("taken is taken") };
            let unqueued =
                Acquired::Taken { holder, position: None, predecessor: None, other_holders: Vec::new() };
            contender.handle_reply(nonce, &unqueued, ms(t + 1), random);
        }
        assert_eq!(contender.give_up(), Some(ask.claim), "its entry is still at the store");
    }

    #[test]
    fn news_while_a_question_is_on_its_way_makes_it_look_after_the_answer() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
        contender.handle_news(ms(1));
        contender.handle_reply(nonce, &taken(0), ms(2), random);
        let (nonce, _) = asked(contender.poll(ms(2), &terms(), random));
        contender.handle_reply(nonce, &taken(0), ms(3), random);
        assert!(matches!(contender.poll(ms(3), &terms(), random), ContenderAction::Sleep(_)), "once");
    }

    #[test]
    fn a_hold_is_never_believed_longer_than_the_store_was_asked_to_keep_it() {
        for us in [1_000, 1_001, 1_999, 5_500, 9_999, 2_999_999] {
            let random = &mut counter();
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let lease = Duration::from_micros(us);
            let (nonce, ask) = asked(contender.poll(ms(0), &AcquireTerms { lease, ..terms() }, random));
            contender.handle_wake(nonce, fence(), ms(0));
            let ContenderAction::Granted(grant) = contender.poll(ms(0), &terms(), random) else {
                panic!("not granted")
            };
            assert!(
                grant.valid_until < ms(ask.lease_ms),
                "{lease:?}: {:?} of {}",
                grant.valid_until,
                ask.lease_ms
            );
        }
    }

    // ---- a new hold for each request (6) ----

    fn fresh() -> AcquireTerms {
        AcquireTerms { queue: false, poll_often: true, fresh: true, ..terms() }
    }

    #[test]
    fn where_each_question_asks_for_a_hold_of_its_own_no_undo_can_hit_the_next() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let split =
            Acquired::Taken { holder: None, position: None, predecessor: None, other_holders: Vec::new() };
        let (nonce, first) = asked(contender.poll(ms(0), &fresh(), random));
        contender.handle_reply(nonce, &split, ms(1), random);
        assert_eq!(contender.renounce(), None, "the store has undone it");
        let ContenderAction::Sleep(until) = contender.poll(ms(1), &fresh(), random) else {
            panic!("not asleep")
        };
        assert!(until >= ms(3) && until <= ms(21), "a split vote: {until:?}");

        let (nonce, second) = asked(contender.poll(until, &fresh(), random));
        assert_ne!(first.claim, second.claim);
        contender.handle_fault(nonce, Executed::Unknown, until, random);
        assert_eq!(contender.renounce(), Some(second.claim), "it may be there");
        assert!(matches!(contender.poll(until, &fresh(), random), ContenderAction::Sleep(_)));

        // A dropped task leaves a request with an unknown result.
        let later = until + Duration::from_secs(2);
        let (late, third) = asked(contender.poll(later, &fresh(), random));
        assert_eq!(contender.poll(later, &fresh(), random), ContenderAction::Undo(third.claim.clone()));
        let (nonce, fourth) = asked(contender.poll(later, &fresh(), random));
        assert_ne!(third.claim, fourth.claim);
        let granted =
            Acquired::Granted { fence: fence(), remaining_ms: 3_000, others_wait: false, owner_holds: None };
        contender.handle_reply(late, &granted, later, random);
        assert!(!contender.is_won(later), "it is being undone");
        contender.handle_reply(nonce, &granted, later, random);
        assert_eq!(contender.renounce(), None);
        assert_eq!(contender.take().map(|grant| grant.claim), Some(fourth.claim));
    }

    #[test]
    fn a_grant_that_came_too_late_is_undone_where_each_question_has_a_hold_of_its_own() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, ask) = asked(contender.poll(ms(0), &fresh(), random));
        let granted =
            Acquired::Granted { fence: fence(), remaining_ms: 3_000, others_wait: false, owner_holds: None };
        contender.handle_reply(nonce, &granted, ms(2_990), random);
        assert_eq!(contender.renounce(), Some(ask.claim));
    }

    // ---- watching the predecessor (4) ----

    fn session(n: u8) -> SessionId {
        SessionId::from_random([n; 12])
    }

    /// A "taken" reply with `who` as the predecessor of `position`, and its remaining life if the request
    /// named it.
    fn behind(who: SessionId, position: u64, alive_ms: Option<u64>) -> Acquired {
        let Acquired::Taken { holder, .. } = taken(position) else { panic!("taken is taken") };
        Acquired::Taken {
            holder,
            position: Some(position),
            predecessor: Some(Predecessor { session: who, alive_ms }),
            other_holders: Vec::new(),
        }
    }

    /// When the contender looks after that reply.
    fn looks_at(
        contender: &mut Contender,
        nonce: Nonce,
        reply: &Acquired,
        now: Moment,
        random: Random<'_>,
    ) -> Moment {
        contender.handle_reply(nonce, reply, now, random);
        match contender.poll(now, &terms(), random) {
            ContenderAction::Sleep(until) => until,
            other => panic!("not asleep: {other:?}"),
        }
    }

    #[test]
    fn it_soon_checks_a_new_predecessor() {
        let random = &mut counter();
        let mut contender = Contender::new(session(1), 0);
        let (nonce, ask) = asked(contender.poll(ms(0), &terms(), random));
        assert_eq!(ask.predecessor, None, "no predecessor is known yet");
        // A wait that ends within that time costs no further request, also far back in the queue.
        let until = looks_at(&mut contender, nonce, &behind(session(7), 40, None), ms(10), random);
        assert!(until >= ms(210) && until <= ms(310), "{until:?}");
        let (_, ask) = asked(contender.poll(until, &terms(), random));
        assert_eq!(ask.predecessor, Some(session(7)));
    }

    #[test]
    fn it_looks_when_the_predecessor_would_be_dead() {
        for (alive_ms, position, within) in
            [(300, 0, true), (300, 40, true), (60_000, 0, false), (u64::MAX, 0, false)]
        {
            let random = &mut counter();
            let mut contender = Contender::new(session(1), 0);
            let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
            let until = looks_at(&mut contender, nonce, &behind(session(7), position, None), ms(0), random);
            let (nonce, _) = asked(contender.poll(until, &terms(), random));
            let reply = behind(session(7), position, Some(alive_ms));
            let next = looks_at(&mut contender, nonce, &reply, until, random);
            if within {
                assert!(
                    next > until + Duration::from_millis(alive_ms),
                    "the session is alive in its last millisecond"
                );
                assert!(next <= until + Duration::from_millis(alive_ms + 6), "{next:?} after {until:?}");
            } else {
                assert!(
                    next <= until + Duration::from_secs(1),
                    "the usual look is sooner: {next:?} after {until:?}"
                );
                assert!(next >= until + Duration::from_millis(800), "{next:?} after {until:?}");
            }
        }
    }

    #[test]
    fn a_holder_that_cannot_die_is_not_watched() {
        let random = &mut counter();
        let mut contender = Contender::new(session(1), 0);
        let (nonce, _) = asked(contender.poll(ms(0), &terms(), random));
        let until = looks_at(&mut contender, nonce, &taken(0), ms(0), random);
        assert!(until >= ms(800), "the usual look: {until:?}");
        assert_eq!(asked(contender.poll(until, &terms(), random)).1.predecessor, None);
    }

    #[test]
    fn it_looks_at_once_where_another_stands_ahead_but_not_for_ever() {
        let random = &mut counter();
        let mut contender = Contender::new(session(1), 0);
        let mut now = ms(0);
        let mut at_once = 0;
        for n in 0..200 {
            let (nonce, ask) = asked(contender.poll(now, &terms(), random));
            contender.handle_reply(nonce, &behind(session(n), 0, None), now, random);
            now = match contender.poll(now, &terms(), random) {
                ContenderAction::Ask(..) => {
                    at_once += 1;
                    assert_eq!(ask.predecessor, Some(session(n - 1)), "the request named another session");
                    now
                }
                ContenderAction::Sleep(until) if n == 0 => until,
                ContenderAction::Sleep(until) => {
                    assert_eq!(until, now + AHEAD_PAUSE, "after {at_once} looks at once");
                    until
                }
                other => panic!("{other:?}"),
            };
        }
        assert_eq!(at_once, AT_ONCE);
        // A predecessor that is still the one named in the request resets the count: the next row is cleared
        // as fast.
        let (nonce, _) = asked(contender.poll(now, &terms(), random));
        let until = looks_at(&mut contender, nonce, &behind(session(199), 0, Some(500)), now, random);
        let (nonce, _) = asked(contender.poll(until, &terms(), random));
        contender.handle_reply(nonce, &behind(session(200), 0, None), until, random);
        assert!(matches!(contender.poll(until, &terms(), random), ContenderAction::Ask(..)));
    }

    /// Fifty waiters and the holder are dead, and one live session waits behind them. The model replies, and
    /// its clock stands still while the live session clears the queue.
    #[test]
    fn a_chain_of_fifty_dead_is_cleared_in_fifty_looks() {
        use crate::Op;
        use crate::model::{LockState, SessionStatus};
        let dead = |n: u8| {
            let hold = HoldId::from_random(session(n), [n; 16]);
            let queue = Some(Enqueue { nonce: Nonce::new(0, n.into()), ttl_ms: 3_600_000 });
            let (label, liveness) = (terms().label, Liveness::Session { alive_ms: 10_000 });
            Acquire {
                claim: Claim::new(hold),
                lease_ms: 3_600_000,
                label,
                queue,
                adopt_ms: None,
                liveness,
                predecessor: None,
                mode: LockMode::Exclusive,
            }
        };
        let random = &mut counter();
        let mut contender = Contender::new(session(200), 0);
        let mut lock = LockState::default();
        for n in 0..50 {
            lock.apply(1_000_000, &Op::Acquire(dead(n)), &|_| SessionStatus::Lapsed);
        }
        let alive =
            |who| if who == session(200) { SessionStatus::Alive(10_000) } else { SessionStatus::Lapsed };
        let (mut now, mut looks) = (ms(1_000), 0);
        loop {
            match contender.poll(now, &terms(), random) {
                ContenderAction::Ask(nonce, ask) => {
                    let (crate::Reply::Acquire(reply), _) =
                        lock.apply(now.as_micros(), &Op::Acquire(ask), &alive)
                    else {
                        panic!("an acquire is answered by an acquire")
                    };
                    contender.handle_reply(nonce, &reply, now, random);
                    looks += 1;
                }
                ContenderAction::Sleep(until) => {
                    assert_eq!(looks, 1, "only the first look has to find the predecessor");
                    now = until;
                }
                ContenderAction::Granted(_) => break,
                ContenderAction::TooSlow | ContenderAction::Undo(_) => {
                    panic!("no time has passed, and it keeps its hold")
                }
            }
        }
        assert_eq!(looks, 51, "one to queue, and one for each of the dead");
        assert!(now <= ms(1_310), "{now:?}");
    }

    /// Where the lock changes hands quickly, a waiter sends one request per turn: its grant arrives before
    /// its next look.
    #[test]
    fn quick_hand_overs_cost_no_further_requests() {
        let random = &mut counter();
        let mut contender = Contender::new(session(1), 0);
        let mut now = ms(0);
        for round in 0..100 {
            let (nonce, _) = asked(contender.poll(now, &terms(), random));
            contender.handle_reply(nonce, &behind(session(7), 63, None), now, random);
            for waited in [1, 50, 199] {
                let step = contender.poll(now + Duration::from_millis(waited), &terms(), random);
                assert!(
                    matches!(step, ContenderAction::Sleep(_)),
                    "round {round}, after {waited} ms: {step:?}"
                );
            }
            now = now + Duration::from_millis(199);
            contender.handle_wake(nonce, fence(), now);
            assert!(contender.take().is_some());
        }
    }
}
