//! An acquire of several locks that is cut off: some of them may be held then, until their leases end.
//!
//! After each cut every key expires; of each lock either nothing changed, or its record names the hold, or the hold is there with
//! its record; and the same acquire again gets all of them.

use crate::Violation;
use crate::fixture::Fixture;
use crate::keyspace::{Content, Keyspace};
use crate::tap::WHOLE;
use leasehold_core::{
    Acquire, Acquired, Claim, HoldId, KeySpace, Kind, Label, Liveness, Lock, LockKeys, LockMode,
    MultiAcquired, Op, Release, ReleaseAction, SessionId,
};

const NAMES: [&str; 3] = ["job", "till", "stock"];

fn request(n: u8, lease_ms: u64) -> Acquire {
    let claim = Claim::new(HoldId::from_random(SessionId::from_random([n; 12]), [n; 16]));
    let (liveness, label) =
        (Liveness::Session { alive_ms: 10_000 }, Label::new("test").expect("a plain text is a label"));
    Acquire {
        claim,
        lease_ms,
        label,
        queue: None,
        expire_foreign_ms: None,
        liveness,
        predecessor: None,
        mode: LockMode::Exclusive,
    }
}

fn lock(name: &str) -> Lock {
    Lock::mutex(name.parse().expect("a good name"))
}

fn keys(name: &str) -> LockKeys {
    KeySpace::default().lock(&lock(name)).expect("it has keys")
}

/// The states before the request: the locks were never used; all were used; the caller holds the second.
fn before(fixture: &mut Fixture, n: usize) -> Result<Keyspace, Violation> {
    fixture.redis.set_now_us(1_762_000_000_000_000);
    let [first, ..] = NAMES;
    if n > 0 {
        let release =
            Release { claim: request(9, 0).claim, action: ReleaseAction::Grant, next: None, history: 0 };
        fixture.run(&Op::Acquire(request(9, 3_000)), WHOLE)?;
        fixture.run(&Op::Release(release), WHOLE)?;
        assert!(fixture.redis.keyspace().entry(keys(first).record()).is_some());
    }
    if n > 1 {
        fixture.run(&Op::Acquire(request(1, 3_000)), WHOLE)?;
    }
    Ok(fixture.redis.keyspace())
}

#[test]
pub(crate) fn a_partial_acquire_of_several_leaves_expiries_and_blocks_no_client() -> Result<(), Violation> {
    let asks = NAMES.map(|name| (lock(name), request(1, 3_000)));
    for n in 0..3 {
        let mut fixture = Fixture::new(Kind::Mutex);
        let of_lock = |keys: LockKeys| [keys.name().to_owned(), keys.record().to_owned(), keys.audit()];
        fixture.redis.watch(NAMES.into_iter().map(keys).flat_map(of_lock).collect());
        let before = before(&mut fixture, n)?;
        let mut cuts = 0;
        for commands in 0.. {
            fixture.redis.load(before.clone());
            let ran = fixture.run_all(&asks, commands)?;
            check_what_is_left(&before, fixture.redis.keys());
            let again = fixture.run_all(&asks, WHOLE)?;
            assert!(again.as_deref().is_some_and(holds_all), "n {n}, after {commands} commands: {again:?}");
            if let Some(results) = ran {
                assert!(holds_all(&results), "{results:?}");
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 10, "{cuts} cuts");
    }
    Ok(())
}

fn check_what_is_left(before: &Keyspace, after: &Keyspace) {
    for (key, entry) in after.entries() {
        assert!(entry.expires_ms.is_some(), "`{key}` never expires");
    }
    for name in NAMES {
        let keys = keys(name);
        let new = after.entry(keys.name()) != before.entry(keys.name());
        let is_recorded = match after.entry(keys.record()).map(|entry| &entry.content) {
            Some(Content::Hash(fields)) => fields
                .get(&b"holder"[..])
                .is_some_and(|last_holder| last_holder.starts_with(request(1, 0).claim.token().as_bytes())),
            // A record without a queue: the holder is its last part.
            Some(Content::Text(text)) => {
                let text = String::from_utf8_lossy(text);
                text.splitn(5, '\n')
                    .nth(4)
                    .is_some_and(|holder| holder.starts_with(&request(1, 0).claim.token()))
            }
            _ => false,
        };
        assert!(!new || is_recorded, "`{name}` is held, and its record does not name the holder");
    }
}

fn holds_all(results: &[MultiAcquired]) -> bool {
    results.len() == NAMES.len()
        && results.iter().all(|result| matches!(result, MultiAcquired::Acquired(Acquired::Granted { .. })))
}
