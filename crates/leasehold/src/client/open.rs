//! Opens the store of a URL, with the settings of the builder that override those of the URL.

use crate::error::ConnectError;
use crate::store::{CredentialsProvider, FindingCode, MemoryStore, Store, StoreConfig, StoreUrl};
use leasehold_store::Environment;
use std::sync::Arc;
use std::time::Duration;

/// Credentials, certificates and key prefix that override those of the URL.
#[derive(Clone, Default)]
pub(super) struct UrlOverrides {
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    /// Set to ask it for the credentials of each connection.
    pub(super) credentials: Option<Arc<dyn CredentialsProvider>>,
    /// How long one answer of the provider may take, if that is set.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only a server has credentials"))]
    pub(super) credentials_timeout: Option<Duration>,
    pub(super) prefix: Option<String>,
    /// Findings that the user has accepted, beside those of the URL.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only a server has findings"))]
    pub(super) accepted: Vec<FindingCode>,
    /// Set to diagnose a server regardless of its findings.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only a server has findings"))]
    pub(super) diagnoses: bool,
    /// The certificate authority to trust in place of the public ones.
    pub(super) root_certificate: Option<Vec<u8>>,
    /// Set to open the connections to servers through a relay on this port.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only a server has connections"))]
    pub(super) relay: Option<u16>,
    /// The client's certificate and its key.
    pub(super) client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl UrlOverrides {
    /// Fails if anything is set: this kind of store supports none of it.
    fn reject_for(&self, store: &str) -> Result<(), ConnectError> {
        let Self { username, password, credentials, prefix, root_certificate, client_certificate, .. } = self;
        if credentials.is_some() {
            let text = format!("`{store}` takes no provider of credentials: this is for Redis");
            return Err(ConnectError::Setting(text));
        }
        if username.is_some() || password.is_some() || prefix.is_some() {
            let text = format!("`{store}` takes no user, password or key prefix: these are for Redis");
            return Err(ConnectError::Setting(text));
        }
        if root_certificate.is_some() || client_certificate.is_some() {
            let text = format!("`{store}` takes no certificates: these are for Redis over TLS");
            return Err(ConnectError::Setting(text));
        }
        Ok(())
    }

    /// Applies these settings to a server's configuration.
    #[cfg(feature = "redis")]
    fn apply(
        &self,
        mut config: crate::store::RedisConfig,
    ) -> Result<crate::store::RedisConfig, ConnectError> {
        if let Some(username) = &self.username {
            config = config.username(username);
        }
        if let Some(password) = &self.password {
            config = config.password(password);
        }
        if let Some(provider) = &self.credentials {
            if config.has_server_password() {
                let text = "a password and a provider of credentials are set: leave out one of them";
                return Err(ConnectError::Setting(text.into()));
            }
            config = config.credentials(Arc::clone(provider));
        }
        if let Some(within) = self.credentials_timeout {
            config = config.credentials_timeout(within);
        }
        if let Some(prefix) = &self.prefix {
            config = config.prefix(prefix).map_err(|error| ConnectError::Setting(error.to_string()))?;
        }
        config = config.accept(self.accepted.iter().copied());
        if let Some(relay) = self.relay {
            config = config.through_relay(relay);
        }
        if self.diagnoses {
            config = config.for_diagnosis();
        }
        if let Some(pem) = &self.root_certificate {
            config = config.root_certificate(pem.clone());
        }
        if let Some((certificate, key)) = &self.client_certificate {
            config = config.client_certificate(certificate.clone(), key.clone());
        }
        Ok(config)
    }
}

/// Opens the store of a URL. With `lazily`, servers are connected to at the first use.
pub(super) async fn open(
    url: &str,
    overrides: UrlOverrides,
    within: Duration,
    environment: &Arc<dyn Environment>,
    lazily: bool,
) -> Result<Arc<dyn Store>, ConnectError> {
    #[cfg(feature = "redis")]
    use crate::store::{RedisConfig, RedisStore};
    #[cfg(feature = "redis")]
    let configured = |config: RedisConfig| {
        Ok::<_, ConnectError>(
            overrides.apply(config)?.connect_timeout(within).with_shared_environment(Arc::clone(environment)),
        )
    };
    #[cfg(not(feature = "redis"))]
    let _ = (within, environment, lazily);
    match StoreUrl::parse(url)?.into_config() {
        StoreConfig::Memory(name) => {
            overrides.reject_for("memory:")?;
            Ok(Arc::new(MemoryStore::named(&name)))
        }
        StoreConfig::Sqlite(path) => {
            overrides.reject_for("sqlite:")?;
            open_sqlite(&path).await
        }
        #[cfg(feature = "redis")]
        StoreConfig::Redis(config) => {
            let config = configured(*config)?;
            let store = if lazily { RedisStore::lazy(config) } else { RedisStore::connect(config).await? };
            Ok(Arc::new(store))
        }
        #[cfg(feature = "redis")]
        StoreConfig::Shards(shards) => {
            let shards = shards.into_iter().map(configured).collect::<Result<Vec<_>, _>>()?;
            let shards = if lazily {
                RedisStore::lazy_shards(shards)?
            } else {
                RedisStore::connect_shards(shards).await?
            };
            Ok(Arc::new(shards))
        }
        #[cfg(feature = "redis")]
        StoreConfig::Quorum(quorum) => {
            let quorum = quorum.try_map(configured)?;
            // The nodes that are left are inspected also without a majority.
            let inspect = overrides.diagnoses;
            let quorum = if inspect || lazily {
                RedisStore::lazy_quorum(quorum)?
            } else {
                RedisStore::connect_quorum(quorum).await?
            };
            Ok(Arc::new(quorum))
        }
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: &str) -> Result<Arc<dyn Store>, ConnectError> {
    Ok(Arc::new(crate::store::SqliteStore::open(path).await?))
}

#[cfg(not(feature = "sqlite"))]
#[allow(clippy::unused_async, reason = "matches the signature of the build that has the store")]
async fn open_sqlite(_path: &str) -> Result<Arc<dyn Store>, ConnectError> {
    Err(ConnectError::Url("this build has no SQLite store: enable the feature `sqlite`".into()))
}
