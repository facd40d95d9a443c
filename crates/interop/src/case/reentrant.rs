//! The cases of a library that locks as our ReentrantMutex does: Redisson.
//!
//! [`rlock`](super::rlock) has shown what it does by itself; here it meets ours.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use leasehold::{Attempt, Holder, Lost, Owner, ReentrantGuard, ReentrantMutex, ReleaseError, Released};

use super::{LONG, RENEWED, SHORT};
use crate::driver::{Answer, State};
use crate::ground::{Ground, NAME, SOON};
use crate::key::Messages;
use crate::neighbour::Neighbour;

/// How often a hand-over is measured.
const ROUNDS: usize = 10;
/// How long most of them may take. Leasehold polls a lock of another library each 50 to 250 ms, and Redisson at the end of
/// the lease: neither is so soon nine times in ten.
const WOKEN: Duration = Duration::from_millis(50);
/// Our field in the hash.
const FIELD: &str = "leasehold";

/// What these cases do with a lock of theirs.
trait Theirs {
    /// Has a thread do something with the lock.
    fn expect(&mut self, thread: &str, request: &str, expected: &Answer) -> Result<()>;
    /// Has it begin to.
    fn begin(&mut self, thread: &str, request: &str) -> Result<()>;
    /// Fails unless a thread that waits has the lock within that time.
    fn gets_it(&mut self, thread: &str, within: Duration) -> Result<()>;
    /// The owner that a thread is at the key.
    fn owner(&mut self, thread: &str) -> Result<String>;
    /// A thread's hold count, and whether the lock is held.
    fn state(&mut self, thread: &str) -> Result<State>;
    /// Fails unless the hash has these counts, with or without our field.
    fn counts(&mut self, expected: &[(&str, u64)]) -> Result<()>;
}

/// A request about the lock: its name goes behind the verb.
fn to(thread: &str, request: &str) -> String {
    let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
    format!("as {thread} {verb} {NAME} {rest}").trim_end().to_owned()
}

impl Theirs for Ground {
    fn expect(&mut self, thread: &str, request: &str, expected: &Answer) -> Result<()> {
        self.theirs.expect(&to(thread, request), expected)
    }

    fn begin(&mut self, thread: &str, request: &str) -> Result<()> {
        self.theirs.send(&to(thread, request))
    }

    fn gets_it(&mut self, thread: &str, within: Duration) -> Result<()> {
        let answer = self.theirs.answer_to(&to(thread, "lock"), within);
        let answer = answer.with_context(|| format!("{thread} did not get the free lock"))?;
        ensure!(answer == Answer::Got, "{thread} gave up the free lock: {answer:?}");
        Ok(())
    }

    fn owner(&mut self, thread: &str) -> Result<String> {
        match self.theirs.ask(&format!("as {thread} owner"))? {
            Answer::Owner(owner) => Ok(owner),
            other => bail!("`owner` was answered {other:?}"),
        }
    }

    fn state(&mut self, thread: &str) -> Result<State> {
        match self.theirs.ask(&to(thread, "state"))? {
            Answer::State(state) => Ok(state),
            other => bail!("`state` was answered {other:?}"),
        }
    }

    fn counts(&mut self, expected: &[(&str, u64)]) -> Result<()> {
        let mut found = self.key.hash()?;
        found.remove(FIELD);
        let expected =
            expected.iter().map(|(owner, count)| ((*owner).to_owned(), count.to_string())).collect();
        ensure!(found == expected, "`{NAME}` counts {found:?} and not {expected:?}");
        Ok(())
    }
}

/// Fails unless our `inspect` reports this owner and hold count.
async fn seen(ours: &ReentrantMutex, owner: &str, count: u64) -> Result<()> {
    let status = ours.inspect().await?;
    let right = status.held && status.count == count && status.owner == Some(Owner::new(owner)?);
    ensure!(right, "we see {status:?}, and `{owner}` has it {count} times");
    Ok(())
}

