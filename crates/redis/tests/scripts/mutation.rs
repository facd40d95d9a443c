//! The checks of whole scripts, cheapest first, for `cargo xtask mutate lua`.

use crate::fixture::Fixture;
use crate::lua_mutants::{self, Check, Length};
use crate::{cases, multi};
use leasehold_core::Kind;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// All kinds.
const KINDS: [Kind; 7] =
    [Kind::Mutex, Kind::Semaphore, Kind::Reentrant, Kind::Election, Kind::RwLock, Kind::Latch, Kind::Barrier];
/// The random sequences of each kind, a few of all before more of one: together 200.
const SHORT: [Range<u64>; 2] = [0..4, 4..20];
const LONG: [Range<u64>; 2] = [20..60, 60..200];
/// The sequences of several Mutexes.
const OF_SEVERAL: [Range<u64>; 2] = [0..5, 5..40];

#[test]
#[ignore = "cargo xtask mutate lua runs it with its mutants"]
fn mutants_are_found() {
    lua_mutants::run(checks);
}

fn checks(length: Length) -> Vec<Check> {
    let fixture = Rc::new(RefCell::new(None));
    let of_each = |seeds: Range<u64>| KINDS.map(|kind| sequences(&fixture, kind, seeds.clone()));
    let [few, more] = OF_SEVERAL;
    let mut checks = Vec::new();
    if length == Length::Short {
        checks.extend(SHORT.into_iter().flat_map(of_each));
        checks.extend([
            Check::test("statistics", cases::the_scripts_of_statistics_mean_what_the_model_means),
            Check::test("several Mutexes", move || drop(multi::sequences(few.clone()))),
            Check::test("dead entries of several Mutexes", multi::expired_queue_entries_do_not_count),
            Check::test("sixteen digits", cases::a_token_of_sixteen_digits_stays_exact),
            Check::test("the greatest token", cases::the_greatest_token_is_not_passed),
            Check::test("reserved tokens", cases::what_is_reserved_never_outruns_the_clock),
            Check::test("a long dead queue", cases::a_long_dead_queue_is_skipped_over_several_polls),
            Check::test("texts of users", cases::texts_of_users_are_texts),
            Check::test("the instant of a token", cases::a_reserved_token_is_not_granted_at_its_own_instant),
            Check::test("six digits", cases::a_lease_of_each_length_keeps_the_record),
            Check::test("a damaged session", cases::a_damaged_session_is_refused),
        ]);
    } else {
        checks.extend(LONG.into_iter().flat_map(of_each));
        checks.extend([
            Check::test("more of several Mutexes", move || drop(multi::sequences(more.clone()))),
            Check::test("many holders", cases::many_holders_are_visited_in_bounded_steps),
        ]);
    }
    checks
}

fn sequences(shared: &Rc<RefCell<Option<Fixture>>>, kind: Kind, seeds: Range<u64>) -> Check {
    let (own, reset) = (Rc::clone(shared), Rc::clone(shared));
    let name = format!("{} {}", kind.as_str(), seeds.start);
    let run = move || {
        let mut fixture = own.borrow_mut();
        let fixture = fixture.get_or_insert_with(Fixture::new);
        for seed in seeds.clone() {
            fixture.sequence(kind, seed);
        }
        Ok(())
    };
    Check::new(name, run, move || *reset.borrow_mut() = None)
}
