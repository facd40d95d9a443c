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
use super::fixture::{Fixture, Subject, run_boxed, subject};
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
    pub fn run<S: StoreUnderTest>(&self, kind: Kind, store: S) {
        run_boxed(kind, subject(async { store }), Box::new(self.play));
    }
}

/// Runs the case of this name with locks of one kind. Called by the tests that [`suite!`](super::suite) makes: of those there are
/// thousands, and each must add little code.
pub fn run_named(kind: Kind, subject: fn() -> Subject, name: &str) {
    let case = all_cases().into_iter().find(|case| case.name == name);
    let case = case.unwrap_or_else(|| panic!("there is no case `{name}`"));
    run_boxed(kind, subject(), Box::new(case.play));
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
            // model.rs
            a_thousand_operations_agree_with_the_model: every;
            // calls.rs
            outcomes_come_in_the_order_of_operations: every;
            operations_that_begin_together_have_their_own_replies: queued;
            a_dropped_call_leaves_the_store_usable: every;
            a_call_ends_by_its_deadline: every;
            a_fork_works_on_another_thread: every;
            // reentry.rs
            the_same_owner_reenters_at_once: reentrant;
            a_resent_reentry_counts_once: reentrant;
            a_release_reports_the_remaining_holds: reentrant;
            a_release_by_an_unknown_hold_ends_none: reentrant;
            a_reentry_shortens_no_lease: reentrant;
            each_hold_expires_on_its_own: reentrant;
            an_unknown_hold_expires_and_leaves_no_count: reentrant;
            an_unknown_hold_alone_expires: reentrant;
            only_a_reentry_overtakes_the_queue: reentrant;
            a_release_that_acquires_reenters: reentrant;
            one_tenure_has_one_token: reentrant;
            a_lapsed_session_loses_only_its_own_holds: reentrant;
            a_forced_release_ends_all_holds_of_an_owner: reentrant;
            a_foreign_hold_of_the_same_owner_counts: reentrant;
            another_kind_of_lock_is_refused: election reentrant;
            // proclaim.rs
            a_leader_proclaims_another_text: election;
            only_the_leader_proclaims: election;
            concurrent_reentries_are_counted: reentrant;
            // fencing.rs
            fencing_tokens_grow: queued;
            fencing_tokens_grow_over_a_deleted_key: every;
            // force_release.rs
            a_forced_release_grants_to_the_next_and_notifies_the_holder: queued;
            a_late_forced_release_ends_nothing: exclusive;
            a_foreign_hold_is_released_by_its_fingerprint: exclusive;
            forced_releases_are_audited: every;
            // latch_barrier.rs
            a_latch_opens_when_all_have_arrived: latch;
            an_arrival_can_count_for_several: latch;
            a_resent_arrival_counts_once: latch;
            a_cancelled_arrival_never_counts: latch;
            an_arrival_of_a_lapsed_session_does_not_count: latch;
            another_number_of_parties_is_refused: latch barrier;
            all_parties_of_a_barrier_continue_together: barrier;
            a_try_at_a_barrier_counts_only_as_the_last_party: barrier;
            a_resent_barrier_wait_counts_once: barrier;
            a_party_that_left_a_barrier_is_not_counted: barrier;
            an_expired_party_does_not_count: barrier;
            // exclusion.rs
            two_holds_exclude_each_other: queued;
            a_resent_acquire_is_one_acquire: queued;
            an_inspection_shows_holder_and_remaining_time: queued;
            an_inspection_changes_nothing: queued;
            every_hold_status_is_reported: exclusive;
            at_most_one_client_holds_the_lock: queued;
            // leases.rs
            an_extend_never_shortens: every;
            a_hold_that_has_ended_cannot_be_extended: queued;
            an_extend_that_names_a_token_extends_only_that_grant: every;
            a_lease_lasts_as_long_as_its_client_assumes: queued;
            any_lease_from_a_millisecond_to_a_month: every;
            // mailbox.rs
            no_grant_is_missed: queued;
            sessions_of_one_handle_have_separate_mailboxes: queued;
            a_reopened_mailbox_receives_grants: queued;
            a_closed_mailbox_receives_nothing: queued;
            // names.rs
            any_name_is_literal: every;
            invalid_names_are_refused: every;
            // release_actions.rs
            the_queue_is_listed_in_order: queued;
            a_grant_notifies_exactly_one_waiter: queued;
            a_grant_lasts_for_the_requested_lease: queued;
            a_release_queues_again_behind_the_others: queued;
            a_release_without_waiters_acquires_at_once: queued;
            a_resent_release_that_acquires_is_one: queued;
            a_lock_left_free_keeps_its_queue: exclusive;
            a_late_release_grants_a_free_lock: exclusive;
            // semaphore.rs
            permits_are_granted_up_to_their_number: semaphore;
            resent_permits_count_once: semaphore;
            a_smaller_request_overtakes_no_waiter: semaphore;
            a_release_grants_to_as_many_as_fit: semaphore;
            each_hold_of_a_process_has_a_queue_entry: semaphore;
            each_shared_hold_expires_on_its_own: semaphore;
            a_release_after_the_expiry_adds_no_permit: semaphore;
            permits_of_a_lapsed_session_are_granted: semaphore;
            a_lapsed_holder_is_evicted_by_any_client: semaphore;
            the_first_waiter_watches_all_holders: semaphore;
            an_impossible_number_of_permits_is_refused: semaphore;
            the_first_acquire_sets_the_number_of_permits: semaphore;
            a_resize_leaves_the_number_for_which_clients_ask: semaphore;
            a_hold_gives_back_some_of_its_permits: semaphore;
            a_resize_grants_to_waiters_and_evicts_no_holder: semaphore;
            a_waiter_beyond_a_lowered_limit_blocks_no_other: semaphore;
            a_forced_release_ends_one_of_several: semaphore;
            held_permits_never_exceed_their_number: semaphore;
            // queue.rs
            the_queue_is_first_come_first_served: queued;
            a_poll_keeps_the_queue_position: queued;
            a_session_has_one_queue_entry: exclusive;
            each_lock_has_its_own_queue: queued;
            a_try_does_not_overtake_waiters: queued;
            an_expired_hold_goes_to_the_first_waiter: queued;
            a_deleted_key_goes_to_the_first_waiter: queued;
            expired_entries_are_skipped: queued;
            many_expired_entries_are_skipped_in_steps: queued;
            withdrawn_entries_do_not_block_the_queue: queued;
            // rwlock.rs
            readers_share_and_a_writer_is_alone: rwlock;
            readers_overtake_no_waiting_writer: rwlock;
            an_owner_that_reads_overtakes_a_waiting_writer: rwlock;
            an_upgrade_that_would_never_end_is_refused: rwlock;
            an_owner_that_writes_overtakes_all_waiters: rwlock;
            a_lapsed_write_ends_no_other_write_of_its_owner: rwlock;
            an_upgrade_overtakes_all_waiters: rwlock;
            a_try_to_upgrade_overtakes_waiters: rwlock;
            a_downgrade_admits_no_writer: rwlock;
            a_live_reader_does_not_extend_an_expired_one: rwlock;
            a_late_release_of_a_read_ends_no_write: rwlock;
            a_lapsed_reader_blocks_no_writer: rwlock;
            a_lapsed_upgrade_blocks_no_waiter: rwlock;
            a_reader_without_an_owner_is_refused: rwlock;
            a_writer_is_always_alone: rwlock;
            // release.rs
            a_release_frees: every;
            a_release_by_another_hold_changes_nothing: exclusive;
            a_resent_release_reports_released: every;
            an_ended_hold_cannot_be_acquired_again: every;
            a_late_release_leaves_the_successor_alone: exclusive;
            a_release_leaves_the_queue: queued;
            a_released_grant_goes_to_the_next_waiter: queued;
            // token_reservation.rs
            blocks_of_tokens_follow_one_another: mutex;
            a_block_is_complete_once_the_clock_allows: mutex;
            tokens_grow_past_reserved_ones: mutex;
            tokens_grow_past_the_reservation_of_an_evicted_holder: mutex;
            only_the_holder_reserves_tokens: mutex;
            an_extend_that_reserves_never_shortens: mutex;
            an_equal_value_reserves_nothing: mutex;
            a_reservation_reports_whether_others_wait: mutex;
            a_holder_is_notified_of_other_requests: mutex;
            a_holder_is_notified_for_one_hold: mutex;
            a_lost_hold_is_not_notified: mutex;
            this_kind_of_lock_reserves_no_tokens: shared election reentrant;
            // cooldown.rs
            a_lock_in_cooldown_has_no_owner: mutex election;
            a_resent_cooldown_reports_released: mutex election;
            a_cooldown_ignores_requests_of_the_ended_hold: mutex election;
            a_cooldown_whose_time_is_over_is_a_release: mutex election;
            a_cooldown_expires: mutex election;
            a_cooldown_outlasts_its_session: mutex election;
            a_forced_release_ends_a_cooldown: mutex election;
            a_cooldown_that_acquires_again_waits: mutex election;
            a_cooldown_by_another_hold_changes_nothing: mutex election;
            // sessions.rs
            heartbeats_keep_a_session_alive: every;
            an_ended_session_is_over: every;
            a_session_is_listed_with_its_locks: every;
            a_session_is_listed_with_its_activity: every;
            a_poll_evicts_a_lapsed_predecessor: queued;
            polls_evict_a_row_of_lapsed_sessions: queued;
            a_lapsed_session_is_evicted_by_any_client: queued;
            live_sessions_are_not_evicted: queued;
            a_hold_without_a_session_is_not_evicted: queued;
            an_evicted_holder_is_informed: queued;
            // shared_kinds.rs
            a_mode_of_another_kind_is_refused: shared;
            a_name_has_one_kind: shared;
            a_multi_acquire_refuses_a_shared_lock: shared;
            shared_holds_are_distinguished: shared;
            // multi.rs
            a_multi_acquire_is_all_or_nothing: exclusive;
            a_resent_multi_acquire_is_one: exclusive;
            locks_that_are_already_held_are_reported: exclusive;
            another_hold_of_the_session_blocks_a_multi_acquire: exclusive;
            a_released_multi_acquire_is_spent: exclusive;
            each_of_several_locks_has_its_own_token: exclusive;
            a_multi_acquire_overtakes_no_waiter: exclusive;
            each_of_several_locks_expires_on_its_own: exclusive;
            another_kind_of_lock_blocks_a_multi_acquire: exclusive;
            another_type_of_key_blocks_a_multi_acquire: exclusive;
            a_foreign_lock_blocks_a_multi_acquire: exclusive;
            multi_acquire_replies_are_in_order: exclusive;
            a_lapsed_session_loses_each_lock: exclusive;
            concurrent_multi_acquires_exclude_each_other: exclusive;
            // custom_values.rs
            equal_values_exclude_each_other: mutex election;
            a_late_release_leaves_an_equal_value_alone: mutex election;
            a_value_is_granted_from_the_queue: exclusive;
            a_foreign_lock_excludes: mutex election;
            a_resent_release_leaves_a_foreign_lock_alone: mutex election;
            a_lock_without_expiry_is_adopted_on_request: exclusive;
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
    (@each $kind:ident ($subject:ident) $($case:ident: $($group:ident)+;)*) => {
        $( $crate::conformance_case! { $kind [$($group)+] $case ($subject) } )*
    };
}