/// Fails unless we are refused, by a client of theirs.
async fn refused(ours: &ReentrantMutex) -> Result<()> {
    match ours.try_acquire().await? {
        Attempt::Granted(_) => bail!("we got the lock although they hold it"),
        Attempt::Taken(contention) => {
            let stranger = contention.holder.as_ref().is_some_and(Holder::is_foreign);
            ensure!(stranger, "we were told that it is {contention}");
            Ok(())
        }
    }
}

async fn released(guard: ReentrantGuard, expected: Released) -> Result<()> {
    let left = guard.release().await?;
    ensure!(left == expected, "our release said {left:?} and not {expected:?}");
    Ok(())
}

async fn lost(guard: ReentrantGuard) -> Result<()> {
    match guard.release().await {
        Err(ReleaseError::Lost(_)) => Ok(()),
        other => bail!("our late release gave {other:?}"),
    }
}

/// Fails unless most hand-overs were sooner than with polling; returns how long they took.
fn woken(mut took: Vec<Duration>) -> Result<String> {
    took.sort_unstable();
    let ms: Vec<_> = took.iter().map(Duration::as_millis).collect();
    let most = took.get(took.len() * 8 / 10).ok_or_else(|| anyhow!("nothing was measured"))?;
    ensure!(*most <= WOKEN, "the lock was handed over after {ms:?} ms: that is polling");
    Ok(format!(
        "{} to {} ms, {} of {} times within {}",
        ms[0],
        ms[ms.len() - 1],
        took.iter().filter(|took| **took <= WOKEN).count(),
        ms.len(),
        WOKEN.as_millis()
    ))
}

/// While they hold it, however often, we wait; their last release wakes us, and no earlier one.
pub(super) async fn theirs_held(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, LONG).await?;
    let ours = ground.reentrant()?;
    let anna = ground.owner("anna")?;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        ground.expect("anna", "try 30000", &Answer::Got)?;
        ground.expect("anna", "try 30000", &Answer::Got)?;
        seen(&ours, &anna, 2).await?;
        refused(&ours).await?;
        let waiter = ground.reentrant_waiter(ours.clone()).await?;
        ground.expect("anna", "release", &Answer::Ok)?;
        tokio::time::sleep(SHORT / 2).await;
        waiter.waits()?;
        ground.counts(&[(&anna, 1)])?;

        let asked = Instant::now();
        ground.expect("anna", "release", &Answer::Ok)?;
        let (guard, at) = waiter.gets_it(SOON).await?;
        took.push(at.saturating_duration_since(asked));
        ground.expect("anna", "try 30000", &Answer::Taken)?;
        ground.expect("anna", "release", &Answer::Lost)?;
        released(guard, Released::Free).await?;
        ground.key.is_free()?;
    }
    Ok(format!("we had it {} after their release was asked for", woken(took)?))
}

/// While we hold it, however often, they wait without polling; our last release wakes them, and no earlier one.
pub(super) async fn ours_held(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, LONG).await?;
    let owner = ground.ours.new_owner();
    let ours = ground.reentrant()?.owned_by(&owner);
    let mut messages = Messages::of(&ground.server)?;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let (outer, inner) = (ours.acquire().await?, ours.acquire().await?);
        ensure!((outer.count(), inner.count()) == (1, 2), "we count {} and {}", outer.count(), inner.count());
        ensure!(outer.fencing_token() == inner.fencing_token(), "one tenure has two tokens");
        ground.counts(&[(owner.as_str(), 2)])?;
        let state = ground.state("anna")?;
        ensure!((state.count, state.mine, state.locked) == (0, false, true), "they are told {state:?}");
        ground.expect("anna", "try 30000", &Answer::Taken)?;
        ground.expect("anna", "release", &Answer::Lost)?;
        ground.begin("anna", "lock 30000")?;
        ground.theirs.silent_for(SHORT / 2)?;
        messages.received(&mut ground.key)?;
        released(outer, Released::StillHeld { count: 1 }).await?;
        ground.theirs.silent_for(SHORT / 2)?;
        let received = messages.received(&mut ground.key)?;
        ensure!(received.is_empty(), "our release that kept the lock published {received:?}");
        inner.check()?;
        ground.counts(&[(owner.as_str(), 1)])?;

        let asked = Instant::now();
        released(inner, Released::Free).await?;
        ground.gets_it("anna", SOON)?;
        took.push(asked.elapsed());
        refused(&ours).await?;
        ground.expect("anna", "release", &Answer::Ok)?;
        ground.key.is_free()?;
    }
    Ok(format!("they had it {} after our release was asked for", woken(took)?))
}

