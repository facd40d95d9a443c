//! Several locks in one step: all or none.
//!
//! A store may support this for some kinds only. For other kinds the case ends.

use crate::conformance::client::{self, Granted, LONG, TestClient, millis};
use crate::conformance::fixture::{Fixture, report_unsupported};
use leasehold_core::{
    Acquire, Acquired, Claim, Ended, Evicted, Extended, HoldStatus, Kind, Lock, MultiAcquired, Refused,
    ReleaseAction,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// All are acquired or none: a free lock stays free if another is taken, and nothing is queued.
pub async fn a_multi_acquire_is_all_or_nothing(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = MultiLock::of(fixture, &a, 3).await else { return };
    let held = b.at(set.lock(1)).acquire_new(LONG).await;
    match &*set.request(LONG).await {
        [
            MultiAcquired::Available,
            MultiAcquired::Blocked(Ok(Acquired::Taken { holder, position: None, .. })),
            MultiAcquired::Available,
        ] => {
            assert_eq!(holder.as_ref().and_then(|holder| holder.label.clone()), Some(b.label()));
        }
        other => panic!("the second of three is taken: {other:?}"),
    }
    for (at, is_held) in [false, true, false].into_iter().enumerate() {
        let seen = b.at(set.lock(at)).inspect().await;
        assert_eq!((seen.holder.is_some(), seen.waiters), (is_held, 0), "{at}");
        assert_ne!(set.status(at).await, HoldStatus::Held);
    }
    assert_eq!(b.at(set.lock(1)).release(&held).await.status, HoldStatus::Held);
    for (at, all_granted) in set.all_granted(LONG).await.into_iter().enumerate() {
        assert!(all_granted.remaining_ms <= millis(LONG) && !all_granted.others_wait, "{all_granted:?}");
        assert_eq!(set.status(at).await, HoldStatus::Held);
        let b = b.at(set.lock(at));
        let holder = b.taken(&b.request(&b.claim(), LONG)).await.holder.expect("it is held");
        assert_eq!((holder.fence, holder.label, holder.count), (Some(all_granted.fence), Some(a.label()), 1));
    }
}

/// Row 2: a resent request is the same one: same tokens, same expiry, each counted once.
pub async fn a_resent_multi_acquire_is_one(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = MultiLock::of(fixture, &a, 3).await else { return };
    let first = set.all_granted(LONG).await;
    for again in [set.all_granted(LONG * 4).await, set.all_granted(LONG * 4).await] {
        for (first, again) in first.iter().zip(again) {
            assert_eq!((again.fence, again.owner_holds), (first.fence, first.owner_holds));
            assert!(again.remaining_ms <= first.remaining_ms, "{again:?}, after {first:?}");
        }
    }
    for (at, first) in first.iter().enumerate() {
        let alone = set.client(at).granted(&set.requests(LONG)[at].1).await;
        assert_eq!(alone.fence, first.fence, "a single acquire is the same");
        let released = set.release(at).await;
        assert_eq!((released.status, released.remaining_holds), (HoldStatus::Held, 0));
        b.at(set.lock(at)).acquire_new(LONG).await;
    }
}

/// Locks that an earlier request has acquired are reported as held, and stay unchanged, whether or not the rest is
/// acquired.
pub async fn locks_that_are_already_held_are_reported(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = MultiLock::of(fixture, &a, 3).await else { return };
    let first = set.client(0).granted(&set.requests(LONG)[0].1).await;
    let other = b.at(set.lock(1)).acquire_new(LONG).await;
    for _ in 0..2 {
        let replies = set.request(LONG * 4).await;
        assert!(
            matches!(
                &*replies,
                [MultiAcquired::Held, MultiAcquired::Blocked(Ok(_)), MultiAcquired::Available]
            ),
            "{replies:?}"
        );
        assert!(set.client(0).remaining_ms().await <= millis(LONG), "it is not extended");
    }
    b.at(set.lock(1)).release(&other).await;
    let all_granted = set.all_granted(LONG).await;
    assert_eq!((all_granted[0].fence, all_granted[0].owner_holds), (first.fence, first.owner_holds));
    assert_eq!(set.client(0).inspect().await.holder.map(|holder| holder.count), Some(1));
}

/// Another hold of the same session blocks the request as it would a single acquire, unless its owner may re-enter.
pub async fn another_hold_of_the_session_blocks_a_multi_acquire(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(set) = MultiLock::of(fixture, &a, 2).await else { return };
    let outer = set.client(1).same_owner_claim(&set.claims[1].1);
    let first = set.client(1).granted(&set.client(1).request(&outer, LONG)).await;
    let replies = set.request(LONG).await;
    if a.lock.kind == Kind::Reentrant {
        let all_granted = all_granted(replies);
        assert_eq!(
            (all_granted[1].fence, all_granted[1].owner_holds.map(|owner_holds| owner_holds.count)),
            (first.fence, Some(2))
        );
        assert_eq!(set.release(1).await.remaining_holds, 1);
        return;
    }
    match &*replies {
        [
            MultiAcquired::Available,
            MultiAcquired::Blocked(Ok(Acquired::Taken { holder: Some(holder), .. })),
        ] => {
            assert_eq!(holder.fence, Some(first.fence));
        }
        other => panic!("the second is taken: {other:?}"),
    }
    assert_eq!(set.client(1).status(&outer).await, HoldStatus::Held);
    assert!(set.client(0).inspect().await.holder.is_none());
}

/// Rows 1 and 4: after one or all were released, a late request acquires nothing.
pub async fn a_released_multi_acquire_is_spent(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(set) = MultiLock::of(fixture, &a, 2).await else { return };
    set.all_granted(LONG).await;
    assert_eq!(set.release(0).await.status, HoldStatus::Held);
    let already_ended = MultiAcquired::Blocked(Ok(Acquired::AlreadyEnded(Ended::Released)));
    assert_eq!(set.request(LONG).await, [already_ended.clone(), MultiAcquired::Held]);
    assert_eq!(set.release(1).await.status, HoldStatus::Held);
    assert_eq!(set.request(LONG).await, [already_ended.clone(), already_ended.clone()]);
    let mixed =
        MultiLock { claims: vec![set.claims[0].clone(), (set.lock(1).clone(), a.claim())], ..set.clone() };
    assert_eq!(mixed.request(LONG).await, [already_ended, MultiAcquired::Available]);
    for at in 0..2 {
        assert!(set.client(at).inspect().await.holder.is_none());
    }
}

/// Each lock has its own fencing token, greater than its earlier ones.
pub async fn each_of_several_locks_has_its_own_token(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(mut set) = MultiLock::of(fixture, &a, 3).await else { return };
    // If the clock is stopped, the second lock's token is greater from then on.
    let mut last = [None; 3];
    for _ in 0..5 {
        let b = a.at(set.lock(1));
        let claim = b.claim();
        last[1] = Some(b.granted(&b.request(&claim, LONG)).await.fence);
        b.release(&claim).await;
    }
    for _ in 0..3 {
        for (at, all_granted) in set.all_granted(LONG).await.into_iter().enumerate() {
            assert!(last[at] < Some(all_granted.fence), "{:?} after {:?}", all_granted.fence, last[at]);
            let holder = set.client(at).inspect().await.holder;
            assert_eq!(holder.and_then(|holder| holder.fence), Some(all_granted.fence));
            last[at] = Some(all_granted.fence);
            set.release(at).await;
        }
        set = set.with_fresh_claims();
    }
}

/// A waiter is not overtaken though the lock is free, and is granted as usual.
pub async fn a_multi_acquire_overtakes_no_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let Some(set) = MultiLock::of(fixture, &a, 2).await else { return };
    let (b, c) = (b.at(set.lock(1)), c.at(set.lock(1)));
    let held = b.acquire_new(LONG).await;
    let (waiting, _) = c.enqueue().await;
    b.release_and(&held, ReleaseAction::Free, None).await;
    let replies = set.request(LONG).await;
    let [
        MultiAcquired::Available,
        MultiAcquired::Blocked(Ok(Acquired::Taken { holder: None, position: None, .. })),
    ] = &*replies
    else {
        panic!("the second is free, and has a waiter: {replies:?}")
    };
    assert_eq!(c.status(&waiting).await, HoldStatus::Queued);
    c.granted(&c.queued_request(&waiting, LONG, LONG)).await;
    c.release(&waiting).await;
    set.all_granted(LONG).await;
}

