//! TLS: whom we trust, what we show of ourselves, and what is wrong where the two sides do not agree.
//!
//! Owns certificates and the handshake. What is said on the stream afterwards it does not know.
//!
//! 1. Nothing falls back: a stream from here is encrypted, and leads to a server whose certificate was checked.
//! 2. Files are read for each connection, so that certificates that are renewed on the disk need no restart.
//! 3. Nothing of a key is shown: errors name files, and say what is wrong in words of our own.
//! 4. What is wrong is known by the type of an error, never by its text.

use super::certificates::{Certificates, Pem};
use super::config::RedisConfig;
use futures_util::future::select_ok;
use leasehold_store::{FaultKind, Phase, TlsFault};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore};
use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Why certificates cannot be used, or are not wanted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unfit(String);

/// No word came back to the greeting.
#[derive(Debug, thiserror::Error)]
#[error("no answer")]
struct Unanswered;

impl From<Unfit> for io::Error {
    fn from(unfit: Unfit) -> Self {
        Self::new(io::ErrorKind::InvalidInput, unfit)
    }
}

impl Certificates {
    /// Fails where there are any and the connection would heed none: who sets some does not mean to speak in plain text.
    pub(super) fn for_plain_text(&self) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let text =
            "certificates are set, and the connection is one without TLS: write `rediss` in place of `redis`";
        Err(Unfit(text.to_owned()).into())
    }

    fn is_empty(&self) -> bool {
        self.roots.is_none() && self.own.is_none() && self.key.is_none()
    }

    /// The same for the TLS library. Reads files.
    fn settings(&self) -> Result<ClientConfig, Unfit> {
        // The library panics where two providers of cryptography are compiled in and the program has chosen none.
        let provider = CryptoProvider::get_default().cloned();
        let provider = provider.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
        let settings = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let settings = settings.map_err(|_| Unfit("the program's rustls speaks no version of TLS".into()))?;
        let settings = settings.with_root_certificates(self.trusted()?);
        let (Some(own), Some(key)) = (&self.own, &self.key) else {
            return Ok(settings.with_no_client_auth());
        };
        let chain = own.certificates("the client's certificate")?;
        settings.with_client_auth_cert(chain, key.key()?).map_err(|error| {
            let what = match error {
                rustls::Error::InconsistentKeys(_) => "it is another certificate's",
                _ => "one of them is of a kind that is not known",
            };
            Unfit(format!("{} does not fit the client's certificate: {what}", key.named("the client's key")))
        })
    }

    fn trusted(&self) -> Result<RootCertStore, Unfit> {
        let Some(pem) = &self.roots else {
            return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
        };
        let what = "the root certificate";
        let mut trusted = RootCertStore::empty();
        for root in pem.certificates(what)? {
            let added = trusted.add(root);
            added.map_err(|_| Unfit(format!("{} is no certificate of an authority", pem.named(what))))?;
        }
        Ok(trusted)
    }
}

impl Pem {
    /// All certificates of a PEM; there is one at least.
    fn certificates(&self, what: &str) -> Result<Vec<CertificateDer<'static>>, Unfit> {
        let pem = self.read(what)?;
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().unwrap_or_default();
        if chain.is_empty() {
            return Err(Unfit(format!("{} is no PEM of a certificate", self.named(what))));
        }
        Ok(chain)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, Unfit> {
        let what = "the client's key";
        let pem = self.read(what)?;
        // What the library says of it stays here (3).
        PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|_| Unfit(format!("{} is no PEM of a key without a passphrase", self.named(what))))
    }

    fn read(&self, what: &str) -> Result<Cow<'_, [u8]>, Unfit> {
        match self {
            Self::Text(pem) => Ok(Cow::Borrowed(pem)),
            Self::File(path) => match std::fs::read(path) {
                Ok(pem) => Ok(Cow::Owned(pem)),
                Err(error) => Err(Unfit(format!("{} cannot be read: {error}", self.named(what)))),
            },
        }
    }

    /// What messages name it by.
    fn named(&self, what: &str) -> String {
        match self {
            Self::Text(_) => what.to_owned(),
            Self::File(path) => format!("{what}, `{}`,", path.display()),
        }
    }
}

