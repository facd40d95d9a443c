//! `leasehold run`: acquires the lock, runs the command under it, and releases the lock.
//!
//! However the program ends, it releases the lock explicitly and shuts the client down, in a bounded time, so that no
//! queue entry is left either.

use crate::duration;
use crate::job;
use crate::job::signals::Signals;
use crate::job::times::{DEFAULT_LEASE, JobTimes};
use crate::lock::acquire_options::AcquireOptions;
use crate::lock::guard::AnyGuard;
use crate::lock::lease::GivenLease;
use crate::lock::once_per::OncePerArgs;
use crate::lock::owner::OwnerArgs;
use crate::lock::request::LockRequest;
use crate::lock::shared::SharedArgs;
use crate::lock::wait_limit::{WaitLimit, WaitLimitArgs};
use crate::lock::waiting;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::printable::quoted;
use crate::output::report::{ErrorReport, json_line};
use crate::store::CALL_TIMEOUT;
use crate::store::args::StoreArgs;
use crate::store::client::{ClientConfig, shut_down};
use anyhow::anyhow;
use clap::{Arg, Args};
use leasehold::{Client, Deadlock};
use serde::Serialize;
use std::ffi::OsString;
use std::time::Duration;

/// Run a command while holding a lock
//
// Two screens of help: the details are in docs/reference/program.md and docs/how-to/run-commands.md. So the arguments
// that other commands share lose their long descriptions here.
#[derive(Args)]
#[command(after_help = AFTER_HELP, mut_args(short_help))]
pub(crate) struct RunArgs {
    /// Name of the lock; several locks are acquired together, all or none
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,

    #[command(flatten)]
    owner: OwnerArgs,

    #[command(flatten)]
    shared: SharedArgs,

    #[command(flatten)]
    wait: WaitLimitArgs,

    /// Exit status if not acquired [75; --once-per: 0]
    #[arg(long, value_name = "N", help_heading = WAITING)]
    conflict_exit_code: Option<u8>,

    /// How long the lock may outlive this process: it is renewed every third of that [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = TIME_LIMITS)]
    lease: Option<Duration>,

    /// Time without a heartbeat after which this process counts as dead [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = TIME_LIMITS)]
    session: Option<Duration>,

    /// After a crash, only the lease ends the lock
    #[arg(long, conflicts_with = "session", help_heading = TIME_LIMITS)]
    no_session: bool,

    /// Time from SIGTERM to SIGKILL for the command when the lock is lost [default: 5s or less]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = TIME_LIMITS)]
    kill_grace: Option<Duration>,

    /// Maximum time: ends the command before it is over
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = TIME_LIMITS)]
    max_hold: Option<Duration>,

    /// Keep the lock taken that long after a loss
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = TIME_LIMITS)]
    #[arg(conflicts_with_all = ["key", "once_per"])]
    lock_delay: Option<Duration>,

    /// Let other waiters go first for that long
    #[arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = WAITING)]
    #[arg(conflicts_with_all = ["key", "once_per", "try_once"])]
    low_priority: Option<Duration>,

    /// Fail rather than wait in a cycle of waits
    #[arg(long, help_heading = WAITING, conflicts_with_all = ["once_per", "try_once"])]
    refuse_deadlock: bool,

    /// Expiry for a key of others that has none
    #[arg(long, value_name = "TIME", value_parser = duration::parse_positive, help_heading = WAITING)]
    #[arg(conflicts_with_all = ["shared", "exclusive", "permits", "once_per"])]
    adopt: Option<Duration>,

    #[command(flatten)]
    once_per: OncePerArgs,

    #[command(flatten)]
    store: StoreArgs,

    /// Text shown in place of the command; '' for none
    #[arg(long, value_name = "TEXT", help_heading = OUTPUT)]
    label: Option<String>,

    /// Print a line of JSON at the end, on standard error
    #[arg(long, help_heading = OUTPUT)]
    json: bool,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

const WAITING: &str = "Waiting";
const TIME_LIMITS: &str = "Time limits";
const OUTPUT: &str = "Output";

