//! What the program writes: exit statuses, logs, and reports as text and as JSON.

pub(crate) mod exit;
pub(crate) mod holders;
pub(crate) mod log;
pub(crate) mod report;
pub(crate) mod session_info;
pub(crate) mod stamp;
