//! The cases of a library that locks as Leasehold's ReentrantMutex does: Redisson.
//!
//! [`rlock`](super::rlock) shows what the library does alone; here it shares locks with Leasehold.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use leasehold::error::{LostHold, ReleaseError};
use leasehold::inspect::Holder;
use leasehold::{Attempt, Owner, ReentrantGuard, ReentrantMutex, Released};

use super::{LONG, RENEWED, SHORT};
use crate::driver::{Answer, State};
use crate::fixture::{Fixture, LOCK, SOON};
use crate::key::Messages;
use crate::library::Library;

/// How often a hand-off is measured.
const ROUNDS: usize = 10;
/// How long most of them may take. Leasehold polls a lock of another library each 50 to 250 ms, and Redisson at the end of
/// the lease: neither is that fast nine times in ten.
const WOKEN_WITHIN: Duration = Duration::from_millis(50);
/// Leasehold's field in the hash.
const FIELD: &str = "leasehold";

/// A request about the lock: its name follows the verb.
fn to(thread: &str, request: &str) -> String {
    let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
    format!("as {thread} {verb} {LOCK} {rest}").trim_end().to_owned()
}

/// Requests to threads of the library.
impl Fixture {
    /// Sends a thread a request about the lock, and fails if the answer is another one.
    fn expect(&mut self, thread: &str, request: &str, expected: &Answer) -> Result<()> {
        self.driver.expect(&to(thread, request), expected)
    }

    /// Sends a thread a request about the lock, without waiting for the answer.
    fn send(&mut self, thread: &str, request: &str) -> Result<()> {
        self.driver.send(&to(thread, request))
    }

    /// Fails unless a waiting thread acquires the lock within that time.
    fn expect_acquired(&mut self, thread: &str, within: Duration) -> Result<()> {
        let answer = self.driver.answer_to(&to(thread, "lock"), within);
        let answer = answer.with_context(|| format!("{thread} did not acquire the free lock"))?;
        ensure!(answer == Answer::Got, "{thread} gave up the free lock: {answer:?}");
        Ok(())
    }

    /// The owner that a thread is at the key.
    fn owner(&mut self, thread: &str) -> Result<String> {
        match self.driver.request(&format!("as {thread} owner"))? {
            Answer::Owner(owner) => Ok(owner),
            other => bail!("`owner` was answered {other:?}"),
        }
    }

    /// The lock as a thread sees it.
    fn state(&mut self, thread: &str) -> Result<State> {
        match self.driver.request(&to(thread, "state"))? {
            Answer::State(state) => Ok(state),
            other => bail!("`state` was answered {other:?}"),
        }
    }

    /// Fails unless the thread sees that another owner holds the lock.
    fn expect_locked_by_another(&mut self, thread: &str) -> Result<()> {
        let state = self.state(thread)?;
        ensure!(
            (state.count, state.is_mine, state.is_locked) == (0, false, true),
            "the library reports {state:?} to {thread}"
        );
        Ok(())
    }

    /// Fails unless the hash has these counts, with or without Leasehold's field.
    fn expect_counts(&mut self, expected: &[(&str, u64)]) -> Result<()> {
        let mut found = self.key.hash()?;
        found.remove(FIELD);
        let expected =
            expected.iter().map(|(owner, count)| ((*owner).to_owned(), count.to_string())).collect();
        ensure!(found == expected, "`{LOCK}` counts {found:?} and not {expected:?}");
        Ok(())
    }
}

/// Fails unless Leasehold's `inspect` reports this owner and hold count.
async fn expect_status(mutex: &ReentrantMutex, owner: &str, count: u64) -> Result<()> {
    let status = mutex.inspect().await?;
    let is_right = status.held && status.count == count && status.owner == Some(Owner::new(owner)?);
    ensure!(is_right, "Leasehold reports {status:?}, and `{owner}` holds it {count} times");
    Ok(())
}

/// Fails unless Leasehold is refused, because of a client of the library.
async fn expect_taken(mutex: &ReentrantMutex) -> Result<()> {
    match mutex.try_acquire().await? {
        Attempt::Granted(_) => bail!("Leasehold acquired the lock while the library held it"),
        Attempt::Taken(contention) => {
            let is_foreign = contention.holder.as_ref().is_some_and(Holder::is_foreign);
            ensure!(is_foreign, "Leasehold reports {contention}");
            Ok(())
        }
    }
}