/// Each lock has its own lease, and is extended and released separately.
pub async fn each_of_several_locks_expires_on_its_own(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = MultiLock::of(fixture, &a, 3).await else { return };
    let mut requests = set.requests(LONG);
    requests[0].1.lease_ms = millis(fixture.short_lease());
    requests[1].1.lease_ms = millis(fixture.short_lease());
    let all_granted =
        all_granted(a.acquire_all(&requests).await.expect("the store acquires several locks in one step"));
    for (all_granted, (_, request)) in all_granted.iter().zip(&requests) {
        assert!(
            all_granted.remaining_ms <= request.lease_ms,
            "{all_granted:?}, requested {}",
            request.lease_ms
        );
    }
    assert_eq!(set.client(1).extend(&set.claims[1].1, LONG).await, Extended::Extended);
    fixture.wait_expired(fixture.short_lease(), &b.at(set.lock(0))).await;
    assert_eq!(set.client(0).extend(&set.claims[0].1, LONG).await, Extended::NotHeld);
    b.at(set.lock(0)).acquire_new(LONG).await;
    for at in [1, 2] {
        assert_eq!(set.status(at).await, HoldStatus::Held);
        assert!(set.client(at).remaining_ms().await > millis(LONG) - 60_000);
        assert_eq!(set.release(at).await.status, HoldStatus::Held);
    }
}