/// Where the owner is the same, both enter, and each reads and lowers the count of the other.
pub(super) async fn counts(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, LONG).await?;
    let anna = ground.owner("anna")?;
    let others = ground.reentrant()?;
    let ours = others.clone().owned_by(&Owner::new(&anna)?);
    for round in 0..2 {
        // Theirs first, then ours first.
        let mut guards = Vec::new();
        if round == 0 {
            ground.expect("anna", "try 30000", &Answer::Got)?;
            seen(&ours, &anna, 1).await?;
        }
        guards.push(ours.acquire().await?);
        guards.push(ours.acquire().await?);
        ensure!(guards[1].count() == if round == 0 { 3 } else { 2 }, "we count {}", guards[1].count());
        if round == 1 {
            ground.expect("anna", "try 30000", &Answer::Got)?;
        }
        ground.counts(&[(&anna, 3)])?;
        seen(&others, &anna, 3).await?;
        ensure!(ours.hold_count().await? == 3, "we count {}", ours.hold_count().await?);
        let state = ground.state("anna")?;
        ensure!((state.count, state.mine) == (3, true), "they are told {state:?}");
        ground.expect("boris", "try 30000", &Answer::Taken)?;
        ensure!(matches!(others.try_acquire().await?, Attempt::Taken(_)), "another owner of ours got in");

        if round == 0 {
            ground.expect("anna", "release", &Answer::Ok)?;
            released(guards.remove(0), Released::StillHeld { count: 1 }).await?;
            released(guards.remove(0), Released::Free).await?;
            ground.expect("anna", "release", &Answer::Lost)?;
        } else {
            released(guards.remove(0), Released::StillHeld { count: 2 }).await?;
            released(guards.remove(0), Released::StillHeld { count: 1 }).await?;
            ground.counts(&[(&anna, 1)])?;
            ground.expect("anna", "release", &Answer::Ok)?;
        }
        ground.key.is_free()?;
    }
    Ok("3 entries of one owner, theirs first and ours first: each sees all, and the last one frees it".into())
}

/// Each watchdog renews its own hold, for as long as it takes, and leaves the other's alone.
pub(super) async fn watchdogs(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, RENEWED).await?;
    let owner = ground.ours.new_owner();
    let ours = ground.reentrant()?.owned_by(&owner);

    let guard = ours.acquire().await?;
    let start = Instant::now();
    ground.begin("anna", "lock 0")?;
    while start.elapsed() < 4 * RENEWED {
        ground.theirs.silent_for(SHORT / 2)?;
        ground.counts(&[(owner.as_str(), 1)])?;
        ensure!(ground.key.remaining()?.is_some_and(|left| left <= RENEWED), "our lease is another one");
        guard.check()?;
    }
    released(guard, Released::Free).await?;
    ground.gets_it("anna", SOON)?;

    let anna = ground.owner("anna")?;
    let waiter = ground.reentrant_waiter(ours.clone()).await?;
    let start = Instant::now();
    while start.elapsed() < 4 * RENEWED {
        tokio::time::sleep(SHORT / 2).await;
        waiter.waits()?;
        let hash = ground.key.hash()?;
        ensure!(hash.contains_key(&anna), "they lost the lock that they renew: {hash:?}");
        ensure!(hash.len() == 1, "we wrote into their lock: {hash:?}");
        ensure!(ground.key.remaining()?.is_some_and(|left| left <= RENEWED), "their lease is another one");
    }
    ground.expect("anna", "release", &Answer::Ok)?;
    let (guard, _) = waiter.gets_it(SOON).await?;
    released(guard, Released::Free).await?;
    Ok(format!("each held for {} ms with a lease of {}", 4 * RENEWED.as_millis(), RENEWED.as_millis()))
}

