//! Histories of distributed locks: what clients asked, what they were answered, and when.
//!
//! `leasehold verify` records a history, and the checker of this crate judges it. Neither the format nor the checker knows a lock
//! library or a store: both speak of locks, calls and holds. The format is JSON Lines: one [`Event`] a line, and
//! [`History`] reads and writes it. [`judge`] runs the checks, and [`report_html`] shows what they found.
//!
//! ```
//! use leasehold_history::{History, judge, report_html};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let file = std::io::Cursor::new(leasehold_history::sample::TWO_HOLDERS);
//! let history = History::read(file)?;
//! let verdict = judge(&history);
//! for violation in &verdict.violations {
//!     println!("{}: {}", violation.check, violation.what);
//! }
//! assert!(!verdict.passed());
//! let page = report_html(&history, &verdict);
//! # assert!(page.starts_with("<!doctype html>"));
//! # Ok(()) }
//! ```

mod checks;
mod event;
mod fencing;
mod history;
mod judge;
mod margins;
mod measure;
mod report;
pub mod sample;
mod timeline;
mod verdict;

pub use event::{Answer, Event, FaultKind, LockKind, LockSpec, Mode, ReleaseAnswer, What};
pub use history::{History, HistoryError};
pub use judge::{judge, judge_with};
pub use margins::Margins;
pub use report::report_html;
pub use verdict::{
    CallRecord, CheckOutcome, ClockStep, FaultRecord, Measured, NodeClock, Percentiles, RefusedWrite,
    Verdict, Violation,
};
