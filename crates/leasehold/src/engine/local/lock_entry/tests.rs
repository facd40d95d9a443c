//! The state machine of a lock entry, driven by hand.

use super::*;
use crate::engine::ReleasePolicy;
use crate::engine::hold::HoldEvents as _;
use leasehold_core::TokenBlock;
use leasehold_core::{Ended, Label, Liveness};

fn entry() -> Arc<LockEntry> {
    let lock = Lock::mutex("job".parse().expect("a good name"));
    Arc::new(LockEntry::new(lock, Partition::ONLY, SessionId::from_random([1; 12]), 0, |_| {}))
}

fn session() -> Arc<Session> {
    session_of(SessionId::from_random([1; 12]))
}

fn session_of(id: SessionId) -> Arc<Session> {
    Arc::new(Session::new(Partition::ONLY, id, Liveness::Session { alive_ms: 10_000 }, at(100)))
}

fn terms() -> Arc<AcquireTerms> {
    let label = Label::new("").expect("an empty label is a label");
    let lease = Duration::from_secs(1);
    Arc::new(AcquireTerms {
        lease,
        label,
        value: None,
        expire_foreign: None,
        liveness: Liveness::Session { alive_ms: 10_000 },
        queue: true,
        poll_often: false,
        margin: Duration::ZERO,
        history: 0,
        fresh_hold: false,
        mode: LockMode::Exclusive,
    })
}

fn at(s: u64) -> Moment {
    Moment::from_micros(s * 1_000_000)
}

fn granted() -> Acquired {
    Acquired::Granted {
        fence: FencingToken::new(1),
        remaining_ms: 1_000,
        others_wait: false,
        owner_holds: None,
    }
}

/// A grant that has just been made.
fn first_lease() -> Acquired {
    let fence = FencingToken::new(1);
    Acquired::Granted { fence, remaining_ms: 3_000, others_wait: false, owner_holds: None }
}

fn sent(action: &WaiterAction, path: RequestPath) -> PendingRequest {
    let WaiterAction::Send(request, _) = action else { panic!("it sends a request") };
    assert_eq!(request.path, path);
    *request
}

fn is_signaled(entry: &LockEntry, id: u64) -> bool {
    entry.state().queue.poll_signaled(id, std::task::Waker::noop()).is_ready()
}

/// An entry whose hold ends at two seconds, and the front of its queue, which sleeps without a limit.
fn taken() -> (Arc<LockEntry>, Arc<Hold>, u64) {
    let (entry, random) = (entry(), &mut || 7);
    let (holder, front) = (entry.join(terms()), entry.join(terms()));
    let request = sent(&entry.poll(holder, &session(), at(1), random), RequestPath::Queue);
    assert!(matches!(entry.poll(front, &session(), at(1), random), WaiterAction::Blocked(None)));
    entry.handle_answer(request, Ok(&granted()), at(1), random);
    let WaiterAction::Granted(hold, ..) = entry.poll(holder, &session(), at(1), random) else {
        panic!("it was granted")
    };
    assert!(!is_signaled(&entry, front));
    (entry, hold, front)
}

fn reentrant() -> Arc<LockEntry> {
    let lock = Lock::reentrant("job".parse().expect("a good name"));
    Arc::new(LockEntry::new(lock, Partition::ONLY, SessionId::from_random([1; 12]), 0, |_| {}))
}

fn of(owner: &str) -> Arc<AcquireTerms> {
    let value = OwnValue::new(owner).ok();
    Arc::new(AcquireTerms { value, ..(*terms()).clone() })
}

fn held_by(owner: &str) -> Acquired {
    let holder = Holder {
        label: None,
        owner: OwnValue::new(owner).ok(),
        count: 1,
        remaining_ms: None,
        fence: None,
        since_ms: None,
        session: None,
        mode: LockMode::Exclusive,
        in_cooldown: false,
    };
    Acquired::Taken { holder: Some(holder), position: Some(0), predecessor: None, other_holders: Vec::new() }
}

/// Random bits that differ from call to call.
fn counter() -> impl FnMut() -> u64 {
    let mut n = 0;
    move || {
        n += 1;
        n
    }
}