/// Opens an encrypted stream to a server whose certificate is for that host (1). The greeting may take `within`.
///
/// Cancel safety: dropping the future ends the attempt.
pub(super) async fn open(
    config: &RedisConfig,
    host: &str,
    port: u16,
    within: Duration,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned());
    let name =
        name.map_err(|_| Unfit("no certificate can be for the URL's host: it is no name of one".into()))?;
    let certificates = config.certificates().clone();
    let settings = tokio::task::spawn_blocking(move || certificates.settings());
    let settings = settings.await.map_err(io::Error::other)??;
    let stream = connect(host, port).await?;
    match tokio::time::timeout(within, TlsConnector::from(Arc::new(settings)).connect(name, stream)).await {
        Ok(Err(error)) if judge(&error).is_none() => Err(io::Error::new(error.kind(), Unanswered)),
        Ok(shaken) => shaken,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, Unanswered)),
    }
}

/// Connects to whichever of the host's addresses answers first.
pub(super) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let (stream, _) = select_ok(addresses.into_iter().map(|at| Box::pin(TcpStream::connect(at)))).await?;
    // Small requests are sent at once.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// What an error of a stream means, if it is about TLS.
pub(super) fn judge(error: &io::Error) -> Option<(FaultKind, Phase)> {
    let cause = error.get_ref()?;
    if let Some(Unfit(what)) = cause.downcast_ref() {
        return Some((FaultKind::Unusable(what.clone()), Phase::Connect));
    }
    let fault = if cause.is::<Unanswered>() {
        TlsFault::Unanswered
    } else {
        disagreement(cause.downcast_ref::<rustls::Error>()?)
    };
    Some((FaultKind::Tls(fault), Phase::Handshake))
}

/// What the two sides do not agree on (4).
fn disagreement(error: &rustls::Error) -> TlsFault {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(why) => of_server(why),
        E::AlertReceived(alert) => said_by_server(*alert),
        E::InvalidMessage(
            InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge,
        ) => TlsFault::PlainServer,
        other => TlsFault::Failed(line(&other.to_string())),
    }
}

/// What we find wrong with the server's certificate.
fn of_server(why: &CertificateError) -> TlsFault {
    use CertificateError as E;
    match why {
        // An authority of the same name with another key is another one.
        E::UnknownIssuer | E::BadSignature => TlsFault::UnknownIssuer,
        E::Expired | E::ExpiredContext { .. } => TlsFault::Expired,
        E::NotValidYet | E::NotValidYetContext { .. } => TlsFault::NotYetValid,
        E::NotValidForName => TlsFault::WrongName(Vec::new()),
        E::NotValidForNameContext { presented, .. } => {
            TlsFault::WrongName(presented.iter().map(|name| bare(name)).collect())
        }
        E::Other(other) => TlsFault::BadCertificate(line(&other.to_string())),
        other => TlsFault::BadCertificate(line(&other.to_string())),
    }
}

/// What the server finds wrong.
fn said_by_server(alert: AlertDescription) -> TlsFault {
    use AlertDescription as A;
    match alert {
        A::CertificateRequired | A::NoCertificate => TlsFault::ClientCertificateMissing,
        A::CertificateExpired => TlsFault::ClientCertificateExpired,
        A::UnknownCA
        | A::BadCertificate
        | A::UnsupportedCertificate
        | A::CertificateRevoked
        | A::CertificateUnknown
        | A::DecryptError
        | A::AccessDenied => TlsFault::ClientCertificateRefused,
        A::ProtocolVersion => TlsFault::Failed("the server speaks no TLS 1.3".to_owned()),
        other => TlsFault::Failed(format!("the server breaks it off: {other:?}")),
    }
}

/// A name of a certificate without what kind of name it is, which rustls writes around it.
fn bare(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    line(inner.unwrap_or(name).trim_matches('"'))
}

/// No more than a line of a text that may be the server's.
fn line(text: &str) -> String {
    text.chars().take_while(|c| !c.is_control()).take(200).collect()
}
