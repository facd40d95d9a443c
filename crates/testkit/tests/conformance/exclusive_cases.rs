//! Cases for a lock that a single client holds, each with a mutant that fails it.

use crate::mutant::StoreMutant;
use crate::run::{fails, fails_of, soon_fails_of};
use leasehold_core::Kind;
use leasehold_testkit::conformance::cases;
use std::thread;

/// A suite that passes everything is worth nothing.
#[test]
fn a_mutant_fails_its_case() {
    thread::scope(|all| {
        fails(all, StoreMutant::ForgetsEnded, cases::an_ended_hold_cannot_be_acquired_again);
        fails(all, StoreMutant::ForgetsEnded, cases::a_resent_release_reports_released);
        fails(all, StoreMutant::ReleasesAnyHold, cases::a_late_release_leaves_the_successor_alone);
        fails(all, StoreMutant::ReleasesAnyHold, cases::a_release_by_another_hold_changes_nothing);
        fails(all, StoreMutant::ExtendShortens, cases::an_extend_never_shortens);
        fails(all, StoreMutant::ExtendsNothing, cases::a_hold_that_has_ended_cannot_be_extended);
        fails(all, StoreMutant::ExtendsNothing, cases::an_extend_that_names_a_token_extends_only_that_grant);
        fails(all, StoreMutant::WholeSeconds, cases::any_lease_from_a_millisecond_to_a_month);
        fails(all, StoreMutant::OneToken, cases::fencing_tokens_grow);
        fails(all, StoreMutant::Barges, cases::a_try_does_not_overtake_waiters);
        fails(all, StoreMutant::PublishesToAll, cases::a_grant_notifies_exactly_one_waiter);
        fails(all, StoreMutant::PublishesToClosed, cases::a_closed_mailbox_receives_nothing);
        fails(all, StoreMutant::AlwaysGrants, cases::a_lock_left_free_keeps_its_queue);
        fails(all, StoreMutant::PollsExtend, cases::a_resent_acquire_is_one_acquire);
        fails(all, StoreMutant::PollsLoseTheEntry, cases::a_poll_keeps_the_queue_position);
        fails(all, StoreMutant::TrimsNames, cases::any_name_is_literal);
        fails(all, StoreMutant::ValuesAlone, cases::equal_values_exclude_each_other);
        fails(all, StoreMutant::MixesUp, cases::outcomes_come_in_the_order_of_operations);
        fails(all, StoreMutant::ExceedsTimeLimits, cases::a_call_ends_by_its_deadline);
        fails(all, StoreMutant::AdoptsUnasked, cases::a_lock_without_expiry_is_adopted_on_request);
        fails(all, StoreMutant::EvictsLiveSessions, cases::live_sessions_are_not_evicted);
        fails(all, StoreMutant::EvictsNoSession, cases::a_poll_evicts_a_lapsed_predecessor);
        fails(all, StoreMutant::EvictsNoSession, cases::polls_evict_a_row_of_lapsed_sessions);
        fails(all, StoreMutant::EvictsNoSession, cases::a_lapsed_session_is_evicted_by_any_client);
        fails(all, StoreMutant::EvictsDetached, cases::a_hold_without_a_session_is_not_evicted);
        fails(all, StoreMutant::Revives, cases::heartbeats_keep_a_session_alive);
        fails(all, StoreMutant::ForceReleasesAnyHold, cases::a_late_forced_release_ends_nothing);
        fails(all, StoreMutant::ForgetsAudit, cases::forced_releases_are_audited);
        fails(all, StoreMutant::ForgetsAudit, cases::an_evicted_holder_is_informed);
    });
}

