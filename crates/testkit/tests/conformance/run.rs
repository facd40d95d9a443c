//! Running a case against a mutant, and how the case must fail.

use crate::model::Model;
use crate::mutant::StoreMutant;
use leasehold_core::Kind;
use leasehold_testkit::conformance;
use leasehold_testkit::conformance::{Fixture, cases};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Scope;

/// The case must fail. It runs in its own thread, since a failing case mostly waits.
pub(crate) fn fails<'scope>(
    all: &'scope Scope<'scope, '_>,
    mutant: StoreMutant,
    case: impl AsyncFnOnce(&Fixture) + Send + 'static,
) {
    fails_of(all, Kind::Mutex, mutant, case);
}

pub(crate) fn fails_of<'scope>(
    all: &'scope Scope<'scope, '_>,
    kind: Kind,
    mutant: StoreMutant,
    case: impl AsyncFnOnce(&Fixture) + Send + 'static,
) {
    all.spawn(move || {
        assert!(is_found(kind, mutant, case), "the case for {kind:?} did not find {mutant:?}");
    });
}

/// A case whose clients contend finds a mutant only if they meet, so it runs several times.
pub(crate) fn soon_fails_of<'scope>(
    all: &'scope Scope<'scope, '_>,
    kind: Kind,
    mutant: StoreMutant,
    case: impl AsyncFn(&Fixture) + Copy + Send + 'static,
) {
    all.spawn(move || {
        let seen = (0..10).any(|_| is_found(kind, mutant, case));
        assert!(seen, "the case for {kind:?} did not find {mutant:?}");
    });
}

pub(crate) fn is_found(kind: Kind, mutant: StoreMutant, case: impl AsyncFnOnce(&Fixture) + 'static) -> bool {
    let played = || conformance::run_case(kind, async move { Model::new(mutant) }, case);
    catch_unwind(AssertUnwindSafe(played)).is_err()
}

/// A thousand random operations usually find a mutant; several thousand always do.
pub(crate) fn disagrees(kind: Kind, mutant: StoreMutant) {
    let seen = (0..5).any(|_| is_found(kind, mutant, cases::a_thousand_operations_agree_with_the_model));
    assert!(seen, "random operations did not find {mutant:?}");
}