#[test]
fn a_call_during_a_request_takes_effect_after_its_reply() {
    let (entry, random) = (reentrant(), &mut counter());
    let (front, behind) = (entry.join(of("x")), entry.join(of("y")));
    let by_front = sent(&entry.poll(front, &session(), at(1), random), RequestPath::Queue);
    let first = sent(&entry.poll(behind, &session(), at(1), random), RequestPath::Bypass);
    entry.handle_answer(by_front, Ok(&held_by("y")), at(1), random);
    // This request was executed before the owner acquired the lock.
    entry.handle_answer(first, Ok(&held_by("z")), at(1), random);
    assert!(is_signaled(&entry, behind));
    let second = sent(&entry.poll(behind, &session(), at(1), random), RequestPath::Bypass);
    entry.handle_answer(second, Ok(&held_by("z")), at(1), random);
    assert!(
        matches!(entry.poll(behind, &session(), at(1), random), WaiterAction::Blocked(None)),
        "one request per call"
    );
    // The same with no request in flight.
    assert!(matches!(entry.poll(front, &session(), at(1), random), WaiterAction::Sleep(_)));
    let by_front = sent(&entry.poll(front, &session(), at(9), random), RequestPath::Queue);
    entry.handle_answer(by_front, Ok(&held_by("y")), at(9), random);
    assert!(is_signaled(&entry, behind));
    let third = sent(&entry.poll(behind, &session(), at(9), random), RequestPath::Bypass);
    entry.handle_answer(third, Ok(&granted()), at(9), random);
    assert!(matches!(entry.poll(behind, &session(), at(9), random), WaiterAction::Granted(..)));
    // It acquired the lock past the front, which still keeps its queue entry alive.
    assert!(matches!(entry.poll(front, &session(), at(9), random), WaiterAction::Sleep(_)));
}

/// Nodes that did not reply, and one that had voted for another client, deny a re-entry while its owner holds the lock. No
/// other task would send a request before the owner, which may be waiting for this one, releases it.
#[test]
fn a_reentry_that_split_votes_denied_is_sent_again() {
    let (entry, random) = (reentrant(), &mut counter());
    let of = |owner| Arc::new(AcquireTerms { queue: false, fresh_hold: true, ..(*of(owner)).clone() });
    let holder = entry.join(of("x"));
    let request = sent(&entry.poll(holder, &session(), at(1), random), RequestPath::Queue);
    entry.handle_answer(request, Ok(&first_lease()), at(1), random);
    let WaiterAction::Granted(hold, ..) = entry.poll(holder, &session(), at(1), random) else {
        panic!("it was granted")
    };
    hold.extend_validity(at(11));
    let (again, other) = (entry.join(of("x")), entry.join(of("y")));
    for denied in [
        held_by("y"),
        Acquired::Taken { holder: None, position: None, predecessor: None, other_holders: Vec::new() },
    ] {
        let request = sent(&entry.poll(again, &session(), at(3), random), RequestPath::Bypass);
        entry.handle_answer(request, Ok(&denied), at(2), random);
        assert!(
            matches!(entry.poll(again, &session(), at(2), random), WaiterAction::Sleep(_)),
            "after a pause"
        );
    }
    let request = sent(&entry.poll(other, &session(), at(3), random), RequestPath::Bypass);
    entry.handle_answer(request, Ok(&held_by("x")), at(3), random);
    assert!(
        matches!(entry.poll(other, &session(), at(3), random), WaiterAction::Blocked(None)),
        "it is no re-entry"
    );
    drop(hold);
}

#[test]
fn an_unanswered_request_is_repeated_with_the_same_hold() {
    let (entry, random) = (reentrant(), &mut counter());
    let (front, behind) = (entry.join(of("x")), entry.join(of("y")));
    entry.poll(front, &session(), at(1), random);
    let WaiterAction::Send(request @ PendingRequest { path: RequestPath::Bypass, .. }, acquire) =
        entry.poll(behind, &session(), at(1), random)
    else {
        panic!("it bypasses the queue")
    };
    assert!(acquire.queue.is_none(), "the process has one queue entry");
    entry.handle_answer(request, Err(Executed::Unknown), at(1), random);
    assert!(matches!(entry.poll(behind, &session(), at(1), random), WaiterAction::Sleep(_)), "after a pause");
    let WaiterAction::Send(PendingRequest { path: RequestPath::Bypass, .. }, again) =
        entry.poll(behind, &session(), at(3), random)
    else {
        panic!("its owner may wait for it")
    };
    assert_eq!(acquire.claim, again.claim);
    assert_eq!(entry.leave(behind).claims, [acquire.claim], "its request must be undone");
}

