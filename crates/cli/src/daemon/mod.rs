//! What `monitor` is as a daemon: its figures and its health over HTTP, and messages to the service manager.
//!
//! It decides nothing about locks, and sends nothing to the store.

pub(crate) mod exposition;
pub(crate) mod health_check;
pub(crate) mod listener;
pub(crate) mod metrics;
pub(crate) mod page;
pub(crate) mod progress;
pub(crate) mod service_manager;