/// The same for a ReentrantMutex.
#[test]
fn a_reentry_mutant_fails_its_case() {
    thread::scope(|all| {
        let kind = Kind::Reentrant;
        fails_of(all, kind, StoreMutant::CountsTwice, cases::a_resent_reentry_counts_once);
        fails_of(all, kind, StoreMutant::EntryShortens, cases::a_reentry_shortens_no_lease);
        fails_of(all, kind, StoreMutant::MixesOwners, cases::the_same_owner_reenters_at_once);
        fails_of(all, kind, StoreMutant::InnerReleaseFrees, cases::a_release_reports_the_remaining_holds);
        soon_fails_of(all, kind, StoreMutant::InnerReleaseFrees, cases::concurrent_reentries_are_counted);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::a_release_by_an_unknown_hold_ends_none);
        fails_of(all, kind, StoreMutant::ReleasesAnyHold, cases::a_release_by_another_hold_changes_nothing);
        fails_of(all, kind, StoreMutant::EntryHasItsToken, cases::one_tenure_has_one_token);
        fails_of(all, kind, StoreMutant::OmitsRemainingCount, cases::a_release_reports_the_remaining_holds);
        fails_of(all, kind, StoreMutant::OmitsRemainingCount, cases::a_foreign_hold_of_the_same_owner_counts);
        fails_of(all, kind, StoreMutant::ReleaseSetsRemainingExpiry, cases::an_unknown_hold_alone_expires);
        fails_of(all, kind, StoreMutant::EntriesQueue, cases::only_a_reentry_overtakes_the_queue);
        fails_of(all, kind, StoreMutant::FreesBeforeNextAcquire, cases::a_release_that_acquires_reenters);
        fails_of(all, kind, StoreMutant::EvictsTheOwner, cases::a_lapsed_session_loses_only_its_own_holds);
        fails_of(all, kind, StoreMutant::MixesKinds, cases::another_kind_of_lock_is_refused);
        fails_of(all, kind, StoreMutant::ForgetsEnded, cases::a_resent_release_reports_released);
        fails_of(all, kind, StoreMutant::Barges, cases::a_try_does_not_overtake_waiters);
        fails_of(
            all,
            Kind::Reentrant,
            StoreMutant::EntryExtendsUnknownHolds,
            cases::an_unknown_hold_expires_and_leaves_no_count,
        );
        fails_of(
            all,
            Kind::Reentrant,
            StoreMutant::ExpiredHoldsCount,
            cases::an_unknown_hold_expires_and_leaves_no_count,
        );
        fails_of(all, Kind::Reentrant, StoreMutant::AllHoldsEndTogether, cases::each_hold_expires_on_its_own);
        fails_of(
            all,
            Kind::Reentrant,
            StoreMutant::NotifiesOneProcess,
            cases::a_forced_release_ends_all_holds_of_an_owner,
        );
    });
}

/// The same for locks that rest.
#[test]
fn a_cooldown_mutant_fails_its_case() {
    thread::scope(|all| {
        let mutant = StoreMutant::ProclaimsForAll;
        fails_of(all, Kind::Election, mutant, cases::a_leader_proclaims_another_text);
        fails_of(all, Kind::Election, mutant, cases::only_the_leader_proclaims);
        for kind in [Kind::Mutex, Kind::Election] {
            fails_of(all, kind, StoreMutant::AlwaysGrants, cases::a_lock_in_cooldown_has_no_owner);
            fails_of(all, kind, StoreMutant::AlwaysGrants, cases::a_cooldown_that_acquires_again_waits);
            fails_of(all, kind, StoreMutant::AlwaysGrants, cases::a_cooldown_outlasts_its_session);
            fails_of(all, kind, StoreMutant::CooldownHasHolder, cases::a_resent_cooldown_reports_released);
            fails_of(
                all,
                kind,
                StoreMutant::ReleasesAnyHold,
                cases::a_cooldown_by_another_hold_changes_nothing,
            );
            fails_of(
                all,
                kind,
                StoreMutant::ExtendsCooldown,
                cases::a_cooldown_whose_time_is_over_is_a_release,
            );
            fails_of(all, kind, StoreMutant::ExtendsCooldown, cases::a_cooldown_expires);
            fails_of(
                all,
                kind,
                StoreMutant::CooldownHasHolder,
                cases::a_cooldown_ignores_requests_of_the_ended_hold,
            );
            fails_of(all, kind, StoreMutant::AlwaysGrants, cases::a_forced_release_ends_a_cooldown);
        }
    });
}

