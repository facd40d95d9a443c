//! The cases of a library that locks as our Mutex does: `SET key token NX PX`.

use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use leasehold::{AcquireError, Attempt, Contention, Holder, ReleaseError};

use super::{LONG, MS, RENEWED, SHORT};
use crate::driver::Answer;
use crate::ground::{Ground, NAME, SOON};
use crate::neighbour::Neighbour;

pub(super) async fn theirs_held(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, LONG).await?;
    let ours = ground.mutex()?;
    ground.theirs.expect(&format!("try {NAME} {}", LONG.as_millis()), &Answer::Got)?;
    let token = ground.key.token()?;
    let contention = refused(ours.try_acquire().await?)?;
    let holder = stranger(&contention)?;
    let remaining_ms = u128::from(holder.remaining_ms.unwrap_or(0));
    ensure!((1..=LONG.as_millis()).contains(&remaining_ms), "we were told that it is {contention}");
    let waiter = ground.waiter(ours).await?;
    tokio::time::sleep(SHORT).await;
    waiter.waits()?;
    ground.key.is_still(&token, "theirs")?;

    let released = Instant::now();
    ground.theirs.expect("release", &released_answer(neighbour))?;
    let (guard, at) = waiter.gets_it(SOON).await?;
    ensure!(ground.key.token()? != token, "their value stands at the key although we hold it");
    ground.theirs.expect(&format!("try {NAME} {}", LONG.as_millis()), &Answer::Taken)?;
    guard.release().await?;
    ground.key.is_free()?;
    Ok(format!("we had it {} ms after their release", (at - released).as_millis()))
}

pub(super) async fn ours_held(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, LONG).await?;
    let ours = ground.mutex()?;
    let guard = ours.acquire().await?;
    let token = ground.key.token()?;
    ground.theirs.expect(&format!("try {NAME} {}", LONG.as_millis()), &Answer::Taken)?;
    ground.theirs.send(&format!("acquire {NAME} {} 20000", LONG.as_millis()))?;
    ground.theirs.silent_for(SHORT)?;
    ground.key.is_still(&token, "ours")?;
    guard.check()?;

    let released = Instant::now();
    guard.release().await?;
    let answer = ground.theirs.answer(SOON)?;
    let waited = released.elapsed();
    ensure!(answer == Answer::Got, "they gave up the free lock: {answer:?}");
    ensure!(ground.key.token()? != token, "our value stands at the key although they hold it");
    stranger(&refused(ours.try_acquire().await?)?)?;
    ground.theirs.expect("release", &released_answer(neighbour))?;
    ground.key.is_free()?;
    Ok(format!("they had it {} ms after our release", waited.as_millis()))
}

pub(super) async fn their_late_release(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, LONG).await?;
    let asked = Instant::now();
    ground.theirs.expect(&format!("try {NAME} {}", SHORT.as_millis()), &Answer::Got)?;
    let (guard, at) = ground.waiter(ground.mutex()?).await?.gets_it(SHORT + SOON).await?;
    let waited = at - asked;
    ensure!(waited >= SHORT, "we got the lock after {waited:?}, and their lease was {SHORT:?}");
    let token = ground.key.token()?;

    // What has become of our hold comes before what they say.
    let extended = ground.theirs.ask(&format!("extend {}", 2 * LONG.as_millis()))?;
    ground.key.is_still(&token, "ours")?;
    let remaining = ground.key.remaining()?;
    ensure!(remaining.is_some_and(|left| left <= LONG), "they set our hold to end in {remaining:?}");
    ensure!(extended == Answer::Lost, "their late extend was answered {extended:?} and not Lost");
    let sent = Instant::now();
    let released = ground.theirs.ask("release")?;
    let told = sent.elapsed();
    ground.key.is_still(&token, "ours")?;
    let expected = if neighbour.release_tells { Answer::Lost } else { Answer::Unsaid };
    ensure!(released == expected, "their late release was answered {released:?} and not {expected:?}");
    guard.check()?;
    guard.release().await?;
    ground.key.is_free()?;
    Ok(format!(
        "we had it after {} ms of {}; their late release: {released:?} after {} ms",
        waited.as_millis(),
        SHORT.as_millis(),
        told.as_millis()
    ))
}

pub(super) async fn our_late_release(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, LONG).await?;
    let acquire = format!("acquire {NAME} {} 20000", LONG.as_millis());
    let asked = Instant::now();
    let guard = ground.mutex()?.lease(SHORT).acquire().await?;
    ground.theirs.send(&acquire)?;
    let answer = ground.theirs.answer(SHORT + SOON)?;
    let waited = asked.elapsed();
    ensure!(answer == Answer::Got, "they gave up the lock that had expired: {answer:?}");
    ensure!(waited >= SHORT, "they got the lock after {waited:?}, and our lease was {SHORT:?}");
    ensure!(guard.check().is_err(), "we believe in a hold that they have");
    let token = ground.key.token()?;
    lost(guard.release().await)?;
    ground.key.is_still(&token, "theirs")?;
    ground.theirs.expect("release", &released_answer(neighbour))?;

    // We go on to believe in a hold whose key was removed, and send its release.
    let guard = ground.mutex()?.acquire().await?;
    ground.server.cli(&["DEL", NAME])?.ok()?;
    ground.theirs.expect(&acquire, &Answer::Got)?;
    let token = ground.key.token()?;
    lost(guard.release().await)?;
    ground.key.is_still(&token, "theirs")?;
    let remaining = ground.key.remaining()?;
    ensure!(
        remaining.is_some_and(|left| left > LONG / 2 && left <= LONG),
        "we set their hold to end in {remaining:?}"
    );
    ground.theirs.expect(&format!("extend {}", LONG.as_millis()), &Answer::Ok)?;
    ground.theirs.expect("release", &released_answer(neighbour))?;
    ground.key.is_free()?;
    Ok(format!("they had it after {} ms of {}", waited.as_millis(), SHORT.as_millis()))
}