/// A front that waits, and a second task of its owner, which has acquired the lock past it. The front's request through
/// the queue stands for its bypass.
fn entered_past_the_front(random: &mut dyn FnMut() -> u64) -> (Arc<LockEntry>, u64, PendingRequest) {
    let entry = reentrant();
    let (front, behind) = (entry.join(of("x")), entry.join(of("x")));
    let by_front = sent(&entry.poll(front, &session(), at(1), random), RequestPath::Queue);
    let past_it = sent(&entry.poll(behind, &session(), at(1), random), RequestPath::Bypass);
    entry.handle_answer(by_front, Err(Executed::Unknown), at(1), random);
    entry.handle_answer(past_it, Ok(&granted()), at(1), random);
    assert!(matches!(entry.poll(behind, &session(), at(1), random), WaiterAction::Granted(..)));
    assert!(is_signaled(&entry, front), "its owner holds the lock");
    let again = sent(&entry.poll(front, &session(), at(1), random), RequestPath::Queue);
    (entry, front, again)
}

#[test]
fn a_front_whose_request_had_ended_enters_beside_its_owner() {
    let random = &mut counter();
    let (entry, front, again) = entered_past_the_front(random);
    // The lost request was granted, and ended by force.
    entry.handle_answer(again, Ok(&Acquired::AlreadyEnded(Ended::ForceReleased)), at(1), random);
    let request = sent(&entry.poll(front, &session(), at(1), random), RequestPath::Bypass);
    entry.handle_answer(request, Ok(&held_by("z")), at(1), random);
    assert!(
        matches!(entry.poll(front, &session(), at(1), random), WaiterAction::Blocked(Some(_))),
        "one request, unless its owner acquires the lock again"
    );
}

#[test]
fn a_front_that_gives_its_request_up_with_the_session_enters_beside_its_owner() {
    let random = &mut counter();
    let (entry, front, again) = entered_past_the_front(random);
    entry.handle_answer(again, Err(Executed::Unknown), at(1), random);
    // The owner's hold is taken for one that has no session, and outlasts this one.
    let next = session_of(SessionId::from_random([2; 12]));
    assert!(
        matches!(entry.poll(front, &next, at(1), random), WaiterAction::Undo(claims) if claims.len() == 1)
    );
    sent(&entry.poll(front, &next, at(1), random), RequestPath::Bypass);
}

/// The task in front has timed out while its request was in flight.
#[test]
fn a_lock_won_past_the_queue_is_kept_by_a_task_that_came_to_the_front() {
    let (entry, random) = (reentrant(), &mut counter());
    let (front, behind) = (entry.join(of("x")), entry.join(of("y")));
    let by_front = sent(&entry.poll(front, &session(), at(1), random), RequestPath::Queue);
    entry.handle_answer(by_front, Ok(&held_by("z")), at(1), random);
    let WaiterAction::Send(request @ PendingRequest { path: RequestPath::Bypass, .. }, acquire) =
        entry.poll(behind, &session(), at(1), random)
    else {
        panic!("it bypasses the queue")
    };
    assert!(entry.leave(front).claims.is_empty(), "its queue entry passes to the next waiter");
    entry.handle_answer(request, Ok(&granted()), at(1), random);
    let WaiterAction::Granted(hold, _, undone) = entry.poll(behind, &session(), at(1), random) else {
        panic!("it was granted")
    };
    assert_eq!(hold.claim, acquire.claim, "neither undone nor requested again");
    assert_eq!(undone.len(), 1, "no task needs the queue entry any more");
}

#[test]
fn a_new_front_sends_its_request_before_its_predecessor_is_undone() {
    let (entry, random) = (reentrant(), &mut counter());
    let (first, second) = (entry.join(of("x")), entry.join(of("y")));
    let WaiterAction::Send(request, acquire) = entry.poll(first, &session(), at(1), random) else {
        panic!("it sends a request")
    };
    entry.handle_answer(request, Ok(&held_by("z")), at(1), random);
    assert!(entry.leave(first).claims.is_empty(), "its queue entry passes to the next waiter");
    assert!(is_signaled(&entry, second));
    let WaiterAction::Send(request @ PendingRequest { path: RequestPath::Queue, .. }, next) =
        entry.poll(second, &session(), at(1), random)
    else {
        panic!("it takes the queue entry over")
    };
    assert!(next.queue.is_some() && next.claim.hold != acquire.claim.hold);
    let undone = entry.handle_answer(request, Ok(&held_by("z")), at(1), random);
    assert_eq!(undone, [acquire.claim]);
    assert_eq!(entry.leave(second).claims, [next.claim]);
}

