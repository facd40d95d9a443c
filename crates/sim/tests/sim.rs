//! The simulated world: that it holds, that it can be replayed, and that its checks see what is wrong.

use leasehold_sim::{Bug, Climate, Counts, Run, Violation, run};
use std::collections::BTreeSet;

/// Fails with the way to see it again.
fn expect_none(seed: u64, violation: Option<&Violation>) {
    if let Some(Violation { check, at, what }) = violation {
        panic!("{check}: at {at}: {what}\nsee it by `cargo xtask sim --seed {seed}`");
    }
}

/// What `cargo xtask sim` does for as many seeds as one likes. Enough has to happen for it to mean anything.
#[test]
fn nothing_is_violated() {
    let (mut sum, mut climates) = (Counts::default(), BTreeSet::new());
    for seed in 1..=2_000 {
        let outcome = run(&Run::new(seed));
        expect_none(seed, outcome.violation.as_ref());
        sum += outcome.counts;
        climates.insert(format!("{:?}", outcome.climate));
    }
    assert_eq!(climates.len(), 4, "{climates:?}");
    let Counts { executed, out_of_time, mishaps, acquired, granted, cancelled, .. } = sum;
    for (what, happened) in [
        ("executed", executed / 100),
        ("out of time", out_of_time),
        ("mishaps", mishaps),
        ("acquired", acquired / 10),
        ("granted", granted / 10),
        ("handed on", sum.handed_on / 10),
        ("kept", sum.kept / 10),
        ("wanted", sum.wanted),
        ("cancelled", cancelled),
        ("lost", sum.lost),
        ("crashes", sum.crashes),
        ("stops", sum.stops),
        ("breaks", sum.breaks),
        ("upsets", sum.upsets),
        ("spent", sum.spent),
        ("beats", sum.beats / 10),
        ("sessions", sum.sessions),
        ("evicted", sum.evicted),
        ("freed", sum.freed),
        ("entered", sum.entered / 10),
        ("entered abroad", sum.entered_abroad),
        ("still held", sum.still_held / 10),
        ("with others", sum.with_others),
        ("grasped", sum.grasped),
        ("shared", sum.shared / 10),
        ("upgraded", sum.upgraded),
        ("let in", sum.let_in),
        ("resized", sum.resized),
        ("observed", sum.observed),
        ("turns", sum.turns),
    ] {
        assert!(happened >= 150, "{what} happened too rarely: {sum:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let traced = |seed| run(&Run { with_trace: true, ..Run::new(seed) });
    for seed in [3, 17, 2507] {
        let (first, second) = (traced(seed), traced(seed));
        assert!(first.trace.len() > 20);
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
    assert_ne!(traced(3).trace, traced(4).trace);
}

/// Calm weather has no faults: whatever is wrong there is wrong everywhere.
#[test]
fn calm_is_calm() {
    let calm = (1..=200).map(|seed| run(&Run::new(seed))).find(|outcome| outcome.climate == Climate::Calm);
    let counts = calm.expect("one in ten is calm").counts;
    assert_eq!((counts.mishaps, counts.crashes, counts.stops, counts.breaks, counts.upsets), (0, 0, 0, 0, 0));
}

/// The greatest seed by which a bug has to be found, and the check that is to find it.
fn found_by(bug: Bug) -> (u64, &'static str) {
    match bug {
        Bug::ReleaseWithoutComparing
        | Bug::ExtendWithoutComparing
        | Bug::EvictsTheLiving
        | Bug::EvictsLeases
        | Bug::EntersWithoutComparing
        | Bug::GhostsAreLengthened
        | Bug::ReservesForAnybody => (10, "comparison"),
        Bug::EnteringShortens => (40, "comparison"),
        Bug::SpentHoldReturns | Bug::FreesWithoutComparing | Bug::GoneEntryTakesAnother => {
            (150, "comparison")
        }
        Bug::EvictionEndsTheStay => (4000, "beliefs"),
        Bug::ExtendThatShortens
        | Bug::NoDrift
        | Bug::ClockStandsStill
        | Bug::UnknownAcquireIsYes
        | Bug::HoldsAreNotCapped
        | Bug::HoldsOutliveLapse
        | Bug::UnknownBeatIsYes
        | Bug::ReleaseEndsTheStay
        | Bug::EntryHasOwnToken => (10, "beliefs"),
        Bug::ValidFromReply | Bug::GrantCountsFromLastLook | Bug::UnknownExtendIsYes => (100, "beliefs"),
        Bug::TravellerHasSession | Bug::SessionFromReply => (300, "beliefs"),
        Bug::BeatRevivesTheDead => (120, "sessions"),
        Bug::LapsedSessionReturns => (10, "sessions"),
        Bug::Barging | Bug::LastComeFirstServed => (10, "order"),
        Bug::GrantToTheDead => (150, "order"),
        Bug::ReleaseThatGrantsNobody | Bug::GrantWithoutMessage | Bug::PlaceKeptTooShort => (10, "progress"),
        Bug::NobodyIsWatched => (60, "progress"),
        Bug::NoLookAfterSubscribing => (1500, "progress"),
        Bug::KeyWithoutExpiry | Bug::KeptIsNotGivenBack => (10, "leftovers"),
        Bug::DroppedGuardKeepsLock | Bug::PlaceIsNotLeft | Bug::NoUndo => (200, "leftovers"),
        Bug::OneOfAllIsKept | Bug::NoUndoOfAll => (1500, "leftovers"),
        Bug::UnknownIsNo => (3000, "leftovers"),
        Bug::TokenThatCounts | Bug::TokenOfTheClock | Bug::NextOwnerHasOldToken => (30, "tokens"),
        Bug::ResentEntryCountsTwice | Bug::SaysFreeWhileHeld => (10, "entering"),
        Bug::EnteringWaits => (60, "entering"),
        Bug::TakesSomeOfAll => (30, "several"),
        Bug::ReaderBesideWriter
        | Bug::WriterBesideReaders
        | Bug::UpgradeBesideReaders
        | Bug::PermitsWeighOne
        | Bug::ResizeWithoutComparing => (30, "sharing"),
        Bug::TwoMayUpgrade | Bug::BarrierLacksOne | Bug::LatchOpensEarly => (300, "sharing"),
        Bug::PermitFreedTwice | Bug::LiveKeepsDead | Bug::LeaderIsDeposed => (30, "comparison"),
        Bug::LateReleaseFreesAnother => (30, "beliefs"),
        Bug::ReadersBarge | Bug::FewerPermitsBarge => (60, "turns"),
        Bug::ResizeServesNobody | Bug::SecondIsNotTold => (100, "serving"),
        Bug::LooksTellAnother | Bug::ObserverForgets | Bug::LooksAreStale => (60, "leading"),
        Bug::RestIsForgotten | Bug::RestIsTooLong | Bug::TurnIsNotLengthened => (100, "periods"),
        Bug::SecondFinishEndsNext => (300, "comparison"),
        Bug::BlockBeginsAnew | Bug::FormerBlockIsUsed => (10, "tokens"),
        Bug::ReservedIsForgotten | Bug::BlockSaysTooMuch | Bug::BlockOutrunsClock => (600, "tokens"),
        Bug::UnknownReserveIsYes => (800, "beliefs"),
        Bug::WantedIsSwallowed => (10, "passing"),
        Bug::WantedIsNotTold | Bug::NobodySaysWhoWaits | Bug::TellingIsNotAskedFor => (200, "passing"),
        Bug::ResentWithFreshHold => (30, "silence"),
        Bug::ReleasedHoldIsReused | Bug::RenewedAfterRelease => (10, "silence"),
    }
}

/// What holds of a Mutex holds of an Election, and is seen there.
#[test]
fn the_checks_of_a_mutex_see_an_election() {
    for (bug, seeds) in [
        (Bug::ReleaseWithoutComparing, 60),
        (Bug::ExtendThatShortens, 60),
        (Bug::LastComeFirstServed, 60),
        (Bug::GrantWithoutMessage, 60),
        (Bug::TokenThatCounts, 200),
        (Bug::SpentHoldReturns, 1200),
        (Bug::UnknownBeatIsYes, 1200),
        (Bug::DroppedGuardKeepsLock, 200),
        (Bug::RenewedAfterRelease, 60),
    ] {
        let runs = (1..=seeds).map(|seed| Run { bug: Some(bug), ..Run::new(seed) });
        let mut violations = runs.filter(Run::has_leaders).filter_map(|asked| run(&asked).violation);
        let (_, check) = found_by(bug);
        assert!(
            violations.any(|found| found.check == check),
            "{bug:?} is not found by {check} in {seeds} seeds"
        );
    }
}

#[test]
fn each_planted_bug_is_found() {
    let mut odd = Vec::new();
    for bug in Bug::ALL {
        let (seeds, check) = found_by(bug);
        // Each in the runs that have the locks which it is of; what another check makes of it in another run does not count.
        let runs = (1..=seeds).map(|seed| Run { bug: Some(bug), ..Run::new(seed) });
        let mut others = Vec::new();
        let is_found =
            runs.filter(|asked| bug.suits(asked)).filter_map(|asked| run(&asked).violation).any(|found| {
                let is_meant = found.check == check;
                others.extend((!is_meant).then_some(found.check));
                is_meant
            });
        if !is_found {
            odd.push(format!(
                "{bug:?} is not found by {check} in {seeds} seeds, but {} times by {others:?}",
                others.len()
            ));
        }
    }
    assert!(odd.is_empty(), "{}", odd.join("\n"));
}
