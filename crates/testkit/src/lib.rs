//! Servers, faults and checks for Leasehold's own tests.
//!
//! This crate owns what a test needs *around* a lock: real servers on free ports ([`RedisServer`]), their clocks
//! ([`FrozenClock`], [`ShiftedClock`]) and certificates ([`Authority`]), a faulty network ([`Proxy`]), processes that
//! can be killed and stopped ([`Worker`]), futures that are dropped at any await ([`cancel_at_every_await`]), and logged
//! warnings ([`Warnings`]).
//! These know nothing of locks. The [`conformance`] suite defines what a store of locks must do.
//!
//! It is for Unix with a C compiler (the clocks), `openssl` (the certificates) and `redis-server` on the path.

mod authority;
mod cancel;
mod clock;
mod cluster;
pub mod conformance;
mod frame;
mod process;
mod proxy;
mod quorum;
mod random;
mod resp;
mod sentinels;
mod server;
mod signal;
mod wait;
mod warnings;

pub use authority::Authority;
pub use cancel::cancel_at_every_await;
pub use clock::{FrozenClock, ServerClock, ShiftedClock};
pub use cluster::Cluster;
pub use frame::{FrameError, Splitter, arguments};
pub use process::{Worker, WorkerBuilder};
pub use proxy::{Late, Proxy, Then, any_command, command};
pub use quorum::Quorum;
pub use random::Random;
pub use resp::{RespConnection, Value};
pub use sentinels::Sentinels;
pub use server::{RedisServer, RedisServerBuilder};
pub use warnings::Warnings;
