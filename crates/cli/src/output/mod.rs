//! What the program writes: exit statuses, messages and logs, and reports as text and as JSON.

pub(crate) mod audit_report;
pub(crate) mod capacity;
pub(crate) mod error_map;
pub(crate) mod exit;
pub(crate) mod failure;
pub(crate) mod holder_report;
pub(crate) mod lines;
pub(crate) mod log;
pub(crate) mod printable;
pub(crate) mod report;
pub(crate) mod session_report;
pub(crate) mod timestamp;
