use super::poll_delay::{MAX_IMMEDIATE_POLLS, PREDECESSOR_PAUSE};
use super::*;

fn ms(ms: u64) -> Moment {
    Moment::from_micros(ms * 1000)
}

fn terms() -> AcquireTerms {
    AcquireTerms {
        lease: Duration::from_secs(30),
        label: Label::new("test").expect("a plain text"),
        value: None,
        expire_foreign: None,
        liveness: Liveness::Session { alive_ms: 10_000 },
        queue: true,
        poll_often: false,
        margin: Duration::ZERO,
        history: 0,
        mode: LockMode::Exclusive,
        fresh_hold: false,
    }
}

fn counter() -> impl FnMut() -> u64 {
    let mut n = 0_u64;
    move || {
        n += 1;
        n << 32
    }
}

fn expect_send(step: ContenderAction) -> (Nonce, Acquire) {
    match step {
        ContenderAction::Send(nonce, request) => (nonce, request),
        other => panic!("expected a request, got {other:?}"),
    }
}

fn taken(position: u64) -> Acquired {
    let label = Label::new("other").ok();
    let holder = Holder {
        label,
        owner: None,
        count: 1,
        remaining_ms: Some(60_000),
        fence: None,
        since_ms: None,
        session: None,
        mode: LockMode::Exclusive,
        in_cooldown: false,
    };
    Acquired::Taken {
        holder: Some(holder),
        position: Some(position),
        predecessor: None,
        other_holders: Vec::new(),
    }
}

fn fence() -> FencingToken {
    FencingToken::new(7)
}

#[test]
fn a_grant_counts_from_the_sending_of_its_nonce() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 9);
    let (first, request) = expect_send(contender.poll(ms(0), &terms(), random));
    assert_eq!((request.lease_ms, first.index()), (3000, 9));
    let taken = taken(0);
    contender.handle_reply(first, &taken, ms(1), random);
    assert!(matches!(contender.poll(ms(1), &terms(), random), ContenderAction::Sleep(_)));
    let (second, again) = expect_send(contender.poll(ms(1001), &terms(), random));
    assert_eq!(again.claim, request.claim, "a poll requests the same hold");
    contender.handle_grant(first, fence(), ms(1500));
    let ContenderAction::Granted(grant) = contender.poll(ms(1500), &terms(), random) else {
        panic!("not granted")
    };
    assert_eq!(grant.valid_until, ms(3000) - drift(FIRST_LEASE), "not from {second:?}, nor from now");
    assert_eq!(grant.may_last_until, ms(1500) + FIRST_LEASE, "the store may just have granted it");
    assert_eq!(contender.take_grant().map(|grant| grant.claim), Some(request.claim));
    assert!(contender.is_idle());
}

#[test]
fn a_request_that_was_not_sent_is_no_fault_and_leaves_nothing() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
    contender.cancel_request(nonce);
    assert_eq!(contender.unresponsive_for(ms(9_000)), Duration::ZERO);
    let (nonce, request) = expect_send(contender.poll(ms(1), &terms(), random));
    contender.cancel_request(nonce);
    assert_eq!(contender.give_up(), None, "nothing of it can be at the store");
    // Something of an earlier request may be at the store.
    let (first, again) = expect_send(contender.poll(ms(2), &terms(), random));
    assert_ne!(again.claim, request.claim);
    contender.handle_fault(first, Executed::Unknown, ms(3), random);
    let (nonce, _) = expect_send(contender.poll(ms(1_000), &terms(), random));
    contender.cancel_request(nonce);
    assert_eq!(
        contender.unresponsive_for(ms(1_002)),
        Duration::from_millis(1_000),
        "the store is still silent"
    );
    assert_eq!(contender.give_up(), Some(again.claim));
}

#[test]
fn an_outdated_or_unknown_notification_only_makes_it_poll() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
    let taken = taken(40);
    contender.handle_reply(nonce, &taken, ms(1), random);
    contender.handle_grant(Nonce::new(0, 0xbad), fence(), ms(2));
    let (nonce, request) = expect_send(contender.poll(ms(2), &terms(), random));
    assert_eq!(request.queue.map(|queue| queue.ttl_ms), Some(21_000), "further back an entry is kept longer");
    contender.handle_reply(nonce, &taken, ms(3), random);
    contender.handle_grant(nonce, fence(), ms(3100));
    assert!(
        matches!(contender.poll(ms(3100), &terms(), random), ContenderAction::Send(..)),
        "nothing is left of it"
    );
}

