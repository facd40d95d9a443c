//! The guarantees of Election and of work done once per period, on every store alike; and a leader in a separate
//! process that is suspended.

mod cases;
#[path = "../common/every_store.rs"]
#[macro_use]
mod every_store;
mod once;
#[path = "../common/site.rs"]
mod site;
mod stopped;

use site::Site;

on_every_store! {
    cases::one_leads_at_a_time_and_tokens_grow,
    cases::campaigning_ends_at_its_limit,
    cases::a_try_says_who_leads,
    cases::each_leader_is_observed_once_and_in_order,
    cases::observers_are_told_and_do_not_poll,
    cases::an_observer_goes_on_where_its_future_was_dropped,
    cases::a_forged_hint_does_no_harm,
    cases::a_deposed_leader_is_told_and_the_next_leads,
    cases::work_is_dropped_when_the_leadership_is_lost,
    cases::a_mutex_of_the_same_name_is_refused,
    cases::campaign_cancelled_at_every_await,
    cases::waiting_to_lead_cancelled_at_every_await,
    cases::try_campaign_cancelled_at_every_await,
    cases::resign_cancelled_at_every_await,
    once::one_of_all_runs_and_the_late_one_goes_on,
    once::a_turn_rests_until_its_period_is_over,
    once::a_turn_that_took_longer_than_its_period_rests_no_more,
    once::a_turn_that_was_given_up_is_free_at_once,
    once::a_turn_outlives_its_client,
    once::no_waiter_is_woken_early,
    once::nothing_that_is_sent_about_the_hold_ends_or_lengthens_the_rest,
    once::a_rest_can_be_ended_by_force,
    once::try_start_cancelled_at_every_await,
    once::finish_cancelled_at_every_await,
    once::run_cancelled_at_every_await,
}
