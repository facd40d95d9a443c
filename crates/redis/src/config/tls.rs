//! TLS: trusted authorities, the client's certificate, and the reasons of a failed handshake.
//!
//! Owns certificates and the handshake, not what the stream carries afterwards.
//!
//! 1. Nothing falls back: a stream from here is encrypted, and leads to a server with a verified certificate.
//! 2. Files are read for each connection, so that certificates renewed on disk take effect without a restart. Files that
//!    cannot be used, because they are being written, are reported, and do not replace what they contained before.
//! 3. No part of a key is shown: errors name the file, and describe the fault in their own words.
//! 4. A fault is recognized by the type of an error, never by its text.

use super::RedisConfig;
use super::certificates::{Certificates, Pem};
use futures_util::future::select_ok;
use leasehold_store::{FaultKind, Phase, TlsFault};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore};
use std::borrow::Cow;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Why certificates cannot be used, or must not be set.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UnusableCertificates(String);

/// The server did not answer the handshake.
#[derive(Debug, thiserror::Error)]
#[error("no answer")]
struct NoAnswer;

impl From<UnusableCertificates> for io::Error {
    fn from(error: UnusableCertificates) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

impl Certificates {
    /// Fails if certificates are set for a connection without TLS: a user who sets certificates does not intend plain
    /// text.
    pub(crate) fn for_plain_text(&self) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let text =
            "certificates are set, but the connection does not use TLS: write `rediss` in place of `redis`";
        Err(UnusableCertificates(text.to_owned()).into())
    }

    fn is_empty(&self) -> bool {
        self.roots.is_none() && self.own.is_none() && self.key.is_none()
    }

    /// The settings of one connection (2).
    async fn current(&self) -> io::Result<Arc<ClientConfig>> {
        let files = self.clone();
        let settings = tokio::task::spawn_blocking(move || files.settings());
        match settings.await.map_err(io::Error::other)? {
            Ok(settings) => {
                let settings = Arc::new(settings);
                self.remember(&settings);
                Ok(settings)
            }
            Err(error) => {
                let Some(last) = self.last_good() else { return Err(error.into()) };
                tracing::warn!("{error}: the certificates that could be used before are used");
                Ok(last)
            }
        }
    }

    /// Converts to the TLS library's type. Reads the files.
    fn settings(&self) -> Result<ClientConfig, UnusableCertificates> {
        // The library panics if two cryptography providers are compiled in and the program has chosen none.
        let provider = CryptoProvider::get_default().cloned();
        let provider = provider.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
        let settings = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let settings = settings
            .map_err(|_| UnusableCertificates("the program's rustls supports no version of TLS".into()))?;
        let settings = settings.with_root_certificates(self.trusted()?);
        let (Some(own), Some(key)) = (&self.own, &self.key) else {
            return Ok(verifying_each_time(settings.with_no_client_auth()));
        };
        let chain = own.certificates("the client's certificate")?;
        settings.with_client_auth_cert(chain, key.key()?).map(verifying_each_time).map_err(|error| {
            let what = match error {
                rustls::Error::InconsistentKeys(_) => "it belongs to another certificate",
                _ => "one of them has an unsupported type",
            };
            UnusableCertificates(format!(
                "{} does not fit the client's certificate: {what}",
                key.named("the client's key")
            ))
        })
    }

    fn trusted(&self) -> Result<RootCertStore, UnusableCertificates> {
        let Some(pem) = &self.roots else {
            return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
        };
        let what = "the root certificate";
        let mut trusted = RootCertStore::empty();
        for root in pem.certificates(what)? {
            let added = trusted.add(root);
            added.map_err(|_| {
                UnusableCertificates(format!("{} is no certificate of an authority", pem.named(what)))
            })?;
        }
        Ok(trusted)
    }
}

/// Without the resumption of sessions, in which the server shows no certificate (1).
fn verifying_each_time(mut settings: ClientConfig) -> ClientConfig {
    settings.resumption = Resumption::disabled();
    settings
}

impl Pem {
    /// All certificates of a PEM text, at least one.
    fn certificates(&self, what: &str) -> Result<Vec<CertificateDer<'static>>, UnusableCertificates> {
        let pem = self.read(what)?;
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().unwrap_or_default();
        if chain.is_empty() {
            return Err(UnusableCertificates(format!("{} is no PEM of a certificate", self.named(what))));
        }
        Ok(chain)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, UnusableCertificates> {
        let what = "the client's key";
        let pem = self.read(what)?;
        // The library's error is dropped, because it may show part of the key (3).
        PrivateKeyDer::from_pem_slice(&pem).map_err(|_| {
            UnusableCertificates(format!("{} is no PEM of a key without a passphrase", self.named(what)))
        })
    }

