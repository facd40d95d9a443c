//! Calls: their order, their deadlines, and dropped ones.

use crate::conformance::client::{CALL_TIMEOUT, LONG, TestClient, millis};
use crate::conformance::fixture::Fixture;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use leasehold_core::{
    Acquired, Claim, Extend, Extended, HoldStatus, Inspect, Lock, Op, Release, ReleaseAction, Reply,
};
use leasehold_store::Outcome;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

/// By how much a call may exceed its time limit on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

/// Several operations in one call: each outcome is at the index of its operation.
pub async fn outcomes_come_in_the_order_of_operations(fixture: &Fixture) {
    let a = fixture.client().await;
    let mut ops = Vec::new();
    for n in 0..60_u64 {
        let at = a.at(&fixture.another_lock());
        let claim = at.acquire_new(LONG).await;
        let op = match n % 4 {
            0 => {
                Op::Extend(Extend { claim, lease_ms: 1, keep_record: n % 8 == 0, reserve: None, fence: None })
            }
            1 => Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 }),
            2 => Op::Inspect(Inspect { claim: Some(claim), details: false }),
            _ => Op::Extend(Extend {
                claim: at.claim(),
                lease_ms: 1,
                keep_record: false,
                reserve: None,
                fence: None,
            }),
        };
        ops.push((at.lock, op));
    }
    let outcomes = a.store.execute_all(&ops, CALL_TIMEOUT).await;
    assert_eq!(outcomes.len(), ops.len());
    for (n, outcome) in outcomes.iter().enumerate() {
        let Outcome::Done(reply) = outcome else { panic!("operation {n}: {outcome:?}") };
        let right = match n % 4 {
            0 => matches!(reply, Reply::Extend(Extended::Extended | Extended::Voted(_))),
            1 => matches!(reply, Reply::Release(released) if released.status == HoldStatus::Held),
            2 => {
                matches!(reply, Reply::Inspect(inspection) if inspection.hold_status == Some(HoldStatus::Held))
            }
            _ => *reply == Reply::Extend(Extended::NotHeld),
        };
        assert!(right, "operation {n}: {reply:?}");
    }
    let inspect = Op::Inspect(Inspect { claim: None, details: false });
    let inspections: Vec<_> = ops.into_iter().map(|(lock, _)| (lock, inspect.clone())).collect();
    let outcomes = a.store.execute_all(&inspections, CALL_TIMEOUT).await;
    assert_eq!(outcomes.len(), inspections.len());
    for (n, outcome) in outcomes.iter().enumerate() {
        let Outcome::Done(Reply::Inspect(seen)) = outcome else { panic!("inspection {n}: {outcome:?}") };
        let is_held = seen.holder.is_some() || !seen.shared_holders.is_empty();
        assert_eq!(is_held, n % 4 != 1, "inspection {n}: {seen:?}");
    }
    assert!(a.store.execute_all(&[], CALL_TIMEOUT).await.is_empty());
}

/// Operations on different locks that begin at the same time, in one slot of a cluster: the store may send them together.
pub async fn operations_that_begin_together_have_their_own_replies(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let tag = fixture.another_lock();
    let lock = |n: usize| Lock { name: format!("{{{}}}/{n}", tag.name).parse().expect("a name"), ..tag };
    let locks: Vec<_> = (0..12).map(lock).collect();
    let is_taken = |n: usize| n % 4 == 3;
    for (_, lock) in locks.iter().enumerate().filter(|(n, _)| is_taken(*n)) {
        b.at(lock).acquire_new(LONG).await;
    }
    for _ in 0..2 {
        let acquires = locks.iter().map(|lock| async {
            let at = a.at(lock);
            let claim = at.claim();
            (at.acquire(&at.request(&claim, LONG)).await, claim)
        });
        let acquired = join_all(acquires).await;
        let mut claims = Vec::new();
        for (n, (acquired, claim)) in acquired.into_iter().enumerate() {
            let expected = match acquired {
                Acquired::Granted { .. } => !is_taken(n),
                Acquired::Taken { .. } => is_taken(n),
                Acquired::AlreadyEnded(_) => false,
            };
            assert!(expected, "lock {n}: {acquired:?}");
            claims.push(claim);
        }
        let releases = locks.iter().zip(&claims).map(|(lock, claim)| {
            let at = a.at(lock);
            async move { at.release(claim).await.status }
        });
        for (n, found) in join_all(releases).await.into_iter().enumerate() {
            assert_eq!(found == HoldStatus::Held, !is_taken(n), "lock {n}: {found:?}");
        }
    }
}

