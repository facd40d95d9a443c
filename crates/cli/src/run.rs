//! `leasehold run`: acquires the lock, runs the command under it, and releases the lock.
//!
//! 1. Every way out releases the lock explicitly and shuts the client down, in a bounded time, so that no queue entry
//!    is left either.
//! 2. The command starts under a whole lease, not under the short first lease of a new hold.

use crate::args::RunArgs;
use crate::child::{self, Child};
use crate::exit::{Exit, Failure};
use crate::held::{self, Held};
use crate::job::{self, Job};
use crate::log;
use crate::look::stands_there;
use crate::owner::Who;
use crate::part::{self, Part, Share};
use crate::report::{Trouble, json_line};
use crate::signals::Signals;
use crate::store::{CALL, Partition};
use anyhow::{Context, anyhow};
use leasehold::store::{Fault, FaultKind};
use leasehold::{
    AcquireError, Attempt, Client, ExtendError, FencingToken, Lease, LockError, LockName, LostReason,
    MultiAttempt, MultiMutex, Mutex, OncePer, ReentrantMutex, ReleaseError,
};
use rustix::process::Signal;
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

pub(crate) const LEASE: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(5);
const SESSION: Duration = Duration::from_secs(10);
/// The default grace is at most the session divided by this. Up to a quarter of the remaining time may have passed
/// since the last heartbeat, and an outage of half a session is still tolerated.
const GRACES: u32 = 6;
/// Shorter leases leave no time to renew and to kill.
const SHORTEST_LEASE: Duration = Duration::from_millis(200);

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
        Err(failure) => failure.report(),
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
        error: done.as_ref().err().map(Trouble::from),
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
    error: Option<Trouble>,
}

async fn try_to_run(args: &RunArgs, course: &mut Course) -> Result<Exit, Failure> {
    let names = args.names.iter().map(|name| crate::lock_name(name)).collect::<Result<Vec<_>, _>>()?;
    let who = Who::of(&args.enter)?;
    who.check(names.len())?;
    let share = Share::of(&args.share, names.len())?;
    // This may read a password from a terminal; Ctrl-C interrupts that only while signals are not caught.
    let place = Partition::of(&args.store)?;
    let is_turn = args.once.once_per.is_some();
    if is_turn && names.len() > 1 {
        let cause = anyhow!("--once-per takes one lock, and {} are named", names.len());
        return Err(Failure::new(Exit::USAGE, cause));
    }
    let lives_by_session = !args.no_session && !is_turn && !matches!(who, Who::Inherited(_));
    let terms = AcquireTerms::of(args, lives_by_session && place.needs_beats())?;
    let place = place.watchdog_lease(terms.lease);
    let place = match (args.no_session || is_turn, terms.session.or(args.session)) {
        (true, _) => place.without_session(),
        (false, Some(session)) => place.session(session),
        (false, None) => place,
    };
    let mut signals = Signals::catch().context("failed to catch signals").map_err(unavailable)?;
    let client = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(Exit::of_named(signal)),
        client = place.connect() => client?,
    };
    let outcome = under_lock(&client, &names, (&who, share), &terms, args, &mut signals, course).await;
    if let Err(left) = client.shutdown(CALL).await {
        log::warning(&left.to_string());
    }
    outcome
}

/// The times of a run, checked against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcquireTerms {
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    /// How long the session lives without a heartbeat, if it can lapse.
    pub(crate) session: Option<Duration>,
}

impl AcquireTerms {
    /// For a run whose hold ends with the session (`by_session`), or with its lease alone.
    fn of(args: &RunArgs, by_session: bool) -> Result<Self, Failure> {
        let lease = match args.once.once_per {
            // The hold of a turn covers the whole period from the start.
            Some(period) => args.once.at_most.unwrap_or(period).max(period),
            None => args.lease.unwrap_or(LEASE),
        };
        // A hold never outlives this process by more than its cap.
        let lease = args.max_hold.map_or(lease, |cap| cap.min(lease));
        Self::with(lease, by_session, args.session, args.kill_grace)
    }

