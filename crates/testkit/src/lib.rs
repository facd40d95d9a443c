//! Servers, faults and checks for Leasehold's own tests.
//!
//! This crate owns what a test needs *around* a lock: real servers on free ports ([`RedisServer`]), their clocks
//! ([`FrozenClock`], [`ShiftedClock`]) and certificates ([`Authority`]), a network that misbehaves on request
//! ([`Proxy`]), processes that are killed and stopped ([`Worker`]), and futures that are dropped half-way
//! ([`cancel_at_every_await`]). Those know nothing of locks: what a lock must do is said by the tests that use
//! them, and for every store by [`conformance`].
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
