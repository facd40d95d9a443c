//! The store of one case.

use leasehold::{Client, ClientBuilder};
use std::time::Duration;

/// A case may create any number of clients: to the store, each is a separate process.
pub(crate) struct TestStore {
    url: String,
    keep: Box<dyn std::any::Any + Send + Sync>,
}

impl TestStore {
    /// `keep` is what must live as long as the store: a server or a directory.
    pub(crate) fn new(url: String, keep: impl std::any::Any + Send + Sync) -> Self {
        Self { url, keep: Box::new(keep) }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The server, if the store uses one.
    pub(crate) fn server(&self) -> Option<&leasehold_testkit::RedisServer> {
        self.keep.downcast_ref()
    }

    /// A builder for a client with settings of its own.
    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder(&self.url)
    }

    pub(crate) async fn client(&self, label: &str) -> Client {
        self.client_with(label, Duration::from_secs(30)).await
    }

    /// A client without a session: its leases alone limit its holds.
    pub(crate) async fn client_of_leases(&self, label: &str) -> Client {
        let client = self.builder().label(label).without_session().connect().await;
        client.expect("the store of a case can be reached")
    }

    pub(crate) async fn client_with(&self, label: &str, watchdog: Duration) -> Client {
        let client = self.builder().label(label).watchdog_lease(watchdog).connect().await;
        client.expect("the store of a case can be reached")
    }

    /// A client for threads.
    pub(crate) fn blocking_client(&self) -> leasehold::blocking::Client {
        leasehold::blocking::Client::connect(&self.url).expect("the store of a case can be reached")
    }
}
