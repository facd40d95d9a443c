//! `leasehold run`: acquires the lock, runs the command under it, and releases the lock.
//!
//! 1. Every way out releases the lock explicitly and shuts the client down, in a bounded time, so that no queue entry
//!    is left either.
//! 2. The command starts under a whole lease, not under the short first lease of a new hold.

use crate::args::RunArgs;
use crate::job::child::{self, Child};
use crate::job::held::{self, Held, SharedGuard};
use crate::job::owner::Who;
use crate::job::share::{self, Share};
use crate::job::signals::Signals;
use crate::job::terms::AcquireTerms;
use crate::job::{self, Ended, Job};
use crate::output::error_map::acquire_failure;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::report::{ErrorReport, json_line};
use crate::store::client::{ClientConfig, shut_down};
use anyhow::{Context, anyhow};
use leasehold::{
    Attempt, Client, ExtendError, FencingToken, LockError, LockName, LostReason, MultiAttempt, MultiMutex,
    Mutex, OncePer, ReentrantMutex, ReleaseError,
};
use serde::Serialize;
use std::ffi::OsString;
use std::io;

/// Runs the command under the lock.
pub(crate) async fn run(args: &RunArgs) -> Result<Exit, Failure> {
    let mut course = Course::default();
    let done = try_to_run(args, &mut course).await;
    if !args.json {
        return done;
    }
    let status = match &done {
        Ok(exit) => *exit,
        // Before the report, which is the last line.
        Err(failure) => log::failure(failure),
    };
    let name = args.names.first().map(String::as_str).unwrap_or_default();
    // Standard output belongs to the command.
    log::line(&json_line(&Report {
        name,
        acquired: !course.locks.is_empty(),
        fence: course.locks.iter().find(|lock| lock.name == name).map(|lock| lock.fence),
        count: course.count,
        locks: &course.locks,
        portion: course.portion,
        permits: course.permits,
        command_status: course.command.map(Exit::status),
        status: status.status(),
        error: ErrorReport::from_result(&done),
    }));
    Ok(status)
}

/// The progress of a run, for its report.
#[derive(Debug, Default)]
struct Course {
    /// What was acquired, in the order of the names.
    locks: Vec<Had>,
    /// The number of holds of the owner at that time.
    count: Option<u64>,
    /// The mode of a shared lock, and the number of permits.
    portion: Option<&'static str>,
    permits: Option<u32>,
    /// The exit status of the command, if it ran.
    command: Option<Exit>,
}

/// A lock that was acquired.
#[derive(Debug, Serialize)]
struct Had {
    name: String,
    fence: u64,
}

/// The report for programs, printed at the end.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    acquired: bool,
    fence: Option<u64>,
    count: Option<u64>,
    locks: &'a [Had],
    portion: Option<&'static str>,
    permits: Option<u32>,
    command_status: Option<u8>,
    status: u8,
    error: Option<ErrorReport>,
}

async fn try_to_run(args: &RunArgs, course: &mut Course) -> Result<Exit, Failure> {
    let names = args.names.iter().map(|name| crate::lock_name(name)).collect::<Result<Vec<_>, _>>()?;
    let who = Who::of(&args.enter)?;
    who.check(names.len())?;
    let share = Share::of(&args.share, names.len())?;
    // This may read a password from a terminal; Ctrl-C interrupts that only while signals are not caught.
    let config = ClientConfig::from_args(&args.store)?;
    let is_turn = args.once.once_per.is_some();
    if is_turn && names.len() > 1 {
        let cause = anyhow!("--once-per takes one lock, and {} are named", names.len());
        return Err(Failure::usage(cause));
    }
    let lives_by_session = !args.no_session && !is_turn && !matches!(who, Who::Inherited(_));
    let terms = AcquireTerms::of(args, lives_by_session && config.has_heartbeats())?;
    let config = config.watchdog_lease(terms.lease);
    let config = if args.no_session || is_turn {
        config.without_session()
    } else {
        config.session(terms.session.or(args.session))
    };
    let mut signals = Signals::catch().context("failed to catch signals").map_err(unavailable)?;
    let client = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(Exit::from_signal(signal)),
        client = config.connect() => client?,
    };
    let outcome = under_lock(&client, &names, (&who, share), &terms, args, &mut signals, course).await;
    shut_down(&client).await;
    outcome
}

