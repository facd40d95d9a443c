//! The deliberate defects of a store.

/// A deliberate defect of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreMutant {
    None,
    /// Forgets which hold was ended last.
    ForgetsEnded,
    /// A release ends the current hold, whichever it is.
    ReleasesAnyHold,
    /// An extend sets the expiry, even to an earlier time.
    ExtendShortens,
    /// An extend that finds no hold reports success.
    ExtendsNothing,
    /// Cuts leases to whole seconds.
    WholeSeconds,
    /// Grants every hold the same token.
    OneToken,
    /// An attempt takes a free lock ahead of waiters.
    Barges,
    /// Every grant is sent to all mailboxes.
    PublishesToAll,
    /// Continues to publish to closed mailboxes.
    PublishesToClosed,
    /// Every release grants, regardless of its action.
    AlwaysGrants,
    /// A poll restarts the lease.
    PollsExtend,
    /// A poll moves the queue entry to the end.
    PollsLoseTheEntry,
    /// Trims names.
    TrimsNames,
    /// Compares values, not holds.
    ValuesAlone,
    /// The outcomes of a batch are out of order.
    MixesUp,
    /// Calls exceed their time limits.
    ExceedsTimeLimits,
    /// A foreign lock gets an expiry without a request for it.
    AdoptsUnasked,
    /// Every session counts as lapsed.
    EvictsLiveSessions,
    /// No session counts as lapsed.
    EvictsNoSession,
    /// An eviction also ends holds without a session.
    EvictsDetached,
    /// A lapsed session can return.
    Revives,
    /// A forced release ends the current hold, whichever it is.
    ForceReleasesAnyHold,
    /// Forced releases are not audited.
    ForgetsAudit,
    /// An acquire that is sent again counts again.
    CountsTwice,
    /// Re-entry sets the expiry of all holds, even to an earlier time.
    EntryShortens,
    /// Re-entry also extends unknown holds.
    EntryExtendsUnknownHolds,
    /// Different owners count as the same.
    MixesOwners,
    /// An expired hold ends, but its count stays.
    ExpiredHoldsCount,
    /// The release of any hold frees the lock.
    InnerReleaseFrees,
    /// Every entry has a token of its own.
    EntryHasItsToken,
    /// A release does not report the remaining count.
    OmitsRemainingCount,
    /// An eviction ends all holds of the owner.
    EvictsTheOwner,
    /// Kinds of locks do not exclude each other.
    MixesKinds,
    /// Re-entry waits in the queue.
    EntriesQueue,
    /// A release that acquires in the same step frees the lock before.
    FreesBeforeNextAcquire,
    /// A forced release notifies one of the owner's processes.
    NotifiesOneProcess,
    /// All holds end with the longest.
    AllHoldsEndTogether,
    /// After a release, the remaining holds get the released hold's expiry.
    ReleaseSetsRemainingExpiry,
    /// A cooldown lasts longer than requested.
    ExtendsCooldown,
    /// A lock in cooldown still belongs to its last holder.
    CooldownHasHolder,
    /// Of several locks it acquires those that are free.
    AcquiresSome,
    /// Of several locks it acquires also those that others hold.
    AcquiresAll,
    /// A resent request for several locks acquires them anew.
    ReacquiresOnResend,
    /// One token for all of several locks.
    OneTokenForAll,
    /// One lease for all of several locks.
    OneLeaseForAll,
    /// Grants more permits than there are.
    ExceedsPermits,
    /// A resent acquire of a shared lock acquires again.
    ResendAcquiresAgain,
    /// At most one grant of an operation is published.
    PublishesOne,
    /// A session has only one queue entry.
    OneEntryPerSession,
    /// All shared holds end with the longest.
    SharedHoldsEndTogether,
    /// An impossible request waits forever.
    WaitsForEver,
    /// Each request's limit becomes the limit.
    AcceptsAnyLimit,
    /// A resize ignores which limit was observed.
    ResizesUnseen,
    /// Clients ask for the new number from any resize on.
    ResizeIsAgreed,
    /// A hold that gives permits back keeps them all.
    KeepsAllPermits,
    /// It keeps none.
    ReturnsAllPermits,
    /// A resize does not serve the queue.
    ResizeGrantsNothing,
    /// A lower limit evicts holders.
    ResizeEvicts,
    /// A forced release ends all shared holds.
    ForceReleasesAll,
    /// Not all blocking holders are reported.
    HidesOthers,
    /// Not all holders are reported.
    HidesHolders,
    /// A queue entry stays though its request has become impossible.
    KeepsImpossibleEntries,
    /// Other holders are admitted beside a writer.
    WriterIsShared,
    /// A client that proclaims a text counts as the leader, and as one that has seen the present text.
    ProclaimsForAll,
    /// An owner that reads waits to read again.
    ReadersQueue,
    /// A write of an owner that writes waits behind the other clients.
    WritersQueue,
    /// Two upgradable reads are admitted.
    UpgradablesShare,
    /// An upgrade waits behind all others.
    UpgradesQueue,
    /// A latch opens at any arrival.
    OpensEarly,
    /// Expired queue entries count at a barrier.
    CountsExpiredParties,
    /// An attempt at a barrier leaves a queue entry.
    TriesQueue,
    /// Modes of other kinds are accepted.
    AcceptsAnyMode,
    /// A missing owner is replaced by a new one.
    InventsOwners,
    /// Takes shared locks together with others.
    SharesInSets,
    /// Another number of parties is accepted.
    AcceptsAnyParties,
    /// Only one hold of a lapsed session is evicted.
    EvictsOne,
    /// Reserves the same tokens again.
    ReservesAgain,
    /// A whole block is reserved, however few tokens were requested.
    ReservesMore,
    /// One token is reserved, however many were requested.
    ReservesOne,
    /// Grants tokens that are reserved.
    GrantsReserved,
    /// Any client reserves what belongs to the holder.
    ReservesForAnyHold,
    /// Of other kinds than a Mutex it extends, and reserves nothing.
    ReservesOfAnyKind,
    /// Waiters are not reported.
    HidesWaiters,
    /// No holder is notified of waiters.
    NotifiesNoHolder,
    /// Holders are notified without a request for it.
    NotifiesUnasked,
    /// A holder is notified of its own session's requests.
    NotifiesOfOwnRequest,
    /// Later holders are notified too.
    NotifiesForEver,
    /// A former holder is notified too.
    NotifiesLostHold,
}