    /// The same from a lease and the optional rest.
    pub(crate) fn with(
        lease: Duration,
        by_session: bool,
        session: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Self, Failure> {
        let session = by_session.then(|| {
            let for_grace = grace.map_or(SESSION, |grace| grace.saturating_mul(GRACES));
            session.unwrap_or(for_grace.min(lease).max(SESSION))
        });
        let most = session.map_or(GRACE, |session| GRACE.min(session / GRACES));
        let grace = grace.unwrap_or(most.min(lease / 3));
        Self { lease, grace, session }.check().map_err(|error| Failure::new(Exit::USAGE, error))
    }

    /// How long the lock can be trusted, at most, without an answer from the store.
    pub(crate) fn bound(self) -> Duration {
        self.session.map_or(self.lease, |session| session.min(self.lease))
    }

    /// How much of that may pass before the command gets SIGTERM.
    pub(crate) fn room(self) -> Duration {
        self.bound().saturating_sub(self.grace)
    }

    fn check(self) -> anyhow::Result<Self> {
        let Self { lease, grace, session } = self;
        if lease < SHORTEST_LEASE {
            return Err(anyhow!(
                "--lease, --max-hold or --once-per {lease:?} is too short: give {SHORTEST_LEASE:?} at least"
            ));
        }
        Lease::from(lease).check().context("invalid --lease")?;
        if grace >= lease {
            return Err(anyhow!(
                "--kill-grace {grace:?} is not shorter than the lease of {lease:?}: the command would have to \
                 end before it starts; shorten --kill-grace or lengthen --lease or --max-hold"
            ));
        }
        if let Some(session) = session.filter(|session| grace > *session / 2) {
            return Err(anyhow!(
                "--kill-grace {grace:?} is more than half of the session of {session:?}, so that a late heartbeat \
                 would end the command: lengthen the session (--session {}s), or use none (--no-session)",
                grace.saturating_mul(GRACES).as_secs() + 1
            ));
        }
        let room = (self.bound() / 20).max(Duration::from_millis(100));
        if self.room() < room {
            return Err(anyhow!(
                "--kill-grace {grace:?} leaves no time to renew a lease of {lease:?}: it must be shorter by \
                 {room:?} at least"
            ));
        }
        Ok(self)
    }
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
        signal = signals.ending() => return Ok(Exit::of_named(signal)),
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
    course.portion = held.part().map(Part::word);
    course.permits = held.part().and_then(Part::permits);
    tracing::info!(locks = %shown, "acquired");
    let ended = match whole_lease(&held, terms).await {
        Ok(()) => command(client, &held, terms, &args.command, signals).await,
        Err(failure) => Err(failure.doing_to("hold", &shown)),
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
    let unusable = |error: LockError| Failure::new(Exit::USAGE, error).doing_to("use", &shown);
    if let (Some(share), [name]) = (share, names) {
        let acquired = part::acquire(client, name, share, who, args).await;
        return acquired.map_err(|failure| failure.doing_to("acquire", &shown));
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
    acquired.map_err(|failure| failure.doing_to("acquire", &shown))
}

async fn turn(once: OncePer, args: &RunArgs) -> Result<Held, Failure> {
    let once = args.once.at_most.into_iter().fold(once, OncePer::at_most);
    match once.try_start().await {
        Ok(Attempt::Granted(turn)) => Ok(Held::PeriodGuard(turn)),
        Ok(Attempt::Taken(who)) => Err(Failure::taken(args.conflict(), anyhow!("{who}"))),
        Err(error) => Err(not_acquired(error, args.conflict())),
    }
}

async fn one(mutex: Mutex, args: &RunArgs) -> Result<Held, Failure> {
    let conflict = args.conflict();
    let mutex = match args.max_hold {
        Some(cap) => mutex.max_hold(cap),
        None => mutex,
    };
    if tries_once(args) {
        return match mutex.try_acquire().await {
            Ok(Attempt::Granted(guard)) => Ok(Held::One(guard)),
            Ok(Attempt::Taken(who)) => Err(Failure::taken(conflict, anyhow!("{who}"))),
            Err(error) => Err(not_acquired(error, conflict)),
        };
    }
    let acquired = match args.wait {
        Some(limit) => mutex.acquire_timeout(limit).await,
        None => mutex.acquire().await,
    };
    acquired.map(Held::One).map_err(|error| not_acquired(error, conflict))
}

async fn entry(lock: ReentrantMutex, args: &RunArgs) -> Result<Held, Failure> {
    let conflict = args.conflict();
    let lock = match args.max_hold {
        Some(cap) => lock.max_hold(cap),
        None => lock,
    };
    if tries_once(args) {
        return match lock.try_acquire().await {
            Ok(Attempt::Granted(guard)) => Ok(Held::Entry(guard)),
            Ok(Attempt::Taken(who)) => Err(Failure::taken(conflict, anyhow!("{who}"))),
            Err(error) => Err(not_acquired(error, conflict)),
        };
    }
    let acquired = match args.wait {
        Some(limit) => lock.acquire_timeout(limit).await,
        None => lock.acquire().await,
    };
    acquired.map(Held::Entry).map_err(|error| not_acquired(error, conflict))
}

async fn several(all: MultiMutex, args: &RunArgs) -> Result<Held, Failure> {
    let conflict = args.conflict();
    let all = match args.max_hold {
        Some(cap) => all.max_hold(cap),
        None => all,
    };
    if tries_once(args) {
        return match all.try_acquire().await {
            Ok(MultiAttempt::Granted(guard)) => Ok(Held::Several(guard)),
            Ok(MultiAttempt::Taken { lock, contention }) => {
                Err(Failure::taken(conflict, anyhow!("`{lock}` is {contention}")))
            }
            Err(error) => Err(not_acquired(error, conflict)),
        };
    }
    let acquired = match args.wait {
        Some(limit) => all.acquire_timeout(limit).await,
        None => all.acquire().await,
    };
    acquired.map(Held::Several).map_err(|error| not_acquired(error, conflict))
}

pub(crate) fn tries_once(args: &RunArgs) -> bool {
    args.try_once || args.wait == Some(Duration::ZERO)
}

pub(crate) fn not_acquired(error: AcquireError, conflict: Exit) -> Failure {
    let exit = match &error {
        AcquireError::TimedOut { .. } | AcquireError::OutOfTries { .. } => {
            return Failure::taken(conflict, error);
        }
        AcquireError::NotKept(why) => match &**why {
            ExtendError::Lost(lost) => return Failure::lost(lost.reason.clone(), error),
            _ => Exit::UNAVAILABLE,
        },
        AcquireError::Lost(lost) => return Failure::lost(lost.reason.clone(), error),
        // Waiting cannot help, whatever the other holders do.
        AcquireError::Lease(_)
        | AcquireError::NoLease
        | AcquireError::LeaseTooShort { .. }
        | AcquireError::Impossible(_) => Exit::USAGE,
        AcquireError::Store(fault) if matches!(fault.kind, FaultKind::Unusable(_)) => Exit::USAGE,
        AcquireError::Store(fault) => match other_kind(fault) {
            Some(advice) => return Failure::new(Exit::UNAVAILABLE, anyhow!("{error}; {advice}")),
            None => Exit::UNAVAILABLE,
        },
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, error)
}

/// Advice for a name that belongs to a lock of another kind.
fn other_kind(fault: &Fault) -> Option<&'static str> {
    match stands_there(fault)? {
        "hash" => Some(
            "if it is a reentrant lock (`leasehold show` says so), use `run --reentrant`; if several clients can \
             share it, use --shared, --exclusive or --permits",
        ),
        "string" => Some(
            "if it is a plain lock (`leasehold show` says so), leave out --reentrant and --owner, and --shared, \
             --exclusive and --permits",
        ),
        _ => None,
    }
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
        _ => Failure::new(Exit::UNAVAILABLE, error),
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

/// How a command that was started has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit status of the command.
    pub(crate) exit: Exit,
    /// Set if it was made to end, because its lock was lost or could not be renewed.
    pub(crate) stopped: bool,
    /// The signal by which a user or another program asked it to end.
    pub(crate) asked: Option<Signal>,
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
        Held::PeriodGuard(turn) if ended.as_ref().is_err_and(|failure| failure.exit.says_never_started()) => {
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
    Failure::new(Exit::UNAVAILABLE, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_is_shorter_than_the_lease_and_leaves_time_to_renew() {
        let check = |lease, grace, wanted: Option<&str>| {
            let (lease, grace) = (Duration::from_millis(lease), Duration::from_millis(grace));
            let terms = AcquireTerms { lease, grace, session: None };
            match (terms.check(), wanted) {
                (Ok(_), None) => {}
                (Err(error), Some(wanted)) => assert!(error.to_string().contains(wanted), "{error}"),
                (result, _) => panic!("{lease:?} {grace:?}: {result:?}"),
            }
        };
        check(30_000, 5_000, None);
        check(30_000, 25_000, None);
        check(30_000, 0, None);
        check(1_000, 900, None);
        check(30_000, 30_000, Some("is not shorter than the lease"));
        check(5_000, 30_000, Some("is not shorter than the lease"));
        check(30_000, 29_000, Some("leaves no time to renew"));
        check(100, 10, Some("give 200ms at least"));
        let lease = Duration::from_secs(30);
        let terms = |grace, session| AcquireTerms { lease, grace, session: Some(session) }.check();
        assert!(terms(GRACE, SESSION).is_ok());
        let error = terms(2 * GRACE, SESSION).expect_err("a late heartbeat would end the command");
        assert!(error.to_string().contains("--session 61s"), "{error}");
    }

    #[test]
    fn a_lease_that_ends_after_the_command_is_no_loss() {
        assert!(!too_early(&LostReason::Expired, true));
        assert!(!too_early(&LostReason::TakenOver { by: None }, true));
        assert!(too_early(&LostReason::Removed, true));
        assert!(too_early(&LostReason::TakenOver { by: None }, false));
    }
}
