//! The address of a server, and the login.

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisResult,
};
use std::fmt;
use std::path::PathBuf;

/// The version of the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Messages need a connection of their own.
    Resp2,
    /// Messages arrive on the same connection as replies.
    Resp3,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl Address {
    pub(crate) const fn is_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }

    /// Converts to the client library's type, with `TCP_NODELAY`.
    pub(crate) fn connection_info(&self, login: RedisConnectionInfo) -> RedisResult<ConnectionInfo> {
        let address = match self {
            Self::Tcp { host, port, tls: false } => ConnectionAddr::Tcp(host.clone(), *port),
            Self::Tcp { host, port, tls: true } => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            Self::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        let info = address.into_connection_info()?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        Ok(info.set_tcp_settings(tcp).set_redis_settings(login))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix(path) => fmt::Display::fmt(&path.display(), f),
        }
    }
}

/// The user name and the password for a server.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
}

impl Login {
    /// Converts to the client library's type.
    pub(crate) fn settings(&self, protocol: Protocol) -> RedisConnectionInfo {
        let version = match protocol {
            Protocol::Resp2 => ProtocolVersion::RESP2,
            Protocol::Resp3 => ProtocolVersion::RESP3,
        };
        let mut login = RedisConnectionInfo::default()
            .set_protocol(version)
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        // With a user and no password, the client library would not log in at all.
        if let Some(password) = self.password.as_deref().or(self.username.as_ref().map(|_| "")) {
            login = login.set_password(password);
        }
        login
    }
}

impl fmt::Debug for Login {
    /// Does not show the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .finish()
    }
}