#[test]
fn a_grant_with_little_time_left_makes_it_poll() {
    for (now, accepted) in [(1_000, true), (1_900, true), (2_000, false), (2_900, false), (3_100, false)] {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        contender.handle_reply(nonce, &taken(40), ms(1), random);
        contender.handle_grant(nonce, fence(), ms(now));
        let step = contender.poll(ms(now), &terms(), random);
        assert_eq!(matches!(step, ContenderAction::Granted(_)), accepted, "{now}: {step:?}");
        assert_eq!(matches!(step, ContenderAction::Send(..)), !accepted, "{now}: {step:?}");
    }
}

#[test]
fn a_reply_never_makes_a_hold_longer_than_what_was_asked_for() {
    for remaining_ms in [3_000, 3_001, 60_000, 1_762_000_000_000_000, u64::MAX] {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, request) = expect_send(contender.poll(ms(0), &terms(), random));
        let reply = Acquired::Granted { fence: fence(), remaining_ms, others_wait: false, owner_holds: None };
        contender.handle_reply(nonce, &reply, ms(1), random);
        let grant = contender.take_grant().expect("granted");
        assert!(grant.valid_until < ms(request.lease_ms), "{remaining_ms}: {grant:?}");
        assert!(grant.may_last_until <= ms(1 + request.lease_ms), "{remaining_ms}: {grant:?}");
    }
}

#[test]
fn a_grant_of_a_long_lease_is_of_use_with_the_rest_of_a_second() {
    // After a jump of the store's clock little is left of the hold of a party of a barrier.
    for (remaining_ms, accepted) in [(60_000, true), (4_000, true), (1_000, true), (200, false)] {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let lease = Duration::from_secs(60);
        let mode = LockMode::BarrierWait { total: 2 };
        let terms = AcquireTerms { lease, mode, ..terms() };
        let (nonce, request) = expect_send(contender.poll(ms(0), &terms, random));
        assert_eq!(request.lease_ms, 60_000, "a wait excludes no other client");
        let granted =
            Acquired::Granted { fence: fence(), remaining_ms, others_wait: false, owner_holds: None };
        contender.handle_reply(nonce, &granted, ms(1), random);
        assert_eq!(contender.is_granted(ms(1)), accepted, "{remaining_ms} ms are left");
    }
}

#[test]
fn a_reply_older_than_a_stale_grant_does_not_delay_the_poll() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
    // The process was suspended: both messages were in its buffers, and the grant overtook the reply.
    contender.handle_grant(nonce, fence(), ms(3100));
    contender.handle_reply(nonce, &taken(0), ms(3100), random);
    assert!(matches!(contender.poll(ms(3100), &terms(), random), ContenderAction::Send(..)));
}

#[test]
fn a_hold_that_may_exist_is_given_up_by_its_claim() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
    contender.handle_fault(nonce, Executed::No, ms(1), random);
    assert_eq!(contender.give_up(), None, "it was not executed");
    let (nonce, request) = expect_send(contender.poll(ms(2), &terms(), random));
    contender.handle_fault(nonce, Executed::Unknown, ms(3), random);
    let (nonce, _) = expect_send(contender.poll(ms(5000), &terms(), random));
    contender.handle_fault(nonce, Executed::No, ms(5001), random);
    assert_eq!(contender.give_up(), Some(request.claim.clone()), "the first may have been");
    let (_, other) = expect_send(contender.poll(ms(6000), &terms(), random));
    assert_ne!(other.claim, request.claim, "a hold that was given up is not used again");
}

#[test]
fn polls_are_spread_and_bounded() {
    // Failure row 24.
    let mut pauses = std::collections::BTreeSet::new();
    for seed in 1..=64_u64 {
        let random = &mut move || seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        let taken = taken(0);
        contender.handle_reply(nonce, &taken, ms(0), random);
        let ContenderAction::Sleep(until) = contender.poll(ms(0), &terms(), random) else {
            panic!("not asleep")
        };
        assert!(until >= ms(800) && until <= ms(1000), "{until:?}");
        pauses.insert(until);
    }
    assert!(pauses.len() > 32, "{} different pauses", pauses.len());
}

