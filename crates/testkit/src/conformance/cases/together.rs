//! Several locks in one step: all or none.
//!
//! A store need not support this, or not for every kind. The case then requests nothing.

use crate::conformance::client::{Granted, LONG, TestClient, granted, millis};
use crate::conformance::fixture::{Fixture, not_applicable};
use leasehold_core::{
    Acquire, Acquired, Claim, Ended, Evicted, Extended, HoldStatus, Kind, Lock, MultiAcquired, Refused,
    ReleaseAction,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// All are acquired or none: a free lock stays free if another is taken, and nothing is queued.
pub async fn all_of_a_set_are_taken_or_none(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = Set::of(fixture, &a, 3).await else { return };
    let held = b.at(set.lock(1)).take(LONG).await;
    match &*set.ask(LONG).await {
        [
            MultiAcquired::Available,
            MultiAcquired::Blocked(Ok(Acquired::Taken { holder, position: None, .. })),
            MultiAcquired::Available,
        ] => {
            assert_eq!(holder.as_ref().and_then(|holder| holder.label.clone()), Some(b.label()));
        }
        other => panic!("one of the three is taken: {other:?}"),
    }
    for (at, is_held) in [false, true, false].into_iter().enumerate() {
        let seen = b.at(set.lock(at)).inspect().await;
        assert_eq!((seen.holder.is_some(), seen.waiters), (is_held, 0), "{at}");
        assert_ne!(set.fate(at).await, HoldStatus::Held);
    }
    assert_eq!(b.at(set.lock(1)).release(&held).await.status, HoldStatus::Held);
    for (at, had) in set.had(LONG).await.into_iter().enumerate() {
        assert!(had.remaining_ms <= millis(LONG) && !had.others_wait, "{had:?}");
        assert_eq!(set.fate(at).await, HoldStatus::Held);
        let b = b.at(set.lock(at));
        let holder = b.taken(&b.ask(&b.claim(), LONG)).await.holder.expect("it is held");
        assert_eq!((holder.fence, holder.label, holder.count), (Some(had.fence), Some(a.label()), 1));
    }
}

/// Row 2: a resent request is the same one: same tokens, same expiry, each counted once.
pub async fn a_set_that_is_asked_for_again_is_one(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = Set::of(fixture, &a, 3).await else { return };
    let first = set.had(LONG).await;
    for again in [set.had(LONG * 4).await, set.had(LONG * 4).await] {
        for (first, again) in first.iter().zip(again) {
            assert_eq!((again.fence, again.owner_holds), (first.fence, first.owner_holds));
            assert!(again.remaining_ms <= first.remaining_ms, "{again:?}, after {first:?}");
        }
    }
    for (at, first) in first.iter().enumerate() {
        let alone = set.client(at).granted(&set.asks(LONG)[at].1).await;
        assert_eq!(alone.fence, first.fence, "asked for alone it is the same, too");
        let released = set.release(at).await;
        assert_eq!((released.status, released.remaining_holds), (HoldStatus::Held, 0));
        b.at(set.lock(at)).take(LONG).await;
    }
}

/// Locks held by an earlier send are reported as such if the rest is taken, and stay unchanged, also when the rest is
/// acquired.
pub async fn the_held_part_of_a_set_is_reported(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = Set::of(fixture, &a, 3).await else { return };
    let first = set.client(0).granted(&set.asks(LONG)[0].1).await;
    let other = b.at(set.lock(1)).take(LONG).await;
    for _ in 0..2 {
        let shares = set.ask(LONG * 4).await;
        assert!(
            matches!(
                &*shares,
                [MultiAcquired::Held, MultiAcquired::Blocked(Ok(_)), MultiAcquired::Available]
            ),
            "{shares:?}"
        );
        assert!(set.client(0).remaining_ms().await <= millis(LONG), "it is none the longer");
    }
    b.at(set.lock(1)).release(&other).await;
    let had = set.had(LONG).await;
    assert_eq!((had[0].fence, had[0].owner_holds), (first.fence, first.owner_holds));
    assert_eq!(set.client(0).inspect().await.holder.map(|holder| holder.count), Some(1));
}

/// Another hold of the same session blocks the request as it would a single acquire, unless its owner may re-enter.
pub async fn another_hold_of_the_asker_is_in_the_way_of_a_set(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(set) = Set::of(fixture, &a, 2).await else { return };
    let outer = set.client(1).again(&set.wanted[1].1);
    let first = set.client(1).granted(&set.client(1).ask(&outer, LONG)).await;
    let shares = set.ask(LONG).await;
    if a.lock.kind == Kind::Reentrant {
        let had = had(shares);
        assert_eq!((had[1].fence, had[1].owner_holds.map(|entered| entered.count)), (first.fence, Some(2)));
        assert_eq!(set.release(1).await.remaining_holds, 1);
        return;
    }
    match &*shares {
        [
            MultiAcquired::Available,
            MultiAcquired::Blocked(Ok(Acquired::Taken { holder: Some(holder), .. })),
        ] => {
            assert_eq!(holder.fence, Some(first.fence));
        }
        other => panic!("the second is taken: {other:?}"),
    }
    assert_eq!(set.client(1).fate(&outer).await, HoldStatus::Held);
    assert!(set.client(0).inspect().await.holder.is_none());
}

/// Rows 1 and 4: after one or all were released, a late request acquires nothing.
pub async fn a_set_that_was_given_back_is_spent(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(set) = Set::of(fixture, &a, 2).await else { return };
    set.had(LONG).await;
    assert_eq!(set.release(0).await.status, HoldStatus::Held);
    let spent = MultiAcquired::Blocked(Ok(Acquired::AlreadyEnded(Ended::Released)));
    assert_eq!(set.ask(LONG).await, [spent.clone(), MultiAcquired::Held]);
    assert_eq!(set.release(1).await.status, HoldStatus::Held);
    assert_eq!(set.ask(LONG).await, [spent.clone(), spent.clone()]);
    let mixed = Set { wanted: vec![set.wanted[0].clone(), (set.lock(1).clone(), a.claim())], ..set.clone() };
    assert_eq!(mixed.ask(LONG).await, [spent, MultiAcquired::Available]);
    for at in 0..2 {
        assert!(set.client(at).inspect().await.holder.is_none());
    }
}

/// Each lock has its own fencing token, greater than its earlier ones.
pub async fn each_of_a_set_has_its_own_token(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(mut set) = Set::of(fixture, &a, 3).await else { return };
    // From then on the second lock's token is ahead, if the clock stands still.
    let mut last = [None; 3];
    for _ in 0..5 {
        let b = a.at(set.lock(1));
        let claim = b.claim();
        last[1] = Some(b.granted(&b.ask(&claim, LONG)).await.fence);
        b.release(&claim).await;
    }
    for _ in 0..3 {
        for (at, had) in set.had(LONG).await.into_iter().enumerate() {
            assert!(last[at] < Some(had.fence), "{:?} after {:?}", had.fence, last[at]);
            let holder = set.client(at).inspect().await.holder;
            assert_eq!(holder.and_then(|holder| holder.fence), Some(had.fence));
            last[at] = Some(had.fence);
            set.release(at).await;
        }
        set = set.anew();
    }
}

/// A waiter is not overtaken though the lock is free, and is granted as usual.
pub async fn a_set_overtakes_no_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let Some(set) = Set::of(fixture, &a, 2).await else { return };
    let (b, c) = (b.at(set.lock(1)), c.at(set.lock(1)));
    let held = b.take(LONG).await;
    let (waiting, _) = c.enqueue().await;
    b.release_and(&held, ReleaseAction::Free, None).await;
    let shares = set.ask(LONG).await;
    let [
        MultiAcquired::Available,
        MultiAcquired::Blocked(Ok(Acquired::Taken { holder: None, position: None, .. })),
    ] = &*shares
    else {
        panic!("the second is free, and awaited: {shares:?}")
    };
    assert_eq!(c.fate(&waiting).await, HoldStatus::Queued);
    c.granted(&c.look(&waiting, LONG, LONG)).await;
    c.release(&waiting).await;
    set.had(LONG).await;
}

