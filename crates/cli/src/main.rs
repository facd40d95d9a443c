//! Run a command under a distributed lock.
fn main() {}
