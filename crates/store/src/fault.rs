//! What goes wrong between a client and its store.

use crate::hazard::Hazard;
use leasehold_core::{Refused, Reply};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why an operation has no reply: where, in which phase, and what happened.
///
/// A fault never shows a password, a token or a URL's user part.
///
/// ```
/// use leasehold::store::{Fault, FaultKind, Phase};
///
/// let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
/// let fault = Fault::new(FaultKind::Disconnected, Phase::Reply, "locks:6379").because(reset);
/// assert_eq!(fault.to_string(), "the reply of locks:6379: the connection broke");
/// assert!(fault.is_transient());
/// ```
#[derive(Debug, Clone)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// In which phase of the call.
    pub phase: Phase,
    /// At which server or file: an address, without user and password.
    pub node: Arc<str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// What happened.
///
/// ```
/// use leasehold::store::{Fault, FaultKind};
///
/// fn remedy(fault: &Fault) -> &'static str {
///     match &fault.kind {
///         FaultKind::Unauthenticated | FaultKind::Forbidden => "ask whoever runs the store",
///         FaultKind::Meaningless(_) | FaultKind::Unusable(_) => "choose another name",
///         _ if fault.is_transient() => "try again",
///         _ => "read the message",
///     }
/// }
/// # let fault = Fault::new(FaultKind::Busy, leasehold::store::Phase::Reply, "locks:6379");
/// # assert_eq!(remedy(&fault), "try again");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// No connection could be made.
    Unreachable,
    /// No answer came in time.
    TimedOut,
    /// The connection broke.
    Disconnected,
    /// The server does not know the user or the password, or wants one.
    Unauthenticated,
    /// The user may not do this at the server, or the process at the file.
    Forbidden,
    /// The server's memory is full.
    OutOfMemory,
    /// The server is a replica, or may not write for another reason.
    ReadOnly,
    /// Too few replicas have confirmed what was written.
    Unconfirmed {
        /// How many had to.
        wanted: u32,
        /// How many have, in time.
        found: u32,
    },
    /// Too few nodes of a quorum have done it, or are known to have.
    NoQuorum {
        /// How many had to.
        needed: usize,
        /// How many there are.
        of: usize,
        /// Those that did not answer, or could not do it, and why.
        nodes: Vec<Fault>,
    },
    /// The server was started so short a time ago that it may have forgotten what it has given: as a node of a quorum it
    /// gives nothing until that would be over.
    TooYoung {
        /// How long it has been up.
        up: Duration,
        /// How long it has to be up.
        needed: Duration,
    },
    /// The server is busy: it loads its data, runs a script that does not end, or a part of its cluster moves.
    Busy,
    /// The server or the file cannot serve these locks: too old, say.
    Unsupported(String),
    /// The server can serve them, and can lose them; and such servers are to be refused
    /// (`RedisConfig::strict`).
    Hazardous(Vec<Hazard>),
    /// The operation has no meaning at this name.
    Meaningless(Refused),
    /// The name or the configuration cannot be used with this store.
    Unusable(String),
    /// The two sides do not agree on TLS.
    Tls(TlsFault),
    /// Anything else that the store said.
    Failed(String),
}

/// What two sides do not agree on that should speak TLS, or should not.
///
/// ```
/// use leasehold::store::{Fault, FaultKind, TlsFault};
///
/// fn whose_certificate(fault: &Fault) -> Option<&'static str> {
///     match &fault.kind {
///         FaultKind::Tls(TlsFault::Expired | TlsFault::UnknownIssuer | TlsFault::WrongName(_)) => Some("the server's"),
///         FaultKind::Tls(TlsFault::ClientCertificateMissing | TlsFault::ClientCertificateExpired) => Some("ours"),
///         _ => None,
///     }
/// }
/// # let fault = Fault::new(FaultKind::Tls(TlsFault::Expired), leasehold::store::Phase::Handshake, "locks:6380");
/// # assert_eq!(whose_certificate(&fault), Some("the server's"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFault {
    /// The server's certificate is signed by an authority that we do not trust.
    #[error(
        "its certificate is signed by nobody who is trusted here: give the certificate of its authority, as `?ca=FILE`"
    )]
    UnknownIssuer,
    /// The server's certificate is for other hosts than the one that we have connected to: for these.
    #[error(
        "its certificate is not for the host that the URL, a Sentinel or the cluster names{}: let them use a name that it is for",
        listed(.0)
    )]
    WrongName(Vec<String>),
    /// The server's certificate has expired.
    #[error("its certificate has expired: have it renewed, or set this machine's clock right")]
    Expired,
    /// The server's certificate is not valid yet.
    #[error("its certificate is not valid yet: is this machine's clock right?")]
    NotYetValid,
    /// Something else is wrong with the server's certificate.
    #[error("its certificate cannot be accepted: {0}")]
    BadCertificate(String),
    /// The server wants a certificate of ours, and was shown none.
    #[error("it wants a certificate of ours: give one with its key, as `?cert=FILE&key=FILE`")]
    ClientCertificateMissing,
    /// The server finds that our certificate has expired.
    #[error("it says that our certificate has expired: renew it")]
    ClientCertificateExpired,
    /// The server does not accept our certificate.
    #[error(
        "it does not accept our certificate: is that signed by the authority of the server's `tls-ca-cert-file`, and for clients?"
    )]
    ClientCertificateRefused,
    /// The server answers TLS with something else.
    #[error(
        "it does not speak TLS on this port: connect to its `tls-port`, or by `redis` in place of `rediss` if plain text will do"
    )]
    PlainServer,
    /// The server says nothing to the greeting of TLS, as one that waits for plain text does.
    #[error(
        "it does not answer to TLS: is this its `tls-port`? If it is, the server may be overloaded, or restarting"
    )]
    Unanswered,
    /// The server hangs up on the greeting in plain text, as one that waits for TLS does.
    #[error(
        "it hung up on the greeting: if this port wants TLS, write `rediss` in place of `redis`; else the server is restarting, or has too many clients"
    )]
    HungUp,
    /// Anything else.
    #[error("TLS failed: {0}")]
    Failed(String),
}

