//! The guarantees of a ReentrantMutex, on every store alike, and its behaviour on a store that fails.
//!
//! Each case gets the URL of a store of its own and may create any number of clients: to the store, each is a
//! separate process.

mod cancelled;
mod cases;
#[path = "../common/every_store.rs"]
#[macro_use]
mod every_store;
mod identity;
mod line;
mod moody;
mod scene;
#[path = "../common/site.rs"]
#[allow(dead_code, reason = "the cases of other kinds of locks need more of it")]
mod site;

use site::Site;

on_every_store! {
    cases::an_owner_enters_again_and_counts,
    cases::guards_are_released_in_any_order,
    cases::clients_that_share_an_owner_do_not_exclude_each_other,
    cases::another_owner_is_excluded,
    cases::without_a_scope_every_other_acquire_is_excluded,
    cases::an_owner_enters_again_in_another_process,
    cases::a_custom_owner_is_the_same_everywhere,
    cases::a_short_lease_does_not_shorten_a_long_one,
    cases::the_longest_lease_rules_in_every_process,
    cases::leases_can_be_summed,
    cases::an_entry_ends_by_itself_and_leaves_the_others,
    cases::a_loss_reaches_all_guards_of_an_owner,
    cases::a_cap_is_that_of_one_guard,
    cases::a_dropped_guard_gives_its_entry_back,
    cases::a_run_enters_again,
    cases::status_says_whose_it_is_and_how_often,
    cases::a_mutex_of_the_same_name_is_refused,
    cases::a_shutdown_gives_all_entries_back,
    line::an_owner_gets_in_past_those_who_wait,
    line::tasks_are_served_in_order,
    line::a_waiter_that_gives_up_leaves_the_turn_of_its_process_to_the_next,
    line::a_waiter_is_granted_when_its_owner_acquires_the_lock_elsewhere,
    line::a_waiter_is_granted_when_its_owner_acquires_the_lock_here,
    line::who_polls_enters_again_too,
    line::many_tasks_of_many_owners_exclude_each_other,
    cancelled::an_acquire_cancelled_at_every_await,
    cancelled::a_try_cancelled_at_every_await,
    cancelled::a_re_entry_cancelled_at_every_await,
    cancelled::a_re_entry_past_a_line_cancelled_at_every_await,
    cancelled::waiting_cancelled_at_every_await,
    cancelled::releases_cancelled_at_every_await,
    cancelled::a_release_with_local_waiters_cancelled_at_every_await,
}
