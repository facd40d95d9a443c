//! `leasehold release`: releases a lock that `acquire` left held.
//!
//! The token file is removed only if the hold is known to be over.

use crate::lock::token_file::TokenFile;
use crate::output::error_map::release_failure;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::report::{ErrorReport, json_line, print_or_warn};
use crate::store::args::StoreArgs;
use crate::store::client::{ClientConfig, flush};
use clap::Args;
use leasehold::LockName;
use serde::Serialize;
use std::path::PathBuf;

/// Release a lock that `acquire` left held, and remove the file with its token.
///
/// The store must be the one in which the lock was acquired. After status 69 the file still exists: try again.
#[derive(Args)]
#[command(about = "Release a lock that `acquire` left held", after_long_help = AFTER_HELP)]
pub(crate) struct ReleaseArgs {
    /// Name of the lock, to check that the token belongs to it
    name: Option<String>,

    /// File with the token; it is removed once the hold is over
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Releases a lock whose token is in a file, and removes the file.
pub(crate) async fn release(args: &ReleaseArgs) -> Result<Exit, Failure> {
    let mut progress = Progress::default();
    let result = try_to_release(args, &mut progress).await;
    if args.json {
        print_or_warn(&json_line(&Report {
            name: progress.name.as_ref().map(LockName::as_str),
            released: result.is_ok(),
            fence: progress.fence,
            error: ErrorReport::from_result(&result),
        }));
    }
    result.map(|()| Exit::SUCCESS)
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
    released: bool,
    fence: Option<u64>,
    error: Option<ErrorReport>,
}

async fn try_to_release(args: &ReleaseArgs, progress: &mut Progress) -> Result<(), Failure> {
    let name = args.name.as_deref().map(super::lock_name).transpose()?;
    let (token_file, hold) = TokenFile::open(&args.token_file, name.as_ref()).await?;
    progress.name = Some(hold.name().clone());
    progress.fence = Some(hold.fencing_token().as_u64());
    let client = ClientConfig::from_args(&args.store)?.without_session().connect().await?;
    let released = hold.release(&client).await.map_err(release_failure);
    flush(&client, hold.name()).await;
    // Another store does not know the lock either: this token may then be the only one that ends the hold.
    let is_over = match &released {
        Ok(()) => true,
        Err(failure) => failure.exit == Exit::LOST && failure.reason() != Some("store_lost_data"),
    };
    if is_over && let Err(error) = token_file.remove() {
        let file = args.token_file.display();
        log::warning(&format!(
            "failed to remove the token file `{file}`, which is no longer needed: {error}"
        ));
    }
    released.map_err(|failure| failure.failed_to("release", hold.name()))
}

const AFTER_HELP: &str = "\
JSON (--json), one line, also if it fails; later versions may add fields:
  name (null if the file cannot be used), released (true or false), fence; error
  as with acquire

Exit status:
    0  the lock was released
    2  the arguments, the name, the file or another setting cannot be used
   69  the store cannot be reached, or refuses: the lock ends with its lease
   70  the lock was lost before: another client may have held it at the same
       time. The file is removed, unless the store knows nothing of the lock
       although its lease runs: is it the right store?

Example:
  leasehold release deploy --token-file ~/.deploy.lock";
