//! What all kinds with several holders have in common.

use crate::conformance::client::LONG;
use crate::conformance::fixture::{Fixture, report_unsupported};
use leasehold_core::{
    Acquire, Acquired, Extended, HoldStatus, Kind, Lock, LockMode, MultiAcquired, Op, Refused, Reply, Resize,
};
use std::time::Duration;

/// A mode of another kind is refused, and changes nothing.
pub async fn a_mode_of_another_kind_is_refused(fixture: &Fixture) {
    let a = fixture.client().await;
    let all = [
        LockMode::Exclusive,
        LockMode::Permits { count: 1, total: 1 },
        LockMode::Read,
        LockMode::Upgradable,
        LockMode::Write,
        LockMode::Upgrade,
        LockMode::CountDown { count: 1, total: 1 },
        LockMode::LatchWait { total: 1 },
        LockMode::BarrierWait { total: 1 },
    ];
    let refused = Reply::Refused(Refused::Unsupported);
    for mode in all.into_iter().filter(|mode| !mode.applies_to(fixture.lock.kind)) {
        for request in [a.mode_request(&a.claim(), mode), a.queued_mode_request(&a.claim(), mode)] {
            assert_eq!(a.execute(&Op::Acquire(request)).await, refused, "{mode:?}");
        }
    }
    if fixture.lock.kind != Kind::Semaphore {
        assert_eq!(a.execute(&Op::Resize(Resize { observed: None, limit: 3, agreed: false })).await, refused);
    }
    let seen = a.inspect().await;
    assert_eq!((seen.shared_holders, seen.waiters, seen.limit), (Vec::new(), 0, None));
}

/// A name that holds a lock of another kind is refused in both directions, and the stored value stays.
pub async fn a_name_has_one_kind(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    for other in Kind::EXCLUSIVE.into_iter().chain(Kind::SHARED).filter(|kind| *kind != fixture.lock.kind) {
        for kinds in [[fixture.lock.kind, other], [other, fixture.lock.kind]] {
            let name = fixture.another_lock().name;
            let [first, second] = kinds.map(|kind| Lock { kind, name: name.clone() });
            let (a, b) = (a.at(&first), b.at(&second));
            let held = a.acquire_new(LONG).await;
            let other = b.claim();
            for request in [b.request(&other, LONG), b.queued_request(&other, LONG, LONG)] {
                let reply = b.execute(&Op::Acquire(request)).await;
                assert!(
                    matches!(reply, Reply::Refused(Refused::WrongKind { .. })),
                    "{second:?} beside {first:?}: {reply:?}"
                );
            }
            assert_eq!(b.extend(&other, LONG * 9).await, Extended::NotHeld);
            assert_ne!(b.release(&other).await.status, HoldStatus::Held);
            assert_eq!(a.status(&held).await, HoldStatus::Held);
            a.release(&held).await;
            b.acquire_new(LONG).await;
        }
    }
}

/// A multi-lock acquire refuses a lock with several holders, and acquires nothing.
pub async fn a_multi_acquire_refuses_a_shared_lock(fixture: &Fixture) {
    let a = fixture.client().await;
    let alone = Lock { kind: Kind::Mutex, name: fixture.another_lock().name };
    let requests =
        [&alone, &fixture.lock].map(|lock| (lock.clone(), a.at(lock).request(&a.at(lock).claim(), LONG)));
    let Some(replies) = a.acquire_all(&requests).await else {
        return report_unsupported("acquire of several locks");
    };
    assert_eq!(replies, [MultiAcquired::Available, MultiAcquired::Blocked(Err(Refused::Unsupported))]);
    assert_eq!(a.at(&alone).inspect().await.holder, None);
    assert_eq!(a.inspect().await.shared_holders, []);
}

/// Rows 2 and 16: a repeated acquire during a hold, after its release, or after its expiry does not affect others.
/// Only the last is a new hold.
pub async fn shared_holds_are_distinguished(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let mode = shared(fixture.lock.kind);
    let owner = b.claim();
    let (first, second) = (b.same_owner_claim(&owner), b.same_owner_claim(&owner));
    let one = b.granted(&Acquire { mode, ..b.request(&first, fixture.short_lease()) }).await;
    let two = b.granted(&b.mode_request(&second, mode)).await;
    assert!(two.fence > one.fence);
    assert_eq!(b.extend(&second, LONG * 2).await, Extended::Extended);
    let seen = a.inspect().await;
    let left: Vec<_> = seen.shared_holders.iter().filter_map(|holder| holder.remaining_ms).collect();
    assert!(left.len() == 2 && left[0] <= 10_000 && left[1] > 3_600_000, "each has its own expiry: {left:?}");
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    fixture.wait_until("the first hold expires", async || a.inspect().await.shared_holders.len() == 1).await;
    assert_eq!(b.extend(&first, LONG).await, Extended::NotHeld);
    assert_eq!((b.status(&first).await, b.status(&second).await), (HoldStatus::Vanished, HoldStatus::Held));
    let again = b.granted(&b.mode_request(&first, mode)).await;
    assert!(again.fence > two.fence, "a new hold with a new token");
    b.release(&second).await;
    assert!(matches!(b.acquire(&b.mode_request(&second, mode)).await, Acquired::AlreadyEnded(_)));
    assert_eq!(b.status(&first).await, HoldStatus::Held);
}

/// A mode that one owner may hold twice.
const fn shared(kind: Kind) -> LockMode {
    match kind {
        Kind::RwLock => LockMode::Read,
        Kind::Latch => LockMode::CountDown { count: 1, total: 3 },
        Kind::Barrier => LockMode::BarrierWait { total: 1 },
        _ => LockMode::Permits { count: 1, total: 2 },
    }
}