#[test]
fn the_last_release_of_an_owner_requests_for_the_queue() {
    let (entry, random) = (reentrant(), &mut counter());
    let holds = [(); 3].map(|()| {
        let id = entry.join(of("x"));
        let WaiterAction::Send(request, _) = entry.poll(id, &session(), at(1), random) else {
            panic!("it sends a request")
        };
        entry.handle_answer(request, Ok(&granted()), at(1), random);
        let WaiterAction::Granted(hold, ..) = entry.poll(id, &session(), at(1), random) else {
            panic!("granted")
        };
        hold
    });
    let front = entry.join(of("y"));
    let request = sent(&entry.poll(front, &session(), at(1), random), RequestPath::Bypass);
    entry.handle_answer(request, Ok(&held_by("x")), at(1), random);
    assert!(matches!(entry.poll(front, &session(), at(1), random), WaiterAction::Blocked(Some(_))));
    let mut requests = |hold: &Hold| entry.begin_release(hold, None, &session(), at(1), random).1.is_some();
    assert_eq!([requests(&holds[1]), requests(&holds[0]), requests(&holds[2])], [false, false, true]);
    for hold in &holds {
        entry.remove_hold(hold);
    }
    assert!(is_signaled(&entry, front));
    assert!(!entry.is_held(at(1)));
}

/// A ReentrantMutex that x holds, and y, which has come to its queue and has sent nothing.
fn held_by_another_owner(random: &mut dyn FnMut() -> u64) -> (Arc<LockEntry>, Arc<Hold>, u64) {
    let entry = reentrant();
    let holder = entry.join(of("x"));
    let request = sent(&entry.poll(holder, &session(), at(1), random), RequestPath::Queue);
    entry.handle_answer(request, Ok(&granted()), at(1), random);
    let WaiterAction::Granted(hold, ..) = entry.poll(holder, &session(), at(1), random) else {
        panic!("it was granted")
    };
    let front = entry.join(of("y"));
    (entry, hold, front)
}

/// Both requests could be granted: the owner would have two holds until one is undone.
#[test]
fn a_release_requests_nothing_for_a_front_whose_bypass_is_in_flight() {
    let random = &mut counter();
    let (entry, hold, front) = held_by_another_owner(random);
    let request = sent(&entry.poll(front, &session(), at(1), random), RequestPath::Bypass);
    assert!(entry.begin_release(&hold, None, &session(), at(1), random).1.is_none());
    entry.remove_hold(&hold);
    // It was executed before the release.
    let taken =
        Acquired::Taken { holder: None, position: None, predecessor: None, other_holders: Vec::new() };
    entry.handle_answer(request, Ok(&taken), at(1), random);
    sent(&entry.poll(front, &session(), at(1), random), RequestPath::Queue);
}

#[test]
fn a_front_sends_no_bypass_while_a_release_requests_for_it() {
    let random = &mut counter();
    let (entry, hold, front) = held_by_another_owner(random);
    let other = entry.join(of("z"));
    let (request, next) =
        entry.begin_release(&hold, None, &session(), at(1), random).1.expect("a task is queued");
    assert!(matches!(entry.poll(front, &session(), at(1), random), WaiterAction::Blocked(Some(_))));
    // Its owner acquires the lock elsewhere, as the reply to another task says.
    let bypass = sent(&entry.poll(other, &session(), at(1), random), RequestPath::Bypass);
    entry.handle_answer(bypass, Ok(&held_by("y")), at(1), random);
    assert!(is_signaled(&entry, front));
    assert!(matches!(entry.poll(front, &session(), at(1), random), WaiterAction::Blocked(Some(_))));
    entry.handle_answer(request, Err(Executed::Unknown), at(1), random);
    assert!(entry.end_release(next.claim.hold).is_none());
    entry.remove_hold(&hold);
    assert!(is_signaled(&entry, front));
    let WaiterAction::Send(PendingRequest { path: RequestPath::Queue, .. }, again) =
        entry.poll(front, &session(), at(1), random)
    else {
        panic!("its owner holds the lock")
    };
    assert_eq!(again.claim, next.claim, "the same hold, however often it is granted");
}

