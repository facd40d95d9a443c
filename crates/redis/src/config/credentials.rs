//! The provider of credentials: how it is asked, and the faults of that.
//!
//! Owns the call and its time limit. [`connect`](crate::conn::connect) and the other openers of connections ask, each time
//! before they open one.
//!
//! 1. A provider is the user's code: it runs on a thread for blocking work, so that one that blocks or panics costs the
//!    attempt, and not the thread that makes the connections. The keeper's would declare no loss meanwhile.
//! 2. Its time does not count as time of the connection attempt, which has a limit of its own.

use super::RedisConfig;
use super::address::{Address, Login};
use leasehold_store::{CredentialsFault, CredentialsProvider, Fault, FaultKind, Phase};
use redis::ConnectionInfo;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// The provider of a configuration and its clones.
#[derive(Clone)]
pub(crate) struct Provider {
    provider: Arc<dyn CredentialsProvider>,
    /// How many connections wait for its answer.
    asking: Arc<AtomicUsize>,
}

impl Provider {
    pub(crate) fn new(provider: impl CredentialsProvider + 'static) -> Self {
        Self { provider: Arc::new(provider), asking: Arc::default() }
    }

    /// Asks for the credentials of one connection.
    ///
    /// Cancel safety: the provider's future is dropped.
    async fn ask(&self, server: String, within: Duration) -> Result<Login, Fault> {
        let _asking = Asking::new(&self.asking);
        let (provider, node) = (Arc::clone(&self.provider), server.clone());
        let fault = |what| Fault::new(FaultKind::Credentials(what), Phase::Connect, node.clone());
        let over = CancellationToken::new();
        let _cancel_on_drop = over.clone().drop_guard();
        let runtime = Handle::current();
        // (1)
        let answer = tokio::task::spawn_blocking(move || {
            runtime.block_on(async move {
                tokio::select! {
                    biased;
                    () = over.cancelled() => None,
                    answer = async { provider.credentials(&server).await } => Some(answer),
                }
            })
        });
        match timeout(within, answer).await {
            Ok(Ok(Some(Ok(credentials)))) => Ok(Login {
                username: credentials.user().map(str::to_owned),
                password: Some(credentials.password().to_owned()),
            }),
            Ok(Ok(Some(Err(error)))) => Err(fault(CredentialsFault::Failed).with_source(error)),
            Ok(Err(error)) if error.is_panic() => Err(fault(CredentialsFault::Panicked)),
            // Only a runtime that ends cancels it.
            Ok(Ok(None) | Err(_)) => Err(fault(CredentialsFault::Pending)),
            Err(_) => Err(fault(CredentialsFault::TimedOut { within })),
        }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider")
    }
}

/// Counts a connection that waits for an answer, until this is dropped.
struct Asking<'a>(&'a AtomicUsize);

impl<'a> Asking<'a> {
    fn new(asking: &'a AtomicUsize) -> Self {
        asking.fetch_add(1, Ordering::Relaxed);
        Self(asking)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RedisConfig {
    /// Connection parameters of the server at `address`, for the client library. Asks the provider of credentials, if
    /// there is one.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub(crate) async fn connection_info(
        &self,
        address: &Address,
        node: &Arc<str>,
    ) -> Result<ConnectionInfo, Fault> {
        let login = match self.provider() {
            None => self.login().clone(),
            Some(_) if self.login().password.is_some() => {
                let text = "a password and a provider of credentials are set: leave out one of them";
                let kind = FaultKind::Unusable(text.to_owned());
                return Err(Fault::new(kind, Phase::Connect, Arc::clone(node)));
            }
            Some(provider) => {
                let Login { username, password } =
                    provider.ask(address.to_string(), self.provider_timeout()).await?;
                Login { username: username.or_else(|| self.login().username.clone()), password }
            }
        };
        self.info_for(address, &login).map_err(|error| crate::error_map::unconnected(error, address, node))
    }

    /// The fault of a connection or a call, which is another one if a provider gave the credentials: what the server
    /// rejects now, it may accept once the provider was asked again.
    pub(crate) fn with_provider(&self, mut fault: Fault) -> Fault {
        fault.kind = self.kind_with_provider(fault.kind);
        fault
    }

    /// Same as [`with_provider`](Self::with_provider), for the kind of a fault.
    pub(crate) fn kind_with_provider(&self, kind: FaultKind) -> FaultKind {
        match kind {
            FaultKind::Unauthenticated if self.provider().is_some() => {
                FaultKind::Credentials(CredentialsFault::Rejected)
            }
            kind => kind,
        }
    }

    /// The fault of a call whose time was over before there was a connection, and before an attempt had failed.
    pub(crate) fn unconnected_in_time(&self, node: &Arc<str>) -> Fault {
        let asking = self.provider().is_some_and(|provider| provider.asking.load(Ordering::Relaxed) != 0);
        let kind =
            if asking { FaultKind::Credentials(CredentialsFault::Pending) } else { FaultKind::TimedOut };
        Fault::new(kind, Phase::Connect, Arc::clone(node))
    }
}

/// The time of one connection attempt, less what was used (2).
pub(crate) struct AttemptTime {
    left: Duration,
}

impl AttemptTime {
    pub(crate) const fn of(config: &RedisConfig) -> Self {
        Self { left: config.attempt_timeout() }
    }

    /// What is left.
    pub(crate) const fn left(&self) -> Duration {
        self.left
    }

    /// Awaits a part of the attempt within the time that is left.
    pub(crate) async fn limit<T>(
        &mut self,
        node: &Arc<str>,
        part: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let start = Instant::now();
        let result = timeout(self.left, part).await;
        self.left = self.left.saturating_sub(start.elapsed());
        result.unwrap_or_else(|_| Err(Fault::new(FaultKind::TimedOut, Phase::Connect, Arc::clone(node))))
    }
}