pub(super) async fn theirs_for_ever(neighbour: &Neighbour) -> Result<String> {
    if !neighbour.locks_for_ever {
        return Ok("(it sets an expiry always)".into());
    }
    let mut ground = Ground::new(neighbour, LONG).await?;
    let ours = ground.mutex()?;
    ground.theirs.expect(&format!("try {NAME} 0"), &Answer::Got)?;
    let contention = refused(ours.try_acquire().await?)?;
    ensure!(stranger(&contention)?.remaining_ms.is_none(), "we were told that it is {contention}");
    match ours.acquire_timeout(SHORT).await {
        Err(AcquireError::TimedOut { .. }) => {}
        other => bail!("we did not wait for a lock without an expiry: {other:?}"),
    }
    ensure!(ground.key.remaining()?.is_none(), "we gave their lock an expiry without being asked to");

    let adopted = Instant::now();
    let waiter = ground.waiter(ours.expire_foreign(SHORT)).await?;
    let (guard, at) = waiter.gets_it(SHORT + SOON).await?;
    let waited = at - adopted;
    ensure!(waited >= SHORT, "we got the lock after {waited:?}, and were to leave them {SHORT:?}");
    let token = ground.key.token()?;
    ground.theirs.expect("release", &Answer::Lost)?;
    ground.key.is_still(&token, "ours")?;
    guard.release().await?;
    Ok(format!("we waited, adopted it, and had it after {} ms of {}", waited.as_millis(), SHORT.as_millis()))
}

pub(super) async fn ours_renewed(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, RENEWED).await?;
    let guard = ground.mutex()?.acquire().await?;
    let token = ground.key.token()?;
    let start = Instant::now();
    while start.elapsed() < 3 * RENEWED {
        ground.theirs.expect(&format!("acquire {NAME} {} 1000", LONG.as_millis()), &Answer::Taken)?;
        ground.key.is_still(&token, "ours")?;
        guard.check()?;
    }
    let lasted = start.elapsed();
    guard.release().await?;
    ground.theirs.expect(&format!("acquire {NAME} {} 20000", LONG.as_millis()), &Answer::Got)?;
    Ok(format!("they tried for {} ms, with a lease of {}", lasted.as_millis(), RENEWED.as_millis()))
}

pub(super) async fn theirs_extended(neighbour: &Neighbour) -> Result<String> {
    let mut ground = Ground::new(neighbour, LONG).await?;
    ground.theirs.expect(&format!("try {NAME} {}", RENEWED.as_millis()), &Answer::Got)?;
    let token = ground.key.token()?;
    let waiter = ground.waiter(ground.mutex()?).await?;
    let start = Instant::now();
    let mut extended = start;
    while start.elapsed() < 3 * RENEWED {
        tokio::time::sleep(200 * MS).await;
        extended = Instant::now();
        ground.theirs.expect(&format!("extend {}", RENEWED.as_millis()), &Answer::Ok)?;
        ground.key.is_still(&token, "theirs")?;
        waiter.waits()?;
    }
    let (guard, at) = waiter.gets_it(RENEWED + SOON).await?;
    let waited = at - extended;
    ensure!(waited >= RENEWED, "we got the lock {waited:?} after they had extended it by {RENEWED:?}");
    guard.release().await?;
    Ok(format!("we waited for {} ms, with a lease of {}", (at - start).as_millis(), RENEWED.as_millis()))
}

/// What a good release is answered.
fn released_answer(neighbour: &Neighbour) -> Answer {
    if neighbour.release_tells { Answer::Ok } else { Answer::Unsaid }
}

/// What stands in our way; fails if nothing does.
fn refused(attempt: Attempt) -> Result<Contention> {
    match attempt {
        Attempt::Taken(contention) => Ok(contention),
        Attempt::Granted(_) => bail!("we got the lock although they hold it"),
    }
}

/// The holder, which must be a client of another library.
fn stranger(contention: &Contention) -> Result<&Holder> {
    let holder = contention.holder.as_ref().filter(|holder| holder.is_foreign());
    holder.ok_or_else(|| anyhow!("we were told that it is {contention}"))
}

/// Fails unless a release said that the hold was lost.
fn lost(released: Result<(), ReleaseError>) -> Result<()> {
    match released {
        Err(ReleaseError::Lost(_)) => Ok(()),
        other => bail!("our late release gave {other:?}"),
    }
}
