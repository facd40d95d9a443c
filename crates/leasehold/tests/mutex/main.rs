//! What a Mutex promises its users, on every store alike.
//!
//! Each case gets a URL of a store that nobody else uses, and may make as many clients of it as it
//! likes: each is a process of its own to the store.

mod cases;
mod place;

use place::Place;

macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        on_every_store! { @store memory $($case)* }
        on_every_store! { @store sqlite $($case)* }
        on_every_store! { @store redis $($case)* }
    };
    (@store $store:ident $($case:ident)*) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::cases::$case(&super::Place::$store()).await;
            })*
        }
    };
}

on_every_store! {
    one_at_a_time_over_tasks_and_clients,
    a_release_hands_the_lock_on_and_tokens_grow,
    a_try_says_who_is_in_the_way,
    a_try_does_not_barge,
    waiting_ends_at_its_limit_and_says_who_holds,
    a_dropped_guard_gives_the_lock_back,
    tasks_of_a_process_are_served_in_order,
    processes_are_served_in_order,
    a_process_has_one_place_in_the_queue,
    thousands_give_up_at_once,
    who_waits_for_no_time_tries_once,
    a_watchdog_keeps_the_lock,
    a_given_lease_ends_when_it_ends,
    a_lease_can_last_until_an_instant,
    a_late_release_leaves_the_successor_alone,
    an_extend_lengthens_and_never_shortens,
    a_retry_policy_gives_up_after_its_tries,
    a_scoped_future_is_dropped_on_loss,
    equal_values_of_ones_own_exclude_each_other,
    who_gives_up_waiting_leaves_the_queue,
    after_a_loss_local_waiters_queue_again,
    leases_from_a_millisecond_to_days,
    try_acquire_cancelled_at_every_await,
    acquire_cancelled_at_every_await,
    waiting_cancelled_at_every_await,
    release_cancelled_at_every_await,
    a_release_with_local_waiters_cancelled_at_every_await,
    extend_cancelled_at_every_await,
    two_tasks_share_a_handle_and_each_has_its_own_hold,
    a_watchdog_never_extends_after_the_release,
    status_of_a_lock,
    a_hold_that_has_reached_its_cap_is_lost_and_goes_to_the_next,
    a_watchdog_renews_as_often_as_it_may,
    an_extend_reaches_the_cap_and_not_beyond,
    a_shutdown_gives_everything_back,
    a_dropped_shutdown_goes_on,
}