/// A holder that loses the lock by force finds out, and a waiter acquires it.
pub(super) async fn force(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, RENEWED).await?;
    let ours = ground.reentrant()?.owned_by(&ground.ours.new_owner());

    // Theirs from ours.
    let (outer, inner) = (ours.acquire().await?, ours.acquire().await?);
    ground.begin("boris", "lock 0")?;
    ground.theirs.silent_for(SHORT)?;
    ground.expect("anna", "free", &Answer::Ok)?;
    let freed = Instant::now();
    ground.gets_it("boris", SOON)?;
    for guard in [&outer, &inner] {
        let lost = tokio::time::timeout(RENEWED + SOON, guard.lost()).await;
        let _: Lost = lost.map_err(|_| anyhow!("we believe in a hold that they have"))?;
    }
    let told = freed.elapsed();
    let boris = ground.owner("boris")?;
    lost(outer).await?;
    lost(inner).await?;
    ground.counts(&[(&boris, 1)])?;

    // Ours from theirs; another of theirs waits for it.
    ground.begin("anna", "lock 0")?;
    ground.theirs.silent_for(SHORT)?;
    let seen =
        ours.inspect_full().await?.observed.ok_or_else(|| anyhow!("we see no holder to free it of"))?;
    ours.force_release(seen).await?;
    ground.gets_it("anna", SOON)?;
    ground.expect("boris", "release", &Answer::Lost)?;
    let state = ground.state("boris")?;
    ensure!((state.count, state.mine, state.locked) == (0, false, true), "the loser is told {state:?}");

    // And one of ours.
    let waiter = ground.reentrant_waiter(ours.clone()).await?;
    ground.expect("boris", "free", &Answer::Ok)?;
    let (guard, _) = waiter.gets_it(SOON).await?;
    ground.expect("anna", "release", &Answer::Lost)?;
    guard.check()?;
    released(guard, Released::Free).await?;
    ground.key.is_free()?;
    Ok(format!(
        "we knew that we had lost it {} ms after they had freed it; they by their release",
        told.as_millis()
    ))
}

/// A lease that has ended is over: what comes late does not touch the hold of the other.
pub(super) async fn late(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, LONG).await?;
    let owner = ground.ours.new_owner();
    let ours = ground.reentrant()?.owned_by(&owner);
    let asked = Instant::now();
    ground.expect("anna", &format!("try {}", SHORT.as_millis()), &Answer::Got)?;
    let (guard, at) = ground.reentrant_waiter(ours.clone()).await?.gets_it(SHORT + SOON).await?;
    let theirs_lasted = at.saturating_duration_since(asked);
    ensure!(theirs_lasted >= SHORT, "we had the lock after {theirs_lasted:?}");
    ground.expect("anna", "release", &Answer::Lost)?;
    ground.counts(&[(owner.as_str(), 1)])?;
    guard.check()?;
    released(guard, Released::Free).await?;

    let asked = Instant::now();
    let guard = ours.clone().lease(SHORT).acquire().await?;
    ground.begin("anna", "lock 30000")?;
    ground.gets_it("anna", SHORT + SOON)?;
    let ours_lasted = asked.elapsed();
    ensure!(ours_lasted >= SHORT, "they had the lock after {ours_lasted:?}");
    ensure!(guard.check().is_err(), "we believe in a hold that they have");
    lost(guard).await?;
    let anna = ground.owner("anna")?;
    ground.counts(&[(&anna, 1)])?;
    ground.key.lasts(LONG)?;

    // We go on to believe in a hold whose key was removed, and send its release.
    ground.expect("anna", "release", &Answer::Ok)?;
    let guard = ours.acquire().await?;
    ground.key.call("DEL", &[])?;
    ground.expect("anna", "try 30000", &Answer::Got)?;
    lost(guard).await?;
    ground.counts(&[(&anna, 1)])?;
    ground.key.lasts(LONG)?;
    ground.expect("anna", "release", &Answer::Ok)?;
    ground.key.is_free()?;
    Ok(format!(
        "we had it after {} ms of {}, they after {}",
        theirs_lasted.as_millis(),
        SHORT.as_millis(),
        ours_lasted.as_millis()
    ))
}
