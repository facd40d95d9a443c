//! What every store must do: one suite, which each of them passes unchanged.
//!
//! A store is put to the test as a [`Subject`]: something that makes handles to it, and perhaps moves its
//! clock or meddles with its keys. [`suite!`] makes a test of every case, so that a failure has a name.
//!
//! ```
//! use futures_util::future::{BoxFuture, ready};
//! use leasehold_store::{MemoryStore, Store};
//! use leasehold_testkit::conformance::{self, Subject};
//! use std::sync::Arc;
//!
//! struct Memory(MemoryStore);
//!
//! impl Subject for Memory {
//!     fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
//!         Box::pin(ready(Arc::new(self.0.clone()) as Arc<dyn Store>))
//!     }
//! }
//!
//! conformance::suite!(Memory(MemoryStore::new()));
//! ```
//!
//! What the suite holds itself to:
//!
//! 1. Every case has a lock that nobody used before, so that cases may share a server and run at once.
//! 2. It never hopes for a sleep to be long enough. What comes by itself (an expiry, a message) is
//!    looked for again and again within a bound; that nothing came is known from what came after it.
//! 3. Random numbers come from one seed, which a failure shows and `LEASEHOLD_SEED` sets.
//!
//! 4. What a store does not have (a queue, a mailbox, sessions) ends a case where it is first needed, which says so, and not
//!    before.
//!
//! It deliberately has no faults: what a store does when its server is cut off, stopped or full is for
//! the tests of that store.

pub mod cases;
mod leaders;
mod letters;
mod parts;
mod peer;
mod rlock;
mod scene;
mod subject;
mod workload;

#[doc(inline)]
pub use crate::conformance_suite as suite;
pub use crate::random::Random;
pub use leaders::said_of_leaders;
#[doc(hidden)]
pub use leasehold_core::Kind;
pub use letters::{Letter, Letters};
pub use parts::parts;
pub use peer::{Granted, LONG, PATIENCE, Peer, Taken};
pub use rlock::rlock;
pub use scene::{Scene, play};
pub use subject::Subject;
pub use workload::{Happening, Stranger, Workload};