#[test]
fn the_first_waiter_polls_often_if_no_notification_would_arrive() {
    let foreign = Holder {
        label: None,
        owner: None,
        count: 1,
        remaining_ms: None,
        fence: None,
        since_ms: None,
        session: None,
        mode: LockMode::Exclusive,
        in_cooldown: false,
    };
    let ours = Holder { label: Label::new("other").ok(), ..foreign.clone() };
    for (holder, position, poll_often, soon) in [
        (Some(foreign.clone()), 0, false, true),
        (Some(foreign), 1, false, false),
        (Some(ours.clone()), 0, true, true),
        (Some(ours), 0, false, false),
        (None, 7, false, true),
    ] {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &AcquireTerms { poll_often, ..terms() }, random));
        let taken = Acquired::Taken {
            holder: holder.clone(),
            position: Some(position),
            predecessor: None,
            other_holders: Vec::new(),
        };
        contender.handle_reply(nonce, &taken, ms(0), random);
        let ContenderAction::Sleep(until) = contender.poll(ms(0), &terms(), random) else {
            panic!("not asleep")
        };
        let often = until >= ms(50) && until <= ms(250);
        assert_eq!(often, soon, "{holder:?} at {position}: {until:?}");
    }
}

#[test]
fn the_first_waiter_polls_when_the_holders_lease_ends() {
    for label in [None, Label::new("other").ok()] {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        let holder = Some(Holder {
            label,
            owner: None,
            count: 1,
            remaining_ms: Some(20),
            fence: None,
            since_ms: None,
            session: None,
            mode: LockMode::Exclusive,
            in_cooldown: false,
        });
        contender.handle_reply(
            nonce,
            &Acquired::Taken { holder, position: Some(0), predecessor: None, other_holders: Vec::new() },
            ms(0),
            random,
        );
        let ContenderAction::Sleep(until) = contender.poll(ms(0), &terms(), random) else {
            panic!("not asleep")
        };
        assert!(until > ms(20) && until <= ms(26), "{until:?}");
    }
}

#[test]
fn a_hold_in_its_last_milliseconds_says_nothing_about_the_lease() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let granted = |remaining_ms| Acquired::Granted {
        fence: fence(),
        remaining_ms,
        others_wait: false,
        owner_holds: None,
    };
    let (mut nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
    // The process was suspended after the grant; its polls find what is left of that hold.
    for now in 2_999..3_003 {
        let at = ms(now);
        contender.handle_reply(nonce, &granted(3_000_u64.saturating_sub(now)), at, random);
        assert!(
            matches!(
                contender.poll(at, &terms(), random),
                ContenderAction::Sleep(_) | ContenderAction::Send(..)
            ),
            "{now}"
        );
        (nonce, _) = contender.request(at, &terms(), random);
    }
    contender.handle_reply(nonce, &granted(3_000), ms(3_004), random);
    assert!(matches!(contender.poll(ms(3_004), &terms(), random), ContenderAction::Granted(_)));
}

#[test]
fn a_lease_shorter_than_the_round_trip_is_reported() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let terms = || AcquireTerms { lease: Duration::from_millis(1), ..terms() };
    for round in 0..MAX_STALE_GRANTS {
        let sent_at = ms(u64::from(round) * 100);
        let (nonce, _) = expect_send(contender.poll(sent_at, &terms(), random));
        let granted =
            Acquired::Granted { fence: fence(), remaining_ms: 1, others_wait: false, owner_holds: None };
        contender.handle_reply(nonce, &granted, sent_at + Duration::from_millis(2), random);
    }
    assert_eq!(contender.poll(ms(1000), &terms(), random), ContenderAction::LeaseTooShort);
    assert!(contender.give_up().is_some());
}

#[test]
fn a_lease_that_is_too_short_does_not_affect_the_next_attempt() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let short = AcquireTerms { lease: Duration::from_millis(1), ..terms() };
    for round in 0..MAX_STALE_GRANTS {
        let sent_at = ms(u64::from(round) * 100);
        let (nonce, _) = expect_send(contender.poll(sent_at, &short, random));
        let granted =
            Acquired::Granted { fence: fence(), remaining_ms: 1, others_wait: false, owner_holds: None };
        contender.handle_reply(nonce, &granted, sent_at + Duration::from_millis(2), random);
    }
    assert_eq!(contender.poll(ms(1000), &short, random), ContenderAction::LeaseTooShort);
    assert!(matches!(contender.poll(ms(1000), &terms(), random), ContenderAction::Send(..)));
}

