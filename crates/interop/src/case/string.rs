//! The cases of a library that locks as Leasehold's Mutex does: `SET key token NX PX`.

use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use leasehold::error::{AcquireError, ReleaseError};
use leasehold::inspect::{Contention, Holder};
use leasehold::{Attempt, Mutex};

use super::{LONG, MS, RENEWED, SHORT};
use crate::driver::Answer;
use crate::fixture::{Fixture, LOCK, SOON};
use crate::library::Library;

const HOLD_OF_LIBRARY: &str = "the library";
const HOLD_OF_LEASEHOLD: &str = "Leasehold";

pub(super) async fn library_holds(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, LONG).await?;
    let mutex = fixture.mutex()?;
    fixture.driver.expect(&format!("try {LOCK} {}", LONG.as_millis()), &Answer::Got)?;
    let token = fixture.key.token()?;
    let contention = expect_taken(mutex.try_acquire().await?)?;
    let holder = expect_foreign(&contention)?;
    let remaining_ms = u128::from(holder.remaining_ms.unwrap_or(0));
    ensure!((1..=LONG.as_millis()).contains(&remaining_ms), "Leasehold reports {contention}");
    let waiter = fixture.start_waiter(mutex).await?;
    tokio::time::sleep(SHORT).await;
    waiter.expect_waiting()?;
    fixture.key.expect_token(&token, HOLD_OF_LIBRARY)?;

    let released = Instant::now();
    fixture.driver.expect("release", &release_answer(library))?;
    let (guard, at) = waiter.acquired(SOON).await?;
    ensure!(fixture.key.token()? != token, "the key has the library's value while Leasehold holds the lock");
    fixture.driver.expect(&format!("try {LOCK} {}", LONG.as_millis()), &Answer::Taken)?;
    guard.release().await?;
    fixture.key.expect_free()?;
    Ok(format!("Leasehold acquired it {} ms after the release", (at - released).as_millis()))
}

pub(super) async fn leasehold_holds(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, LONG).await?;
    let mutex = fixture.mutex()?;
    let guard = mutex.acquire().await?;
    let token = fixture.key.token()?;
    fixture.driver.expect(&format!("try {LOCK} {}", LONG.as_millis()), &Answer::Taken)?;
    fixture.driver.send(&format!("acquire {LOCK} {} 20000", LONG.as_millis()))?;
    fixture.driver.expect_no_answer(SHORT)?;
    fixture.key.expect_token(&token, HOLD_OF_LEASEHOLD)?;
    guard.check()?;

    let released = Instant::now();
    guard.release().await?;
    let answer = fixture.driver.answer(SOON)?;
    let waited = released.elapsed();
    ensure!(answer == Answer::Got, "the library gave up the free lock: {answer:?}");
    ensure!(fixture.key.token()? != token, "the key has Leasehold's value while the library holds the lock");
    expect_foreign(&expect_taken(mutex.try_acquire().await?)?)?;
    fixture.driver.expect("release", &release_answer(library))?;
    fixture.key.expect_free()?;
    Ok(format!("the library acquired it {} ms after the release", waited.as_millis()))
}

