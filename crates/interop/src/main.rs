//! Tests the locks of other libraries against Leasehold's.
//!
//! `cargo xtask interop` installs the libraries, builds their drivers (`drivers/` at the repository's root) and runs this
//! program. It owns the cases and what each proves: that their hold excludes our clients, and our hold theirs. It
//! installs and builds nothing. In these sources "theirs" are clients of the other library, "ours" are Leasehold's.

mod case;
mod contention;
mod driver;
mod ground;
mod key;
mod neighbour;
mod planted;
mod report;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use crate::case::Case;
use crate::contention::{Crowd, Work};
use crate::neighbour::{Format, Neighbour};
use crate::report::Report;

#[derive(Parser)]
#[command(name = "leasehold-interop", about = "Tests the locks of other libraries against Leasehold's")]
struct Args {
    /// The directory with the drivers, each in a directory with the name of its library.
    #[arg(long, value_name = "DIR", default_value = "target/drivers")]
    drivers: PathBuf,
    /// A case to run; without this, all of them, and with several libraries one more with all at once.
    #[arg(long, value_enum)]
    case: Vec<Case>,
    #[command(flatten)]
    work: Work,
    /// A fault to plant into what Leasehold's clients send, for a case to find.
    #[arg(long, value_enum, value_name = "FAULT")]
    ours: Option<planted::Fault>,
    /// The libraries; or `plant:FAULT` for a built-in driver with a fault that locks as a Mutex does, or
    /// `rlock:FAULT` for one that locks as Redisson does.
    #[arg(required = true)]
    neighbours: Vec<String>,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let neighbours: Result<Vec<_>> =
        args.neighbours.iter().map(|name| Neighbour::named(name, &args.drivers, args.ours)).collect();
    let report = try_all(&neighbours?, &args.case, args.work).await;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn try_all(neighbours: &[Neighbour], only: &[Case], work: Work) -> Report {
    let mut report = Report::default();
    for neighbour in neighbours {
        let chosen = |case: &&Case| only.is_empty() || only.contains(case);
        for case in Case::value_variants().iter().filter(chosen).filter(|case| case.suits(neighbour.format)) {
            report.add(&neighbour.name, case.title(), case.run(neighbour, work).await);
        }
    }
    let theirs: Vec<_> = neighbours.iter().filter(|neighbour| neighbour.format == Format::String).collect();
    if theirs.len() > 1 && (only.is_empty() || only.contains(&Case::Contention)) {
        let crowd = Crowd { theirs, ours: 2, work };
        report.add("all at once", Case::Contention.title(), crowd.count());
    }
    report
}
