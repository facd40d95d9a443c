//! `leasehold acquire`, `extend` and `release`: a lock for scripts that cannot wrap a command.
//!
//! 1. The token file exists before the lock is requested, and contains the token before the program reports success. If
//!    it cannot be written, the lock is released.
//! 2. A token is discarded only if its hold is known to be over.

use crate::args::{AcquireArgs, ExtendArgs, ReleaseArgs};
use crate::job::signals::Signals;
use crate::output::error_map::{acquire_failure, extend_failure, release_failure};
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::report::{ErrorReport, json_line, millis, print_or_warn};
use crate::output::timestamp::rfc3339;
use crate::store::args::StoreArgs;
use crate::store::client::{ClientConfig, flush};
use crate::token::TokenFile;
use anyhow::{Context, anyhow};
use leasehold::{Attempt, Client, DetachedHold, Lease, LockName, Mutex};
use serde::Serialize;
use std::time::Duration;

/// Acquires a lock, and leaves its token in a file.
pub(crate) async fn acquire(args: &AcquireArgs) -> Result<Exit, Failure> {
    let done = try_to_acquire(args).await;
    let hold = done.as_ref().ok();
    if args.json {
        print_or_warn(&json_line(&AcquireReport {
            name: &args.name,
            acquired: hold.is_some(),
            fence: hold.map(|hold| hold.fencing_token().as_u64()),
            lease_ms: hold.map(|hold| millis(hold.lease())),
            until: hold.map(|hold| rfc3339(hold.ends_by())),
            token_file: args.token_file.to_string_lossy().into_owned(),
            error: ErrorReport::from_result(&done),
        }));
    } else if let Some(hold) = hold {
        print_or_warn(&format!("{}\n", hold.fencing_token()));
    }
    done.map(|_| Exit::SUCCESS)
}

/// Extends a lock whose token is in a file.
pub(crate) async fn extend(args: &ExtendArgs) -> Result<Exit, Failure> {
    let mut of = None;
    let done = try_to_extend(args, &mut of).await;
    if args.json {
        let hold = done.as_ref().ok();
        print_or_warn(&json_line(&ExtendReport {
            name: of.as_ref().map(|of| of.name.as_str()),
            extended: hold.is_some(),
            fence: of.as_ref().map(|of| of.fence),
            lease_ms: hold.map(|(_, lease)| millis(*lease)),
            until: hold.map(|(hold, _)| rfc3339(hold.ends_by())),
            error: ErrorReport::from_result(&done),
        }));
    }
    done.map(|_| Exit::SUCCESS)
}

/// Releases a lock whose token is in a file, and removes the file.
pub(crate) async fn release(args: &ReleaseArgs) -> Result<Exit, Failure> {
    let mut of = None;
    let done = try_to_release(args, &mut of).await;
    if args.json {
        print_or_warn(&json_line(&ReleaseReport {
            name: of.as_ref().map(|of| of.name.as_str()),
            released: done.is_ok(),
            fence: of.as_ref().map(|of| of.fence),
            error: ErrorReport::from_result(&done),
        }));
    }
    done.map(|()| Exit::SUCCESS)
}

#[derive(Debug, Serialize)]
struct AcquireReport<'a> {
    name: &'a str,
    acquired: bool,
    fence: Option<u64>,
    lease_ms: Option<u64>,
    until: Option<String>,
    token_file: String,
    error: Option<ErrorReport>,
}

#[derive(Debug, Serialize)]
struct ExtendReport<'a> {
    name: Option<&'a str>,
    extended: bool,
    fence: Option<u64>,
    lease_ms: Option<u64>,
    until: Option<String>,
    error: Option<ErrorReport>,
}

#[derive(Debug, Serialize)]
struct ReleaseReport<'a> {
    name: Option<&'a str>,
    released: bool,
    fence: Option<u64>,
    error: Option<ErrorReport>,
}

/// What a token belongs to.
struct Of {
    name: LockName,
    fence: u64,
}

async fn try_to_acquire(args: &AcquireArgs) -> Result<DetachedHold, Failure> {
    let name = crate::lock_name(&args.name)?;
    check(args.lease)?;
    // This may read a password from a terminal; Ctrl-C interrupts that only while signals are not caught.
    let config = ClientConfig::from_args(&args.store)?.label(args.label.as_deref()).without_session();
    let mut signals = Signals::catch().context("failed to catch signals").map_err(Failure::unavailable)?;
    let mut token = TokenFile::prepare(&args.token_file)?;
    let client = tokio::select! {
        biased;
        signal = signals.ending() => return Err(interrupted(signal)),
        client = config.connect() => client?,
    };
    let mutex = client.mutex(name.clone()).map_err(|error| Failure::usage(error).failed_to("use", &name))?;
    let mutex = mutex.lease(args.lease);
    let acquired = tokio::select! {
        biased;
        signal = signals.ending() => Err(interrupted(signal)),
        hold = seek(&mutex, args) => hold,
    };
    let kept = match acquired {
        Ok(hold) => keep(hold, &mut token, &client).await,
        Err(failure) => Err(failure),
    };
    flush(&client, &name).await;
    kept.map_err(|failure| failure.failed_to("acquire", &name))
}