/// An argument without its long description, and under a heading of `run`.
fn short_help(arg: Arg) -> Arg {
    let heading = match arg.get_id().as_str() {
        "wait" | "try_once" => Some(WAITING),
        "verbose" | "quiet" | "log_format" => Some(OUTPUT),
        _ => None,
    };
    let arg = match arg.get_id().as_str() {
        "quiet" => arg.help("Print only failures, not that the lock is held"),
        "log_format" => arg.help("Messages as text or json").hide_possible_values(true),
        _ => arg,
    };
    let arg = arg.long_help(None::<&str>);
    match heading {
        Some(heading) => arg.help_heading(heading),
        None => arg,
    }
}

impl RunArgs {
    /// The exit status if the lock was not acquired.
    fn conflict(&self) -> Exit {
        self.conflict_exit_code.map_or(Exit::CONFLICT, Exit::new)
    }

    /// Whether a lock that another client holds is no failure: another instance has started the period.
    fn ignores_conflict(&self) -> bool {
        self.once_per.once_per.is_some() && self.conflict_exit_code.is_none()
    }

    /// How to acquire the lock, with what is left of the time to wait.
    fn acquire_options(&self, wait: WaitLimit) -> AcquireOptions {
        AcquireOptions {
            wait,
            max_hold: self.max_hold,
            lock_delay: self.lock_delay,
            low_priority_for: self.low_priority,
            deadlock: if self.refuse_deadlock { Deadlock::Refuse } else { Deadlock::default() },
            adopt: self.adopt,
            conflict: self.conflict(),
        }
    }

    fn lease(&self) -> GivenLease {
        let lease = GivenLease::new("--lease", self.lease.unwrap_or(DEFAULT_LEASE));
        let given = self.once_per.lease().unwrap_or(lease);
        match self.max_hold {
            // A hold never outlives this process by more than its cap.
            Some(cap) if cap < given.lease => GivenLease::new("--max-hold", cap),
            _ => given,
        }
    }
}

/// Runs the command under the lock.
pub(crate) async fn run(args: &RunArgs) -> Result<Exit, Failure> {
    let mut progress = Progress::default();
    let result = try_to_run(args, &mut progress).await;
    if !args.json {
        return result;
    }
    let status = match &result {
        Ok(exit) => *exit,
        // Before the report, which is the last line.
        Err(failure) => log::failure(failure),
    };
    let name = args.names.first().map(String::as_str).unwrap_or_default();
    // Standard output belongs to the command.
    log::line(&json_line(&Report {
        name,
        acquired: !progress.locks.is_empty(),
        fence: progress.locks.iter().find(|lock| lock.name == name).map(|lock| lock.fence),
        count: progress.count,
        locks: &progress.locks,
        mode: progress.mode,
        permits: progress.permits,
        command_status: progress.command.map(Exit::status),
        status: status.status(),
        error: ErrorReport::from_result(&result),
    }));
    Ok(status)
}

/// The progress, for the report.
#[derive(Debug, Default)]
struct Progress {
    /// What was acquired, in the order of the names.
    locks: Vec<AcquiredLock>,
    /// The number of holds of the owner at that time.
    count: Option<u64>,
    /// The mode of a shared lock.
    mode: Option<&'static str>,
    permits: Option<u32>,
    /// The exit status of the command, if it ran.
    command: Option<Exit>,
}

impl Progress {
    fn set_acquired(&mut self, guard: &AnyGuard) {
        let tokens = guard.tokens().into_iter();
        self.locks = tokens
            .map(|(name, fence)| AcquiredLock { name: name.to_string(), fence: fence.as_u64() })
            .collect();
        self.count = Some(guard.count());
        self.mode = guard.mode();
        self.permits = guard.permits();
    }
}

/// A lock that was acquired. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct AcquiredLock {
    name: String,
    fence: u64,
}

/// The report for programs, printed at the end. Its fields are stable.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    acquired: bool,
    fence: Option<u64>,
    count: Option<u64>,
    locks: &'a [AcquiredLock],
    #[serde(rename = "portion")]
    mode: Option<&'static str>,
    permits: Option<u32>,
    command_status: Option<u8>,
    status: u8,
    error: Option<ErrorReport>,
}

