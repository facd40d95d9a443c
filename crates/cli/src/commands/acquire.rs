//! `leasehold acquire`: leaves a lock held, for scripts that cannot wrap a command.
//!
//! The token file exists before the lock is requested, and contains the token before the program reports success. If the
//! token or the report cannot be written, the lock is released.

use crate::duration;
use crate::job::signals::Signals;
use crate::lock::acquire_options::AcquireOptions;
use crate::lock::lease;
use crate::lock::other_kind;
use crate::lock::token_file::TokenFile;
use crate::lock::wait_limit::{WaitLimit, WaitLimitArgs};
use crate::lock::waiting;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::report::{ErrorReport, json_line, millis, print, print_or_warn};
use crate::output::timestamp::rfc3339;
use crate::store::CALL_TIMEOUT;
use crate::store::args::StoreArgs;
use crate::store::client::{ClientConfig, flush, flush_within};
use anyhow::anyhow;
use clap::Args;
use leasehold::core::Kind;
use leasehold::error::ReleaseError;
use leasehold::{Client, Deadlock, DetachedHold, Mutex};
use rustix::process::Signal;
use serde::Serialize;
use std::path::PathBuf;
use std::slice;
use std::time::Duration;

/// Acquire a lock and leave it held, for scripts that cannot wrap a command.
///
/// The lock is not renewed, and no process watches it: it ends with `leasehold release` or with its lease, whatever
/// happens to the script. If a command can be wrapped, use `leasehold run`. The lock is a plain one, not a reentrant
/// one. Prints the fencing token, unless --json is given: a number that grows with every hold of the lock.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct AcquireArgs {
    /// Name of the lock: up to 512 bytes without control characters
    name: String,

    /// Lease: how long the lock is held, unless it is extended or released
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Duration,

    /// File for the token: created with mode 0600, or an existing empty file of yours with that mode
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,

    #[command(flatten)]
    wait: WaitLimitArgs,

    /// Exit status if the lock was not acquired
    #[arg(long, value_name = "N", default_value_t = Exit::CONFLICT.status())]
    conflict_exit_code: u8,

    /// Label of the holder, shown to other users [default: this host and process]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

impl AcquireArgs {
    /// How to acquire the lock, with what is left of the time to wait.
    fn options(&self, wait: WaitLimit) -> AcquireOptions {
        AcquireOptions {
            wait,
            max_hold: None,
            lock_delay: None,
            low_priority_for: None,
            deadlock: Deadlock::default(),
            adopt: None,
            conflict: Exit::new(self.conflict_exit_code),
        }
    }
}

/// Acquires a lock, leaves its token in a file, and prints the fencing token.
pub(crate) async fn acquire(args: &AcquireArgs) -> Result<Exit, Failure> {
    let result = try_to_acquire(args).await;
    let report = report_text(args, &result);
    match result {
        Ok(acquired) => match print(&report) {
            Ok(()) => Ok(Exit::SUCCESS),
            Err(failure) => Err(acquired.give_back(failure).await),
        },
        Err(failure) => {
            print_or_warn(&report);
            Err(failure)
        }
    }
}

/// What the program prints; empty if it prints nothing.
fn report_text(args: &AcquireArgs, result: &Result<Acquired, Failure>) -> String {
    let hold = result.as_ref().ok().map(|acquired| &acquired.hold);
    if !args.json {
        return hold.map(|hold| format!("{}\n", hold.fencing_token())).unwrap_or_default();
    }
    json_line(&Report {
        name: &args.name,
        acquired: hold.is_some(),
        fence: hold.map(|hold| hold.fencing_token().as_u64()),
        lease_ms: hold.map(|hold| millis(hold.lease())),
        until: hold.map(|hold| rfc3339(hold.expires_at())),
        token_file: args.token_file.to_string_lossy().into_owned(),
        error: ErrorReport::from_result(result),
    })
}

/// A lock that is held, and whose token is in its file.
struct Acquired {
    hold: DetachedHold,
    token_file: TokenFile,
    client: Client,
}

impl Acquired {
    /// Releases the lock, whose report could not be printed: the caller takes the failure for "not held". The token
    /// stays in its file if the hold may not be over.
    async fn give_back(self, failure: Failure) -> Failure {
        let Self { hold, token_file, client } = self;
        let name = hold.name();
        let released = hold.release(&client).await;
        flush(&client, name).await;
        match released {
            Ok(()) | Err(ReleaseError::Lost(_)) => token_file.discard(),
            Err(error) => log::warning(&format!(
                "failed to release `{name}`: {error}; release it by its token file, or it ends with its lease"
            )),
        }
        failure.failed_to("acquire", name)
    }
}

