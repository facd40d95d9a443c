//! Cases for locks that several clients hold at once, each with a mutant that fails it.

use crate::mutant::StoreMutant;
use crate::run::fails_of;
use leasehold_core::Kind;
use leasehold_testkit::conformance::cases;
use std::thread;

/// The same for permits.
#[test]
fn a_semaphore_mutant_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::Semaphore;
        fails_of(all, kind, StoreMutant::ExceedsPermits, cases::permits_are_granted_up_to_their_number);
        fails_of(all, kind, StoreMutant::HidesHolders, cases::permits_are_granted_up_to_their_number);
        fails_of(all, kind, StoreMutant::OneToken, cases::permits_are_granted_up_to_their_number);
        fails_of(all, kind, StoreMutant::ResendAcquiresAgain, cases::resent_permits_count_once);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::resent_permits_count_once);
        fails_of(all, kind, StoreMutant::Barges, cases::a_smaller_request_overtakes_no_waiter);
        fails_of(all, kind, StoreMutant::PublishesToAll, cases::a_release_grants_to_as_many_as_fit);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::a_release_after_the_expiry_adds_no_permit);
        fails_of(all, kind, StoreMutant::ExceedsPermits, cases::a_release_after_the_expiry_adds_no_permit);
        fails_of(all, kind, StoreMutant::EvictsNoSession, cases::permits_of_a_lapsed_session_are_granted);
        fails_of(all, kind, StoreMutant::EvictsNoSession, cases::a_lapsed_holder_is_evicted_by_any_client);
        fails_of(all, kind, StoreMutant::EvictsOne, cases::a_lapsed_holder_is_evicted_by_any_client);
        fails_of(all, kind, StoreMutant::HidesOthers, cases::the_first_waiter_watches_all_holders);
        fails_of(all, kind, StoreMutant::WaitsForEver, cases::an_impossible_number_of_permits_is_refused);
        fails_of(
            all,
            kind,
            StoreMutant::AcceptsAnyLimit,
            cases::the_first_acquire_sets_the_number_of_permits,
        );
        fails_of(
            all,
            kind,
            StoreMutant::ResizeIsAgreed,
            cases::a_resize_leaves_the_number_for_which_clients_ask,
        );
        fails_of(all, kind, StoreMutant::KeepsAllPermits, cases::a_hold_gives_back_some_of_its_permits);
        fails_of(all, kind, StoreMutant::ReturnsAllPermits, cases::a_hold_gives_back_some_of_its_permits);
        fails_of(
            all,
            kind,
            StoreMutant::ResizesUnseen,
            cases::a_resize_grants_to_waiters_and_evicts_no_holder,
        );
        fails_of(
            all,
            kind,
            StoreMutant::ResizeEvicts,
            cases::a_resize_grants_to_waiters_and_evicts_no_holder,
        );
        fails_of(
            all,
            kind,
            StoreMutant::KeepsImpossibleEntries,
            cases::a_waiter_beyond_a_lowered_limit_blocks_no_other,
        );
        fails_of(all, kind, StoreMutant::ForceReleasesAll, cases::a_forced_release_ends_one_of_several);
        fails_of(all, kind, StoreMutant::ExceedsPermits, cases::held_permits_never_exceed_their_number);
        fails_of(all, kind, StoreMutant::ForgetsEnded, cases::an_ended_hold_cannot_be_acquired_again);
        fails_of(all, Kind::Semaphore, StoreMutant::PublishesOne, cases::a_release_grants_to_as_many_as_fit);
        fails_of(
            all,
            Kind::Semaphore,
            StoreMutant::ResizeGrantsNothing,
            cases::a_resize_grants_to_waiters_and_evicts_no_holder,
        );
        fails_of(
            all,
            Kind::Semaphore,
            StoreMutant::OneEntryPerSession,
            cases::each_hold_of_a_process_has_a_queue_entry,
        );
        fails_of(
            all,
            Kind::Semaphore,
            StoreMutant::SharedHoldsEndTogether,
            cases::each_shared_hold_expires_on_its_own,
        );
    });
}