async fn try_to_run(args: &RunArgs, progress: &mut Progress) -> Result<Exit, Failure> {
    let names = args.names.iter().map(|name| super::lock_name(name)).collect::<Result<Vec<_>, _>>()?;
    let request = LockRequest::from_args(names, &args.owner, &args.shared, &args.once_per)?;
    let for_one_lock =
        [("--lock-delay", args.lock_delay), ("--low-priority", args.low_priority), ("--adopt", args.adopt)];
    let given = for_one_lock.into_iter().find_map(|(option, value)| value.map(|_| option));
    if let Some(option) = given
        && request.names().len() > 1
    {
        return Err(Failure::usage(anyhow!(
            "{option} takes one lock, and {} are named",
            request.names().len()
        )));
    }
    // This may read a password from a terminal; Ctrl-C interrupts that only while signals are not caught.
    let config = ClientConfig::from_args(&args.store)?;
    config.check_session(args.session)?;
    let can_use_session = !args.no_session && args.lock_delay.is_none() && request.can_use_session();
    let ends_with_session = can_use_session && config.has_heartbeats();
    let times = JobTimes::new(args.lease(), ends_with_session, args.session, args.kill_grace)?;
    let label = args.label.as_deref();
    let config = config.watchdog_lease(times.lease).label(label.filter(|label| !label.is_empty()));
    let config = config.command(args.command.first(), label);
    let config = if args.no_session || matches!(request, LockRequest::OncePer { .. }) {
        config.without_session()
    } else {
        config.session(times.session.or(args.session))
    };
    let mut findings = config.finding_reporter();
    let mut signals = Signals::catch()?;
    let (client, wait) = match signals.interruptible(config.connect_within(args.wait.limit())).await {
        Ok(connected) => connected?,
        Err(signal) => return Ok(Exit::from_signal(signal)),
    };
    findings.report(&client).await;
    let outcome = run_under_lock(&client, &request, &times, (args, wait), &mut signals, progress).await;
    findings.report(&client).await;
    let was_acquired = !progress.locks.is_empty();
    shut_down(&client, if was_acquired { CALL_TIMEOUT } else { wait.undo_timeout() }).await;
    outcome
}

async fn run_under_lock(
    client: &Client,
    request: &LockRequest,
    times: &JobTimes,
    (args, wait): (&RunArgs, WaitLimit),
    signals: &mut Signals,
    progress: &mut Progress,
) -> Result<Exit, Failure> {
    let options = args.acquire_options(wait);
    let guard = match signals.interruptible(acquire_shown(client, request, &options)).await {
        Ok(Ok(guard)) => guard,
        // One of all instances runs the command, so the others have done their part.
        Ok(Err(failure)) if failure.is_taken() && args.ignores_conflict() => {
            tracing::info!(reason = %failure.message(), "already started in this period");
            return Ok(Exit::SUCCESS);
        }
        Ok(Err(failure)) => return Err(failure.failed_to_all("acquire", &quoted(request.names()))),
        Err(signal) => return Ok(Exit::from_signal(signal)),
    };
    progress.set_acquired(&guard);
    tracing::info!(locks = %guard.quoted_names(), "acquired");
    let ended = job::run(client, &guard, times, &args.command, signals).await;
    progress.command = ended.as_ref().ok().map(|ended| ended.exit);
    job::release::release(client, guard, args.lock_delay, ended).await
}

/// Acquires the lock, and shows a user at a terminal what it waits for.
async fn acquire_shown(
    client: &Client,
    request: &LockRequest,
    options: &AcquireOptions,
) -> Result<AnyGuard, Failure> {
    let acquire = request.acquire(client, options);
    match (options.wait, request) {
        (WaitLimit::Try, _) | (_, LockRequest::OncePer { .. }) => acquire.await,
        _ => waiting::shown(client, request.names(), acquire).await,
    }
}

pub(super) const AFTER_HELP: &str = "\
Exit status:
  that of the command; 128 + n if signal n ended it
    2  the arguments, the name, the URL or another setting cannot be used
   65  the name is in use for another kind of lock
   69  the store cannot be reached, or refuses the request
   70  the lock was lost before the command had ended, which was then ended
   75  the lock was not acquired (see --conflict-exit-code)
  126  the command cannot be executed
  127  there is no such command

Examples:
  leasehold run nightly -- ./backup.sh
  leasehold run nightly --wait 10s --store redis://db.example.org -- ./backup.sh
  leasehold run uploads --permits 3 -- ./upload.sh
  leasehold run digest --once-per 55m --at-most 2h -- ./send-digest

Signals, the environment of the command, the loss of a lock, reentrant and
shared locks: https://github.com/leasehold/leasehold, docs/reference/program.md";