pub(super) async fn library_expires(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, LONG).await?;
    let called = Instant::now();
    fixture.driver.expect(&format!("try {LOCK} {}", SHORT.as_millis()), &Answer::Got)?;
    let (guard, at) = fixture.start_waiter(fixture.mutex()?).await?.acquired(SHORT + SOON).await?;
    let waited = at - called;
    ensure!(
        waited >= SHORT,
        "Leasehold acquired the lock after {waited:?}, before the lease of {SHORT:?} ended"
    );
    let token = fixture.key.token()?;

    // The effect on Leasehold's hold is checked before the answer.
    let extended = fixture.driver.request(&format!("extend {}", 2 * LONG.as_millis()))?;
    fixture.key.expect_token(&token, HOLD_OF_LEASEHOLD)?;
    let remaining = fixture.key.remaining()?;
    ensure!(
        remaining.is_some_and(|left| left <= LONG),
        "the library set Leasehold's hold to expire in {remaining:?}"
    );
    ensure!(extended == Answer::Lost, "the library's late extend was answered {extended:?} and not Lost");
    let sent = Instant::now();
    let released = fixture.driver.request("release")?;
    let took = sent.elapsed();
    fixture.key.expect_token(&token, HOLD_OF_LEASEHOLD)?;
    let expected = if library.reports_lost_release { Answer::Lost } else { Answer::Unreported };
    ensure!(
        released == expected,
        "the library's late release was answered {released:?} and not {expected:?}"
    );
    guard.check()?;
    guard.release().await?;
    fixture.key.expect_free()?;
    Ok(format!(
        "Leasehold acquired it after {} ms of {}; the late release: {released:?} after {} ms",
        waited.as_millis(),
        SHORT.as_millis(),
        took.as_millis()
    ))
}

pub(super) async fn leasehold_expires(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, LONG).await?;
    let acquire = format!("acquire {LOCK} {} 20000", LONG.as_millis());
    let called = Instant::now();
    let guard = fixture.mutex()?.lease(SHORT).acquire().await?;
    fixture.driver.send(&acquire)?;
    let answer = fixture.driver.answer(SHORT + SOON)?;
    let waited = called.elapsed();
    ensure!(answer == Answer::Got, "the library gave up the lock that had expired: {answer:?}");
    ensure!(
        waited >= SHORT,
        "the library acquired the lock after {waited:?}, before the lease of {SHORT:?} ended"
    );
    ensure!(guard.check().is_err(), "Leasehold's guard is valid while the library holds the lock");
    let token = fixture.key.token()?;
    expect_lost(guard.release().await)?;
    fixture.key.expect_token(&token, HOLD_OF_LIBRARY)?;
    fixture.driver.expect("release", &release_answer(library))?;

    // The guard of a deleted key stays valid, and its release is sent.
    let guard = fixture.mutex()?.acquire().await?;
    fixture.server.cli(&["DEL", LOCK])?.ok()?;
    fixture.driver.expect(&acquire, &Answer::Got)?;
    let token = fixture.key.token()?;
    expect_lost(guard.release().await)?;
    fixture.key.expect_token(&token, HOLD_OF_LIBRARY)?;
    fixture.key.expect_expiry(LONG)?;
    fixture.driver.expect(&format!("extend {}", LONG.as_millis()), &Answer::Ok)?;
    fixture.driver.expect("release", &release_answer(library))?;
    fixture.key.expect_free()?;
    Ok(format!("the library acquired it after {} ms of {}", waited.as_millis(), SHORT.as_millis()))
}

pub(super) async fn library_without_expiry(library: &Library) -> Result<String> {
    if !library.has_locks_without_expiry {
        return Ok("(the library always sets an expiry)".into());
    }
    let mut fixture = Fixture::new(library, LONG).await?;
    let mutex = fixture.mutex()?;
    fixture.driver.expect(&format!("try {LOCK} 0"), &Answer::Got)?;
    let contention = expect_taken(mutex.try_acquire().await?)?;
    ensure!(expect_foreign(&contention)?.remaining_ms.is_none(), "Leasehold reports {contention}");
    expect_waits(&mutex).await?;
    ensure!(fixture.key.remaining()?.is_none(), "Leasehold set an expiry that was not requested");

    let adopted = Instant::now();
    let waiter = fixture.start_waiter(mutex.expire_foreign(SHORT)).await?;
    let (guard, at) = waiter.acquired(SHORT + SOON).await?;
    let waited = at - adopted;
    ensure!(waited >= SHORT, "Leasehold acquired the lock after {waited:?}, before {SHORT:?} were over");
    let token = fixture.key.token()?;
    fixture.driver.expect("release", &Answer::Lost)?;
    fixture.key.expect_token(&token, HOLD_OF_LEASEHOLD)?;
    guard.release().await?;
    Ok(format!(
        "Leasehold waited, adopted it, and acquired it after {} ms of {}",
        waited.as_millis(),
        SHORT.as_millis()
    ))
}