async fn under_lock(
    client: &Client,
    names: &[LockName],
    (who, share): (&Who, Option<Share>),
    terms: &AcquireTerms,
    args: &RunArgs,
    signals: &mut Signals,
    course: &mut Course,
) -> Result<Exit, Failure> {
    let shown = held::shown(names);
    let held = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(Exit::from_signal(signal)),
        acquired = acquire(client, names, who, share, args) => match acquired {
            // One of all instances runs the command, so the others have done their part.
            Err(failure) if failure.is_taken() && args.once.once_per.is_some() && args.conflict_exit_code.is_none() => {
                tracing::info!(locks = %shown, why = %failure.message(), "another process has the turn");
                return Ok(Exit::SUCCESS);
            }
            acquired => acquired?,
        },
    };
    let had =
        |(name, fence): (&LockName, FencingToken)| Had { name: name.to_string(), fence: fence.as_u64() };
    course.locks = held.tokens().into_iter().map(had).collect();
    course.count = Some(held.count());
    course.portion = held.shared().map(SharedGuard::word);
    course.permits = held.shared().and_then(SharedGuard::permits);
    tracing::info!(locks = %shown, "acquired");
    let ended = match whole_lease(&held, terms).await {
        Ok(()) => command(client, &held, terms, &args.command, signals).await,
        Err(failure) => Err(failure.failed_to_all("hold", &shown)),
    };
    course.command = ended.as_ref().ok().map(|ended| ended.exit);
    give_back(client, held, &shown, ended).await
}

async fn acquire(
    client: &Client,
    names: &[LockName],
    who: &Who,
    share: Option<Share>,
    args: &RunArgs,
) -> Result<Held, Failure> {
    let shown = held::shown(names);
    let unusable = |error: LockError| Failure::usage(error).failed_to_all("use", &shown);
    if let (Some(share), [name]) = (share, names) {
        let acquired = share::acquire(client, name, share, who, args).await;
        return acquired.map_err(|failure| failure.failed_to_all("acquire", &shown));
    }
    let acquired = match (names, who) {
        ([name], Who::None) if let Some(period) = args.once.once_per => {
            turn(client.once_per(name.clone(), period).map_err(unusable)?, args).await
        }
        ([name], Who::None) => one(client.mutex(name.clone()).map_err(unusable)?, args).await,
        ([name], who) => {
            let owner = match who {
                Who::Named(owner) | Who::Inherited(owner) => owner.clone(),
                Who::None | Who::Fresh => client.owner(),
            };
            let lock = client.reentrant_mutex(name.clone()).map_err(unusable)?;
            entry(lock.owned_by(&owner), args).await
        }
        (names, _) => several(client.multi_mutex(names.iter().cloned()).map_err(unusable)?, args).await,
    };
    acquired.map_err(|failure| failure.failed_to_all("acquire", &shown))
}

async fn turn(once: OncePer, args: &RunArgs) -> Result<Held, Failure> {
    let once = args.once.at_most.into_iter().fold(once, OncePer::at_most);
    match once.try_start().await {
        Ok(Attempt::Granted(turn)) => Ok(Held::PeriodGuard(turn)),
        Ok(Attempt::Taken(who)) => Err(Failure::taken(args.conflict(), anyhow!("{who}"))),
        Err(error) => Err(acquire_failure(error, args.conflict())),
    }
}

async fn one(mutex: Mutex, args: &RunArgs) -> Result<Held, Failure> {
    let conflict = args.conflict();
    let mutex = match args.max_hold {
        Some(cap) => mutex.max_hold(cap),
        None => mutex,
    };
    if args.tries_once() {
        return match mutex.try_acquire().await {
            Ok(Attempt::Granted(guard)) => Ok(Held::One(guard)),
            Ok(Attempt::Taken(who)) => Err(Failure::taken(conflict, anyhow!("{who}"))),
            Err(error) => Err(acquire_failure(error, conflict)),
        };
    }
    let acquired = match args.wait {
        Some(limit) => mutex.acquire_timeout(limit).await,
        None => mutex.acquire().await,
    };
    acquired.map(Held::One).map_err(|error| acquire_failure(error, conflict))
}

async fn entry(lock: ReentrantMutex, args: &RunArgs) -> Result<Held, Failure> {
    let conflict = args.conflict();
    let lock = match args.max_hold {
        Some(cap) => lock.max_hold(cap),
        None => lock,
    };
    if args.tries_once() {
        return match lock.try_acquire().await {
            Ok(Attempt::Granted(guard)) => Ok(Held::Entry(guard)),
            Ok(Attempt::Taken(who)) => Err(Failure::taken(conflict, anyhow!("{who}"))),
            Err(error) => Err(acquire_failure(error, conflict)),
        };
    }
    let acquired = match args.wait {
        Some(limit) => lock.acquire_timeout(limit).await,
        None => lock.acquire().await,
    };
    acquired.map(Held::Entry).map_err(|error| acquire_failure(error, conflict))
}

