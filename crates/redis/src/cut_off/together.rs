//! An acquire of several locks that is cut off: some of them may be had then, which end by themselves.
//!
//! After each cut-off every key expires; of each lock either all is as it was, or its record tells of the hold, or the hold
//! is there with its record; and the same acquire again has all of them.

use super::Broken;
use super::site::Site;
use crate::embedded::{Content, Keyspace, Ran, WHOLE};
use crate::script::Call;
use leasehold_core::{
    Acquire, Claim, HoldId, KeySpace, Kind, Label, Life, Lock, LockKeys, Op, Pass, Portion, Release,
    SessionId,
};
use leasehold_testkit::Value;

const NAMES: [&str; 3] = ["job", "till", "stock"];

fn ask(n: u8, lease_ms: u64) -> Acquire {
    let claim = Claim::new(HoldId::from_random(SessionId::from_random([n; 12]), [n; 16]));
    let (life, label) =
        (Life::Session { alive_ms: 10_000 }, Label::new("test").expect("a plain text is a label"));
    Acquire {
        claim,
        lease_ms,
        label,
        queue: None,
        adopt_ms: None,
        life,
        ahead: None,
        portion: Portion::Whole,
    }
}

fn keys(name: &str) -> LockKeys {
    KeySpace::default().lock(&Lock::mutex(name.parse().expect("a good name"))).expect("it has keys")
}

/// Who has what before: nothing is known; all were used before; the second is held by the one who asks.
fn before(site: &mut Site, scene: usize) -> Result<Keyspace, Broken> {
    site.redis.with(|keyspace| keyspace.set_now_us(1_762_000_000_000_000));
    let [first, ..] = NAMES;
    if scene > 0 {
        let release = Release { claim: ask(9, 0).claim, pass: Pass::Grant, next: None };
        site.run(&Op::Acquire(ask(9, 3_000)), WHOLE)?;
        site.run(&Op::Release(release), WHOLE)?;
        assert!(site.redis.keyspace().entry(keys(first).record()).is_some());
    }
    if scene > 1 {
        site.run(&Op::Acquire(ask(1, 3_000)), WHOLE)?;
    }
    Ok(site.redis.keyspace())
}

#[test]
fn an_acquire_of_several_that_is_cut_off_leaves_expiries_and_a_way_on() -> Result<(), Broken> {
    let asks: Vec<_> = NAMES.iter().map(|name| (keys(name), ask(1, 3_000))).collect();
    let asks: Vec<_> = asks.iter().map(|(keys, ask)| (keys.clone(), ask)).collect();
    for scene in 0..3 {
        let mut site = Site::new(Kind::Mutex);
        let spoken = site.speak(&Call::acquire_all(&asks));
        let before = before(&mut site, scene)?;
        let mut cuts = 0;
        for commands in 0.. {
            site.redis.load(before.clone());
            let ran = site.redis.eval(&spoken.text, &spoken.keys, &spoken.args, commands);
            check_what_is_left(&before, &site.redis.keyspace());
            let again = site.redis.eval(&spoken.text, &spoken.keys, &spoken.args, WHOLE);
            assert!(had_all(&again), "scene {scene}, after {commands} commands: {again:?}");
            if let Ran::Whole(_) = ran {
                assert!(had_all(&ran), "{ran:?}");
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
        assert!(entry.expires_ms.is_some(), "`{}` never expires", key.escape_ascii());
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

fn had_all(ran: &Ran) -> bool {
    let Ran::Whole(Value::Array(replies)) = ran else { return false };
    let granted = |reply: &Value| matches!(reply.elements().first().and_then(Value::text), Some("granted"));
    replies.len() == NAMES.len() && replies.iter().all(granted)
}
