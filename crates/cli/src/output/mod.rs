//! What the program writes: exit statuses, messages and logs, and reports as text and as JSON.

pub(crate) mod audit_report;
pub(crate) mod capacity;
pub(crate) mod error_map;
pub(crate) mod exit;
pub(crate) mod failure;
pub(crate) mod graph_drawing;
pub(crate) mod graph_text;
pub(crate) mod history_report;
pub(crate) mod holder_report;
pub(crate) mod lines;
pub(crate) mod live_line;
pub(crate) mod log;
pub(crate) mod printable;
pub(crate) mod report;
pub(crate) mod screen;
pub(crate) mod session_report;
pub(crate) mod table;
pub(crate) mod times;
pub(crate) mod timestamp;
pub(crate) mod waiter_report;
pub(crate) mod watch;