async fn several(all: MultiMutex, args: &RunArgs) -> Result<Held, Failure> {
    let conflict = args.conflict();
    let all = match args.max_hold {
        Some(cap) => all.max_hold(cap),
        None => all,
    };
    if args.tries_once() {
        return match all.try_acquire().await {
            Ok(MultiAttempt::Granted(guard)) => Ok(Held::Several(guard)),
            Ok(MultiAttempt::Taken { lock, contention }) => {
                Err(Failure::taken(conflict, anyhow!("`{lock}` is {contention}")))
            }
            Err(error) => Err(acquire_failure(error, conflict)),
        };
    }
    let acquired = match args.wait {
        Some(limit) => all.acquire_timeout(limit).await,
        None => all.acquire().await,
    };
    acquired.map(Held::Several).map_err(|error| acquire_failure(error, conflict))
}

/// Extends a new hold to its whole lease before the command starts (2).
pub(crate) async fn whole_lease(held: &Held, terms: &AcquireTerms) -> Result<(), Failure> {
    if held.remaining() > terms.grace + terms.room() / 2 {
        return Ok(());
    }
    let extended = match held.extend().await {
        // The cap allows no more.
        Err(ExtendError::Capped { .. }) => Ok(()),
        extended => extended,
    };
    extended.map_err(|error| match &error {
        ExtendError::Lost(lost) => Failure::lost(lost.reason.clone(), error),
        _ => Failure::unavailable(error),
    })
}

pub(crate) async fn command(
    client: &Client,
    held: &Held,
    terms: &AcquireTerms,
    words: &[OsString],
    signals: &mut Signals,
) -> Result<Ended, Failure> {
    signals.catch_all().context("failed to catch signals").map_err(unavailable)?;
    let child = Child::start(words, held).map_err(|error| not_started(words, error))?;
    Ok(job::watch(Job::new(child, client, held, terms), signals).await)
}

fn not_started(command: &[OsString], error: io::Error) -> Failure {
    let program = command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "there is no such program: check its path, or PATH",
        io::ErrorKind::PermissionDenied => "it is not executable: check its mode",
        _ => "it cannot be executed",
    };
    let text = format!("failed to start the command `{program}`: {advice}");
    Failure::new(child::exit_of(&error), anyhow::Error::new(error).context(text))
}

pub(crate) async fn give_back(
    client: &Client,
    held: Held,
    shown: &str,
    ended: Result<Ended, Failure>,
) -> Result<Exit, Failure> {
    let until = held.valid_until();
    let known = held.check().err().map(|lost| lost.reason);
    let capped = held.is_capped();
    let released = match held {
        // Without a command that could be started, another instance may take the turn.
        Held::PeriodGuard(turn) if ended.as_ref().is_err_and(|failure| failure.exit.is_not_started()) => {
            turn.give_up().await
        }
        held => held.release().await,
    };
    let ended = ended?;
    if ended.stopped {
        let why = match (known, &released) {
            // What the keeper has detected is more precise than what a late release finds.
            (Some(reason), _) if !matches!(reason, LostReason::Expired | LostReason::Capped) => Some(reason),
            // The command is ended early, so that it is gone before the cap.
            _ if capped => Some(LostReason::Capped),
            (_, Err(ReleaseError::Lost(reason))) => Some(reason.clone()),
            _ => None,
        };
        let text = |why: &str| anyhow!("lost {shown}, so the command was ended: {why}");
        return Err(match why {
            Some(reason) => Failure::lost(reason.clone(), text(&reason.to_string())),
            None => Failure::new(Exit::LOST, text("it could not be renewed in time")),
        });
    }
    match released {
        Ok(()) => tracing::info!(locks = %shown, "given back"),
        Err(ReleaseError::Lost(reason)) if too_early(&reason, known.is_none() && until <= client.now()) => {
            let cause = anyhow!(
                "lost {shown} while the command ran, which was detected only after it had ended: {reason}; another \
                 client may have held it at the same time"
            );
            return Err(Failure::lost(reason, cause));
        }
        // The command had already ended.
        Err(ReleaseError::Lost(_)) => {
            tracing::info!(locks = %shown, "its lease ended during its release");
        }
        Err(error) => log::warning(&format!("failed to release {shown}: {error}")),
    }
    Ok(ended.exit)
}

/// Whether a lock was lost while the command ran, if its release reports the loss. `late`: the command ended in time,
/// and the lease or the session has ended since.
fn too_early(reason: &LostReason, late: bool) -> bool {
    use LostReason::{Evicted, Expired, SessionLapsed, TakenOver};
    !(late && matches!(reason, Expired | TakenOver { .. } | Evicted | SessionLapsed))
}

fn unavailable(error: anyhow::Error) -> Failure {
    Failure::unavailable(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_ends_after_the_command_is_no_loss() {
        assert!(!too_early(&LostReason::Expired, true));
        assert!(!too_early(&LostReason::TakenOver { by: None }, true));
        assert!(too_early(&LostReason::Removed, true));
        assert!(too_early(&LostReason::TakenOver { by: None }, false));
    }
}
