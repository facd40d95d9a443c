//! Tries the locks of other libraries against ours.
//!
//! `cargo xtask interop` installs the libraries, builds their drivers (`interop/` at the repository's root) and runs
//! this. It owns the cases, and what each has to prove: that theirs keeps us out, and that ours keeps them out. It
//! installs and builds nothing.

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
#[command(name = "leasehold-interop", about = "Tries the locks of other libraries against ours")]
struct Args {
    /// Where the drivers are, each in a directory called like its library.
    #[arg(long, value_name = "DIR", default_value = "target/interop")]
    drivers: PathBuf,
    /// A case to try; all of them if none is named, and where there are several neighbours all of those at once.
    #[arg(long, value_enum)]
    case: Vec<Case>,
    #[command(flatten)]
    work: Work,
    /// A fault that is planted into what our own clients send, to be found by a case.
    #[arg(long, value_enum, value_name = "FAULT")]
    ours: Option<planted::Fault>,
    /// The libraries; or `plant:FAULT`, for a driver of ours with a fault that locks as our Mutex does, or
    /// `rlock:FAULT`, for one that locks as Redisson does.
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
