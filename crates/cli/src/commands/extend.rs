//! `leasehold extend`: extends a lock that `acquire` left held.

use crate::duration;
use crate::lock::lease;
use crate::lock::token_file::TokenFile;
use crate::output::error_map::extend_failure;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::report::{ErrorReport, json_line, millis, print, print_or_warn};
use crate::output::timestamp::rfc3339;
use crate::store::args::StoreArgs;
use crate::store::client::{ClientConfig, flush};
use clap::Args;
use leasehold::{DetachedHold, LockName};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Extend a lock that `acquire` left held, for at least the lease from now on. A hold never becomes shorter.
///
/// The store must be the one in which the lock was acquired.
#[derive(Args)]
#[command(about = "Extend a lock that `acquire` left held", after_long_help = AFTER_HELP)]
pub(crate) struct ExtendArgs {
    /// Name of the lock, to check that the token belongs to it
    name: Option<String>,

    /// File with the token
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,

    /// New lease, counted from now [default: the lease with which the lock was acquired]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Option<Duration>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Extends a lock whose token is in a file.
pub(crate) async fn extend(args: &ExtendArgs) -> Result<Exit, Failure> {
    let mut progress = Progress::default();
    let result = try_to_extend(args, &mut progress).await;
    if args.json {
        let extended = result.as_ref().ok();
        let report = json_line(&Report {
            name: progress.name.as_ref().map(LockName::as_str),
            extended: extended.is_some(),
            fence: progress.fence,
            lease_ms: extended.map(|(_, lease)| millis(*lease)),
            until: extended.map(|(hold, _)| rfc3339(hold.expires_at())),
            error: ErrorReport::from_result(&result),
        });
        if let Ok((hold, _)) = &result {
            // The caller does not learn for how long: it may count only on the time before.
            print(&report).map_err(|failure| failure.failed_to("report the extension of", hold.name()))?;
        } else {
            print_or_warn(&report);
        }
    }
    result.map(|_| Exit::SUCCESS)
}

/// What the token file contains, once it was read.
#[derive(Debug, Default)]
struct Progress {
    name: Option<LockName>,
    fence: Option<u64>,
}

/// The report for programs. Its fields are stable.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: Option<&'a str>,
    extended: bool,
    fence: Option<u64>,
    lease_ms: Option<u64>,
    until: Option<String>,
    error: Option<ErrorReport>,
}

/// Returns the hold and the lease for which it was extended.
async fn try_to_extend(
    args: &ExtendArgs,
    progress: &mut Progress,
) -> Result<(DetachedHold, Duration), Failure> {
    let name = args.name.as_deref().map(super::lock_name).transpose()?;
    if let Some(lease) = args.lease {
        lease::check(lease).map_err(Failure::usage)?;
    }
    let (token_file, mut hold) = TokenFile::open(&args.token_file, name.as_ref()).await?;
    progress.name = Some(hold.name().clone());
    progress.fence = Some(hold.fencing_token().as_u64());
    let client = ClientConfig::from_args(&args.store)?.without_session().connect().await?;
    let lease = args.lease.unwrap_or(hold.lease());
    let extended = hold.extend(&client, lease).await;
    flush(&client, hold.name()).await;
    if let Err(error) = extended {
        return Err(extend_failure(error).failed_to("extend", hold.name()));
    }
    if let Err(failure) = token_file.rewrite(&hold) {
        // The end time in the file is only approximate, and the lock is held.
        log::warning(&failure.message());
    }
    Ok((hold, lease))
}

const AFTER_HELP: &str = "\
JSON (--json), one line, also if it fails; later versions may add fields:
  name (null if the file cannot be used), extended (true or false), fence,
  lease_ms, until; error as with acquire

Exit status:
    0  the lock is still held, for the lease from now on
    2  the arguments, the name, the file or another setting cannot be used
   69  the store cannot be reached, or refuses: the lock lasts at least as long
       as before
   70  the lock was lost

Example:
  leasehold extend deploy --token-file ~/.deploy.lock || exit 1";
