//! The checks of whole scripts, cheapest first, for `cargo xtask mutate lua`.

use crate::fixture::Fixture;
use crate::lua_mutants::{self, Check};
use crate::{cases, multi};
use leasehold_core::Kind;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// All kinds.
const KINDS: [Kind; 7] =
    [Kind::Mutex, Kind::Semaphore, Kind::Reentrant, Kind::Election, Kind::RwLock, Kind::Latch, Kind::Barrier];
/// The random sequences of each kind, a few of all before more of one: together 200.
const SEQUENCES: [Range<u64>; 4] = [0..4, 4..20, 20..60, 60..200];
/// The sequences of several Mutexes.
const OF_SEVERAL: u64 = 40;

#[test]
#[ignore = "cargo xtask mutate lua runs it with its mutants"]
fn mutants_are_found() {
    lua_mutants::run(checks);
}

fn checks() -> Vec<Check> {
    let fixture = Rc::new(RefCell::new(None));
    let mut checks = Vec::new();
    for seeds in SEQUENCES {
        for kind in KINDS {
            checks.push(sequences(&fixture, kind, seeds.clone()));
        }
        if seeds.start == 0 {
            checks.extend([
                Check::test("statistics", cases::the_scripts_of_statistics_mean_what_the_model_means),
                Check::test("several Mutexes", || drop(multi::sequences(0..OF_SEVERAL))),
                Check::test("dead entries of several Mutexes", multi::expired_queue_entries_do_not_count),
            ]);
        }
    }
    checks.extend([
        Check::test("sixteen digits", cases::a_token_of_sixteen_digits_stays_exact),
        Check::test("the greatest token", cases::the_greatest_token_is_not_passed),
        Check::test("reserved tokens", cases::what_is_reserved_never_outruns_the_clock),
        Check::test("a long dead queue", cases::a_long_dead_queue_is_skipped_over_several_polls),
        Check::test("texts of users", cases::texts_of_users_are_texts),
        Check::test("many holders", cases::many_holders_are_visited_in_bounded_steps),
    ]);
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
