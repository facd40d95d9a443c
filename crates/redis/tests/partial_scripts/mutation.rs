//! The checks of partial scripts, cheapest first, for `cargo xtask mutate lua`.

use crate::coverage::Coverage;
use crate::fixture::Fixture;
use crate::lua_mutants::{self, Check, Length};
use crate::{Violation, acquire_all, check, commands, without_watermark};
use leasehold_core::Kind;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// All kinds.
const KINDS: [Kind; 7] =
    [Kind::Mutex, Kind::Semaphore, Kind::Reentrant, Kind::Election, Kind::RwLock, Kind::Latch, Kind::Barrier];
/// The states of each kind, a few of all before more of one.
const SHORT: Range<u64> = 0..2;
const LONG: [Range<u64>; 2] = [2..8, 8..24];

#[test]
#[ignore = "cargo xtask mutate lua runs it with its mutants"]
fn mutants_are_found() {
    lua_mutants::run(checks);
}

fn checks(length: Length) -> Vec<Check> {
    let fixtures = KINDS.map(|kind| (kind, Rc::new(RefCell::new(None))));
    let of_each =
        |seeds: Range<u64>| fixtures.each_ref().map(|(kind, fixture)| states(fixture, *kind, seeds.clone()));
    if length == Length::Long {
        return LONG.into_iter().flat_map(of_each).collect();
    }
    let mut checks = vec![
        Check::test("commands of a mutex", commands::each_path_of_a_mutex_has_its_commands),
        Check::test("commands of a semaphore", commands::each_path_of_a_semaphore_has_its_commands),
        Check::test(
            "commands of a reentrant mutex",
            commands::each_path_of_a_reentrant_mutex_has_its_commands,
        ),
        Check::test("commands of an election", commands::each_path_of_an_election_has_its_commands),
        Check::test("commands of an rwlock", commands::each_path_of_an_rwlock_has_its_commands),
        Check::test("commands of a latch", commands::each_path_of_a_latch_has_its_commands),
        Check::test("commands of a barrier", commands::each_path_of_a_barrier_has_its_commands),
        Check::test("commands of a heartbeat", commands::every_heartbeat_has_its_commands),
        Check::test("no grant without a token", without_watermark::without_a_token_the_lock_is_not_granted),
        Check::test("a token that stays", without_watermark::a_release_keeps_the_token_in_the_record),
        Check::test("several Mutexes", || {
            let passed = acquire_all::a_partial_acquire_of_several_leaves_expiries_and_blocks_no_client();
            passed.unwrap_or_else(|Violation(what)| panic!("{what}"));
        }),
    ];
    checks.extend(of_each(SHORT));
    checks
}

fn states(shared: &Rc<RefCell<Option<Fixture>>>, kind: Kind, seeds: Range<u64>) -> Check {
    let (own, reset) = (Rc::clone(shared), Rc::clone(shared));
    let name = format!("states of a {} {}", kind.as_str(), seeds.start);
    let run = move || {
        let mut fixture = own.borrow_mut();
        let fixture = fixture.get_or_insert_with(|| Fixture::new(kind));
        for seed in seeds.clone() {
            check(fixture, seed, &mut Coverage::default()).map_err(|Violation(what)| what)?;
        }
        Ok(())
    };
    Check::new(name, run, move || *reset.borrow_mut() = None)
}