/// Each lock has its own lease, and is extended and released by itself.
pub async fn each_of_a_set_ends_by_itself(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = Set::of(fixture, &a, 3).await else { return };
    let mut asks = set.asks(LONG);
    asks[0].1.lease_ms = millis(fixture.short());
    asks[1].1.lease_ms = millis(fixture.short());
    let had = had(a.acquire_all(&asks).await.expect("it can do that"));
    for (had, (_, ask)) in had.iter().zip(&asks) {
        assert!(had.remaining_ms <= ask.lease_ms, "{had:?}, asked for {}", ask.lease_ms);
    }
    assert_eq!(set.client(1).extend(&set.wanted[1].1, LONG).await, Extended::Extended);
    fixture.outlast(fixture.short(), &b.at(set.lock(0))).await;
    assert_eq!(set.client(0).extend(&set.wanted[0].1, LONG).await, Extended::NotHeld);
    b.at(set.lock(0)).take(LONG).await;
    for at in [1, 2] {
        assert_eq!(set.fate(at).await, HoldStatus::Held);
        assert!(set.client(at).remaining_ms().await > millis(LONG) - 60_000);
        assert_eq!(set.release(at).await.status, HoldStatus::Held);
    }
}

/// A lock of another kind at one of the names is refused, and the rest is not acquired.
pub async fn another_kind_of_lock_keeps_a_set_from_all(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = Set::of(fixture, &a, 2).await else { return };
    let (kind, found) = match a.lock.kind {
        Kind::Reentrant => (Kind::Mutex, "string"),
        _ => (Kind::Reentrant, "hash"),
    };
    let other = b.at(&Lock { kind, name: set.lock(1).name.clone() });
    let held = other.take(LONG).await;
    let refused = MultiAcquired::Blocked(Err(Refused::WrongKind { found: found.into() }));
    assert_eq!(set.ask(LONG).await, [MultiAcquired::Available, refused]);
    assert_eq!(other.fate(&held).await, HoldStatus::Held);
    assert!(set.client(0).inspect().await.holder.is_none());
    other.release(&held).await;
    set.had(LONG).await;
}

