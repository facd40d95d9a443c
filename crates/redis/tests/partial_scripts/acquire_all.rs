//! An acquire of several locks that is cut off: some of them may be held then, until their leases end.
//!
//! After each cut every key expires; of each lock either nothing changed, or its record names the hold, or the hold is there with
//! its record; and the same acquire again gets all of them.

use crate::Broken;
use crate::fixture::Fixture;
use crate::keyspace::{Content, Keyspace};
use crate::tap::WHOLE;
use leasehold_core::{
    Acquire, Acquired, Claim, HoldId, KeySpace, Kind, Label, Liveness, Lock, LockKeys, LockMode,
    MultiAcquired, Op, Release, ReleaseAction, SessionId,
};

const NAMES: [&str; 3] = ["job", "till", "stock"];

fn ask(n: u8, lease_ms: u64) -> Acquire {
    let claim = Claim::new(HoldId::from_random(SessionId::from_random([n; 12]), [n; 16]));
    let (liveness, label) =
        (Liveness::Session { alive_ms: 10_000 }, Label::new("test").expect("a plain text is a label"));
    Acquire {
        claim,
        lease_ms,
        label,
        queue: None,
        adopt_ms: None,
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

/// The state before the request: the locks were never used; all were used; the caller holds the second.
fn before(fixture: &mut Fixture, scene: usize) -> Result<Keyspace, Broken> {
    fixture.redis.set_now_us(1_762_000_000_000_000);
    let [first, ..] = NAMES;
    if scene > 0 {
        let release = Release { claim: ask(9, 0).claim, action: ReleaseAction::Grant, next: None };
        fixture.run(&Op::Acquire(ask(9, 3_000)), WHOLE)?;
        fixture.run(&Op::Release(release), WHOLE)?;
        assert!(fixture.redis.keyspace().entry(keys(first).record()).is_some());
    }
    if scene > 1 {
        fixture.run(&Op::Acquire(ask(1, 3_000)), WHOLE)?;
    }
    Ok(fixture.redis.keyspace())
}

#[test]
fn an_acquire_of_several_that_is_cut_off_leaves_expiries_and_a_way_on() -> Result<(), Broken> {
    let asks = NAMES.map(|name| (lock(name), ask(1, 3_000)));
    for scene in 0..3 {
        let mut fixture = Fixture::new(Kind::Mutex);
        let of_lock = |keys: LockKeys| [keys.name().to_owned(), keys.record().to_owned(), keys.audit()];
        fixture.redis.watch(NAMES.into_iter().map(keys).flat_map(of_lock).collect());
        let before = before(&mut fixture, scene)?;
        let mut cuts = 0;
        for commands in 0.. {
            fixture.redis.load(before.clone());
            let ran = fixture.run_all(&asks, commands)?;
            check_what_is_left(&before, fixture.redis.keys());
            let again = fixture.run_all(&asks, WHOLE)?;
            assert!(
                again.as_deref().is_some_and(holds_all),
                "scene {scene}, after {commands} commands: {again:?}"
            );
            if let Some(shares) = ran {
                assert!(holds_all(&shares), "{shares:?}");
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
        let told = match after.entry(keys.record()).map(|entry| &entry.content) {
            Some(Content::Hash(fields)) => fields
                .get(&b"tenant"[..])
                .is_some_and(|tenant| tenant.starts_with(ask(1, 0).claim.token().as_bytes())),
            _ => false,
        };
        assert!(!new || told, "`{name}` is held, and its record does not tell by whom");
    }
}

fn holds_all(shares: &[MultiAcquired]) -> bool {
    shares.len() == NAMES.len()
        && shares.iter().all(|share| matches!(share, MultiAcquired::Acquired(Acquired::Granted { .. })))
}
