//! The cases that each library is tested with, each on a server of its own.
//!
//! A case proves something in both directions, or is one half of such a pair. It observes from outside: the value at the
//! key, its expiry, the messages, and the time.

mod plain;
mod reentrant;
mod rlock;

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::contention::{Crowd, Work};
use crate::neighbour::{Format, Neighbour};

const MS: Duration = Duration::from_millis(1);
/// The lease of locks that shall not end by it.
const LONG: Duration = Duration::from_secs(30);
/// The lease of locks that shall.
const SHORT: Duration = Duration::from_millis(500);
/// The lease of locks that are renewed: long enough for a busy machine to renew it in time.
const RENEWED: Duration = Duration::from_millis(1_000);

/// A case, in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// While they hold the lock we do not get it, and soon after their release we do.
    TheirsHeld,
    /// While we hold the lock they do not get it, and soon after our release they do.
    OursHeld,
    /// When their lease has ended we get the lock, and nothing that they do about it touches our hold.
    TheirLateRelease,
    /// When our lease has ended, or our key is gone, they get the lock, and we do not touch their hold.
    OurLateRelease,
    /// A lock of theirs without an expiry is waited for, and gets an expiry only if that is asked for.
    TheirsForEver,
    /// They do not get a lock that our watchdog renews.
    OursRenewed,
    /// We do not get a lock that they extend.
    TheirsExtended,
    /// What stands at the key of an `RLock` while it is held once, twice, and no more.
    RlockFormat,
    /// What is published about an `RLock`, and when.
    RlockChannel,
    /// How an `RLock` without a lease is renewed.
    RlockWatchdog,
    /// A field that Redisson does not know is left alone, and goes with the key.
    RlockFields,
    /// A hash that another client wrote is waited for without polling, and its message wakes the waiter.
    RlockWaits,
    /// Which waiters a message wakes.
    RlockMessages,
    /// Their owner's count is theirs, also where another client wrote it, and so is the expiry.
    RlockSameOwner,
    /// What they do about a key that holds anything else.
    RlockOtherType,
    /// While they hold the lock, twice, we wait; their last release wakes us.
    RlockTheirsHeld,
    /// While we hold the lock, twice, they wait; our last release wakes them.
    RlockOursHeld,
    /// Both enter for one owner, and see one count.
    RlockCounts,
    /// Both watchdogs renew their own hold alone.
    RlockWatchdogs,
    /// Either frees the lock of the other by force.
    RlockForce,
    /// Requests after the end of a lease touch no hold.
    RlockLate,
    /// Clients of both count together, and no step is lost.
    Contention,
}

impl Case {
    /// What the table calls it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::TheirsHeld => "theirs held, then released",
            Self::OursHeld => "ours held, then released",
            Self::TheirLateRelease => "theirs expired, ours took over",
            Self::OurLateRelease => "ours expired, theirs took over",
            Self::TheirsForEver => "theirs without an expiry",
            Self::OursRenewed => "ours renewed by the watchdog",
            Self::TheirsExtended => "theirs extended",
            Self::RlockFormat => "their format",
            Self::RlockChannel => "their messages",
            Self::RlockWatchdog => "their watchdog",
            Self::RlockFields => "a field unknown to them",
            Self::RlockWaits => "they wait for a stranger's hash",
            Self::RlockMessages => "which waiters a message wakes",
            Self::RlockSameOwner => "their owner, written by another",
            Self::RlockOtherType => "another type at the key",
            Self::RlockTheirsHeld => "theirs held twice, then released",
            Self::RlockOursHeld => "ours held twice, then released",
            Self::RlockCounts => "one owner on both sides",
            Self::RlockWatchdogs => "both watchdogs",
            Self::RlockForce => "freed by force",
            Self::RlockLate => "expired, the other took over",
            Self::Contention => "counting together",
        }
    }

    /// Whether a library that locks in that way is put to it.
    pub(crate) fn suits(self, format: Format) -> bool {
        match self {
            Self::TheirsHeld
            | Self::OursHeld
            | Self::TheirLateRelease
            | Self::OurLateRelease
            | Self::TheirsForEver
            | Self::OursRenewed
            | Self::TheirsExtended => format == Format::String,
            Self::Contention => true,
            _ => format == Format::Hash,
        }
    }

    /// Runs the case, and returns what it observed.
    pub(crate) async fn run(self, neighbour: &Neighbour, work: Work) -> Result<String> {
        match self {
            Self::TheirsHeld => plain::theirs_held(neighbour).await,
            Self::OursHeld => plain::ours_held(neighbour).await,
            Self::TheirLateRelease => plain::their_late_release(neighbour).await,
            Self::OurLateRelease => plain::our_late_release(neighbour).await,
            Self::TheirsForEver => plain::theirs_for_ever(neighbour).await,
            Self::OursRenewed => plain::ours_renewed(neighbour).await,
            Self::TheirsExtended => plain::theirs_extended(neighbour).await,
            Self::RlockFormat => rlock::format(neighbour),
            Self::RlockChannel => rlock::channel(neighbour),
            Self::RlockWatchdog => rlock::watchdog(neighbour),
            Self::RlockFields => rlock::fields(neighbour),
            Self::RlockWaits => rlock::waits(neighbour),
            Self::RlockMessages => rlock::messages(neighbour),
            Self::RlockSameOwner => rlock::same_owner(neighbour),
            Self::RlockOtherType => rlock::other_type(neighbour),
            Self::RlockTheirsHeld => reentrant::theirs_held(neighbour).await,
            Self::RlockOursHeld => reentrant::ours_held(neighbour).await,
            Self::RlockCounts => reentrant::counts(neighbour).await,
            Self::RlockWatchdogs => reentrant::watchdogs(neighbour).await,
            Self::RlockForce => reentrant::force(neighbour).await,
            Self::RlockLate => reentrant::late(neighbour).await,
            Self::Contention => Crowd { theirs: vec![neighbour; 2], ours: 2, work }.count(),
        }
    }
}