/// The same for reservations.
#[test]
fn a_token_reservation_mutant_fails_its_case() {
    thread::scope(|all| {
        fails(all, StoreMutant::ReservesAgain, cases::blocks_of_tokens_follow_one_another);
        fails(all, StoreMutant::ReservesMore, cases::a_block_is_complete_once_the_clock_allows);
        fails(all, StoreMutant::ReservesOne, cases::a_block_is_complete_once_the_clock_allows);
        fails(all, StoreMutant::GrantsReserved, cases::tokens_grow_past_reserved_ones);
        fails(all, StoreMutant::GrantsReserved, cases::tokens_grow_past_the_reservation_of_an_evicted_holder);
        fails(all, StoreMutant::ExtendsNothing, cases::only_the_holder_reserves_tokens);
        fails(all, StoreMutant::ReservesForAnyHold, cases::only_the_holder_reserves_tokens);
        fails(all, StoreMutant::ExtendShortens, cases::an_extend_that_reserves_never_shortens);
        fails(all, StoreMutant::ReservesForAnyHold, cases::an_equal_value_reserves_nothing);
        fails(all, StoreMutant::HidesWaiters, cases::a_reservation_reports_whether_others_wait);
        fails(all, StoreMutant::NotifiesUnasked, cases::a_holder_is_notified_of_other_requests);
        fails(all, StoreMutant::NotifiesOfOwnRequest, cases::a_holder_is_notified_of_other_requests);
        fails(all, StoreMutant::NotifiesForEver, cases::a_holder_is_notified_for_one_hold);
        fails(all, StoreMutant::NotifiesForEver, cases::a_lost_hold_is_not_notified);
        fails(all, StoreMutant::NotifiesLostHold, cases::a_lost_hold_is_not_notified);
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Mutex) {
            fails_of(all, kind, StoreMutant::ReservesOfAnyKind, cases::this_kind_of_lock_reserves_no_tokens);
        }
        fails(all, StoreMutant::NotifiesNoHolder, cases::a_holder_is_notified_of_other_requests);
    });
}

/// The same for several locks.
#[test]
fn a_multi_lock_mutant_fails_its_case() {
    thread::scope(|all| {
        for kind in Kind::EXCLUSIVE {
            fails_of(all, kind, StoreMutant::AcquiresSome, cases::a_multi_acquire_is_all_or_nothing);
            fails_of(all, kind, StoreMutant::ReacquiresOnResend, cases::a_resent_multi_acquire_is_one);
            fails_of(
                all,
                kind,
                StoreMutant::ReacquiresOnResend,
                cases::locks_that_are_already_held_are_reported,
            );
            fails_of(
                all,
                kind,
                StoreMutant::AcquiresAll,
                cases::another_hold_of_the_session_blocks_a_multi_acquire,
            );
            fails_of(all, kind, StoreMutant::ForgetsEnded, cases::a_released_multi_acquire_is_spent);
            fails_of(all, kind, StoreMutant::OneTokenForAll, cases::each_of_several_locks_has_its_own_token);
            fails_of(all, kind, StoreMutant::Barges, cases::a_multi_acquire_overtakes_no_waiter);
            fails_of(all, kind, StoreMutant::OneLeaseForAll, cases::each_of_several_locks_expires_on_its_own);
            fails_of(all, kind, StoreMutant::MixesKinds, cases::another_kind_of_lock_blocks_a_multi_acquire);
            fails_of(all, kind, StoreMutant::AcquiresAll, cases::another_type_of_key_blocks_a_multi_acquire);
            fails_of(all, kind, StoreMutant::AcquiresAll, cases::a_foreign_lock_blocks_a_multi_acquire);
            fails_of(all, kind, StoreMutant::MixesUp, cases::multi_acquire_replies_are_in_order);
            fails_of(all, kind, StoreMutant::EvictsNoSession, cases::a_lapsed_session_loses_each_lock);
            soon_fails_of(
                all,
                kind,
                StoreMutant::AcquiresAll,
                cases::concurrent_multi_acquires_exclude_each_other,
            );
        }
    });
}
