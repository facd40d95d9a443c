//! Credentials that change: a provider is asked for them whenever a connection is opened.
//!
//! Owns the interface. The store of a server asks the provider, limits its time, and reports its faults.
//!
//! 1. No `Debug` output and no error contains a password.

use futures_util::future::BoxFuture;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

/// The user and the password for one connection.
///
/// ```
/// use leasehold::store::Credentials;
///
/// # let token = String::from("from a vault");
/// let credentials = Credentials::new(token).with_user("locks");
/// assert_eq!(credentials.user(), Some("locks"));
/// assert!(!format!("{credentials:?}").contains("from a vault"));
/// ```
#[derive(Clone)]
pub struct Credentials {
    user: Option<String>,
    password: String,
}

impl Credentials {
    /// Credentials with this password, for the user that the configuration names, or else the default user.
    pub fn new(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }

    /// Sets the user, in place of the one that the configuration names.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The user, if one was set.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password itself. Show it to the server only.
    pub fn password(&self) -> &str {
        &self.password
    }
}

impl fmt::Debug for Credentials {
    /// Does not show the password (1).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).field("password", &"…").finish()
    }
}

/// Provides the credentials for each connection to a server, for passwords that change: tokens of a cloud that are valid
/// for minutes, or secrets that a vault rotates.
///
/// A closure without arguments that returns a future is a provider:
///
/// ```
/// use leasehold::store::{Credentials, CredentialsProvider};
/// use std::io;
///
/// fn vault() -> impl CredentialsProvider {
///     || async {
///         let token = tokio::fs::read_to_string("/run/secrets/locks").await?;
///         Ok::<_, io::Error>(Credentials::new(token.trim_end()).with_user("locks"))
///     }
/// }
/// # mod tokio { pub mod fs { pub async fn read_to_string(path: &str) -> std::io::Result<String> { std::fs::read_to_string(path) } } }
/// # let _ = vault();
/// ```
///
/// Implement the trait to give each server credentials of its own:
///
/// ```
/// use futures_util::future::BoxFuture;
/// use leasehold::store::{Credentials, CredentialsProvider};
/// use std::collections::HashMap;
/// use std::error::Error;
///
/// struct Passwords(HashMap<String, String>);
///
/// impl CredentialsProvider for Passwords {
///     fn credentials<'a>(
///         &'a self,
///         server: &'a str,
///     ) -> BoxFuture<'a, Result<Credentials, Box<dyn Error + Send + Sync>>> {
///         Box::pin(async move {
///             let password = self.0.get(server).ok_or("no password is known for this server")?;
///             Ok(Credentials::new(password))
///         })
///     }
/// }
/// ```
pub trait CredentialsProvider: Send + Sync {
    /// Returns the credentials for a new connection to `server`: its `host:port`, or the path of its socket.
    ///
    /// It is called for each connection, before that is opened, and may be called several times at once. An error, or an
    /// answer that takes longer than the time limit, fails the attempt; a later attempt asks again. The error becomes the
    /// [source](std::error::Error::source) of the [`Fault`](crate::Fault), and so appears in logs: its text must not contain
    /// a secret.
    ///
    /// Cancel safety: the future is dropped when the attempt is over, for example at the time limit or when the client
    /// ends.
    fn credentials<'a>(
        &'a self,
        server: &'a str,
    ) -> BoxFuture<'a, Result<Credentials, Box<dyn Error + Send + Sync>>>;
}

impl<F, R, E> CredentialsProvider for F
where
    F: Fn() -> R + Send + Sync,
    R: Future<Output = Result<Credentials, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn credentials<'a>(
        &'a self,
        _server: &'a str,
    ) -> BoxFuture<'a, Result<Credentials, Box<dyn Error + Send + Sync>>> {
        let credentials = self();
        Box::pin(async move { credentials.await.map_err(Into::into) })
    }
}

impl<P: CredentialsProvider + ?Sized> CredentialsProvider for Arc<P> {
    fn credentials<'a>(
        &'a self,
        server: &'a str,
    ) -> BoxFuture<'a, Result<Credentials, Box<dyn Error + Send + Sync>>> {
        (**self).credentials(server)
    }
}