#[test]
fn a_request_that_does_not_queue_leaves_an_earlier_queue_entry_to_be_given_up() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let (nonce, request) = expect_send(contender.poll(ms(0), &terms(), random));
    contender.handle_reply(nonce, &taken(3), ms(1), random);
    let polls = AcquireTerms { queue: false, ..terms() };
    for t in [100, 200] {
        contender.poll_soon(ms(t));
        let (nonce, _) = expect_send(contender.poll(ms(t), &polls, random));
        let Acquired::Taken { holder, .. } = taken(0) else { panic!("taken is taken") };
        let unqueued =
            Acquired::Taken { holder, position: None, predecessor: None, other_holders: Vec::new() };
        contender.handle_reply(nonce, &unqueued, ms(t + 1), random);
    }
    assert_eq!(contender.give_up(), Some(request.claim), "its entry is still at the store");
}

#[test]
fn a_notification_during_a_request_makes_it_poll_after_the_reply() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
    contender.poll_soon(ms(1));
    contender.handle_reply(nonce, &taken(0), ms(2), random);
    let (nonce, _) = expect_send(contender.poll(ms(2), &terms(), random));
    contender.handle_reply(nonce, &taken(0), ms(3), random);
    assert!(matches!(contender.poll(ms(3), &terms(), random), ContenderAction::Sleep(_)), "once");
}

#[test]
fn a_hold_is_never_valid_longer_than_its_requested_lease() {
    for us in [1_000, 1_001, 1_999, 5_500, 9_999, 2_999_999] {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let lease = Duration::from_micros(us);
        let (nonce, request) = expect_send(contender.poll(ms(0), &AcquireTerms { lease, ..terms() }, random));
        contender.handle_grant(nonce, fence(), ms(0));
        let ContenderAction::Granted(grant) = contender.poll(ms(0), &terms(), random) else {
            panic!("not granted")
        };
        assert!(
            grant.valid_until < ms(request.lease_ms),
            "{lease:?}: {:?} of {}",
            grant.valid_until,
            request.lease_ms
        );
    }
}

// ---- a new hold for each request (6) ----

fn fresh_terms() -> AcquireTerms {
    AcquireTerms { queue: false, poll_often: true, fresh_hold: true, ..terms() }
}

#[test]
fn with_fresh_holds_no_undo_can_end_the_next_hold() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let split =
        Acquired::Taken { holder: None, position: None, predecessor: None, other_holders: Vec::new() };
    let (nonce, first) = expect_send(contender.poll(ms(0), &fresh_terms(), random));
    contender.handle_reply(nonce, &split, ms(1), random);
    assert_eq!(contender.give_up_fresh(), None, "the store has undone it");
    let ContenderAction::Sleep(until) = contender.poll(ms(1), &fresh_terms(), random) else {
        panic!("not asleep")
    };
    assert!(until >= ms(3) && until <= ms(21), "a split vote: {until:?}");

    let (nonce, second) = expect_send(contender.poll(until, &fresh_terms(), random));
    assert_ne!(first.claim, second.claim);
    contender.handle_fault(nonce, Executed::Unknown, until, random);
    assert_eq!(contender.give_up_fresh(), Some(second.claim), "it may be there");
    assert!(matches!(contender.poll(until, &fresh_terms(), random), ContenderAction::Sleep(_)));

    // A dropped task leaves a request with an unknown result.
    let later = until + Duration::from_secs(2);
    let (late, third) = expect_send(contender.poll(later, &fresh_terms(), random));
    assert_eq!(contender.poll(later, &fresh_terms(), random), ContenderAction::Undo(third.claim.clone()));
    let (nonce, fourth) = expect_send(contender.poll(later, &fresh_terms(), random));
    assert_ne!(third.claim, fourth.claim);
    let granted =
        Acquired::Granted { fence: fence(), remaining_ms: 3_000, others_wait: false, owner_holds: None };
    contender.handle_reply(late, &granted, later, random);
    assert!(!contender.is_granted(later), "it is being undone");
    contender.handle_reply(nonce, &granted, later, random);
    assert_eq!(contender.give_up_fresh(), None);
    assert_eq!(contender.take_grant().map(|grant| grant.claim), Some(fourth.claim));
}

