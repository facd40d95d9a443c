//! The cases that each library is tested with, each on a server of its own.
//!
//! A case proves something in both directions, or is one half of such a pair. It observes from outside: the value at the
//! key, its expiry, the messages, and the time.

mod reentrant;
mod rlock;
mod string;

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::contention::{Contention, CountOptions};
use crate::library::{Format, Library};

const MS: Duration = Duration::from_millis(1);
/// The lease of holds that must not expire.
const LONG: Duration = Duration::from_secs(30);
/// The lease of holds that must expire.
const SHORT: Duration = Duration::from_millis(500);
/// The lease of holds that are renewed: long enough for a busy machine to renew it in time.
const RENEWED: Duration = Duration::from_millis(1_000);

/// A case, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// While the library holds the lock, Leasehold does not acquire it, and soon after the release it does.
    LibraryHolds,
    /// While Leasehold holds the lock, the library does not acquire it, and soon after the release it does.
    LeaseholdHolds,
    /// When the library's lease has expired, Leasehold acquires the lock, and no late request of the library touches it.
    LibraryExpires,
    /// When Leasehold's lease has expired, or its key is gone, the library acquires the lock, and Leasehold does not touch
    /// it.
    LeaseholdExpires,
    /// Leasehold waits for a lock of the library without an expiry, and gives it one only if that is requested.
    LibraryWithoutExpiry,
    /// The library does not acquire a lock that Leasehold's watchdog renews.
    LeaseholdRenews,
    /// Leasehold does not acquire a lock that the library extends.
    LibraryExtends,
    /// The key of an `RLock` while it is held once, twice, and no more.
    RlockFormat,
    /// What is published about an `RLock`, and when.
    RlockChannel,
    /// How an `RLock` without a lease is renewed.
    RlockWatchdog,
    /// A field unknown to Redisson stays as it is, and is removed with the key.
    RlockFields,
    /// A waiter does not poll a hash that another client wrote, and a message wakes it.
    RlockWaits,
    /// Which waiters a message wakes.
    RlockMessages,
    /// A count that another client wrote for an owner belongs to that owner, and so does the expiry.
    RlockSameOwner,
    /// What the library does about a key of another type.
    RlockOtherType,
    /// While the library holds the lock twice, Leasehold waits; the last release wakes it.
    RlockLibraryHolds,
    /// While Leasehold holds the lock twice, the library waits; the last release wakes it.
    RlockLeaseholdHolds,
    /// Both acquire for one owner, and see one count.
    RlockHoldCount,
    /// Each watchdog renews its own hold alone.
    RlockWatchdogs,
    /// Each releases the lock of the other by force.
    RlockForceRelease,
    /// Requests after the end of a lease touch no hold.
    RlockExpires,
    /// Clients of both count together, and no step is lost.
    Contention,
}

impl Case {
    /// The name of the case in the report.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::LibraryHolds => "library holds, then releases",
            Self::LeaseholdHolds => "Leasehold holds, then releases",
            Self::LibraryExpires => "library expires, Leasehold acquires",
            Self::LeaseholdExpires => "Leasehold expires, library acquires",
            Self::LibraryWithoutExpiry => "library holds without an expiry",
            Self::LeaseholdRenews => "Leasehold's watchdog renews",
            Self::LibraryExtends => "library extends",
            Self::RlockFormat => "RLock: format of the key",
            Self::RlockChannel => "RLock: messages",
            Self::RlockWatchdog => "RLock: watchdog",
            Self::RlockFields => "RLock: unknown field",
            Self::RlockWaits => "RLock: waits for a foreign hash",
            Self::RlockMessages => "RLock: which waiters a message wakes",
            Self::RlockSameOwner => "RLock: owner written by another",
            Self::RlockOtherType => "RLock: another type of key",
            Self::RlockLibraryHolds => "library holds twice, then releases",
            Self::RlockLeaseholdHolds => "Leasehold holds twice, then releases",
            Self::RlockHoldCount => "one owner on both sides",
            Self::RlockWatchdogs => "both watchdogs",
            Self::RlockForceRelease => "released by force",
            Self::RlockExpires => "one expires, the other acquires",
            Self::Contention => "counting together",
        }
    }

    /// Whether the case is for libraries with that format.
    pub(crate) fn applies_to(self, format: Format) -> bool {
        match self {
            Self::LibraryHolds
            | Self::LeaseholdHolds
            | Self::LibraryExpires
            | Self::LeaseholdExpires
            | Self::LibraryWithoutExpiry
            | Self::LeaseholdRenews
            | Self::LibraryExtends => format == Format::String,
            Self::Contention => true,
            _ => format == Format::Hash,
        }
    }

    /// Runs the case, and returns what it observed.
    pub(crate) async fn run(self, library: &Library, count: CountOptions) -> Result<String> {
        match self {
            Self::LibraryHolds => string::library_holds(library).await,
            Self::LeaseholdHolds => string::leasehold_holds(library).await,
            Self::LibraryExpires => string::library_expires(library).await,
            Self::LeaseholdExpires => string::leasehold_expires(library).await,
            Self::LibraryWithoutExpiry => string::library_without_expiry(library).await,
            Self::LeaseholdRenews => string::leasehold_renews(library).await,
            Self::LibraryExtends => string::library_extends(library).await,
            Self::RlockFormat => rlock::format(library),
            Self::RlockChannel => rlock::channel(library),
            Self::RlockWatchdog => rlock::watchdog(library),
            Self::RlockFields => rlock::fields(library),
            Self::RlockWaits => rlock::waits(library),
            Self::RlockMessages => rlock::messages(library),
            Self::RlockSameOwner => rlock::same_owner(library),
            Self::RlockOtherType => rlock::other_type(library),
            Self::RlockLibraryHolds => reentrant::library_holds(library).await,
            Self::RlockLeaseholdHolds => reentrant::leasehold_holds(library).await,
            Self::RlockHoldCount => reentrant::hold_count(library).await,
            Self::RlockWatchdogs => reentrant::watchdogs(library).await,
            Self::RlockForceRelease => reentrant::force_release(library).await,
            Self::RlockExpires => reentrant::expires(library).await,
            Self::Contention => Contention { libraries: vec![library; 2], leasehold_clients: 2, count }.run(),
        }
    }
}
