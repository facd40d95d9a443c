//! Whether a client can serve: for readiness probes, and for work that depends on the client's session.

use super::Client;
use crate::error::InspectError;
use crate::store::{Fault, FaultKind, Phase};
use leasehold_core::{Inspect, Lock, LockName, Op};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The lock whose state a probe reads. It need not exist.
const PROBED: &str = "leasehold-health";

/// The result of a probe: [`Client::health`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let health = client.health().await?;
/// println!("ready, {:?} to the store and back", health.round_trip);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// How long the store took to reply.
    pub round_trip: Duration,
}

impl Client {
    /// Asks the store for a reply, for a readiness probe: one request, which changes nothing. Of several servers, the one
    /// that a lock named `leasehold-health` belongs to replies, or a majority of a quorum.
    ///
    /// Fails if the store does not reply within the call timeout; the error's [`fault`](InspectError::fault) says which
    /// server, and why. Fails as well once the client is [shut down](Client::shutdown): it is ready for nothing more.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn health(&self) -> Result<Health, InspectError> {
        let probed = Lock::mutex(LockName::new(PROBED).expect("it is a valid name"));
        let sent_at = self.engine.environment.now();
        let op = Op::Inspect(Inspect { claim: None, details: false });
        let call = self.engine.call(&probed, &op, self.engine.timings.call);
        let Some(reply) = self.engine.unless_shut(call).await else {
            let text = "the client was shut down".to_owned();
            return Err(Fault::new(FaultKind::Unusable(text), Phase::Send, "the client").into());
        };
        // Whatever the reply says of that lock, the store has replied.
        reply.map_err(|failed| failed.fault)?;
        Ok(Health { round_trip: self.engine.environment.now().since(sent_at) })
    }

    /// Returns a token that is cancelled when this client's session is over: the store did not receive its heartbeats for
    /// [so long](crate::ClientBuilder::session_ttl), the process was suspended, or the store has lost the session with its
    /// data. All holds that depend on the session are lost then, also those whose guards have not reported it yet. Another
    /// session begins, of which a further call returns the token.
    ///
    /// In a store of several servers the client has a session on each that it uses, and the token is cancelled when any of
    /// them lapses. It is never cancelled for a client [without a session](crate::ClientBuilder::without_session), and not
    /// by a shutdown.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// # async fn serve(_: &leasehold::Client) {}
    /// let lapsed = client.session_lost_signal();
    /// tokio::select! {
    ///     () = serve(&client) => {}
    ///     () = lapsed.cancelled() => eprintln!("this process may hold nothing any more"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn session_lost_signal(&self) -> CancellationToken {
        self.engine.sessions.lost_signal()
    }
}
