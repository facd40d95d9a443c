//! The blocking API.

mod election;
mod multi;
mod mutex;
mod reentrant;
mod shared;

use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
