//! `leasehold verify`: tries a store with faults, and judges the history.

use crate::job::signals::Signals;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::report::print;
use crate::output::screen;
use crate::store::access::Access;
use crate::store::args::StoreArgs;
use crate::verify::coordinator::{Settings, run};
use crate::verify::report::Report;
use crate::verify::space::Space;
use crate::verify::worker;
use anyhow::Context;
use clap::Args;
use leasehold::store::StoreKind;
use leasehold_history::{judge, report_html};
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The shortest run.
const MIN_LENGTH: Duration = Duration::from_secs(3);

/// Try the store, with faults, and judge what its locks did
///
/// Starts processes of its own that use locks of every kind, under a random prefix or in a file beside yours. Kills and stops them, and
/// cuts, delays and loses what they send and receive. Records what they asked, what they were answered and when, and judges that:
/// no two holders at once, fencing tokens that grow, no write lost, waiters in order, nothing left behind. Everything is removed at
/// the end.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct VerifyArgs {
    /// How long to try it: 3s at least
    #[arg(long = "for", value_name = "DURATION", default_value = "60s", value_parser = length)]
    length: Duration,

    /// Calls of acquire in a second [default: what costs the server 5 % of a processor, 100 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: Option<u32>,

    /// The seed of the workload and the faults [default: a random one]
    #[arg(long, value_name = "N")]
    seed: Option<u32>,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    /// Write a page with a time line of each violation
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the history, one JSON object a line
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,

    /// Allow a fault of yours: a shell command that restarts the server, run a few times
    #[arg(long, value_name = "CMD")]
    allow_restart: Option<OsString>,

    /// The same for a command that fails the server over
    #[arg(long, value_name = "CMD")]
    allow_failover: Option<OsString>,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// A worker of `verify`, which starts it
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Runs a worker.
pub(crate) async fn work() -> Result<Exit, Failure> {
    worker::work().await
}

/// Tries the store, and prints the verdict.
pub(crate) async fn verify(args: &VerifyArgs) -> Result<Exit, Failure> {
    let access = Access::from_args(&args.store)?;
    // A file that cannot be written is found before the run.
    let html = args.html.as_deref().map(create).transpose()?;
    let file = args.history.as_deref().map(create).transpose()?;
    let mut signals = Signals::catch()?;
    let space = Space::new(access).await?;
    let command_without_server = args.allow_restart.is_some() || args.allow_failover.is_some();
    if space.kind() == StoreKind::Sqlite && command_without_server {
        return Err(Failure::usage(anyhow::anyhow!(
            "--allow-restart and --allow-failover are for servers, and this store is a file"
        )));
    }
    let settings = Settings {
        length: args.length,
        seed: u64::from(args.seed.unwrap_or_else(rand::random)),
        rate: args.rate,
        restart: args.allow_restart.clone(),
        failover: args.allow_failover.clone(),
    };
    let ended = signals.interruptible(Box::pin(run(&space, &settings))).await;
    // All workers are gone. A further signal does not end the removal, which has a limit.
    let removed = space.remove().await;
    let history = match ended {
        Err(signal) => {
            return match removed {
                Ok(()) => Ok(interrupted(signal)),
                Err(failure) => Err(failure),
            };
        }
        Ok(Ok(history)) => history,
        Ok(Err(failure)) => {
            if let Err(also) = removed {
                log::warning(&also.message());
            }
            return Err(failure);
        }
    };
    if let Some((file, path)) = file.zip(args.history.as_deref()) {
        write(path, |path| history.write(BufWriter::new(file)).with_context(|| failed(path)))?;
    }
    let verdict = judge(&history);
    if let Some((mut file, path)) = html.zip(args.html.as_deref()) {
        let page = report_html(&history, &verdict);
        write(path, |path| file.write_all(page.as_bytes()).with_context(|| failed(path)))?;
    }
    let report = Report::new(&history, &verdict);
    print(&if args.json { report.json() } else { report.text(screen::width(std::io::stdout())) })?;
    removed?;
    Ok(if verdict.passed() { Exit::SUCCESS } else { Exit::VIOLATED })
}

fn interrupted(signal: Signal) -> Exit {
    log::warning("interrupted: nothing was judged, and everything was removed");
    Exit::from_signal(signal)
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).with_context(|| failed(path)).map_err(Failure::unavailable)
}

fn write(path: &Path, write: impl FnOnce(&Path) -> anyhow::Result<()>) -> Result<(), Failure> {
    write(path).map_err(Failure::unavailable)
}

fn failed(path: &Path) -> String {
    format!("failed to write `{}`", path.display())
}

fn length(text: &str) -> Result<Duration, String> {
    let length = crate::duration::parse(text).map_err(|error| error.to_string())?;
    if length < MIN_LENGTH {
        Err("it must be 3s at least: a lease lasts half of that".to_owned())
    } else {
        Ok(length)
    }
}

const AFTER_HELP: &str = "\
JSON (--json), one line; later versions may add fields:
  passed, store, seed, started, calls_per_second, violations, checks, measured

Exit status:
    0  no check found a violation
    2  the URL or another setting cannot be used
   69  the store cannot be reached, or is refused: the message says why
   76  there is a violation: the table, the JSON and the page show it
  128+n  signal n ended it; everything was removed

Examples:
  leasehold verify --store redis://test.example.org --for 10m --html out.html
  leasehold verify --for 60s --allow-restart 'systemctl restart redis'";
