//! `leasehold where`: the URL of the store that a command would use. Opens and creates nothing.

use crate::output::error_map::connect_failure;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::LogArgs;
use crate::output::report::print;
use crate::store::args::StoreArgs;
use crate::store::default_file::DefaultFile;
use crate::store::url;
use anyhow::Context;
use clap::Args;
use leasehold::store::{StoreKind, StoreUrl, StoreUrlError};
use std::path;

/// Print the URL of the store that other commands would use, without passwords.
///
/// Two commands exclude each other only if they use the same store. This command takes the options and the environment
/// of the other commands, and prints the URL of the store that these select. It opens no store.
#[derive(Args)]
#[command(about = "Print the URL of the store that other commands would use", after_long_help = AFTER_HELP)]
pub(crate) struct WhereArgs {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Prints the URL.
pub(crate) fn r#where(args: &WhereArgs) -> Result<Exit, Failure> {
    let prefix = args.store.prefix.as_deref();
    let named = url::named(&args.store)?;
    let text = named.map_or_else(|| default_store(prefix), |(_, url)| named_store(url, prefix))?;
    print(&(text + "\n")).map(|()| Exit::SUCCESS)
}

/// The URL of the default store, which has no prefix.
fn default_store(prefix: Option<&str>) -> Result<String, Failure> {
    let file = DefaultFile::of_this_user()?;
    file.warn_of_earlier();
    match prefix {
        Some(_) => Err(connect_failure(StoreUrlError::NoPrefix.into(), true)),
        None => file.url(),
    }
}

/// The URL of the store that the options or the environment name.
fn named_store(url: StoreUrl, prefix: Option<&str>) -> Result<String, Failure> {
    url::check_shared(&url)?;
    let url = match prefix {
        Some(prefix) => url.with_prefix(prefix).map_err(|error| connect_failure(error.into(), false))?,
        None => url,
    };
    let text = url.redacted();
    match text.strip_prefix("sqlite:") {
        // The same text in another working directory would be another store.
        Some(file) if url.kind() == StoreKind::Sqlite => {
            let absolute = path::absolute(file).context("failed to find the working directory");
            Ok(format!("sqlite:{}", absolute.map_err(Failure::usage)?.display()))
        }
        _ => Ok(text),
    }
}

const AFTER_HELP: &str = "\
The store of a command:
  --store, or else LEASEHOLD_STORE, or else a SQLite file of the user:
    root     /var/lib/leasehold/locks.db
    another  .local/state/leasehold/locks.db in the home directory that the
             password database names
  The environment does not change that file, so that a shell, cron, sudo and
  systemd agree. An earlier version used HOME and XDG_STATE_HOME. If this user
  has a file there, every command that uses the default file warns of it, on
  standard error, except with --quiet: locks in one file do not exclude those
  in the other.

Exit status:
    0  the URL was printed
    2  the URL or another setting cannot be used, or there is no default store
       because this user has no home directory

Examples:
  leasehold where
  sudo -u backup leasehold where";
