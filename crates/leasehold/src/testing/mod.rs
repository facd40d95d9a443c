//! For the tests of code that uses locks: a store in memory with a clock and faults that the test controls. With the feature
//! `testing`.
//!
//! ```
//! use leasehold::testing::TestStore;
//! use leasehold::{Client, Error};
//! use std::time::Duration;
//!
//! /// The code under test.
//! async fn send_reports(client: &Client) -> Result<(), Error> {
//!     let guard = client.mutex("reports")?.acquire_timeout(Duration::from_secs(60)).await?;
//!     // …
//!     Ok(guard.release().await?)
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // #[tokio::test(start_paused = true)]
//! // async fn gives_up_after_a_minute() {
//! let store = TestStore::new();
//! let (ours, other) = (store.client().connect().await?, store.client().connect().await?);
//! let held = other.mutex("reports")?.acquire().await?;
//!
//! let error = send_reports(&ours).await.unwrap_err();
//! assert!(error.is_contended());
//! assert_eq!(store.clock().elapsed(), Duration::from_secs(60)); // and no time in reality
//! # held.release().await?;
//! # Ok(()) }
//! ```
//!
//! | To … | see |
//! |---|---|
//! | have leases, waits and time-outs pass at once | [`TestStore::new`] with tokio's paused clock, or [`TestClock::manual`] |
//! | have several clients in one test | [`TestStore::client`], once for each |
//! | take the store down, make it slow, have it refuse | [`TestStore::down`], [`slow`](TestStore::slow), [`refuse`](TestStore::refuse), [`up`](TestStore::up) |
//! | lose the reply to one request, or to all | [`TestStore::lose_next_reply`], [`lose_replies`](TestStore::lose_replies) |
//! | take a lock away from its holder | [`TestStore::lose_lock`], [`restart`](TestStore::restart), [`TestClock::suspend_clients`] |
//! | see what was asked, and what is held | [`TestStore::requests`], [`TestStore::is_held`] |
//! | make an error without a store | [`LostHold::new`](crate::error::LostHold::new), and the variants of each error: all can be made |
//! | replace locks altogether | [`Locks`](crate::Locks), [`LockGuard`](crate::LockGuard) |
//!
//! `docs/how-to/test-your-code.md` in the repository has a test for each.
//!
//! A client that is not of a [`TestStore`], and not of an [`Environment`](crate::store::Environment) of your own, refuses to
//! work while tokio's clock is paused: [`ConnectError::PausedClock`](crate::error::ConnectError::PausedClock).

mod clock;
mod manual;
mod store;

pub use clock::TestClock;
pub use store::{Data, Requests, TestStore};