/// Row 4: a call dropped at any await leaves a usable store, and nothing that a resend would not find.
pub async fn a_dropped_call_leaves_the_store_usable(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    for polls in 0..6 {
        let claim = a.claim();
        let acquire = Op::Acquire(a.queued_request(&claim, LONG, LONG));
        drop_after(polls, a.store.execute(&a.lock, &acquire, CALL_TIMEOUT)).await;
        let claim = a.acquire_eventually(&a.queued_request(&claim, LONG, LONG)).await;
        let release = Op::Release(Release {
            claim: claim.clone(),
            action: ReleaseAction::Grant,
            next: None,
            history: 0,
        });
        drop_after(polls, a.store.execute(&a.lock, &release, CALL_TIMEOUT)).await;
        let found = a.release(&claim).await.status;
        assert!(matches!(found, HoldStatus::Held | HoldStatus::Ended(_)), "{found:?}");
        let ops: Vec<_> =
            (0..3).map(|_| (a.lock.clone(), Op::Inspect(Inspect { claim: None, details: false }))).collect();
        drop_after(polls, a.store.execute_all(&ops, CALL_TIMEOUT)).await;
        let own = b.acquire_new(LONG).await;
        b.release(&own).await;
        let inspection = a.inspect().await;
        assert_eq!((inspection.holder, inspection.waiters), (None, 0), "after {polls} polls");
    }
}

/// Row 40: a call ends within its time limit. A resend finds its outcome.
pub async fn a_call_ends_by_its_deadline(fixture: &Fixture) {
    let a = fixture.client().await;
    for within in
        [Duration::ZERO, Duration::from_micros(50), Duration::from_millis(1), Duration::from_secs(5)]
    {
        let claim = a.claim();
        let acquire = Op::Acquire(a.request(&claim, LONG));
        let start = Instant::now();
        let outcome = a.store.execute(&a.lock, &acquire, within).await;
        assert!(start.elapsed() < within + SLACK, "{:?} for {within:?}", start.elapsed());
        let granted = matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Granted { .. })));
        assert!(granted || matches!(outcome, Outcome::Failed(..)), "{outcome:?}");
        let claim = if granted && !a.store.capabilities().queue {
            claim
        } else {
            a.acquire_eventually(&a.request(&claim, LONG)).await
        };
        a.release(&claim).await;
    }
    let start = Instant::now();
    let session = fixture.client_without_mailbox().await;
    let opened = a
        .store
        .open_mailbox(a.partition(), session.session, session.inbox.clone(), Duration::from_micros(1))
        .await;
    assert!(start.elapsed() < SLACK, "the mailbox was opened after {:?}: {opened:?}", start.elapsed());
    a.store.close_mailbox(a.partition(), session.session);
}

/// A forked store, as the keeper uses it, works on another thread with its own runtime, and ends with it.
pub async fn a_fork_works_on_another_thread(fixture: &Fixture) {
    let a = fixture.client().await;
    let claim = a.acquire_new(LONG).await;
    assert_eq!(extend_on_another_thread(&a, &claim).await, Extended::Extended);
    assert!(a.remaining_ms().await > millis(LONG));
    a.release(&claim).await;
    assert_eq!(extend_on_another_thread(&a, &claim).await, Extended::NotHeld);
}

/// Extends a hold with a new fork of the store on another thread, as a keeper does.
async fn extend_on_another_thread(client: &TestClient, claim: &Claim) -> Extended {
    let (keeper, claim) = (TestClient { store: client.store.fork(), ..client.clone() }, claim.clone());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime needs no more than memory");
        runtime.block_on(keeper.extend(&claim, LONG * 2))
    });
    match tokio::task::spawn_blocking(move || thread.join()).await {
        Ok(Ok(extended)) => extended,
        other => panic!("the keeper's thread panicked: {other:?}"),
    }
}

/// Polls a future a number of times, then drops it.
async fn drop_after<F: Future + Unpin>(polls: u32, mut future: F) {
    for _ in 0..polls {
        let ready = poll_fn(|cx| Poll::Ready(future.poll_unpin(cx).is_ready())).await;
        if ready {
            return;
        }
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
}
