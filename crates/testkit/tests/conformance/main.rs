//! Tests of the conformance suite: a correct store passes, and each mutant fails the case that covers it.

mod defects;
mod exclusive_cases;
mod model;
mod model_cases;
mod mutant;
mod run;
mod shared_cases;

mod an_honest_store {
    use crate::model::Model;
    use crate::mutant::StoreMutant;
    use leasehold_testkit::conformance;

    conformance::suite!(Model::new(StoreMutant::None));
}

/// A case that no mutant fails may test nothing.
#[test]
fn every_such_case_is_failed_by_some_mutant() {
    let this = concat!(include_str!("exclusive_cases.rs"), include_str!("shared_cases.rs"));
    let cases = [
        include_str!("../../src/conformance/cases/reentry.rs"),
        include_str!("../../src/conformance/cases/multi.rs"),
        include_str!("../../src/conformance/cases/semaphore.rs"),
        include_str!("../../src/conformance/cases/rwlock.rs"),
        include_str!("../../src/conformance/cases/latch_barrier.rs"),
        include_str!("../../src/conformance/cases/token_reservation.rs"),
        include_str!("../../src/conformance/cases/shared_kinds.rs"),
        include_str!("../../src/conformance/cases/proclaim.rs"),
    ];
    let names = cases.iter().flat_map(|cases| cases.split("pub async fn ").skip(1));
    let names = names.filter_map(|case| case.split('(').next());
    let is_failed = |name: &&str| [");", ","].iter().any(|end| this.contains(&format!("cases::{name}{end}")));
    let never: Vec<_> = names.filter(|name| !is_failed(name)).collect();
    assert_eq!(never, Vec::<&str>::new());
}