/// A lock of another kind at one of the names is refused, and the rest is not acquired.
pub async fn another_kind_of_lock_blocks_a_multi_acquire(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = MultiLock::of(fixture, &a, 2).await else { return };
    let (kind, found) = match a.lock.kind {
        Kind::Reentrant => (Kind::Mutex, "string"),
        _ => (Kind::Reentrant, "hash"),
    };
    let other = b.at(&Lock { kind, name: set.lock(1).name.clone() });
    let held = other.acquire_new(LONG).await;
    let refused = MultiAcquired::Blocked(Err(Refused::WrongKind { found: found.into() }));
    assert_eq!(set.request(LONG).await, [MultiAcquired::Available, refused]);
    assert_eq!(other.status(&held).await, HoldStatus::Held);
    assert!(set.client(0).inspect().await.holder.is_none());
    other.release(&held).await;
    set.all_granted(LONG).await;
}

/// A key of another type is refused as well.
pub async fn another_type_of_key_blocks_a_multi_acquire(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(set) = MultiLock::of(fixture, &a, 3).await else { return };
    let Some(put) = fixture.subject.put_other_type(set.lock(0)) else {
        return report_unsupported("key of another type");
    };
    let refused = MultiAcquired::Blocked(Err(Refused::WrongKind { found: put.await }));
    for _ in 0..2 {
        assert_eq!(
            set.request(LONG).await,
            [refused.clone(), MultiAcquired::Available, MultiAcquired::Available]
        );
    }
    assert!(set.client(1).inspect().await.holder.is_none() && set.client(2).inspect().await.holder.is_none());
}

/// A foreign lock blocks the request as Leasehold's does, even with the same value.
pub async fn a_foreign_lock_blocks_a_multi_acquire(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(mut set) = MultiLock::of(fixture, &a, 2).await else { return };
    let foreign_value = "their-token";
    let Some(put) = fixture.subject.put_foreign(set.lock(1), foreign_value, Some(LONG)) else {
        return report_unsupported("key to set");
    };
    put.await;
    if a.lock.kind.is_plain_string() {
        set.claims[1].1 = a.claim_with_value(foreign_value);
    }
    let replies = set.request(LONG).await;
    let [MultiAcquired::Available, MultiAcquired::Blocked(Ok(Acquired::Taken { holder: Some(holder), .. }))] =
        &*replies
    else {
        panic!("the second is held by a foreign client: {replies:?}")
    };
    assert!(holder.is_foreign());
    assert!(holder.remaining_ms.is_some_and(|ms| ms <= millis(LONG) && ms > millis(LONG) - 60_000));
    assert!(set.client(0).inspect().await.holder.is_none());
    assert!(set.client(1).inspect().await.holder.is_some_and(|holder| holder.is_foreign()));
}

/// Replies are in the order of the requests.
pub async fn multi_acquire_replies_are_in_order(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = MultiLock::of(fixture, &a, 6).await else { return };
    let mut taken = Vec::new();
    for at in 0..6 {
        taken.push(at == 0 || at < 5 && fixture.random.below(2) == 0);
        if taken[at] {
            b.at(set.lock(at)).acquire_new(LONG).await;
        }
    }
    for backwards in [false, true] {
        let (mut requests, mut expected) = (set.requests(LONG), taken.clone());
        if backwards {
            requests.reverse();
            expected.reverse();
        }
        let replies = a.acquire_all(&requests).await.expect("the store acquires several locks in one step");
        let found: Vec<_> = replies.iter().map(|share| matches!(share, MultiAcquired::Blocked(_))).collect();
        assert_eq!(found, expected, "{replies:?}");
    }
}

/// A lapsed session loses each lock separately, as with single locks.
pub async fn a_lapsed_session_loses_each_lock(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !super::sessions::sessions_lapse(&a) {
        return;
    }
    let Some(set) = MultiLock::of(fixture, &a, 2).await else { return };
    a.begin(fixture.short_lease()).await;
    let tokens = set.all_granted(LONG).await;
    assert_eq!(b.at(set.lock(0)).evict(a.session).await, Evicted::Alive);
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    for (at, all_granted) in tokens.iter().enumerate() {
        let evicted = b.at(set.lock(at)).evict(a.session).await;
        assert_eq!(evicted, Evicted::Removed { fence: Some(all_granted.fence), was_queued: false });
        assert_eq!(set.status(at).await, HoldStatus::Ended(Ended::Evicted));
    }
    let late = MultiAcquired::Blocked(Ok(Acquired::AlreadyEnded(Ended::Evicted)));
    assert_eq!(set.request(LONG).await, [late.clone(), late]);
}

