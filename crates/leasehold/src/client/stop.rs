//! A shutdown when the process is asked to stop.

use super::Client;
use crate::engine::ShutdownError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a [shutdown on a signal](Client::shutdown_on_signal) failed.
///
/// ```no_run
/// # async fn example(client: leasehold::Client) {
/// use leasehold::error::StopError;
/// use std::time::Duration;
///
/// match client.shutdown_on_signal(Duration::from_secs(5)).await {
///     Ok(()) => println!("all locks are released"),
///     Err(StopError::Shutdown(error)) => eprintln!("{error}"),
///     Err(error) => eprintln!("not waiting for a signal: {error}"),
/// }
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// The process cannot wait for signals. Nothing was shut down.
    #[error("the process cannot wait for signals: {0}")]
    Signals(#[source] Arc<io::Error>),
    /// Some locks were not released in time.
    #[error(transparent)]
    Shutdown(#[from] ShutdownError),
}

impl Client {
    /// Waits until the process is asked to stop, and [shuts down](Self::shutdown) within `within`: the locks are free at
    /// once, and not only when their leases end. On Unix, a process is asked to stop by SIGTERM or SIGINT; on Windows by
    /// Ctrl-C, by the end of its console, or by that of the system, both of which end the process some seconds later.
    ///
    /// The guards of this client are lost when the signal arrives, and futures in [`Mutex::run`](crate::Mutex::run) are
    /// dropped. A program whose work may end first waits for the signal itself, ends its work, and calls
    /// [`shutdown`](Self::shutdown) then.
    ///
    /// From the first call on, these signals do not end the process by themselves, as tokio documents for
    /// `tokio::signal`.
    ///
    /// Fails if the process cannot wait for signals, and like [`shutdown`](Self::shutdown).
    ///
    /// Cancel safety: if the future is dropped before a signal has arrived, nothing is shut down.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use std::time::Duration;
    ///
    /// # async fn serve(_: Client) {}
    /// let client = Client::connect("redis://locks.example.org").await?;
    /// tokio::spawn(serve(client.clone()));
    /// client.shutdown_on_signal(Duration::from_secs(5)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn shutdown_on_signal(&self, within: Duration) -> Result<(), StopError> {
        asked_to_stop().map_err(|error| StopError::Signals(Arc::new(error)))?.await;
        tracing::info!("the process is asked to stop: releasing all locks");
        Ok(self.shutdown(within).await?)
    }
}

/// Registers for the signals, and returns a future that completes when one of them arrives.
#[cfg(unix)]
fn asked_to_stop() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Registers for the events of the console, and returns a future that completes when one of them arrives.
#[cfg(windows)]
fn asked_to_stop() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::windows::{ctrl_c, ctrl_close, ctrl_shutdown};

    let (mut interrupt, mut close, mut shutdown) = (ctrl_c()?, ctrl_close()?, ctrl_shutdown()?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = close.recv() => {}
            _ = shutdown.recv() => {}
        }
    })
}