    fn read(&self, what: &str) -> Result<Cow<'_, [u8]>, UnusableCertificates> {
        match self {
            Self::Text(pem) => Ok(Cow::Borrowed(pem)),
            Self::File(path) => match std::fs::read(path) {
                Ok(pem) => Ok(Cow::Owned(pem)),
                Err(error) => {
                    Err(UnusableCertificates(format!("{} cannot be read: {error}", self.named(what))))
                }
            },
        }
    }

    /// Name of the PEM text in messages.
    fn named(&self, what: &str) -> String {
        match self {
            Self::Text(_) => what.to_owned(),
            Self::File(path) => format!("{what}, `{}`,", path.display()),
        }
    }
}

/// Opens an encrypted stream to a server whose certificate is valid for the host (1). The handshake may take `within`.
///
/// Cancel safety: dropping the future ends the attempt.
pub(crate) async fn open(
    config: &RedisConfig,
    host: &str,
    port: u16,
    within: Duration,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned());
    let name = name
        .map_err(|_| UnusableCertificates("the URL's host is not a valid name for a certificate".into()))?;
    let settings = config.certificates().current().await?;
    let stream = connect(config, host, port).await?;
    match tokio::time::timeout(within, TlsConnector::from(settings).connect(name, stream)).await {
        Ok(Err(error)) if fault_of(&error).is_none() => Err(io::Error::new(error.kind(), NoAnswer)),
        Ok(result) => result,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, NoAnswer)),
    }
}

/// Connects to the first of the host's addresses that accepts, or to the relay.
pub(crate) async fn connect(config: &RedisConfig, host: &str, port: u16) -> io::Result<TcpStream> {
    if let Some(relay) = config.relay() {
        return connect_through(relay, &format!("tcp {host} {port}")).await;
    }
    let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let (stream, _) = select_ok(addresses.into_iter().map(|at| Box::pin(TcpStream::connect(at)))).await?;
    // Requests are small, and must not wait for each other.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to a relay, and names the target.
pub(crate) async fn connect_through(relay: u16, target: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, relay)).await?;
    stream.set_nodelay(true)?;
    stream.write_all(format!("{target}\n").as_bytes()).await?;
    Ok(stream)
}

/// The fault of a stream error, if it concerns TLS.
pub(crate) fn fault_of(error: &io::Error) -> Option<(FaultKind, Phase)> {
    let cause = error.get_ref()?;
    if let Some(UnusableCertificates(what)) = cause.downcast_ref() {
        return Some((FaultKind::Unusable(what.clone()), Phase::Connect));
    }
    let fault = if cause.is::<NoAnswer>() {
        TlsFault::NoResponse
    } else {
        map_error(cause.downcast_ref::<rustls::Error>()?)
    };
    Some((FaultKind::Tls(fault), Phase::Handshake))
}

/// Maps a TLS error to its fault (4).
fn map_error(error: &rustls::Error) -> TlsFault {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(why) => certificate_fault(why),
        E::AlertReceived(alert) => alert_fault(*alert),
        E::InvalidMessage(
            InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge,
        ) => TlsFault::NotTls,
        other => TlsFault::Failed(one_line(&other.to_string())),
    }
}

/// Maps the client's error about the server's certificate.
fn certificate_fault(why: &CertificateError) -> TlsFault {
    use CertificateError as E;
    match why {
        // An authority with the same name but another key is unknown.
        E::UnknownIssuer | E::BadSignature => TlsFault::UnknownIssuer,
        E::Expired | E::ExpiredContext { .. } => TlsFault::Expired,
        E::NotValidYet | E::NotValidYetContext { .. } => TlsFault::NotYetValid,
        E::NotValidForName => TlsFault::WrongName(Vec::new()),
        E::NotValidForNameContext { presented, .. } => {
            TlsFault::WrongName(presented.iter().map(|name| plain_name(name)).collect())
        }
        E::Other(other) => TlsFault::BadCertificate(one_line(&other.to_string())),
        other => TlsFault::BadCertificate(one_line(&other.to_string())),
    }
}

/// Maps an alert that the server sent.
fn alert_fault(alert: AlertDescription) -> TlsFault {
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
        other => TlsFault::Failed(format!("the server aborts the handshake: {other:?}")),
    }
}

/// Strips what rustls writes around a name in a certificate to show its type.
fn plain_name(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    one_line(inner.unwrap_or(name).trim_matches('"'))
}

/// Limits a text, which may come from the server, to one short line.
fn one_line(text: &str) -> String {
    text.chars().take_while(|c| !c.is_control()).take(200).collect()
}