/// The report for programs. Its fields are stable.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    acquired: bool,
    fence: Option<u64>,
    lease_ms: Option<u64>,
    until: Option<String>,
    token_file: String,
    error: Option<ErrorReport>,
}

async fn try_to_acquire(args: &AcquireArgs) -> Result<Acquired, Failure> {
    let name = super::lock_name(&args.name)?;
    lease::check(args.lease).map_err(Failure::usage)?;
    // This may read a password from a terminal; Ctrl-C interrupts that only while signals are not caught.
    let config = ClientConfig::from_args(&args.store)?.label(args.label.as_deref()).without_session();
    let mut findings = config.finding_reporter();
    let mut signals = Signals::catch()?;
    let mut token_file = TokenFile::prepare(&args.token_file)?;
    let connecting = config.connect_within(args.wait.limit());
    let (client, wait) = signals.interruptible(connecting).await.map_err(interrupted)??;
    findings.report(&client).await;
    let mutex = client.mutex(name.clone()).map_err(|error| Failure::usage(error).failed_to("use", &name))?;
    let mutex = mutex.lease(args.lease);
    let acquired = match signals.interruptible(acquire_detached(&client, mutex, &args.options(wait))).await {
        Ok(Ok(hold)) => write_token(hold, &mut token_file, &client).await,
        Ok(Err(failure)) => {
            Err(other_kind::explain(failure, &client, slice::from_ref(&name), Kind::Mutex).await)
        }
        Err(signal) => Err(interrupted(signal)),
    };
    findings.report(&client).await;
    let within = if acquired.is_ok() { CALL_TIMEOUT } else { wait.undo_timeout() };
    flush_within(&client, &name, within).await;
    let hold = acquired.map_err(|failure| failure.failed_to("acquire", &name))?;
    Ok(Acquired { hold, token_file, client })
}

async fn acquire_detached(
    client: &Client,
    mutex: Mutex,
    options: &AcquireOptions,
) -> Result<DetachedHold, Failure> {
    let names = [mutex.name().clone()];
    match options.wait {
        WaitLimit::Try => options.granted(mutex.try_acquire_detached().await),
        WaitLimit::AtMost(limit) => {
            let mutex = mutex.max_wait(limit);
            options.acquired(waiting::shown(client, &names, mutex.acquire_detached()).await)
        }
        WaitLimit::Forever => {
            options.acquired(waiting::shown(client, &names, mutex.acquire_detached()).await)
        }
    }
}

/// Writes the token of a hold, or releases the hold.
async fn write_token(
    hold: DetachedHold,
    token_file: &mut TokenFile,
    client: &Client,
) -> Result<DetachedHold, Failure> {
    let Err(failure) = token_file.write(&hold) else {
        tracing::info!(lock = %hold.name(), fence = %hold.fencing_token(), "acquired");
        return Ok(hold);
    };
    if let Err(error) = hold.release(client).await {
        log::warning(&format!("failed to release `{}`: {error}", hold.name()));
    }
    Err(failure)
}

fn interrupted(signal: Signal) -> Failure {
    Failure::new(Exit::from_signal(signal), anyhow!("interrupted by a signal before the lock was acquired"))
}

const AFTER_HELP: &str = "\
The token file:
  A process that can read it can end the hold. It is created with mode 0600
  before the lock is requested. An existing file is never used, except an empty
  one of yours with mode 0600 (from mktemp). The file is on the disk when this
  command ends with 0. If the lock is not acquired, a file that this command
  created is removed. If leasehold is killed (SIGKILL, a crash of the machine)
  after the lock was granted and before the file was written, no process has the
  token: the lock ends with its lease.

JSON (--json), one line, also if it fails; later versions may add fields:
  name, acquired (true or false), fence, lease_ms, until (when the lease ends at
  the latest, by the clock of this machine), token_file; error: null, or an
  object with kind (taken, lost, unavailable, usage, other_kind, interrupted),
  reason (of a loss, or null), message

Exit status:
    0  the lock is held, and the token is in its file
    2  the arguments, the name, the file or another setting cannot be used
   65  the name is in use for another kind of lock
   69  the store cannot be reached, or refuses the request; or standard output
       cannot be written, and the lock was released
   70  the lock was lost before its lease began
   75  the lock was not acquired (see --conflict-exit-code)

Examples:
  leasehold acquire deploy --lease 10m --wait 30s --token-file ~/.deploy.lock
  trap 'leasehold release --token-file ~/.deploy.lock' EXIT";