async fn expect_released(guard: ReentrantGuard, expected: Released) -> Result<()> {
    let released = guard.release().await?;
    ensure!(released == expected, "Leasehold's release returned {released:?} and not {expected:?}");
    Ok(())
}

async fn expect_lost(guard: ReentrantGuard) -> Result<()> {
    match guard.release().await {
        Err(ReleaseError::Lost(_)) => Ok(()),
        other => bail!("Leasehold's late release returned {other:?}"),
    }
}

/// Fails unless most hand-offs were faster than polling; describes how long they took.
fn expect_woken(mut took: Vec<Duration>) -> Result<String> {
    took.sort_unstable();
    let ms: Vec<_> = took.iter().map(Duration::as_millis).collect();
    let most = took.get(took.len() * 8 / 10).ok_or_else(|| anyhow!("nothing was measured"))?;
    ensure!(*most <= WOKEN_WITHIN, "the lock was handed off after {ms:?} ms: that is polling");
    Ok(format!(
        "{} to {} ms, {} of {} times within {}",
        ms[0],
        ms[ms.len() - 1],
        took.iter().filter(|took| **took <= WOKEN_WITHIN).count(),
        ms.len(),
        WOKEN_WITHIN.as_millis()
    ))
}

/// Leasehold waits while the library holds the lock, however often. The last release wakes it, and no earlier one.
pub(super) async fn library_holds(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, LONG).await?;
    let mutex = fixture.reentrant_mutex()?;
    let anna = fixture.owner("anna")?;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        fixture.expect("anna", "try 30000", &Answer::Got)?;
        fixture.expect("anna", "try 30000", &Answer::Got)?;
        expect_status(&mutex, &anna, 2).await?;
        expect_taken(&mutex).await?;
        let waiter = fixture.start_reentrant_waiter(mutex.clone()).await?;
        fixture.expect("anna", "release", &Answer::Ok)?;
        tokio::time::sleep(SHORT / 2).await;
        waiter.expect_waiting()?;
        fixture.expect_counts(&[(&anna, 1)])?;

        let called = Instant::now();
        fixture.expect("anna", "release", &Answer::Ok)?;
        let (guard, at) = waiter.acquired(SOON).await?;
        took.push(at.saturating_duration_since(called));
        fixture.expect("anna", "try 30000", &Answer::Taken)?;
        fixture.expect("anna", "release", &Answer::Lost)?;
        expect_released(guard, Released::NoLongerHeld).await?;
        fixture.key.expect_free()?;
    }
    Ok(format!("Leasehold acquired it {} after the call of the release", expect_woken(took)?))
}

/// The library waits without polling while Leasehold holds the lock, however often. The last release wakes it, and no
/// earlier one.
pub(super) async fn leasehold_holds(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, LONG).await?;
    let owner = fixture.client.new_owner();
    let mutex = fixture.reentrant_mutex()?.owned_by(&owner);
    let mut messages = Messages::connect(&fixture.server)?;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let (outer, inner) = (mutex.acquire().await?, mutex.acquire().await?);
        let counts = (outer.count(), inner.count());
        ensure!(counts == (1, 2), "Leasehold counts {} and {}", counts.0, counts.1);
        ensure!(outer.fencing_token() == inner.fencing_token(), "two holds of one owner have two tokens");
        fixture.expect_counts(&[(owner.as_str(), 2)])?;
        fixture.expect_locked_by_another("anna")?;
        fixture.expect("anna", "try 30000", &Answer::Taken)?;
        fixture.expect("anna", "release", &Answer::Lost)?;
        fixture.send("anna", "lock 30000")?;
        fixture.driver.expect_no_answer(SHORT / 2)?;
        messages.received(&mut fixture.key)?;
        expect_released(outer, Released::StillHeld { count: 1 }).await?;
        fixture.driver.expect_no_answer(SHORT / 2)?;
        let received = messages.received(&mut fixture.key)?;
        ensure!(received.is_empty(), "Leasehold's release that kept the lock published {received:?}");
        inner.check()?;
        fixture.expect_counts(&[(owner.as_str(), 1)])?;

        let called = Instant::now();
        expect_released(inner, Released::NoLongerHeld).await?;
        fixture.expect_acquired("anna", SOON)?;
        took.push(called.elapsed());
        expect_taken(&mutex).await?;
        fixture.expect("anna", "release", &Answer::Ok)?;
        fixture.key.expect_free()?;
    }
    Ok(format!("the library acquired it {} after the call of the release", expect_woken(took)?))
}

