//! Judges a history by the checks of this crate alone: `cargo run --example judge -- HISTORY.jsonl [REPORT.html]`.

use leasehold_history::{History, judge, report_html};
use std::error::Error;
use std::fs::{self, File};
use std::io::BufReader;
use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("which history?")?;
    let history = History::read(BufReader::new(File::open(file)?))?;
    let verdict = judge(&history);
    if let Some(report) = arguments.next() {
        fs::write(report, report_html(&history, &verdict))?;
    }
    println!("{}", serde_json::to_string_pretty(&verdict)?);
    Ok(if verdict.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
