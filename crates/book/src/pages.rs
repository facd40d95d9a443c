//! The pages with Rust, whose examples the compiler sees as those of this crate.

#[doc = include_str!("../../../docs/how-to/rotate-passwords.md")]
struct RotatePasswords;

#[doc = include_str!("../../../docs/how-to/use-from-threads.md")]
struct UseFromThreads;

#[doc = include_str!("../../../docs/tutorial/first-lock.md")]
struct FirstLock;
