//! The guarantees of a Mutex, on every store alike.
//!
//! Each case gets the URL of a store of its own and may create any number of clients: to the store, each is a
//! separate process.

mod cases;
mod detached;
#[path = "../common/every_store.rs"]
#[macro_use]
mod every_store;
mod moody;
mod passing;
mod several;
#[path = "../common/site.rs"]
mod site;

use site::Site;

on_every_store! {
    several::all_are_held_or_none,
    several::a_set_is_neither_empty_nor_without_a_bound,
    several::who_waits_holds_nothing,
    several::tasks_of_a_process_take_turns,
    several::the_loss_of_one_is_the_loss_of_all,
    several::a_lease_of_several_ends_when_it_ends,
    several::several_cancelled_at_every_await,
    cases::one_at_a_time_over_tasks_and_clients,
    cases::a_release_hands_the_lock_on_and_tokens_grow,
    cases::a_try_says_who_is_in_the_way,
    cases::a_try_does_not_barge,
    cases::waiting_ends_at_its_limit_and_says_who_holds,
    cases::a_dropped_guard_gives_the_lock_back,
    cases::tasks_of_a_process_are_served_in_order,
    cases::processes_are_served_in_order,
    cases::a_process_has_one_place_in_the_queue,
    cases::thousands_give_up_at_once,
    cases::who_waits_for_no_time_tries_once,
    cases::a_watchdog_keeps_the_lock,
    cases::a_given_lease_ends_when_it_ends,
    cases::a_lease_can_last_until_an_instant,
    cases::a_late_release_leaves_the_successor_alone,
    cases::an_extend_lengthens_and_never_shortens,
    cases::a_retry_policy_gives_up_after_its_tries,
    cases::a_scoped_future_is_dropped_on_loss,
    cases::equal_values_of_ones_own_exclude_each_other,
    cases::who_gives_up_waiting_leaves_the_queue,
    cases::after_a_loss_local_waiters_queue_again,
    cases::leases_from_a_millisecond_to_days,
    cases::try_acquire_cancelled_at_every_await,
    cases::acquire_cancelled_at_every_await,
    cases::waiting_cancelled_at_every_await,
    cases::release_cancelled_at_every_await,
    cases::a_release_with_local_waiters_cancelled_at_every_await,
    cases::extend_cancelled_at_every_await,
    cases::two_tasks_share_a_handle_and_each_has_its_own_hold,
    cases::a_watchdog_never_extends_after_the_release,
    cases::status_of_a_lock,
    passing::tasks_hand_it_on_in_order_and_their_tokens_grow,
    passing::another_process_is_not_kept_waiting_by_those_who_come_later,
    passing::who_waits_for_what_is_handed_on_cancelled_at_every_await,
    passing::a_lock_that_is_kept_is_given_back_when_another_asks,
    passing::a_lock_is_kept_for_as_long_as_was_asked,
    passing::what_is_kept_is_given_back_with_its_client,
    passing::a_try_of_the_same_process_gets_what_is_kept,
    passing::what_is_freed_by_force_while_it_is_handed_on_is_nobodys,
    passing::each_hold_has_the_lease_it_requested,
    detached::a_detached_hold_has_its_whole_lease_when_it_is_returned,
    detached::a_detached_hold_outlives_its_client_and_is_released_by_another,
    detached::a_detached_hold_needs_a_lease,
    detached::a_detached_hold_waits_its_turn_and_is_waited_for,
    detached::a_detached_try_says_who_is_in_the_way,
    detached::a_detached_hold_ends_with_its_lease_and_its_release_says_why,
    detached::a_detached_hold_that_was_taken_over_is_left_alone,
    detached::an_extend_of_a_detached_hold_lengthens_it,
    detached::a_detached_hold_is_kept_once_it_is_attached,
    detached::a_detached_hold_is_attached_once,
    detached::an_attached_hold_is_believed_no_more_once_its_text_is_released,
    detached::a_detached_hold_with_a_value_of_ones_own,
    detached::a_detached_hold_is_none_in_another_store,
    detached::a_detached_acquire_cancelled_at_every_await,
    detached::a_detached_try_cancelled_at_every_await,
    detached::a_detached_wait_cancelled_at_every_await,
    detached::a_detached_attach_cancelled_at_every_await,
    cases::a_hold_that_has_reached_its_cap_is_lost_and_goes_to_the_next,
    cases::a_watchdog_renews_as_often_as_it_may,
    cases::an_extend_reaches_the_cap_and_not_beyond,
    cases::a_shutdown_gives_everything_back,
    cases::a_dropped_shutdown_goes_on,
}
