//! `leasehold extend`: extends a lock that `acquire` left held.

use crate::args::ExtendArgs;
use crate::lock::lease;
use crate::lock::token_file::TokenFile;
use crate::output::error_map::extend_failure;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::report::{ErrorReport, json_line, millis, print_or_warn};
use crate::output::timestamp::rfc3339;
use crate::store::client::{ClientConfig, flush};
use leasehold::{DetachedHold, LockName};
use serde::Serialize;
use std::time::Duration;

/// Extends a lock whose token is in a file.
pub(crate) async fn extend(args: &ExtendArgs) -> Result<Exit, Failure> {
    let mut progress = Progress::default();
    let result = try_to_extend(args, &mut progress).await;
    if args.json {
        let extended = result.as_ref().ok();
        print_or_warn(&json_line(&Report {
            name: progress.name.as_ref().map(LockName::as_str),
            extended: extended.is_some(),
            fence: progress.fence,
            lease_ms: extended.map(|(_, lease)| millis(*lease)),
            until: extended.map(|(hold, _)| rfc3339(hold.ends_by())),
            error: ErrorReport::from_result(&result),
        }));
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
    let name = args.name.as_deref().map(crate::lock_name).transpose()?;
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
        // The end time in the file is only a hint, and the lock is held.
        log::warning(&failure.message());
    }
    Ok((hold, lease))
}
