//! The client that is measured: without metrics, unless a scenario measures those.

use leasehold::error::ConnectError;
use leasehold::{Client, ClientBuilder};

/// Connects to the store of a URL.
pub(crate) async fn connect(url: &str) -> Result<Client, ConnectError> {
    builder(url).connect().await
}

/// The same, with further settings.
pub(crate) fn builder(url: &str) -> ClientBuilder {
    Client::builder(url).metrics(false)
}