#[test]
fn with_fresh_holds_a_late_grant_is_undone() {
    let random = &mut counter();
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let (nonce, request) = expect_send(contender.poll(ms(0), &fresh_terms(), random));
    let granted =
        Acquired::Granted { fence: fence(), remaining_ms: 3_000, others_wait: false, owner_holds: None };
    contender.handle_reply(nonce, &granted, ms(2_990), random);
    assert_eq!(contender.give_up_fresh(), Some(request.claim));
}

// ---- watching the predecessor (4) ----

fn session(n: u8) -> SessionId {
    SessionId::from_random([n; 12])
}

/// A "taken" reply with `who` as the predecessor of `position`, and its remaining life if the request
/// named it.
fn behind(who: SessionId, position: u64, alive_ms: Option<u64>) -> Acquired {
    let Acquired::Taken { holder, .. } = taken(position) else { panic!("taken is taken") };
    Acquired::Taken {
        holder,
        position: Some(position),
        predecessor: Some(Predecessor { session: who, alive_ms }),
        other_holders: Vec::new(),
    }
}

/// When the contender polls after that reply.
fn next_poll(
    contender: &mut Contender,
    nonce: Nonce,
    reply: &Acquired,
    now: Moment,
    random: Random<'_>,
) -> Moment {
    contender.handle_reply(nonce, reply, now, random);
    match contender.poll(now, &terms(), random) {
        ContenderAction::Sleep(until) => until,
        other => panic!("not asleep: {other:?}"),
    }
}

#[test]
fn it_soon_checks_a_new_predecessor() {
    let random = &mut counter();
    let mut contender = Contender::new(session(1), 0);
    let (nonce, request) = expect_send(contender.poll(ms(0), &terms(), random));
    assert_eq!(request.predecessor, None, "no predecessor is known yet");
    // A wait that ends within that time costs no further request, also far back in the queue.
    let until = next_poll(&mut contender, nonce, &behind(session(7), 40, None), ms(10), random);
    assert!(until >= ms(210) && until <= ms(310), "{until:?}");
    let (_, request) = expect_send(contender.poll(until, &terms(), random));
    assert_eq!(request.predecessor, Some(session(7)));
}

