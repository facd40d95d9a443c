//! Acquiring a lock, and waiting for it.

use crate::{Claim, Ended, FencingToken, Holder, Label, Liveness, LockMode, Nonce, SessionId};
use serde::{Deserialize, Serialize};

/// Acquire the lock if it is free and no other client waits before; otherwise queue, if requested.
///
/// Sending it twice has the same effect as sending it once, so a queued client also sends it to *poll*: to check whether
/// the lock has been granted.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The requested hold.
    pub claim: Claim,
    /// How long the hold lasts from the moment it is granted, in milliseconds.
    pub lease_ms: u64,
    /// A description of the client, for people to read.
    pub label: Label,
    /// Set if the session wants to wait for the lock.
    pub queue: Option<Enqueue>,
    /// Set to give a foreign lock without an expiry this one, in milliseconds.
    pub expire_foreign_ms: Option<u64>,
    /// What ends the hold, or the queue entry, before its time.
    pub liveness: Liveness,
    /// Set to the session that the last reply named as the [predecessor](Predecessor). If that session is dead by
    /// now, the store first removes its hold and queue entry. Ignored in an acquire that accompanies a
    /// release.
    pub predecessor: Option<SessionId>,
    /// The requested mode.
    pub mode: LockMode,
}

/// An entry in the queue: one for each session and lock, and for each hold of a lock that several may hold.
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueue {
    /// Fresh with every request; the grant repeats it.
    pub nonce: Nonce,
    /// How long the entry is kept without another request, in milliseconds.
    pub ttl_ms: u64,
}

/// What became of an [`Acquire`].
///
/// See [`Op`](crate::Op) for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The hold exists.
    Granted {
        /// Its fencing token.
        fence: FencingToken,
        /// How long it still lasts, in milliseconds.
        remaining_ms: u64,
        /// Set if others wait in the queue.
        others_wait: bool,
        /// What the owner of a ReentrantMutex holds now.
        owner_holds: Option<OwnerHolds>,
    },
    /// Another client holds the lock, or waits for it before this one.
    Taken {
        /// The holder; of several, the one whose hold ends first. `None` if the lock was left free, or if its queue
        /// contains only dead sessions; of a shared lock also if many holds of the same owner end before the one that
        /// blocks it.
        holder: Option<Holder>,
        /// How many entries precede this client's, if it has queued.
        position: Option<u64>,
        /// The session whose death would bring this client closer to the lock: the holder, or the waiter
        /// right before it. `None` if the death of that session ends nothing. Where several clients hold
        /// the lock and none waits before: the session that the request named, if it is one of the holders,
        /// or else the first of them.
        predecessor: Option<Predecessor>,
        /// Other sessions that hold a shared lock: this client may wait for any of them. They come in the order in
        /// which their holds end, from `predecessor` on and around, and are limited to a few.
        other_holders: Vec<SessionId>,
    },
    /// This very hold has already ended: the request arrived late, or twice.
    AlreadyEnded(Ended),
}

/// What the owner of a ReentrantMutex holds.
///
/// ```
/// use leasehold_core::OwnerHolds;
///
/// let owner_holds = OwnerHolds { count: 2, lease_ms: 30_000 };
/// assert!(owner_holds.count > 1, "owner_holds again");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerHolds {
    /// How many holds the owner has, this one included.
    pub count: u64,
    /// The longest lease requested since the owner acquired the lock, in milliseconds.
    pub lease_ms: u64,
}

/// The session directly before a waiter.
///
/// Each waiter watches its predecessor, so another client notices every death, however long the queue, and
/// every poll needs to check only one session. (Leader election over ZooKeeper avoids a herd effect in the
/// same way.)
///
/// ```
/// use leasehold_core::{Predecessor, SessionId};
///
/// let predecessor = Predecessor { session: SessionId::from_random([7; 12]), alive_ms: Some(2_400) };
/// println!("poll again in {} ms", predecessor.alive_ms.unwrap_or(250));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predecessor {
    /// The session.
    pub session: SessionId,
    /// How long the session remains alive without another heartbeat, in milliseconds; `u64::MAX` if it needs
    /// no heartbeats. Only given for the session that the request [named](Acquire::predecessor).
    pub alive_ms: Option<u64>,
}