/// Names in brackets, if there are any.
fn listed(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
}

/// In which phase of a call something happened.
///
/// ```
/// use leasehold::store::{Executed, Fault, FaultKind, Outcome, Phase};
///
/// /// For a store of one's own: what was not sent was not executed.
/// fn failed(fault: Fault) -> Outcome {
///     match fault.phase {
///         Phase::Connect | Phase::Handshake | Phase::Send => Outcome::Failed(Executed::No, fault),
///         Phase::Reply => Outcome::Failed(Executed::Unknown, fault),
///     }
/// }
/// # let late = Fault::new(FaultKind::TimedOut, Phase::Reply, "locks:6379");
/// # assert!(matches!(failed(late), Outcome::Failed(Executed::Unknown, _)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// While a connection was made, or a file opened.
    Connect,
    /// While the two sides made themselves known to each other.
    Handshake,
    /// Before the operation was sent.
    Send,
    /// While its reply was awaited, or in the reply.
    Reply,
}

impl Fault {
    /// A fault at a node.
    pub fn new(kind: FaultKind, phase: Phase, node: impl Into<Arc<str>>) -> Self {
        Self { kind, phase, node: node.into(), source: None }
    }

    /// What a reply means that is none to the question: a refusal, or a store that breaks its contract.
    pub fn odd_reply(reply: Reply) -> Self {
        let kind = match reply {
            Reply::Refused(refused) => FaultKind::Meaningless(refused),
            _ => FaultKind::Failed("it answered another question than was asked".into()),
        };
        Self::new(kind, Phase::Reply, "the store")
    }

    /// The same fault with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The more telling of two faults of one call: that the time was up at last says less than what went wrong before.
    #[must_use]
    pub fn or_earlier(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(earlier) if self.kind == FaultKind::TimedOut => earlier,
            _ => self,
        }
    }

    /// Whether the same call may succeed a little later without anybody's help.
    pub fn is_transient(&self) -> bool {
        match &self.kind {
            FaultKind::Unreachable
            | FaultKind::TimedOut
            | FaultKind::Disconnected
            | FaultKind::ReadOnly
            | FaultKind::Unconfirmed { .. }
            | FaultKind::TooYoung { .. }
            | FaultKind::Busy
            | FaultKind::Tls(TlsFault::Unanswered | TlsFault::HungUp) => true,
            // The others may come back.
            FaultKind::NoQuorum { needed, of, nodes } => {
                nodes.iter().filter(|node| !node.is_transient()).count() <= of.saturating_sub(*needed)
            }
            FaultKind::Unauthenticated
            | FaultKind::Forbidden
            | FaultKind::OutOfMemory
            | FaultKind::Unsupported(_)
            | FaultKind::Hazardous(_)
            | FaultKind::Meaningless(_)
            | FaultKind::Unusable(_)
            | FaultKind::Tls(_)
            | FaultKind::Failed(_) => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Connect => "connecting to",
            Phase::Handshake => "greeting",
            Phase::Send => "asking",
            Phase::Reply => "the reply of",
        };
        write!(f, "{phase} {}: ", self.node)?;
        match &self.kind {
            FaultKind::Unreachable => {
                f.write_str("cannot be reached: is it running, and is the address right?")
            }
            FaultKind::TimedOut => f.write_str("no answer in time"),
            FaultKind::Disconnected => f.write_str("the connection broke"),
            FaultKind::Unauthenticated => {
                f.write_str("user or password are missing or wrong: check the credentials")
            }
            FaultKind::Forbidden => f.write_str(
                "permission denied: see docs/reference/redis-layout.md for what is needed at least",
            ),
            FaultKind::OutOfMemory => f.write_str("its memory is full: raise maxmemory, or free some"),
            FaultKind::ReadOnly => f.write_str("it does not take writes: is it a replica?"),
            FaultKind::Unconfirmed { wanted, found } => write!(
                f,
                "{found} of {wanted} replicas have confirmed it in time: are they running, and in step with it?"
            ),
            FaultKind::NoQuorum { needed, of, nodes } => {
                write!(f, "fewer than {needed} of its {of} nodes have done it")?;
                let mut sign = ':';
                nodes.iter().try_for_each(|node| {
                    write!(f, "{sign} {node}")?;
                    sign = ';';
                    Ok(())
                })
            }
            FaultKind::TooYoung { up, needed } => write!(
                f,
                "it has been up for {up:?}, and gives no lock before it has been for {needed:?}: it may have forgotten what it gave before it was started"
            ),
            FaultKind::Busy => f.write_str("it is busy"),
            FaultKind::Unsupported(what) | FaultKind::Unusable(what) | FaultKind::Failed(what) => {
                f.write_str(what)
            }
            FaultKind::Hazardous(hazards) => {
                let all: Vec<_> = hazards.iter().map(Hazard::to_string).collect();
                write!(f, "it is refused, since only strict settings will do: {}", all.join("; "))
            }
            FaultKind::Meaningless(refused) => fmt::Display::fmt(refused, f),
            FaultKind::Tls(what) => fmt::Display::fmt(what, f),
        }
    }
}

/// By what happened, where, and in which phase. Causes are not compared.
impl PartialEq for Fault {
    fn eq(&self, other: &Self) -> bool {
        (&self.kind, self.phase, &self.node) == (&other.kind, other.phase, &other.node)
    }
}

impl Eq for Fault {}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}
