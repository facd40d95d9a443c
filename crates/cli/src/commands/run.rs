//! `leasehold run`: acquires the lock, runs the command under it, and releases the lock.
//!
//! Every way out releases the lock explicitly and shuts the client down, in a bounded time, so that no queue entry is
//! left either.

use crate::args::RunArgs;
use crate::job;
use crate::job::signals::Signals;
use crate::job::times::{DEFAULT_LEASE, JobTimes};
use crate::lock::acquire_options::AcquireOptions;
use crate::lock::guard::AnyGuard;
use crate::lock::request::LockRequest;
use crate::lock::shared_guard::SharedGuard;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::printable::quoted;
use crate::output::report::{ErrorReport, json_line};
use crate::store::client::{ClientConfig, shut_down};
use leasehold::Client;
use serde::Serialize;
use std::time::Duration;

impl RunArgs {
    /// The exit status if the lock was not acquired.
    fn conflict(&self) -> Exit {
        Exit::new(self.conflict_exit_code.unwrap_or(Exit::CONFLICT))
    }

    /// Whether it is no failure that another instance has started the period.
    fn ignores_conflict(&self) -> bool {
        self.once_per.once_per.is_some() && self.conflict_exit_code.is_none()
    }

    fn acquire_options(&self) -> AcquireOptions {
        AcquireOptions { wait: self.wait.limit(), max_hold: self.max_hold, conflict: self.conflict() }
    }

    fn lease(&self) -> Duration {
        let lease = self.once_per.lease().or(self.lease).unwrap_or(DEFAULT_LEASE);
        // A hold never outlives this process by more than its cap.
        self.max_hold.map_or(lease, |cap| cap.min(lease))
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
        self.mode = guard.shared().map(SharedGuard::mode);
        self.permits = guard.shared().and_then(SharedGuard::permits);
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
    let names = args.names.iter().map(|name| crate::lock_name(name)).collect::<Result<Vec<_>, _>>()?;
    let request = LockRequest::from_args(names, &args.owner, &args.shared, &args.once_per)?;
    // This may read a password from a terminal; Ctrl-C interrupts that only while signals are not caught.
    let config = ClientConfig::from_args(&args.store)?;
    let ends_with_session = !args.no_session && request.can_use_session() && config.has_heartbeats();
    let times = JobTimes::new(args.lease(), ends_with_session, args.session, args.kill_grace)?;
    let config = config.watchdog_lease(times.lease);
    let config = if args.no_session || matches!(request, LockRequest::OncePer { .. }) {
        config.without_session()
    } else {
        config.session(times.session.or(args.session))
    };
    let mut signals = Signals::catch()?;
    let client = match signals.interruptible(config.connect()).await {
        Ok(client) => client?,
        Err(signal) => return Ok(Exit::from_signal(signal)),
    };
    let outcome = run_under_lock(&client, &request, &times, args, &mut signals, progress).await;
    shut_down(&client).await;
    outcome
}

async fn run_under_lock(
    client: &Client,
    request: &LockRequest,
    times: &JobTimes,
    args: &RunArgs,
    signals: &mut Signals,
    progress: &mut Progress,
) -> Result<Exit, Failure> {
    let guard = match signals.interruptible(request.acquire(client, &args.acquire_options())).await {
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
    job::release::release(client, guard, ended).await
}