/// So is a value that is no lock.
pub async fn another_type_of_key_keeps_a_set_from_all(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(set) = Set::of(fixture, &a, 3).await else { return };
    let Some(put) = fixture.subject.put_other_type(set.lock(0)) else {
        return not_applicable("key of another type");
    };
    let refused = MultiAcquired::Blocked(Err(Refused::WrongKind { found: put.await }));
    for _ in 0..2 {
        assert_eq!(
            set.ask(LONG).await,
            [refused.clone(), MultiAcquired::Available, MultiAcquired::Available]
        );
    }
    assert!(set.client(1).inspect().await.holder.is_none() && set.client(2).inspect().await.holder.is_none());
}

/// A foreign lock blocks the request as one of ours does, even with the same value.
pub async fn a_foreign_lock_keeps_a_set_from_all(fixture: &Fixture) {
    let a = fixture.client().await;
    let Some(mut set) = Set::of(fixture, &a, 2).await else { return };
    let theirs = "their-token";
    let Some(put) = fixture.subject.put_foreign(set.lock(1), theirs, Some(LONG)) else {
        return not_applicable("key to set");
    };
    put.await;
    if a.lock.kind.is_plain_string() {
        set.wanted[1].1 = a.claim_with(theirs);
    }
    let shares = set.ask(LONG).await;
    let [MultiAcquired::Available, MultiAcquired::Blocked(Ok(Acquired::Taken { holder: Some(holder), .. }))] =
        &*shares
    else {
        panic!("the second is a stranger's: {shares:?}")
    };
    assert!(holder.is_foreign());
    assert!(holder.remaining_ms.is_some_and(|ms| ms <= millis(LONG) && ms > millis(LONG) - 60_000));
    assert!(set.client(0).inspect().await.holder.is_none());
    assert!(set.client(1).inspect().await.holder.is_some_and(|holder| holder.is_foreign()));
}

/// Replies are in the order of the requests.
pub async fn the_shares_come_in_the_order_of_the_asks(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let Some(set) = Set::of(fixture, &a, 6).await else { return };
    let mut taken = Vec::new();
    for at in 0..6 {
        taken.push(at == 0 || at < 5 && fixture.random.below(2) == 0);
        if taken[at] {
            b.at(set.lock(at)).take(LONG).await;
        }
    }
    for backwards in [false, true] {
        let (mut asks, mut expected) = (set.asks(LONG), taken.clone());
        if backwards {
            asks.reverse();
            expected.reverse();
        }
        let shares = a.acquire_all(&asks).await.expect("it can do that");
        let found: Vec<_> = shares.iter().map(|share| matches!(share, MultiAcquired::Blocked(_))).collect();
        assert_eq!(found, expected, "{shares:?}");
    }
}