/// Makes the test of one case, if one of its groups contains the kind.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_case {
    (@test $kind:ident $case:ident ($subject:ident)) => {
        #[test]
        fn $case() {
            $crate::conformance::run_named($crate::conformance::Kind::$kind, $subject, stringify!($case));
        }
    };
    ($kind:ident [every $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test $kind $case ($subject) }
    };
    (Mutex [mutex $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Mutex $case ($subject) }
    };
    (Mutex [exclusive $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Mutex $case ($subject) }
    };
    (Mutex [queued $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Mutex $case ($subject) }
    };
    (Reentrant [reentrant $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Reentrant $case ($subject) }
    };
    (Reentrant [exclusive $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Reentrant $case ($subject) }
    };
    (Reentrant [queued $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Reentrant $case ($subject) }
    };
    (Election [election $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Election $case ($subject) }
    };
    (Election [exclusive $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Election $case ($subject) }
    };
    (Election [queued $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Election $case ($subject) }
    };
    (Semaphore [semaphore $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Semaphore $case ($subject) }
    };
    (Semaphore [shared $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Semaphore $case ($subject) }
    };
    (Semaphore [queued $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Semaphore $case ($subject) }
    };
    (RwLock [rwlock $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test RwLock $case ($subject) }
    };
    (RwLock [shared $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test RwLock $case ($subject) }
    };
    (RwLock [queued $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test RwLock $case ($subject) }
    };
    (Latch [latch $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Latch $case ($subject) }
    };
    (Latch [shared $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Latch $case ($subject) }
    };
    (Barrier [barrier $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Barrier $case ($subject) }
    };
    (Barrier [shared $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { @test Barrier $case ($subject) }
    };
    ($kind:ident [$other:ident $($rest:ident)*] $case:ident ($subject:ident)) => {
        $crate::conformance_case! { $kind [$($rest)*] $case ($subject) }
    };
    ($kind:ident [] $case:ident ($subject:ident)) => {};
}
