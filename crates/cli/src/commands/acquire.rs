//! `leasehold acquire`: leaves a lock held, for scripts that cannot wrap a command.
//!
//! The token file exists before the lock is requested, and contains the token before the program reports success. If it
//! cannot be written, the lock is released.

use crate::args::AcquireArgs;
use crate::job::signals::Signals;
use crate::lock::acquire_options::AcquireOptions;
use crate::lock::lease;
use crate::lock::token_file::TokenFile;
use crate::lock::wait_limit::WaitLimit;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::report::{ErrorReport, json_line, millis, print_or_warn};
use crate::output::timestamp::rfc3339;
use crate::store::client::{ClientConfig, flush};
use anyhow::anyhow;
use leasehold::{Client, DetachedHold, Mutex};
use rustix::process::Signal;
use serde::Serialize;

impl AcquireArgs {
    fn options(&self) -> AcquireOptions {
        AcquireOptions {
            wait: self.wait.limit(),
            max_hold: None,
            conflict: Exit::new(self.conflict_exit_code),
        }
    }
}

/// Acquires a lock, and leaves its token in a file.
pub(crate) async fn acquire(args: &AcquireArgs) -> Result<Exit, Failure> {
    let result = try_to_acquire(args).await;
    let hold = result.as_ref().ok();
    if args.json {
        print_or_warn(&json_line(&Report {
            name: &args.name,
            acquired: hold.is_some(),
            fence: hold.map(|hold| hold.fencing_token().as_u64()),
            lease_ms: hold.map(|hold| millis(hold.lease())),
            until: hold.map(|hold| rfc3339(hold.ends_by())),
            token_file: args.token_file.to_string_lossy().into_owned(),
            error: ErrorReport::from_result(&result),
        }));
    } else if let Some(hold) = hold {
        print_or_warn(&format!("{}\n", hold.fencing_token()));
    }
    result.map(|_| Exit::SUCCESS)
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

async fn try_to_acquire(args: &AcquireArgs) -> Result<DetachedHold, Failure> {
    let name = crate::lock_name(&args.name)?;
    lease::check(args.lease).map_err(Failure::usage)?;
    // This may read a password from a terminal; Ctrl-C interrupts that only while signals are not caught.
    let config = ClientConfig::from_args(&args.store)?.label(args.label.as_deref()).without_session();
    let mut signals = Signals::catch()?;
    let mut token_file = TokenFile::prepare(&args.token_file)?;
    let client = signals.interruptible(config.connect()).await.map_err(interrupted)??;
    let mutex = client.mutex(name.clone()).map_err(|error| Failure::usage(error).failed_to("use", &name))?;
    let mutex = mutex.lease(args.lease);
    let acquired = match signals.interruptible(acquire_detached(mutex, &args.options())).await {
        Ok(Ok(hold)) => write_token(hold, &mut token_file, &client).await,
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Err(interrupted(signal)),
    };
    flush(&client, &name).await;
    acquired.map_err(|failure| failure.failed_to("acquire", &name))
}

async fn acquire_detached(mutex: Mutex, options: &AcquireOptions) -> Result<DetachedHold, Failure> {
    match options.wait {
        WaitLimit::Try => options.granted(mutex.try_acquire_detached().await),
        WaitLimit::AtMost(limit) => options.acquired(mutex.wait(limit).acquire_detached().await),
        WaitLimit::Forever => options.acquired(mutex.acquire_detached().await),
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
