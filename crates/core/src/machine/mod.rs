//! State machines of a client: what it sends next, and when. They do no IO; the engine runs them.

pub mod cohort;
pub mod contender;
pub mod heartbeat;
pub mod jitter;
pub mod observe;
pub mod renewal;