/// Leasehold and a thread of the library acquire for one owner, and each reads and lowers the count of the other.
pub(super) async fn hold_count(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, LONG).await?;
    let anna = fixture.owner("anna")?;
    let others = fixture.reentrant_mutex()?;
    let mutex = others.clone().owned_by(&Owner::new(&anna)?);
    for library_is_first in [true, false] {
        let mut guards = Vec::new();
        if library_is_first {
            fixture.expect("anna", "try 30000", &Answer::Got)?;
            expect_status(&mutex, &anna, 1).await?;
        }
        guards.push(mutex.acquire().await?);
        guards.push(mutex.acquire().await?);
        let expected = if library_is_first { 3 } else { 2 };
        ensure!(guards[1].count() == expected, "Leasehold counts {}", guards[1].count());
        if !library_is_first {
            fixture.expect("anna", "try 30000", &Answer::Got)?;
        }
        fixture.expect_counts(&[(&anna, 3)])?;
        expect_status(&others, &anna, 3).await?;
        ensure!(mutex.hold_count().await? == 3, "Leasehold counts {}", mutex.hold_count().await?);
        let state = fixture.state("anna")?;
        ensure!((state.count, state.is_mine) == (3, true), "the library reports {state:?}");
        fixture.expect("boris", "try 30000", &Answer::Taken)?;
        let attempt = others.try_acquire().await?;
        ensure!(matches!(attempt, Attempt::Taken(_)), "another owner of Leasehold's acquired the lock");

        if library_is_first {
            fixture.expect("anna", "release", &Answer::Ok)?;
            expect_released(guards.remove(0), Released::StillHeld { count: 1 }).await?;
            expect_released(guards.remove(0), Released::NoLongerHeld).await?;
            fixture.expect("anna", "release", &Answer::Lost)?;
        } else {
            expect_released(guards.remove(0), Released::StillHeld { count: 2 }).await?;
            expect_released(guards.remove(0), Released::StillHeld { count: 1 }).await?;
            fixture.expect_counts(&[(&anna, 1)])?;
            fixture.expect("anna", "release", &Answer::Ok)?;
        }
        fixture.key.expect_free()?;
    }
    Ok("3 holds of one owner, in both orders: each side counts all, and the last release frees the lock"
        .into())
}

/// Each watchdog renews its own hold, for as long as it is held, and does not touch the other's.
pub(super) async fn watchdogs(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, RENEWED).await?;
    let owner = fixture.client.new_owner();
    let mutex = fixture.reentrant_mutex()?.owned_by(&owner);

    let guard = mutex.acquire().await?;
    let start = Instant::now();
    fixture.send("anna", "lock 0")?;
    while start.elapsed() < 4 * RENEWED {
        fixture.driver.expect_no_answer(SHORT / 2)?;
        fixture.expect_counts(&[(owner.as_str(), 1)])?;
        let remaining = fixture.key.remaining()?;
        ensure!(remaining.is_some_and(|left| left <= RENEWED), "Leasehold's hold expires in {remaining:?}");
        guard.check()?;
    }
    expect_released(guard, Released::NoLongerHeld).await?;
    fixture.expect_acquired("anna", SOON)?;

    let anna = fixture.owner("anna")?;
    let waiter = fixture.start_reentrant_waiter(mutex.clone()).await?;
    let start = Instant::now();
    while start.elapsed() < 4 * RENEWED {
        tokio::time::sleep(SHORT / 2).await;
        waiter.expect_waiting()?;
        let hash = fixture.key.hash()?;
        ensure!(hash.contains_key(&anna), "the library lost the lock that it renews: {hash:?}");
        ensure!(hash.len() == 1, "Leasehold wrote into the library's lock: {hash:?}");
        let remaining = fixture.key.remaining()?;
        ensure!(remaining.is_some_and(|left| left <= RENEWED), "the library's hold expires in {remaining:?}");
    }
    fixture.expect("anna", "release", &Answer::Ok)?;
    let (guard, _) = waiter.acquired(SOON).await?;
    expect_released(guard, Released::NoLongerHeld).await?;
    Ok(format!("each held for {} ms with a lease of {}", 4 * RENEWED.as_millis(), RENEWED.as_millis()))
}