/// The same for readers and writers.
#[test]
fn an_rwlock_mutant_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::RwLock;
        fails_of(all, kind, StoreMutant::WriterIsShared, cases::readers_share_and_a_writer_is_alone);
        fails_of(all, kind, StoreMutant::UpgradablesShare, cases::readers_share_and_a_writer_is_alone);
        fails_of(all, kind, StoreMutant::Barges, cases::readers_overtake_no_waiting_writer);
        fails_of(all, kind, StoreMutant::ReadersQueue, cases::an_owner_that_reads_overtakes_a_waiting_writer);
        fails_of(all, kind, StoreMutant::WaitsForEver, cases::an_upgrade_that_would_never_end_is_refused);
        fails_of(all, kind, StoreMutant::WritersQueue, cases::an_owner_that_writes_overtakes_all_waiters);
        fails_of(
            all,
            kind,
            StoreMutant::EvictsNoSession,
            cases::a_lapsed_write_ends_no_other_write_of_its_owner,
        );
        fails_of(all, kind, StoreMutant::UpgradesQueue, cases::an_upgrade_overtakes_all_waiters);
        fails_of(all, kind, StoreMutant::ResendAcquiresAgain, cases::an_upgrade_overtakes_all_waiters);
        fails_of(all, kind, StoreMutant::UpgradesQueue, cases::a_try_to_upgrade_overtakes_waiters);
        fails_of(all, kind, StoreMutant::ReadersQueue, cases::a_downgrade_admits_no_writer);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::a_late_release_of_a_read_ends_no_write);
        fails_of(all, kind, StoreMutant::EvictsNoSession, cases::a_lapsed_reader_blocks_no_writer);
        fails_of(all, kind, StoreMutant::EvictsNoSession, cases::a_lapsed_upgrade_blocks_no_waiter);
        fails_of(all, kind, StoreMutant::InventsOwners, cases::a_reader_without_an_owner_is_refused);
        fails_of(all, kind, StoreMutant::WriterIsShared, cases::a_writer_is_always_alone);
        fails_of(
            all,
            Kind::RwLock,
            StoreMutant::SharedHoldsEndTogether,
            cases::a_live_reader_does_not_extend_an_expired_one,
        );
    });
}

/// The same for a Latch and a Barrier.
#[test]
fn a_latch_or_barrier_mutant_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::Latch;
        fails_of(all, kind, StoreMutant::OpensEarly, cases::a_latch_opens_when_all_have_arrived);
        fails_of(all, kind, StoreMutant::OpensEarly, cases::an_arrival_can_count_for_several);
        fails_of(all, kind, StoreMutant::ResendAcquiresAgain, cases::a_resent_arrival_counts_once);
        fails_of(all, kind, StoreMutant::ForgetsEnded, cases::a_cancelled_arrival_never_counts);
        fails_of(
            all,
            kind,
            StoreMutant::EvictsNoSession,
            cases::an_arrival_of_a_lapsed_session_does_not_count,
        );
        fails_of(all, kind, StoreMutant::AcceptsAnyParties, cases::another_number_of_parties_is_refused);
        let kind = Kind::Barrier;
        fails_of(all, kind, StoreMutant::AcceptsAnyLimit, cases::another_number_of_parties_is_refused);
        fails_of(all, kind, StoreMutant::PublishesToAll, cases::all_parties_of_a_barrier_continue_together);
        fails_of(all, kind, StoreMutant::TriesQueue, cases::a_try_at_a_barrier_counts_only_as_the_last_party);
        fails_of(all, kind, StoreMutant::ResendAcquiresAgain, cases::a_resent_barrier_wait_counts_once);
        fails_of(all, kind, StoreMutant::ForgetsEnded, cases::a_party_that_left_a_barrier_is_not_counted);
        fails_of(
            all,
            Kind::Barrier,
            StoreMutant::CountsExpiredParties,
            cases::an_expired_party_does_not_count,
        );
        fails_of(
            all,
            Kind::Barrier,
            StoreMutant::PublishesOne,
            cases::all_parties_of_a_barrier_continue_together,
        );
    });
}

/// The same for all kinds that several can have.
#[test]
fn a_shared_kind_mutant_fails_its_case() {
    thread::scope(|all| {
        for kind in Kind::SHARED {
            fails_of(all, kind, StoreMutant::AcceptsAnyMode, cases::a_mode_of_another_kind_is_refused);
            fails_of(all, kind, StoreMutant::MixesKinds, cases::a_name_has_one_kind);
            fails_of(all, kind, StoreMutant::SharesInSets, cases::a_multi_acquire_refuses_a_shared_lock);
            fails_of(all, kind, StoreMutant::ExtendShortens, cases::shared_holds_are_distinguished);
            fails_of(all, kind, StoreMutant::ForgetsEnded, cases::shared_holds_are_distinguished);
        }
    });
}