pub(super) async fn leasehold_renews(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, RENEWED).await?;
    let guard = fixture.mutex()?.acquire().await?;
    let token = fixture.key.token()?;
    let start = Instant::now();
    while start.elapsed() < 3 * RENEWED {
        fixture.driver.expect(&format!("acquire {LOCK} {} 1000", LONG.as_millis()), &Answer::Taken)?;
        fixture.key.expect_token(&token, HOLD_OF_LEASEHOLD)?;
        guard.check()?;
    }
    let lasted = start.elapsed();
    guard.release().await?;
    fixture.driver.expect(&format!("acquire {LOCK} {} 20000", LONG.as_millis()), &Answer::Got)?;
    Ok(format!("the library waited for {} ms, with a lease of {}", lasted.as_millis(), RENEWED.as_millis()))
}

pub(super) async fn library_extends(library: &Library) -> Result<String> {
    let mut fixture = Fixture::new(library, LONG).await?;
    fixture.driver.expect(&format!("try {LOCK} {}", RENEWED.as_millis()), &Answer::Got)?;
    let token = fixture.key.token()?;
    let waiter = fixture.start_waiter(fixture.mutex()?).await?;
    let start = Instant::now();
    let mut extended = start;
    while start.elapsed() < 3 * RENEWED {
        tokio::time::sleep(200 * MS).await;
        extended = Instant::now();
        fixture.driver.expect(&format!("extend {}", RENEWED.as_millis()), &Answer::Ok)?;
        fixture.key.expect_token(&token, HOLD_OF_LIBRARY)?;
        waiter.expect_waiting()?;
    }
    let (guard, at) = waiter.acquired(RENEWED + SOON).await?;
    let waited = at - extended;
    ensure!(
        waited >= RENEWED,
        "Leasehold acquired the lock {waited:?} after the library had extended it by {RENEWED:?}"
    );
    guard.release().await?;
    Ok(format!(
        "Leasehold waited for {} ms, with a lease of {}",
        (at - start).as_millis(),
        RENEWED.as_millis()
    ))
}

/// The answer to a successful release.
fn release_answer(library: &Library) -> Answer {
    if library.reports_lost_release { Answer::Ok } else { Answer::Unreported }
}

fn expect_taken(attempt: Attempt) -> Result<Contention> {
    match attempt {
        Attempt::Taken(contention) => Ok(contention),
        Attempt::Granted(_) => bail!("Leasehold acquired the lock while the library held it"),
    }
}

/// Fails unless it waits for the lock up to its limit. A poll that has no reply at the limit makes the result of that
/// wait unknown; the wait is repeated then.
async fn expect_waits(mutex: &Mutex) -> Result<()> {
    let mut last = None;
    for _ in 0..5 {
        match mutex.acquire_timeout(SHORT).await {
            Err(AcquireError::TimedOut { .. }) => return Ok(()),
            Err(unknown @ AcquireError::Unknown(_)) => last = Some(unknown),
            other => bail!("Leasehold did not wait for the lock: {other:?}"),
        }
    }
    bail!("the result of each wait is unknown, the last was {last:?}")
}

/// The holder, which must be a client of another library.
fn expect_foreign(contention: &Contention) -> Result<&Holder> {
    let holder = contention.holder.as_ref().filter(|holder| holder.is_foreign());
    holder.ok_or_else(|| anyhow!("Leasehold reports {contention}"))
}

/// Fails unless a release reported the hold as lost.
fn expect_lost(released: Result<(), ReleaseError>) -> Result<()> {
    match released {
        Err(ReleaseError::Lost(_)) => Ok(()),
        other => bail!("Leasehold's late release returned {other:?}"),
    }
}
