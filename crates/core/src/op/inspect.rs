//! Reading the state of a lock.

use crate::{
    AuditEntry, Claim, Fingerprint, HistoryEntry, HoldStatus, Holder, Label, LockMode, SessionId, Skipped,
    Votes,
};

/// Read the state of the lock.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspect {
    /// Set to learn the status of a hold.
    pub claim: Option<Claim>,
    /// Set to also read what only people need: [`Inspection::foreign_fingerprint`], [`Inspection::audit`], [`Inspection::history`]
    /// and [`Inspection::queue`].
    pub details: bool,
}

/// The state of a lock.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The holder.
    pub holder: Option<Holder>,
    /// How many sessions wait for the lock.
    pub waiters: u64,
    /// The waiters, in the order in which they will be served: of the first [`MAX_LISTED_WAITERS`] queue entries those that
    /// have not expired. Only with [details](Inspect::details). Over a quorum, an order that is only a hint.
    pub queue: Vec<QueuedWaiter>,
    /// The status of the hold that the request named.
    pub hold_status: Option<HoldStatus>,
    /// The fingerprint of the value at the key, where a client of another library holds the lock. Only with
    /// [details](Inspect::details).
    pub foreign_fingerprint: Option<Fingerprint>,
    /// The evictions and forced releases of this lock, most recent first. Only with [details](Inspect::details).
    pub audit: Vec<AuditEntry>,
    /// The last holds that were released with a [history](crate::Release::history), most recent first. Only with
    /// [details](Inspect::details).
    pub history: Vec<HistoryEntry>,
    /// All holders of a shared lock, oldest first; no more than [`MAX_SHARED_HOLDERS`]. Empty for a Mutex or a
    /// ReentrantMutex.
    pub shared_holders: Vec<Holder>,
    /// The total number of permits, arrivals or parties, for a lock that counts them and where it is known.
    pub limit: Option<u32>,
    /// The number of permits with which the clients acquire, if a [resize](crate::Resize) has set another limit; 0 until one
    /// of them acquires.
    pub agreed: Option<u32>,
    /// How many nodes of a quorum report this holder; `None` for any other store, and without a holder.
    pub votes: Option<Votes>,
    /// Set by a quorum, and by a node of one, if the lock has no holder and yet no client can acquire it for that many
    /// milliseconds: too few nodes are free, or vote.
    pub blocked_ms: Option<u64>,
    /// What is left out because it cannot be read: holders and lines of the audit that no client of this library has
    /// written like that. Only with [details](Inspect::details).
    pub skipped: Skipped,
}

/// A waiter in the queue of a lock.
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{
///     Acquire, Claim, Enqueue, HoldId, Inspect, Label, Liveness, LockMode, Nonce, Op, Reply, SessionId,
/// };
///
/// let mut lock = LockState::default();
/// let session = |n| SessionId::from_random([n; 12]);
/// for n in 1..=3 {
///     let claim = Claim::new(HoldId::from_random(session(n), [n; 16]));
///     let label = Label::new(format!("worker {n}")).expect("a short text is a label");
///     let queue = Some(Enqueue { nonce: Nonce::new(0, n.into()), ttl_ms: 3_000 });
///     let (liveness, predecessor, mode) = (Liveness::Session { alive_ms: 10_000 }, None, LockMode::Exclusive);
///     let lease_ms = 3_000;
///     let request = Acquire { claim, lease_ms, label, queue, expire_foreign_ms: None, liveness, predecessor, mode };
///     lock.apply(1_000_000, &Op::Acquire(request), &all_alive);
/// }
/// let inspect = Op::Inspect(Inspect { claim: None, details: true });
/// let (Reply::Inspect(seen), _) = lock.apply(2_000_000, &inspect, &all_alive) else { panic!() };
/// let waiting: Vec<_> = seen.queue.iter().map(|waiter| waiter.session).collect();
/// assert_eq!(waiting, [session(2), session(3)]); // the first has the lock
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedWaiter {
    /// The session that waits.
    pub session: SessionId,
    /// A description of the waiter, for people to read; `None` over a quorum, whose nodes know the session alone.
    pub label: Option<Label>,
    /// The mode for which it waits.
    pub mode: LockMode,
    /// Since when it waits, in milliseconds of the store's clock: known over a quorum alone. A queue entry has no time of
    /// its own.
    pub since_ms: Option<u64>,
}

/// The maximum number of queue entries that an inspection lists, so that every reply is bounded.
pub const MAX_LISTED_WAITERS: usize = 256;

/// The maximum number of holders of a shared lock that an inspection returns, so that every reply is bounded.
pub const MAX_SHARED_HOLDERS: usize = 4096;