/// Concurrent overlapping requests: a lock has at most one holder, all requests succeed in the end, and nothing is
/// left.
pub async fn concurrent_multi_acquires_exclude_each_other(fixture: &Fixture) {
    let clients = fixture.clients::<4>().await;
    let Some(all) = MultiLock::of(fixture, &clients[0], 5).await else { return };
    let inside: Arc<Vec<_>> = Arc::new((0..5).map(|_| AtomicBool::new(false)).collect());
    let workers = clients.map(|client| {
        let (all, inside) = (all.clone(), inside.clone());
        tokio::spawn(async move {
            let mut sets = 0;
            while sets < 15 {
                let some: Vec<_> = (0..5).filter(|_| client.random.below(2) == 0).collect();
                if some.is_empty() {
                    continue;
                }
                let claims = some.iter().map(|at| (all.lock(*at).clone(), client.claim())).collect();
                let set = MultiLock { client: client.clone(), claims };
                let replies = set.request(LONG).await;
                if replies.iter().any(|share| !matches!(share, MultiAcquired::Acquired(_))) {
                    assert!(
                        !replies.iter().any(|share| matches!(share, MultiAcquired::Acquired(_))),
                        "{replies:?}"
                    );
                    tokio::task::yield_now().await;
                    continue;
                }
                for at in &some {
                    assert!(!inside[*at].swap(true, Ordering::SeqCst), "another client holds {at}");
                    // Lets the other tasks run while the locks are held.
                    tokio::task::yield_now().await;
                }
                for (nth, at) in some.iter().enumerate() {
                    inside[*at].store(false, Ordering::SeqCst);
                    assert_eq!(set.release(nth).await.status, HoldStatus::Held);
                }
                sets += 1;
            }
        })
    });
    for worker in workers {
        worker.await.unwrap_or_else(|error| panic!("a task panicked: {error}"));
    }
    for at in 0..5 {
        assert!(all.client(at).inspect().await.holder.is_none());
    }
}

/// Several locks that a session acquires together, each with its own claim.
#[derive(Clone)]
struct MultiLock {
    client: TestClient,
    claims: Vec<(Lock, Claim)>,
}

impl MultiLock {
    /// Fresh locks. `None`, with a report, if the store cannot acquire several locks of the kind in one step.
    async fn of(fixture: &Fixture, client: &TestClient, locks: usize) -> Option<Self> {
        let set = |locks| Self {
            client: client.clone(),
            claims: (0..locks).map(|_| (fixture.another_lock(), client.claim())).collect(),
        };
        let tried: Self = set(1);
        let Some(replies) = client.acquire_all(&tried.requests(LONG)).await else {
            report_unsupported("acquire of several locks of this kind");
            return None;
        };
        all_granted(replies);
        tried.release(0).await;
        Some(set(locks))
    }

    /// The same locks with fresh claims of the same owners.
    fn with_fresh_claims(&self) -> Self {
        let again = |(lock, claim): &(Lock, Claim)| (lock.clone(), self.client.same_owner_claim(claim));
        Self { client: self.client.clone(), claims: self.claims.iter().map(again).collect() }
    }

    fn lock(&self, at: usize) -> &Lock {
        &self.claims[at].0
    }

    /// The client for one of the locks.
    fn client(&self, at: usize) -> TestClient {
        self.client.at(self.lock(at))
    }

    fn requests(&self, lease: Duration) -> Vec<(Lock, Acquire)> {
        let request = |(lock, claim): &(Lock, Claim)| (lock.clone(), self.client.request(claim, lease));
        self.claims.iter().map(request).collect()
    }

    async fn request(&self, lease: Duration) -> Vec<MultiAcquired> {
        let replies = self.client.acquire_all(&self.requests(lease)).await;
        let replies = replies.expect("the store acquires several locks in one step");
        assert_eq!(replies.len(), self.claims.len(), "{replies:?}");
        replies
    }

    async fn all_granted(&self, lease: Duration) -> Vec<Granted> {
        all_granted(self.request(lease).await)
    }

    async fn release(&self, at: usize) -> leasehold_core::Released {
        self.client(at).release(&self.claims[at].1).await
    }

    async fn status(&self, at: usize) -> HoldStatus {
        self.client(at).status(&self.claims[at].1).await
    }
}

/// All requests must be granted.
fn all_granted(replies: Vec<MultiAcquired>) -> Vec<Granted> {
    let one = |share| match share {
        MultiAcquired::Acquired(acquired) => client::granted(acquired),
        other => panic!("expected a grant of all, got {other:?}"),
    };
    replies.into_iter().map(one).collect()
}