/// Makes a test of every case of the [conformance suite](crate::conformance), for the [`Subject`] that
/// the expression gives: a module for each kind of lock. The expression may `await`; it is evaluated once a case, and finds
/// the names that are there where the suite is. After `mutex:`, `reentrant:`, `election:`, `semaphore:`, `rwlock:`, `latch:`
/// or `barrier:` it is of that kind alone; after `alone:` of those that one has at a time, after `shared:` of the others.
#[macro_export]
macro_rules! conformance_suite {
    (mutex: $subject:expr) => {
        mod mutex {
            use super::*;
            $crate::conformance_suite! { @alone Mutex ($subject) }
            $crate::conformance_suite! { @cases Mutex ($subject)
                equal_values_exclude_each_other
                a_late_release_leaves_an_equal_value_alone
                a_foreign_lock_excludes
                a_resent_release_leaves_a_stranger_alone
                a_lock_that_rests_is_nobodys
                a_resent_rest_says_released
                a_rest_is_beyond_the_hold_before
                a_rest_whose_time_is_over_is_a_release
                a_rest_ends_by_itself
                a_rest_ends_with_no_session
                a_rest_is_ended_by_force
                a_rest_that_acquires_again_waits
                a_rest_by_another_hold_changes_nothing
                blocks_of_tokens_follow_one_another
                a_block_is_whole_when_its_time_has_come
                tokens_grow_over_what_is_reserved
                tokens_grow_over_what_was_reserved_for_who_was_robbed
                nothing_is_reserved_but_for_the_holder
                an_extend_that_reserves_only_raises
                an_equal_value_reserves_nothing
                who_reserves_learns_whether_others_wait
                a_holder_is_told_of_others_who_ask
                a_holder_is_told_for_one_hold
                who_has_lost_his_hold_is_told_no_more
            }
        }
    };
    (election: $subject:expr) => {
        mod election {
            use super::*;
            $crate::conformance_suite! { @alone Election ($subject) }
            $crate::conformance_suite! { @cases Election ($subject)
                equal_values_exclude_each_other
                a_late_release_leaves_an_equal_value_alone
                a_foreign_lock_excludes
                a_resent_release_leaves_a_stranger_alone
                a_lock_that_rests_is_nobodys
                a_resent_rest_says_released
                a_rest_is_beyond_the_hold_before
                a_rest_whose_time_is_over_is_a_release
                a_rest_ends_by_itself
                a_rest_ends_with_no_session
                a_rest_is_ended_by_force
                a_rest_that_acquires_again_waits
                a_rest_by_another_hold_changes_nothing
                another_kind_of_lock_is_refused
                a_lock_of_this_kind_has_no_tokens_to_reserve
            }
        }
    };
    (reentrant: $subject:expr) => {
        mod reentrant {
            use super::*;
            $crate::conformance_suite! { @alone Reentrant ($subject) }
            $crate::conformance_suite! { @cases Reentrant ($subject)
                the_same_owner_enters_at_once
                a_resent_entry_counts_once
                a_release_tells_what_is_left
                a_release_by_none_of_the_holds_takes_none
                an_entry_shortens_nothing
                each_hold_ends_by_itself
                a_ghost_leaves_no_count
                a_ghost_alone_does_not_keep_the_lock
                only_an_entry_passes_the_queue
                a_release_that_acquires_enters_again
                one_tenure_has_one_token
                a_dead_process_loses_its_part
                a_forced_release_ends_all_of_an_owner
                a_stranger_of_the_same_owner_counts
                another_kind_of_lock_is_refused
                many_entries_at_once_are_counted
                a_lock_of_this_kind_has_no_tokens_to_reserve
            }
        }
    };
    (semaphore: $subject:expr) => {
        mod semaphore {
            use super::*;
            $crate::conformance_suite! { @shared Semaphore ($subject) }
            $crate::conformance_suite! { @queued Semaphore ($subject) }
            $crate::conformance_suite! { @cases Semaphore ($subject)
                permits_add_up_to_their_number
                resent_permits_count_once
                who_wants_less_passes_nobody
                a_release_lets_in_as_many_as_fit
                each_hold_of_a_process_has_its_place
                each_part_ends_by_itself
                a_release_after_the_expiry_adds_no_permit
                permits_of_the_dead_come_back
                a_dead_sharer_is_evicted_by_whoever_asks
                who_is_next_watches_all_who_share
                what_can_never_be_had_is_refused
                the_first_who_comes_says_how_many_there_are
                a_resize_lets_in_and_takes_from_nobody
                who_wants_too_much_by_now_stands_in_nobodys_way
                a_forced_release_ends_one_of_several
                never_are_more_permits_held_than_there_are
            }
        }
    };
    (rwlock: $subject:expr) => {
        mod rwlock {
            use super::*;
            $crate::conformance_suite! { @shared RwLock ($subject) }
            $crate::conformance_suite! { @queued RwLock ($subject) }
            $crate::conformance_suite! { @cases RwLock ($subject)
                readers_share_and_a_writer_is_alone
                readers_pass_no_writer_who_waits
                an_owner_who_reads_passes_a_writer_who_waits
                an_upgrade_that_would_never_end_is_refused
                an_upgrade_goes_before_all_who_wait
                a_try_to_upgrade_passes_those_who_wait
                a_downgrade_lets_no_writer_in_between
                a_live_reader_keeps_no_dead_one_alive
                a_late_release_of_a_read_ends_no_write
                a_dead_reader_keeps_no_writer_waiting
                a_dead_upgrade_holds_nobody_up
                a_reader_without_an_owner_is_refused
                nobody_is_ever_beside_a_writer
            }
        }
    };
    (latch: $subject:expr) => {
        mod latch {
            use super::*;
            $crate::conformance_suite! { @shared Latch ($subject) }
            $crate::conformance_suite! { @cases Latch ($subject)
                a_latch_opens_when_all_have_arrived
                one_may_arrive_for_several
                a_resent_arrival_counts_once
                an_arrival_that_was_given_up_never_counts
                an_arrival_of_the_dead_does_not_count
                who_counts_on_another_number_is_told
            }
        }
    };
    (barrier: $subject:expr) => {
        mod barrier {
            use super::*;
            $crate::conformance_suite! { @shared Barrier ($subject) }
            $crate::conformance_suite! { @cases Barrier ($subject)
                all_who_meet_go_on_together
                a_try_to_meet_counts_only_as_the_last
                who_meets_counts_once
                who_left_a_barrier_is_not_counted
                the_dead_do_not_meet
                who_counts_on_another_number_is_told
            }
        }
    };
    (alone: $subject:expr) => {
        $crate::conformance_suite! { mutex: $subject }
        $crate::conformance_suite! { reentrant: $subject }
        $crate::conformance_suite! { election: $subject }
    };
    (shared: $subject:expr) => {
        $crate::conformance_suite! { semaphore: $subject }
        $crate::conformance_suite! { rwlock: $subject }
        $crate::conformance_suite! { latch: $subject }
        $crate::conformance_suite! { barrier: $subject }
    };
    // Of those that one has at a time: what they have beside all others.
    (@alone $kind:ident ($subject:expr)) => {
        $crate::conformance_suite! { @held $kind ($subject) }
        $crate::conformance_suite! { @queued $kind ($subject) }
        $crate::conformance_suite! { @cases $kind ($subject)
            every_fate_is_told
            a_release_by_another_hold_changes_nothing
            a_late_release_leaves_the_successor_alone
            a_session_has_one_place
            a_lock_left_free_keeps_its_queue
            a_late_release_passes_a_free_lock_on
            a_value_is_granted_from_the_queue
            a_lock_without_expiry_is_adopted_if_asked
            a_forced_release_that_comes_too_late_takes_nothing
            a_stranger_is_freed_by_its_fingerprint

            all_of_a_set_are_taken_or_none
            a_set_that_is_asked_for_again_is_one
            what_is_there_of_a_set_is_told
            another_hold_of_the_asker_is_in_the_way_of_a_set
            a_set_that_was_given_back_is_spent
            each_of_a_set_has_its_own_token
            a_set_passes_nobody
            each_of_a_set_ends_by_itself
            another_kind_of_lock_keeps_a_set_from_all
            another_type_of_key_keeps_a_set_from_all
            a_foreign_lock_keeps_a_set_from_all
            the_shares_come_in_the_order_of_the_asks
            the_dead_lose_each_of_a_set
            sets_at_once_exclude_each_other
        }
    };
    // Of those that several can have side by side: what all of them have.
    (@shared $kind:ident ($subject:expr)) => {
        $crate::conformance_suite! { @held $kind ($subject) }
        $crate::conformance_suite! { @cases $kind ($subject)
            a_part_of_another_kind_is_refused
            a_name_is_of_one_kind
            a_shared_lock_is_in_no_set
            holds_side_by_side_are_told_apart
            a_lock_of_this_kind_has_no_tokens_to_reserve
        }
    };
    // What whoever holds a lock has, or a part of it, also where none waits for that.
    (@held $kind:ident ($subject:expr)) => {
        $crate::conformance_suite! { @cases $kind ($subject)
            a_release_frees
            a_resent_release_says_released
            a_spent_hold_cannot_be_acquired_again

            an_extend_only_raises
            any_lease_from_a_millisecond_to_a_month

            fencing_tokens_grow_over_a_deleted_key

            another_type_of_key_is_refused

            any_name_is_literal
            names_that_cannot_be_are_refused

            a_session_lives_as_long_as_it_beats
            a_session_that_ended_is_over
            a_session_is_listed_with_what_it_holds

            what_was_taken_is_written_down

            outcomes_come_in_the_order_of_operations
            a_dropped_call_leaves_the_store_usable
            a_call_ends_by_its_deadline
            a_sibling_works_on_another_thread

            a_thousand_operations_agree_with_the_model
        }
    };
    // What those have who wait until others leave.
    (@queued $kind:ident ($subject:expr)) => {
        $crate::conformance_suite! { @cases $kind ($subject)
            two_holds_exclude_each_other
            a_resent_acquire_is_one_acquire
            an_inspection_tells_who_and_how_long
            an_inspection_changes_nothing
            at_most_one_is_inside

            a_release_leaves_the_queue
            a_grant_that_is_given_up_goes_on

            a_hold_that_is_gone_cannot_be_extended
            a_lease_lasts_as_long_as_it_is_believed

            fencing_tokens_grow

            the_queue_is_first_come_first_served
            a_look_keeps_the_place
            the_queues_of_two_locks_are_two
            a_try_does_not_barge
            an_expired_hold_goes_to_the_first_who_waits
            a_deleted_key_goes_to_the_first_who_waits
            the_dead_are_skipped
            many_dead_are_skipped_a_few_at_a_time
            those_who_left_are_not_in_the_way

            a_grant_wakes_one_and_nobody_else
            a_grant_lasts_as_long_as_was_asked_for
            a_release_queues_again_behind_the_others
            a_release_with_nobody_waiting_acquires_at_once
            a_resent_release_that_acquires_is_one

            no_grant_is_missed
            sessions_of_one_handle_have_two_mailboxes
            a_closed_mailbox_gets_nothing
            a_mailbox_that_is_opened_again_at_once_gets_grants

            a_look_takes_the_lock_from_the_dead_ahead
            a_row_of_the_dead_is_cleared_from_behind
            a_dead_session_is_evicted_by_whoever_asks
            the_living_are_not_evicted
            a_hold_without_a_session_is_not_evicted
            an_evicted_hold_is_told_its_fate

            a_forced_release_grants_to_the_next_and_tells_the_holder
        }
    };
    (@cases $kind:ident ($subject:expr) $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                let kind = $crate::conformance::Kind::$kind;
                $crate::conformance::play(kind, async { $subject }, $crate::conformance::cases::$case);
            }
        )*
    };
    ($subject:expr) => {
        $crate::conformance_suite! { alone: $subject }
        $crate::conformance_suite! { shared: $subject }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// A case that is not in the list would be played by nobody.
    #[test]
    fn every_case_is_in_the_suite() {
        let this = include_str!("mod.rs");
        let lists = this.split("{ @cases ").skip(1).filter_map(|rest| rest.split('}').next());
        let lists = lists.filter_map(|list| list.split("($subject)").nth(1));
        let listed: BTreeSet<_> = lists.flat_map(str::split_whitespace).collect();
        let sources = [
            include_str!("cases/agreement.rs"),
            include_str!("cases/calls.rs"),
            include_str!("cases/entering.rs"),
            include_str!("cases/fencing.rs"),
            include_str!("cases/freeing.rs"),
            include_str!("cases/gathering.rs"),
            include_str!("cases/holding.rs"),
            include_str!("cases/leases.rs"),
            include_str!("cases/mailbox.rs"),
            include_str!("cases/names.rs"),
            include_str!("cases/passing.rs"),
            include_str!("cases/permits.rs"),
            include_str!("cases/queueing.rs"),
            include_str!("cases/reading.rs"),
            include_str!("cases/releasing.rs"),
            include_str!("cases/reserving.rs"),
            include_str!("cases/resting.rs"),
            include_str!("cases/sessions.rs"),
            include_str!("cases/sharing.rs"),
            include_str!("cases/together.rs"),
            include_str!("cases/values.rs"),
        ];
        let written = sources.iter().flat_map(|source| source.split("pub async fn ").skip(1));
        let written: BTreeSet<_> = written.filter_map(|text| text.split('(').next()).collect();
        assert_eq!(listed, written);
    }
}
