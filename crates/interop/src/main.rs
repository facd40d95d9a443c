//! Tests the locks of other libraries against Leasehold's on the same keys.
//!
//! `cargo xtask interop` installs the libraries, builds their drivers (`drivers/` at the repository's root) and runs this
//! program. It owns the cases and what each proves: a hold of the library excludes Leasehold's clients, and the reverse.
//! It installs and builds nothing. Clients that run in processes of their own without a library (`builtin`) are this
//! program again, started in another role.

mod builtin;
mod case;
mod contention;
mod driver;
mod fixture;
mod key;
mod library;
mod mutant_proxy;
mod mutants;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use leasehold_testkit::Stopwatch;

use crate::case::Case;
use crate::contention::{Contention, CountOptions};
use crate::library::{Format, Library};
use crate::mutants::Mutant;
use crate::report::Report;

#[derive(Parser)]
#[command(
    name = "leasehold-interop",
    about = "Tests the locks of other libraries against Leasehold's",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    tests: Tests,
}

#[derive(Subcommand)]
enum Role {
    /// Serves as a driver without a library.
    #[command(hide = true)]
    Serve {
        #[command(subcommand)]
        driver: builtin::Driver,
    },
}

#[derive(clap::Args)]
struct Tests {
    /// The directory with the drivers, each in a directory with the name of its library.
    #[arg(long, value_name = "DIR", default_value = "target/drivers")]
    drivers: PathBuf,
    /// A case to run. Without this option all cases run, and with several libraries one more in which all contend.
    #[arg(long, value_enum)]
    case: Vec<Case>,
    #[command(flatten)]
    count: CountOptions,
    /// A defect to plant into what Leasehold's clients send, for a case to find.
    #[arg(long, value_enum, value_name = "MUTANT")]
    mutant: Option<Mutant>,
    /// The libraries. `mutex:FAULT` is a built-in driver with a fault that locks as a Mutex does, `rlock:FAULT` one that
    /// locks as Redisson does.
    #[arg(required = true)]
    libraries: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(Role::Serve { driver }) = args.role {
        builtin::serve(driver)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Tests { drivers, case, count, mutant, libraries } = args.tests;
    let libraries: Result<Vec<_>> =
        libraries.iter().map(|name| Library::named(name, &drivers, mutant)).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(run_cases(&libraries?, &case, count));
    Ok(report.exit_code())
}

async fn run_cases(libraries: &[Library], only: &[Case], count: CountOptions) -> Report {
    let mut report = Report::default();
    for library in libraries {
        let chosen = |case: &&Case| only.is_empty() || only.contains(case);
        for case in
            Case::value_variants().iter().filter(chosen).filter(|case| case.applies_to(library.format))
        {
            report.add(&library.name, case.title(), run_in_time(*case, library, count).await);
        }
    }
    let plain: Vec<_> = libraries.iter().filter(|library| library.format == Format::String).collect();
    if plain.len() > 1 && (only.is_empty() || only.contains(&Case::Contention)) {
        let contention = Contention { libraries: plain, leasehold_clients: 2, count };
        report.add("all at once", Case::Contention.title(), contention.run());
    }
    report
}

/// A delay that can make a case fail. The cases compare times with leases of half a second: on a machine that runs a thread
/// so late a hold is not renewed in time, or a waiter does not acquire soon, although the lock is correct.
const TOO_LATE: Duration = Duration::from_millis(150);

/// How often a case runs on a machine that is too busy for it.
const MAX_RUNS: u32 = 5;

/// Runs a case, and again if it failed while the machine was too busy for it. A lock that is not exclusive fails the case
/// with contention at once: that one depends on no time.
async fn run_in_time(case: Case, library: &Library, count: CountOptions) -> Result<String> {
    for _ in 1..MAX_RUNS {
        let watch = Stopwatch::start();
        let result = case.run(library, count).await;
        let late = watch.longest_delay();
        match result {
            Err(error) if late >= TOO_LATE && case != Case::Contention => {
                eprintln!(
                    "{}: {}: {error:#}; again, since a thread was {late:?} late",
                    library.name,
                    case.title()
                );
            }
            result => return result,
        }
    }
    case.run(library, count).await
}