async fn seek(mutex: &Mutex, args: &AcquireArgs) -> Result<DetachedHold, Failure> {
    let conflict = Exit::new(args.conflict_exit_code);
    if args.once || args.wait == Some(Duration::ZERO) {
        return match mutex.try_acquire_detached().await {
            Ok(Attempt::Granted(hold)) => Ok(hold),
            Ok(Attempt::Taken(who)) => Err(Failure::taken(conflict, anyhow!("{who}"))),
            Err(error) => Err(acquire_failure(error, conflict)),
        };
    }
    let mutex = args.wait.map_or_else(|| mutex.clone(), |limit| mutex.clone().wait(limit));
    mutex.acquire_detached().await.map_err(|error| acquire_failure(error, conflict))
}

/// Writes the token of a hold, or releases the hold (1).
async fn keep(hold: DetachedHold, token: &mut TokenFile, client: &Client) -> Result<DetachedHold, Failure> {
    let Err(failure) = token.write(&hold) else {
        tracing::info!(lock = %hold.name(), fence = %hold.fencing_token(), "acquired");
        return Ok(hold);
    };
    if let Err(error) = hold.release(client).await {
        log::warning(&format!("failed to release `{}`: {error}", hold.name()));
    }
    Err(failure)
}

async fn try_to_extend(args: &ExtendArgs, of: &mut Option<Of>) -> Result<(DetachedHold, Duration), Failure> {
    let name = args.name.as_deref().map(crate::lock_name).transpose()?;
    if let Some(lease) = args.lease {
        check(lease)?;
    }
    let (token, mut hold) = TokenFile::open(&args.token_file).await?;
    *of = Some(told(&hold, name.as_ref())?);
    let client = connect(&args.store).await?;
    let lease = args.lease.unwrap_or(hold.lease());
    let extended = hold.extend(&client, lease).await;
    flush(&client, hold.name()).await;
    if let Err(error) = extended {
        return Err(extend_failure(error).failed_to("extend", hold.name()));
    }
    if let Err(failure) = token.rewrite(&hold) {
        // The end time in the file is only a hint, and the lock is held.
        log::warning(&failure.message());
    }
    Ok((hold, lease))
}

async fn try_to_release(args: &ReleaseArgs, of: &mut Option<Of>) -> Result<(), Failure> {
    let name = args.name.as_deref().map(crate::lock_name).transpose()?;
    let (token, hold) = TokenFile::open(&args.token_file).await?;
    *of = Some(told(&hold, name.as_ref())?);
    let client = connect(&args.store).await?;
    let released = hold.release(&client).await.map_err(release_failure);
    flush(&client, hold.name()).await;
    // Another store does not know the lock either: this token may then be the only one that ends the hold (2).
    let over = match &released {
        Ok(()) => true,
        Err(failure) => failure.exit == Exit::LOST && failure.reason() != Some("store_lost_data"),
    };
    if over && let Err(error) = token.remove() {
        let file = args.token_file.display();
        log::warning(&format!(
            "failed to remove the token file `{file}`, which is no longer needed: {error}"
        ));
    }
    released.map_err(|failure| failure.failed_to("release", hold.name()))
}

/// What a token belongs to; fails if that is another lock than the named one.
fn told(hold: &DetachedHold, name: Option<&LockName>) -> Result<Of, Failure> {
    match name {
        Some(name) if name != hold.name() => {
            let cause = anyhow!("the token belongs to the lock `{}`, not to `{name}`", hold.name());
            Err(Failure::usage(cause))
        }
        _ => Ok(Of { name: hold.name().clone(), fence: hold.fencing_token().as_u64() }),
    }
}

async fn connect(args: &StoreArgs) -> Result<Client, Failure> {
    ClientConfig::from_args(args)?.without_session().connect().await
}

fn check(lease: Duration) -> Result<(), Failure> {
    let checked = Lease::from(lease).check().context("invalid --lease");
    checked.map(drop).map_err(Failure::usage)
}

fn interrupted(signal: rustix::process::Signal) -> Failure {
    Failure::new(Exit::from_signal(signal), anyhow!("ended by a signal before the lock was acquired"))
}