#[test]
fn it_polls_when_the_predecessor_would_be_dead() {
    for (alive_ms, position, within) in
        [(300, 0, true), (300, 40, true), (60_000, 0, false), (u64::MAX, 0, false)]
    {
        let random = &mut counter();
        let mut contender = Contender::new(session(1), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        let until = next_poll(&mut contender, nonce, &behind(session(7), position, None), ms(0), random);
        let (nonce, _) = expect_send(contender.poll(until, &terms(), random));
        let reply = behind(session(7), position, Some(alive_ms));
        let next = next_poll(&mut contender, nonce, &reply, until, random);
        if within {
            assert!(
                next > until + Duration::from_millis(alive_ms),
                "the session is alive in its last millisecond"
            );
            assert!(next <= until + Duration::from_millis(alive_ms + 6), "{next:?} after {until:?}");
        } else {
            assert!(
                next <= until + Duration::from_secs(1),
                "the usual poll is sooner: {next:?} after {until:?}"
            );
            assert!(next >= until + Duration::from_millis(800), "{next:?} after {until:?}");
        }
    }
}

/// The store counted the life of the predecessor when it executed the request, and not when the reply arrived.
#[test]
fn a_late_reply_does_not_delay_the_poll_for_a_dead_predecessor() {
    let random = &mut counter();
    let mut contender = Contender::new(session(1), 0);
    let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
    let until = next_poll(&mut contender, nonce, &behind(session(7), 0, None), ms(0), random);
    let (nonce, _) = expect_send(contender.poll(until, &terms(), random));
    let (late, reply) = (until + Duration::from_millis(500), behind(session(7), 0, Some(300)));
    let next = next_poll(&mut contender, nonce, &reply, late, random);
    assert!(next > late && next <= late + Duration::from_millis(6), "{next:?} after {late:?}");
}

/// A store that has lost its data takes the client's own session for dead, and would evict its queue entry.
#[test]
fn it_does_not_watch_its_own_session() {
    let random = &mut counter();
    let mut contender = Contender::new(session(1), 0);
    let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
    let until = next_poll(&mut contender, nonce, &behind(session(1), 1, None), ms(0), random);
    assert!(until >= ms(800), "the usual poll: {until:?}");
    assert_eq!(expect_send(contender.poll(until, &terms(), random)).1.predecessor, None);
}

#[test]
fn a_holder_that_cannot_die_is_not_watched() {
    let random = &mut counter();
    let mut contender = Contender::new(session(1), 0);
    let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
    let until = next_poll(&mut contender, nonce, &taken(0), ms(0), random);
    assert!(until >= ms(800), "the usual poll: {until:?}");
    assert_eq!(expect_send(contender.poll(until, &terms(), random)).1.predecessor, None);
}

#[test]
fn it_polls_at_once_for_a_new_predecessor_but_not_for_ever() {
    let random = &mut counter();
    let mut contender = Contender::new(session(250), 0);
    let mut now = ms(0);
    let mut at_once = 0;
    for n in 0..200 {
        let (nonce, request) = expect_send(contender.poll(now, &terms(), random));
        contender.handle_reply(nonce, &behind(session(n), 0, None), now, random);
        now = match contender.poll(now, &terms(), random) {
            ContenderAction::Send(..) => {
                at_once += 1;
                assert_eq!(request.predecessor, Some(session(n - 1)), "the request named another session");
                now
            }
            ContenderAction::Sleep(until) if n == 0 => until,
            ContenderAction::Sleep(until) => {
                assert_eq!(until, now + PREDECESSOR_PAUSE, "after {at_once} polls at once");
                until
            }
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(at_once, MAX_IMMEDIATE_POLLS);
    // A predecessor that is still the one named in the request resets the count: the next row is cleared
    // as fast.
    let (nonce, _) = expect_send(contender.poll(now, &terms(), random));
    let until = next_poll(&mut contender, nonce, &behind(session(199), 0, Some(500)), now, random);
    let (nonce, _) = expect_send(contender.poll(until, &terms(), random));
    contender.handle_reply(nonce, &behind(session(200), 0, None), until, random);
    assert!(matches!(contender.poll(until, &terms(), random), ContenderAction::Send(..)));
}

/// Fifty waiters and the holder are dead, and one live session waits behind them. The model replies, and
/// its clock stands still while the live session clears the queue.
#[test]
fn fifty_dead_predecessors_take_fifty_polls() {
    use crate::Op;
    use crate::model::{LockState, SessionStatus};
    let dead = |n: u8| {
        let hold = HoldId::from_random(session(n), [n; 16]);
        let queue = Some(Enqueue { nonce: Nonce::new(0, n.into()), ttl_ms: 3_600_000 });
        let (label, liveness) = (terms().label, Liveness::Session { alive_ms: 10_000 });
        Acquire {
            claim: Claim::new(hold),
            lease_ms: 3_600_000,
            label,
            queue,
            expire_foreign_ms: None,
            liveness,
            predecessor: None,
            mode: LockMode::Exclusive,
        }
    };
    let random = &mut counter();
    let mut contender = Contender::new(session(200), 0);
    let mut lock = LockState::default();
    for n in 0..50 {
        lock.apply(1_000_000, &Op::Acquire(dead(n)), &|_| SessionStatus::Lapsed);
    }
    let alive = |who| if who == session(200) { SessionStatus::Alive(10_000) } else { SessionStatus::Lapsed };
    let (mut now, mut polls) = (ms(1_000), 0);
    loop {
        match contender.poll(now, &terms(), random) {
            ContenderAction::Send(nonce, request) => {
                let (crate::Reply::Acquire(reply), _) =
                    lock.apply(now.as_micros(), &Op::Acquire(request), &alive)
                else {
                    panic!("an acquire is answered by an acquire")
                };
                contender.handle_reply(nonce, &reply, now, random);
                polls += 1;
            }
            ContenderAction::Sleep(until) => {
                assert_eq!(polls, 1, "only the first poll has to find the predecessor");
                now = until;
            }
            ContenderAction::Granted(_) => break,
            ContenderAction::LeaseTooShort | ContenderAction::Undo(_) => {
                panic!("no time has passed, and it keeps its hold")
            }
        }
    }
    assert_eq!(polls, 51, "one to queue, and one for each of the dead");
    assert!(now <= ms(1_310), "{now:?}");
}

/// Where the lock changes hands quickly, a waiter sends one request per turn: its grant arrives before
/// its next poll.
#[test]
fn quick_hand_offs_cost_no_further_requests() {
    let random = &mut counter();
    let mut contender = Contender::new(session(1), 0);
    let mut now = ms(0);
    for round in 0..100 {
        let (nonce, _) = expect_send(contender.poll(now, &terms(), random));
        contender.handle_reply(nonce, &behind(session(7), 63, None), now, random);
        for waited in [1, 50, 199] {
            let step = contender.poll(now + Duration::from_millis(waited), &terms(), random);
            assert!(matches!(step, ContenderAction::Sleep(_)), "round {round}, after {waited} ms: {step:?}");
        }
        now = now + Duration::from_millis(199);
        contender.handle_grant(nonce, fence(), now);
        assert!(contender.take_grant().is_some());
    }
}

#[test]
fn a_margin_is_requested_and_not_relied_on() {
    let mut random = counter();
    let margin = Duration::from_secs(10);
    let with = || AcquireTerms { margin, ..terms() };
    let mut contender = Contender::new(session(1), 0);
    let (nonce, request) = expect_send(contender.poll(ms(0), &with(), &mut random));
    assert_eq!(request.lease_ms, 13_000);
    contender.handle_grant(nonce, fence(), ms(500));
    let grant = contender.take_grant().expect("granted");
    assert_eq!(grant.valid_until, ms(3_000) - drift(FIRST_LEASE));
    assert_eq!(grant.may_last_until, ms(500 + 13_000), "the store counts from the grant");

    // A request without the margin is for another hold.
    let (nonce, first) = expect_send(contender.poll(ms(1_000), &with(), &mut random));
    assert!(contender.matches(&with()) && !contender.matches(&terms()));
    let granted = |remaining_ms| Acquired::Granted {
        fence: fence(),
        remaining_ms,
        others_wait: false,
        owner_holds: None,
    };
    contender.handle_reply(nonce, &granted(12_000), ms(1_001), &mut random);
    let grant = contender.take_grant().expect("granted");
    assert_eq!(grant.valid_until, ms(3_000) - drift(Duration::from_secs(2)));
    assert_eq!(grant.may_last_until, ms(1_001 + 12_000));
    assert_eq!(grant.claim, first.claim);

    // A hold of which only the margin is left is given up.
    let (nonce, old) = expect_send(contender.poll(ms(2_000), &with(), &mut random));
    contender.handle_reply(nonce, &granted(10_050), ms(2_001), &mut random);
    assert_eq!(contender.give_up_fresh(), Some(old.claim.clone()));
    let (_, next) = expect_send(contender.poll(ms(2_001), &with(), &mut random));
    assert_ne!(next.claim, old.claim);
}

/// Its task was dropped, so that no reply to it arrives: it may have been granted.
#[test]
fn the_late_reply_to_an_earlier_request_does_not_hide_a_later_one() {
    let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
    let random = &mut counter();
    let (first, _) = expect_send(contender.poll(ms(0), &terms(), random));
    let (second, _) = expect_send(contender.poll(ms(10), &terms(), random));
    contender.handle_reply(first, &taken(0), ms(20), random);
    let (third, _) = expect_send(contender.poll(ms(20), &terms(), random));
    contender.handle_reply(second, &taken(0), ms(30), random);
    assert!(matches!(contender.poll(ms(30), &terms(), random), ContenderAction::Send(..)));
    contender.handle_reply(third, &taken(0), ms(40), random);
    assert!(
        matches!(contender.poll(ms(40), &terms(), random), ContenderAction::Send(..)),
        "the newest is later"
    );
    let (newest, _) = expect_send(contender.poll(ms(50), &terms(), random));
    contender.handle_reply(newest, &taken(0), ms(60), random);
    assert!(matches!(contender.poll(ms(60), &terms(), random), ContenderAction::Sleep(_)));
}
