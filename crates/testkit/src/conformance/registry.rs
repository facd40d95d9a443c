//! The registry: each case of the suite once, with the kinds of lock that it applies to.
//!
//! A case is registered for kinds, or for groups of kinds:
//!
//! | Group | Kinds |
//! |---|---|
//! | `every` | all of them |
//! | `exclusive` | `mutex`, `reentrant`, `election`: at most one owner at a time |
//! | `shared` | `semaphore`, `rwlock`, `latch`, `barrier` |
//! | `queued` | `exclusive`, `semaphore` and `rwlock`: waiters queue until a holder leaves |
//!
//! Tests are made of it by [`suite!`](super::suite), and a list for programs by [`all_cases`]. A test in the parent
//! module compares the registry with the functions in `cases/`.

use super::cases;
use super::fixture::{Fixture, run_case};
use super::store_under_test::StoreUnderTest;
use futures_util::future::LocalBoxFuture;
use leasehold_core::Kind;
use std::fmt;

/// One case of the suite, for a program: see [`all_cases`].
#[derive(Clone, Copy)]
pub struct Case {
    /// The name of its test.
    pub name: &'static str,
    groups: &'static [&'static str],
    play: for<'a> fn(&'a Fixture) -> LocalBoxFuture<'a, ()>,
}

/// Returns all cases of the suite: for a program that puts a store to the test. Tests use [`suite!`](super::suite).
///
/// ```
/// use leasehold_core::Kind;
/// use leasehold_testkit::conformance::all_cases;
///
/// let queues = all_cases().into_iter().filter(|case| case.name.contains("queue"));
/// for case in queues.filter(|case| case.applies_to(Kind::Mutex)) {
///     println!("{}", case.name);
/// }
/// ```
pub fn all_cases() -> Vec<Case> {
    crate::conformance_cases! { list () }
}

impl Case {
    /// Returns whether it applies to locks of that kind.
    pub fn applies_to(&self, kind: Kind) -> bool {
        self.groups.iter().any(|group| match *group {
            "every" => true,
            "exclusive" => !kind.is_shared(),
            "shared" => kind.is_shared(),
            "queued" => !matches!(kind, Kind::Latch | Kind::Barrier),
            word => word == kind.as_str(),
        })
    }

