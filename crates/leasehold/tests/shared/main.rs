//! The guarantees of locks with several holders at a time, on every store alike.

#[path = "../common/every_store.rs"]
#[macro_use]
mod every_store;
mod gates;
mod permits;
mod readers;
#[path = "../common/site.rs"]
mod site;

use site::Site;

on_every_store! {
    permits::no_more_than_there_are_over_tasks_and_clients,
    permits::several_are_taken_at_once_or_none,
    permits::who_came_first_is_let_in_first,
    permits::one_release_lets_in_all_for_whom_there_is_room,
    permits::more_than_there_are_is_refused_at_once,
    permits::the_number_can_be_changed_while_permits_are_held,
    permits::permits_of_the_dead_are_there_again,
    permits::a_release_after_the_expiry_adds_no_permit,
    permits::a_watchdog_keeps_permits_and_a_lease_ends,
    permits::a_dropped_permit_is_given_back,
    permits::a_shutdown_gives_permits_back,
    permits::one_hold_is_freed_by_force_and_no_other,
    permits::taking_permits_cancelled_at_every_await,
    permits::waiting_for_permits_cancelled_at_every_await,
    permits::giving_permits_back_cancelled_at_every_await,
    permits::kinds_of_one_name_are_told_apart,
    readers::readers_share_and_a_writer_is_alone,
    readers::neither_side_starves,
    readers::readers_that_waited_go_in_together,
    readers::an_owner_reads_again_past_a_writer_who_waits,
    readers::what_would_wait_for_itself_fails_at_once,
    readers::an_upgrade_waits_for_the_readers_and_goes_before_the_queue,
    readers::an_upgrade_that_gives_up_reads_as_before,
    readers::one_upgradable_reader_at_a_time,
    readers::a_downgrade_lets_the_readers_in_and_no_writer,
    readers::a_live_reader_keeps_no_dead_one,
    readers::reads_and_writes_have_leases_of_their_own,
    readers::all_who_share_are_told,
    readers::tokens_grow_with_every_hold,
    readers::reading_cancelled_at_every_await,
    readers::writing_cancelled_at_every_await,
    readers::upgrading_cancelled_at_every_await,
    readers::downgrading_cancelled_at_every_await,
    gates::a_latch_opens_when_all_have_arrived,
    gates::an_arrival_outlives_its_client,
    gates::a_latch_is_counted_to_one_number,
    gates::arriving_cancelled_at_every_await,
    gates::a_barrier_lets_all_in_together_again_and_again,
    gates::who_gives_up_at_a_barrier_is_not_counted,
    gates::who_dies_at_a_barrier_is_not_counted,
    gates::meeting_cancelled_at_every_await,
}