#[test]
fn finding_the_entry_empty_signals_the_front() {
    let (entry, _hold, front) = taken();
    let (last, random) = (entry.join(terms()), &mut || 7);
    assert!(
        matches!(entry.poll(last, &session(), at(1), random), WaiterAction::Blocked(None)),
        "the keeper signals the front, and the front the next waiter"
    );
    assert!(matches!(entry.poll(last, &session(), at(3), random), WaiterAction::Blocked(None)));
    assert!(is_signaled(&entry, front), "or it would sleep forever");
}

#[test]
fn a_release_that_comes_back_with_the_lock_tells_the_front_also_where_the_hold_had_lapsed() {
    let (entry, hold, front) = taken();
    let random = &mut || 7;
    let (_, next) = entry.begin_release(&hold, None, &session(), at(1), random);
    let (with_release, _) = next.expect("a task is queued");
    // The release takes long. Meanwhile the front sends its own request and learns that the lock is held.
    let own = sent(&entry.poll(front, &session(), at(3), random), RequestPath::Queue);
    entry.handle_answer(
        own,
        Ok(&Acquired::Taken {
            holder: None,
            position: Some(0),
            predecessor: None,
            other_holders: Vec::new(),
        }),
        at(3),
        random,
    );
    assert!(matches!(entry.poll(front, &session(), at(3), random), WaiterAction::Sleep(_)));
    entry.handle_answer(with_release, Ok(&granted()), at(1), random);
    entry.remove_hold(&hold);
    assert!(is_signaled(&entry, front));
    assert!(matches!(entry.poll(front, &session(), at(1), random), WaiterAction::Granted(..)));
}

/// Its last reply was given before.
#[test]
fn after_missed_messages_a_kept_hold_is_handed_on_once_the_store_has_been_asked() {
    let (entry, random) = (entry(), &mut counter());
    let holder = entry.join(terms());
    let request = sent(&entry.poll(holder, &session(), at(1), random), RequestPath::Queue);
    entry.handle_answer(request, Ok(&first_lease()), at(1), random);
    let WaiterAction::Granted(hold, ..) = entry.poll(holder, &session(), at(1), random) else {
        panic!("it was granted")
    };
    hold.extend_validity(at(61));
    hold.set_kept_until(at(61));
    let policy = ReleasePolicy { free_every: None, max_idle: Some(Duration::from_secs(30)) };
    let kept = entry.make_idle(&hold, TrackingId(1), policy, at(1)).expect("it is kept");
    assert!(kept.reserve.is_some(), "so that it is notified");
    let block = |first| Some((TokenBlock::new(FencingToken::new(first), 100), false));
    entry.handle_reserved(&hold, block(100), true, at(1));
    entry.handle_missed_messages(at(2));
    let next = entry.join(terms());
    let asked = entry.poll(next, &session(), at(3), random);
    assert!(matches!(asked, WaiterAction::AwaitReserve(_, Some(_))), "others may wait");
    entry.handle_reserved(&hold, block(300), true, at(3));
    assert!(matches!(entry.poll(next, &session(), at(3), random), WaiterAction::HandedOff(..)));
}

/// A guard of the same owner beside it has the same token, and goes on.
#[test]
fn an_attached_hold_replaces_holds_with_other_tokens_only() {
    let (entry, random) = (reentrant(), &mut counter());
    let front = entry.join(of("x"));
    let request = sent(&entry.poll(front, &session(), at(1), random), RequestPath::Queue);
    entry.handle_answer(request, Ok(&granted()), at(1), random);
    let WaiterAction::Granted(hold, ..) = entry.poll(front, &session(), at(1), random) else {
        panic!("it was granted")
    };
    let attached = |id: u8, fence| {
        let id = HoldId::from_random(SessionId::from_random([id; 12]), [id; 16]);
        let claim = Claim { hold: id, value: OwnValue::new("x").ok() };
        let (until, entry) = (hold.valid_until(), Arc::downgrade(&entry));
        Arc::new(Hold::new(entry_lock(), claim, FencingToken::new(fence), until, session(), entry))
    };
    let (same, later) = (attached(2, hold.fence.as_u64()), attached(3, hold.fence.as_u64() + 1));
    entry.attach(&same);
    // The owner holds the lock until both are released.
    let (free, next) = entry.begin_release(&same, None, &session(), at(1), random);
    assert!(!free && next.is_none());
    entry.remove_hold(&same);
    assert!(entry.is_held(at(1)));
    // The store has granted a newer one, so this is gone.
    entry.attach(&later);
    entry.remove_hold(&later);
    assert!(!entry.is_held(at(1)));
}

fn entry_lock() -> Lock {
    Lock::reentrant("job".parse().expect("a good name"))
}
