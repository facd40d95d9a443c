//! Scripts that are sent while a slot of a cluster moves: the lock's own key takes the place of the watermark.
//!
//! They grant a lock only if its record knows a token, and leave the record of an idle lock as it is.

use crate::fixture::{Fixture, MAILBOXES};
use crate::tap::WHOLE;
use leasehold_core::{
    Acquire, Claim, HoldId, HoldStatus, Kind, Label, Liveness, LockMode, Op, Release, ReleaseAction, Reply,
    SessionId,
};
use leasehold_testkit::Value;

const NOW_US: u64 = 1_762_000_000_000_000;

fn claim(n: u8) -> Claim {
    Claim::new(HoldId::from_random(SessionId::from_random([n; 12]), [n; 16]))
}

fn take(n: u8) -> Op {
    Op::Acquire(Acquire {
        claim: claim(n),
        lease_ms: 3_000,
        label: Label::new("test").unwrap(),
        queue: None,
        expire_foreign_ms: None,
        liveness: Liveness::Lease,
        predecessor: None,
        mode: LockMode::Exclusive,
    })
}

fn release(n: u8) -> Op {
    Op::Release(Release { claim: claim(n), action: ReleaseAction::Grant, next: None, history: 0 })
}

/// A lock that one hold has taken and released: the store has loaded both scripts, and the record lists the ending.
fn with_an_idle_lock() -> Fixture {
    let mut fixture = Fixture::new(Kind::Mutex);
    fixture.redis.set_now_us(NOW_US);
    for op in [take(1), release(1)] {
        fixture.run(&op, WHOLE).unwrap().expect("it is not cut off");
    }
    fixture
}

fn eval(fixture: &mut Fixture, script: &str, n: u8, arguments: &[&str]) -> Value {
    let (name, record) = (fixture.keys.name().to_owned(), fixture.keys.record().to_owned());
    let hold = claim(n).hold.token();
    let arguments = [&[&*hold, "", MAILBOXES], arguments].concat();
    fixture.redis.eval(script, &[&name, &record, &name], &arguments).unwrap()
}

#[test]
pub(crate) fn without_a_token_the_lock_is_not_granted() {
    let mut fixture = with_an_idle_lock();
    let before = fixture.redis.keyspace();
    let reply = eval(&mut fixture, "mutex acquire", 2, &["3000", "test", "", "", "", "l"]);
    let Value::Error(error) = &reply else { panic!("{reply:?}") };
    assert!(error.starts_with("TRYAGAIN "), "{error}");
    assert_eq!(fixture.redis.keyspace(), before);
}

#[test]
pub(crate) fn a_release_keeps_the_token_in_the_record() {
    let mut fixture = with_an_idle_lock();
    fixture.redis.set_now_us(NOW_US + 10);
    let granted = fixture.run(&take(2), WHOLE).unwrap();
    let Some(Reply::Acquire(leasehold_core::Acquired::Granted { fence, .. })) = granted else {
        panic!("{granted:?}")
    };
    let watermark = fixture.state().unwrap().watermark;
    let reply = eval(&mut fixture, "mutex release", 2, &["grant"]);
    assert_eq!(reply.elements().first().and_then(Value::text), Some("held"), "{reply:?}");
    let state = fixture.state().unwrap();
    assert_eq!((state.value.is_none(), state.watermark), (true, watermark), "the lock is free");
    assert_eq!(state.record.and_then(|record| record.last_fence), Some(fence));
    // The same again, with the watermark.
    let again = fixture.run(&release(2), WHOLE).unwrap();
    let Some(Reply::Release(released)) = again else { panic!("{again:?}") };
    assert_eq!(released.status, HoldStatus::Ended(leasehold_core::Ended::Released));
    // The record knows a token, so the lock can be granted without the watermark.
    let reply = eval(&mut fixture, "mutex acquire", 3, &["3000", "test", "", "", "", "l"]);
    assert_eq!(reply.elements().first().and_then(Value::text), Some("granted"), "{reply:?}");
    assert!(fixture.state().unwrap().record.and_then(|record| record.last_fence) > Some(fence));
}