    /// Runs it with locks of one kind. Panics if the store fails it. Must not be called by a task of a runtime.
    pub fn run<S: StoreUnderTest>(&self, kind: Kind, subject: S) {
        let play = self.play;
        run_case(kind, async { subject }, async move |fixture: &Fixture| play(fixture).await);
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Makes the tests of one kind of lock, or with `list` an expression of all cases.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($kind:ident $subject:tt) => {
        $crate::conformance_cases! { @each $kind $subject
            // agreement.rs
            a_thousand_operations_agree_with_the_model: every;
            // calls.rs
            outcomes_come_in_the_order_of_operations: every;
            a_dropped_call_leaves_the_store_usable: every;
            a_call_ends_by_its_deadline: every;
            a_sibling_works_on_another_thread: every;
            // entering.rs
            the_same_owner_enters_at_once: reentrant;
            a_resent_entry_counts_once: reentrant;
            a_release_tells_what_is_left: reentrant;
            a_release_by_none_of_the_holds_takes_none: reentrant;
            an_entry_shortens_nothing: reentrant;
            each_hold_ends_by_itself: reentrant;
            a_ghost_leaves_no_count: reentrant;
            a_ghost_alone_does_not_keep_the_lock: reentrant;
            only_an_entry_passes_the_queue: reentrant;
            a_release_that_acquires_enters_again: reentrant;
            one_tenure_has_one_token: reentrant;
            a_dead_process_loses_its_part: reentrant;
            a_forced_release_ends_all_of_an_owner: reentrant;
            a_stranger_of_the_same_owner_counts: reentrant;
            another_kind_of_lock_is_refused: election reentrant;
            many_entries_at_once_are_counted: reentrant;
            // fencing.rs
            fencing_tokens_grow: queued;
            fencing_tokens_grow_over_a_deleted_key: every;
            // freeing.rs
            a_forced_release_grants_to_the_next_and_tells_the_holder: queued;
            a_forced_release_that_comes_too_late_takes_nothing: exclusive;
            a_stranger_is_freed_by_its_fingerprint: exclusive;
            what_was_taken_is_written_down: every;
            // gathering.rs
            a_latch_opens_when_all_have_arrived: latch;
            one_may_arrive_for_several: latch;
            a_resent_arrival_counts_once: latch;
            an_arrival_that_was_given_up_never_counts: latch;
            an_arrival_of_the_dead_does_not_count: latch;
            another_number_of_parties_is_refused: latch barrier;
            all_parties_of_a_barrier_continue_together: barrier;
            a_try_to_meet_counts_only_as_the_last: barrier;
            a_resent_meeting_counts_once: barrier;
            a_party_that_left_a_barrier_is_not_counted: barrier;
            the_dead_do_not_meet: barrier;
            // holding.rs
            two_holds_exclude_each_other: queued;
            a_resent_acquire_is_one_acquire: queued;
            an_inspection_shows_holder_and_remaining_time: queued;
            an_inspection_changes_nothing: queued;
            every_fate_is_reported: exclusive;
            at_most_one_is_inside: queued;
            // leases.rs
            an_extend_only_raises: every;
            a_hold_that_is_gone_cannot_be_extended: queued;
            a_lease_lasts_as_long_as_it_is_believed: queued;
            any_lease_from_a_millisecond_to_a_month: every;
            // mailbox.rs
            no_grant_is_missed: queued;
            sessions_of_one_handle_have_two_mailboxes: queued;
            a_mailbox_that_is_opened_again_at_once_gets_grants: queued;
            a_closed_mailbox_gets_nothing: queued;
            // names.rs
            any_name_is_literal: every;
            names_that_cannot_be_are_refused: every;
            // passing.rs
            a_grant_wakes_exactly_one_waiter: queued;
            a_grant_lasts_as_long_as_was_asked_for: queued;
            a_release_queues_again_behind_the_others: queued;
            a_release_without_waiters_acquires_at_once: queued;
            a_resent_release_that_acquires_is_one: queued;
            a_lock_left_free_keeps_its_queue: exclusive;
            a_late_release_passes_a_free_lock_on: exclusive;
            // permits.rs
            permits_add_up_to_their_number: semaphore;
            resent_permits_count_once: semaphore;
            a_smaller_request_overtakes_no_waiter: semaphore;
            a_release_lets_in_as_many_as_fit: semaphore;
            each_hold_of_a_process_has_its_place: semaphore;
            each_part_ends_by_itself: semaphore;
            a_release_after_the_expiry_adds_no_permit: semaphore;
            permits_of_the_dead_come_back: semaphore;
            a_dead_sharer_is_evicted_by_any_client: semaphore;
            the_first_waiter_watches_all_holders: semaphore;
            an_impossible_number_of_permits_is_refused: semaphore;
            the_first_acquire_sets_the_number_of_permits: semaphore;
            a_resize_grants_to_waiters_and_evicts_no_holder: semaphore;
            a_waiter_beyond_a_lowered_limit_blocks_no_other: semaphore;
            a_forced_release_ends_one_of_several: semaphore;
            never_are_more_permits_held_than_there_are: semaphore;
            // queueing.rs
            the_queue_is_first_come_first_served: queued;
            a_look_keeps_the_place: queued;
            a_session_has_one_place: exclusive;
            the_queues_of_two_locks_are_two: queued;
            a_try_does_not_barge: queued;
            an_expired_hold_goes_to_the_first_waiter: queued;
            a_deleted_key_goes_to_the_first_waiter: queued;
            the_dead_are_skipped: queued;
            many_dead_are_skipped_a_few_at_a_time: queued;
            withdrawn_entries_do_not_block_the_queue: queued;
            // reading.rs
            readers_share_and_a_writer_is_alone: rwlock;
            readers_overtake_no_waiting_writer: rwlock;
            an_owner_that_reads_overtakes_a_waiting_writer: rwlock;
            an_upgrade_that_would_never_end_is_refused: rwlock;
            an_upgrade_goes_before_all_waiters: rwlock;
            a_try_to_upgrade_overtakes_waiters: rwlock;
            a_downgrade_lets_no_writer_in_between: rwlock;
            a_live_reader_keeps_no_dead_one_alive: rwlock;
            a_late_release_of_a_read_ends_no_write: rwlock;
            a_dead_reader_keeps_no_writer_waiting: rwlock;
            a_dead_upgrade_blocks_no_waiter: rwlock;
            a_reader_without_an_owner_is_refused: rwlock;
            a_writer_is_always_alone: rwlock;
            // releasing.rs
            a_release_frees: every;
            a_release_by_another_hold_changes_nothing: exclusive;
            a_resent_release_says_released: every;
            a_spent_hold_cannot_be_acquired_again: every;
            a_late_release_leaves_the_successor_alone: exclusive;
            a_release_leaves_the_queue: queued;
            a_grant_that_is_given_up_goes_on: queued;
            // reserving.rs
            blocks_of_tokens_follow_one_another: mutex;
            a_block_is_whole_when_its_time_has_come: mutex;
            tokens_grow_over_what_is_reserved: mutex;
            tokens_grow_over_the_reservation_of_an_evicted_holder: mutex;
            nothing_is_reserved_but_for_the_holder: mutex;
            an_extend_that_reserves_only_raises: mutex;
            an_equal_value_reserves_nothing: mutex;
            a_reservation_reports_whether_others_wait: mutex;
            a_holder_is_notified_of_other_requests: mutex;
            a_holder_is_notified_for_one_hold: mutex;
            a_lost_hold_is_not_notified: mutex;
            a_lock_of_this_kind_has_no_tokens_to_reserve: shared election reentrant;
            // resting.rs
            a_resting_lock_has_no_owner: mutex election;
            a_resent_rest_says_released: mutex election;
            a_rest_is_beyond_the_hold_before: mutex election;
            a_rest_whose_time_is_over_is_a_release: mutex election;
            a_rest_ends_by_itself: mutex election;
            a_rest_ends_with_no_session: mutex election;
            a_rest_is_ended_by_force: mutex election;
            a_rest_that_acquires_again_waits: mutex election;
            a_rest_by_another_hold_changes_nothing: mutex election;
            // sessions.rs
            a_session_lives_as_long_as_it_beats: every;
            a_session_that_ended_is_over: every;
            a_session_is_listed_with_what_it_holds: every;
            a_look_takes_the_lock_from_the_dead_ahead: queued;
            a_row_of_dead_sessions_is_cleared_from_behind: queued;
            a_dead_session_is_evicted_by_any_client: queued;
            the_living_are_not_evicted: queued;
            a_hold_without_a_session_is_not_evicted: queued;
            an_evicted_hold_learns_its_fate: queued;
            // sharing.rs
            a_part_of_another_kind_is_refused: shared;
            a_name_is_of_one_kind: shared;
            a_shared_lock_is_in_no_set: shared;
            shared_holds_are_distinguished: shared;
            // together.rs
            all_of_a_set_are_taken_or_none: exclusive;
            a_set_that_is_asked_for_again_is_one: exclusive;
            the_held_part_of_a_set_is_reported: exclusive;
            another_hold_of_the_asker_is_in_the_way_of_a_set: exclusive;
            a_set_that_was_given_back_is_spent: exclusive;
            each_of_a_set_has_its_own_token: exclusive;
            a_set_overtakes_no_waiter: exclusive;
            each_of_a_set_ends_by_itself: exclusive;
            another_kind_of_lock_keeps_a_set_from_all: exclusive;
            another_type_of_key_keeps_a_set_from_all: exclusive;
            a_foreign_lock_keeps_a_set_from_all: exclusive;
            the_shares_come_in_the_order_of_the_asks: exclusive;
            the_dead_lose_each_of_a_set: exclusive;
            sets_at_once_exclude_each_other: exclusive;
            // values.rs
            equal_values_exclude_each_other: mutex election;
            a_late_release_leaves_an_equal_value_alone: mutex election;
            a_value_is_granted_from_the_queue: exclusive;
            a_foreign_lock_excludes: mutex election;
            a_resent_release_leaves_a_stranger_alone: mutex election;
            a_lock_without_expiry_is_adopted_if_asked: exclusive;
            another_type_of_key_is_refused: every;
        }
    };
    (@each list () $($case:ident: $($group:ident)+;)*) => {
        vec![$( Case {
            name: stringify!($case),
            groups: &[$(stringify!($group)),+],
            play: |fixture| Box::pin(cases::$case(fixture)),
        } ),*]
    };
    (@each $kind:ident ($subject:expr) $($case:ident: $($group:ident)+;)*) => {
        $( $crate::conformance_case! { $kind [$($group)+] $case ($subject) } )*
    };
}

/// Makes the test of one case, if one of its groups contains the kind.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_case {
    (@test $kind:ident $case:ident ($subject:expr)) => {
        #[test]
        fn $case() {
            let kind = $crate::conformance::Kind::$kind;
            $crate::conformance::run_case(kind, async { $subject }, $crate::conformance::cases::$case);
        }
    };
    ($kind:ident [every $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test $kind $case ($subject) }
    };
    (Mutex [mutex $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Mutex $case ($subject) }
    };
    (Mutex [exclusive $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Mutex $case ($subject) }
    };
    (Mutex [queued $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Mutex $case ($subject) }
    };
    (Reentrant [reentrant $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Reentrant $case ($subject) }
    };
    (Reentrant [exclusive $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Reentrant $case ($subject) }
    };
    (Reentrant [queued $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Reentrant $case ($subject) }
    };
    (Election [election $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Election $case ($subject) }
    };
    (Election [exclusive $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Election $case ($subject) }
    };
    (Election [queued $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Election $case ($subject) }
    };
    (Semaphore [semaphore $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Semaphore $case ($subject) }
    };
    (Semaphore [shared $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Semaphore $case ($subject) }
    };
    (Semaphore [queued $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Semaphore $case ($subject) }
    };
    (RwLock [rwlock $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test RwLock $case ($subject) }
    };
    (RwLock [shared $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test RwLock $case ($subject) }
    };
    (RwLock [queued $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test RwLock $case ($subject) }
    };
    (Latch [latch $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Latch $case ($subject) }
    };
    (Latch [shared $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Latch $case ($subject) }
    };
    (Barrier [barrier $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Barrier $case ($subject) }
    };
    (Barrier [shared $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { @test Barrier $case ($subject) }
    };
    ($kind:ident [$other:ident $($rest:ident)*] $case:ident ($subject:expr)) => {
        $crate::conformance_case! { $kind [$($rest)*] $case ($subject) }
    };
    ($kind:ident [] $case:ident ($subject:expr)) => {};
}
