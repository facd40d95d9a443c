//! Servers, faults and checks for Leasehold's own tests.
//!
//! This crate owns what a test needs besides a lock: real servers on free ports ([`RedisServer`], [`ReservedPort`]), their clocks
//! ([`FrozenClock`], [`ShiftedClock`]) and certificates ([`CertificateAuthority`]), a faulty network ([`Proxy`]), other products ([`ProductServer`]),
//! processes that can be killed and stopped ([`Worker`]), futures that are dropped at any await
//! ([`cancel_at_every_await`]), logged warnings ([`Warnings`]), and times on a busy machine ([`Stopwatch`]).
//! These know nothing of locks. The [`conformance`] suite defines what a store of locks must do.
//!
//! The suite needs Unix alone. The rest is for Linux with a C compiler (the clocks), `openssl` (the certificates) and
//! `redis-server` on the path.

mod cancel;
mod certificates;
mod clock;
mod cluster;
pub mod conformance;
mod frame;
mod port;
mod product;
mod proxy;
mod quorum;
mod random;
mod resp;
mod sentinels;
mod server;
mod shim;
mod signal;
mod stopwatch;
mod wait;
mod warnings;
mod worker;

pub use cancel::cancel_at_every_await;
pub use certificates::CertificateAuthority;
pub use clock::{FrozenClock, ServerClock, ShiftedClock};
pub use cluster::Cluster;
pub use frame::{FrameError, FrameSplitter, arguments};
pub use port::ReservedPort;
pub use product::{Product, ProductServer};
pub use proxy::{AfterDrop, Proxy, ResumedRequests, any_command, command};
pub use quorum::Quorum;
pub use random::{Random, share_of_seeds};
pub use resp::{RespConnection, Value};
pub use sentinels::Sentinels;
pub use server::{RedisServer, RedisServerBuilder};
pub use stopwatch::Stopwatch;
pub use warnings::Warnings;
pub use worker::{Worker, WorkerBuilder};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
