//! Small histories for documentation and tests.

/// A Mutex with two holders at the same time, after a fail-over that lost the first hold. JSON Lines.
pub const TWO_HOLDERS: &str = include_str!("sample/two_holders.jsonl");
