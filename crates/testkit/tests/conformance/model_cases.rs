//! Mutants that the comparison with the model finds.

use crate::mutant::StoreMutant;
use crate::run::disagrees;
use leasehold_core::Kind;

/// The random operations find every mutant that affects replies or notifications.
#[test]
fn a_mutant_disagrees_with_the_model() {
    for mutant in [
        StoreMutant::ForgetsEnded,
        StoreMutant::ReleasesAnyHold,
        StoreMutant::ExtendShortens,
        StoreMutant::ExtendsNothing,
        StoreMutant::OneToken,
        StoreMutant::Barges,
        StoreMutant::PublishesToAll,
        StoreMutant::AlwaysGrants,
        StoreMutant::PollsExtend,
        StoreMutant::PollsLoseTheEntry,
        StoreMutant::AdoptsUnasked,
        StoreMutant::ReservesAgain,
        StoreMutant::GrantsReserved,
        StoreMutant::ReservesForAnyHold,
        StoreMutant::HidesWaiters,
        StoreMutant::NotifiesNoHolder,
        StoreMutant::NotifiesUnasked,
        StoreMutant::NotifiesOfOwnRequest,
        StoreMutant::NotifiesForEver,
    ] {
        disagrees(Kind::Mutex, mutant);
    }
    for mutant in [
        StoreMutant::CountsTwice,
        StoreMutant::EntryShortens,
        StoreMutant::EntryExtendsUnknownHolds,
        StoreMutant::InnerReleaseFrees,
        StoreMutant::EntryHasItsToken,
        StoreMutant::OmitsRemainingCount,
        StoreMutant::ReleasesAnyHold,
        StoreMutant::ForgetsEnded,
    ] {
        disagrees(Kind::Reentrant, mutant);
    }
    for (kind, mutant) in [
        (Kind::Semaphore, StoreMutant::ExceedsPermits),
        (Kind::Semaphore, StoreMutant::AcceptsAnyLimit),
        (Kind::Semaphore, StoreMutant::ResizesUnseen),
        (Kind::Semaphore, StoreMutant::HidesHolders),
        (Kind::Semaphore, StoreMutant::HidesOthers),
        (Kind::Semaphore, StoreMutant::PublishesOne),
        (Kind::RwLock, StoreMutant::WriterIsShared),
        (Kind::RwLock, StoreMutant::ReadersQueue),
        (Kind::RwLock, StoreMutant::WritersQueue),
        (Kind::RwLock, StoreMutant::UpgradesQueue),
        (Kind::RwLock, StoreMutant::Barges),
        (Kind::Latch, StoreMutant::OpensEarly),
        (Kind::Latch, StoreMutant::ResendAcquiresAgain),
        (Kind::Barrier, StoreMutant::TriesQueue),
        (Kind::Barrier, StoreMutant::ForgetsEnded),
    ] {
        disagrees(kind, mutant);
    }
}