/// A holder learns that it lost the lock by force, and a waiter acquires it.
pub(super) async fn force_release(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, RENEWED).await?;
    let mutex = fixture.reentrant_mutex()?.owned_by(&fixture.client.new_owner());

    // The library releases Leasehold's holds.
    let (outer, inner) = (mutex.acquire().await?, mutex.acquire().await?);
    fixture.send("boris", "lock 0")?;
    fixture.driver.expect_no_answer(SHORT)?;
    fixture.expect("anna", "free", &Answer::Ok)?;
    let freed = Instant::now();
    fixture.expect_acquired("boris", SOON)?;
    for guard in [&outer, &inner] {
        let lost = tokio::time::timeout(RENEWED + SOON, guard.lost()).await;
        let _: LostHold =
            lost.map_err(|_| anyhow!("Leasehold's guard stays valid while the library holds the lock"))?;
    }
    let reported_after = freed.elapsed();
    let boris = fixture.owner("boris")?;
    expect_lost(outer).await?;
    expect_lost(inner).await?;
    fixture.expect_counts(&[(&boris, 1)])?;

    // Leasehold releases the library's hold, and another thread of the library waits for it.
    fixture.send("anna", "lock 0")?;
    fixture.driver.expect_no_answer(SHORT)?;
    let seen = mutex.inspect_full().await?.observed.ok_or_else(|| anyhow!("Leasehold sees no holder"))?;
    mutex.force_release(seen).await?;
    fixture.expect_acquired("anna", SOON)?;
    fixture.expect("boris", "release", &Answer::Lost)?;
    fixture.expect_locked_by_another("boris")?;

    // The same with a waiter of Leasehold's.
    let waiter = fixture.start_reentrant_waiter(mutex.clone()).await?;
    fixture.expect("boris", "free", &Answer::Ok)?;
    let (guard, _) = waiter.acquired(SOON).await?;
    fixture.expect("anna", "release", &Answer::Lost)?;
    guard.check()?;
    expect_released(guard, Released::NoLongerHeld).await?;
    fixture.key.expect_free()?;
    Ok(format!(
        "Leasehold reported the loss {} ms after the release by force; the library at its own release",
        reported_after.as_millis()
    ))
}

/// Requests about an expired hold do not touch the hold of the other.
pub(super) async fn expires(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, LONG).await?;
    let owner = fixture.client.new_owner();
    let mutex = fixture.reentrant_mutex()?.owned_by(&owner);
    let called = Instant::now();
    fixture.expect("anna", &format!("try {}", SHORT.as_millis()), &Answer::Got)?;
    let (guard, at) = fixture.start_reentrant_waiter(mutex.clone()).await?.acquired(SHORT + SOON).await?;
    let library_held = at.saturating_duration_since(called);
    ensure!(library_held >= SHORT, "Leasehold acquired the lock after {library_held:?}");
    fixture.expect("anna", "release", &Answer::Lost)?;
    fixture.expect_counts(&[(owner.as_str(), 1)])?;
    guard.check()?;
    expect_released(guard, Released::NoLongerHeld).await?;

    let called = Instant::now();
    let guard = mutex.clone().lease(SHORT).acquire().await?;
    fixture.send("anna", "lock 30000")?;
    fixture.expect_acquired("anna", SHORT + SOON)?;
    let leasehold_held = called.elapsed();
    ensure!(leasehold_held >= SHORT, "the library acquired the lock after {leasehold_held:?}");
    ensure!(guard.check().is_err(), "Leasehold's guard is valid while the library holds the lock");
    expect_lost(guard).await?;
    let anna = fixture.owner("anna")?;
    fixture.expect_counts(&[(&anna, 1)])?;
    fixture.key.expect_expiry(LONG)?;

    // The guard of a deleted key stays valid, and its release is sent.
    fixture.expect("anna", "release", &Answer::Ok)?;
    let guard = mutex.acquire().await?;
    fixture.key.call("DEL", &[])?;
    fixture.expect("anna", "try 30000", &Answer::Got)?;
    expect_lost(guard).await?;
    fixture.expect_counts(&[(&anna, 1)])?;
    fixture.key.expect_expiry(LONG)?;
    fixture.expect("anna", "release", &Answer::Ok)?;
    fixture.key.expect_free()?;
    Ok(format!(
        "Leasehold acquired it after {} ms of {}, the library after {}",
        library_held.as_millis(),
        SHORT.as_millis(),
        leasehold_held.as_millis()
    ))
}