/// A lapsed session loses each lock by itself, as with single locks.
pub async fn the_dead_lose_each_of_a_set(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    if !super::sessions::lapses(&a) {
        return;
    }
    let Some(set) = Set::of(fixture, &a, 2).await else { return };
    a.begin(fixture.short()).await;
    let tokens = set.had(LONG).await;
    assert_eq!(b.at(set.lock(0)).evict(a.session).await, Evicted::Alive);
    fixture.outlive(fixture.short(), &a).await;
    for (at, had) in tokens.iter().enumerate() {
        let evicted = b.at(set.lock(at)).evict(a.session).await;
        assert_eq!(evicted, Evicted::Removed { fence: Some(had.fence), was_queued: false });
        assert_eq!(set.fate(at).await, HoldStatus::Ended(Ended::Evicted));
    }
    let late = MultiAcquired::Blocked(Ok(Acquired::AlreadyEnded(Ended::Evicted)));
    assert_eq!(set.ask(LONG).await, [late.clone(), late]);
}

/// Concurrent overlapping requests: a lock has at most one holder, all requests succeed in the end, and nothing is
/// left.
pub async fn sets_at_once_exclude_each_other(fixture: &Fixture) {
    let clients = fixture.clients::<4>().await;
    let Some(all) = Set::of(fixture, &clients[0], 5).await else { return };
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
                let wanted = some.iter().map(|at| (all.lock(*at).clone(), client.claim())).collect();
                let set = Set { client: client.clone(), wanted };
                let shares = set.ask(LONG).await;
                if shares.iter().any(|share| !matches!(share, MultiAcquired::Acquired(_))) {
                    assert!(
                        !shares.iter().any(|share| matches!(share, MultiAcquired::Acquired(_))),
                        "{shares:?}"
                    );
                    tokio::task::yield_now().await;
                    continue;
                }
                for at in &some {
                    assert!(!inside[*at].swap(true, Ordering::SeqCst), "another client holds {at}");
                    // The others have their turn while it has them.
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
        worker.await.unwrap_or_else(|error| panic!("a worker ended badly: {error}"));
    }
    for at in 0..5 {
        assert!(all.client(at).inspect().await.holder.is_none());
    }
}

/// Several locks that a session wants together, each with a hold of its own.
#[derive(Clone)]
struct Set {
    client: TestClient,
    wanted: Vec<(Lock, Claim)>,
}

impl Set {
    /// Fresh locks. `None`, with a report, if the store has no such step for the kind.
    async fn of(fixture: &Fixture, client: &TestClient, locks: usize) -> Option<Self> {
        let set = |locks| Self {
            client: client.clone(),
            wanted: (0..locks).map(|_| (fixture.another_lock(), client.claim())).collect(),
        };
        let tried: Self = set(1);
        let Some(shares) = client.acquire_all(&tried.asks(LONG)).await else {
            not_applicable("step that takes several locks of this kind");
            return None;
        };
        had(shares);
        tried.release(0).await;
        Some(set(locks))
    }

    /// The same locks with fresh holds, by the owners of before.
    fn anew(&self) -> Self {
        let again = |(lock, claim): &(Lock, Claim)| (lock.clone(), self.client.again(claim));
        Self { client: self.client.clone(), wanted: self.wanted.iter().map(again).collect() }
    }

    fn lock(&self, at: usize) -> &Lock {
        &self.wanted[at].0
    }

    /// The client on one of the locks.
    fn client(&self, at: usize) -> TestClient {
        self.client.at(self.lock(at))
    }

    fn asks(&self, lease: Duration) -> Vec<(Lock, Acquire)> {
        let ask = |(lock, claim): &(Lock, Claim)| (lock.clone(), self.client.ask(claim, lease));
        self.wanted.iter().map(ask).collect()
    }

    async fn ask(&self, lease: Duration) -> Vec<MultiAcquired> {
        let shares = self.client.acquire_all(&self.asks(lease)).await;
        let shares = shares.expect("a store that takes several in one step always does");
        assert_eq!(shares.len(), self.wanted.len(), "{shares:?}");
        shares
    }

    async fn had(&self, lease: Duration) -> Vec<Granted> {
        had(self.ask(lease).await)
    }

    async fn release(&self, at: usize) -> leasehold_core::Released {
        self.client(at).release(&self.wanted[at].1).await
    }

    async fn fate(&self, at: usize) -> HoldStatus {
        self.client(at).fate(&self.wanted[at].1).await
    }
}

/// All requests must be granted.
fn had(shares: Vec<MultiAcquired>) -> Vec<Granted> {
    let one = |share| match share {
        MultiAcquired::Acquired(acquired) => granted(acquired),
        other => panic!("expected to have all, got {other:?}"),
    };
    shares.into_iter().map(one).collect()
}
