//! Faults between a client and its store.

use crate::finding::{Finding, Severity};
use leasehold_core::{Refused, Reply};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why an operation has no reply: what happened, at which node, and in which phase.
///
/// A fault never contains a password, a token or the user part of a URL.
///
/// ```
/// use leasehold::store::{Fault, FaultKind, Phase};
///
/// let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
/// let fault = Fault::new(FaultKind::Disconnected, Phase::Reply, "locks:6379").with_source(reset);
/// assert_eq!(fault.to_string(), "reply from locks:6379: connection lost");
/// assert!(fault.is_transient());
/// ```
#[derive(Debug, Clone)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The phase of the call.
    pub phase: Phase,
    /// The server or file: an address, without user and password.
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
///         FaultKind::Unauthenticated | FaultKind::Forbidden => "ask the operator of the store",
///         FaultKind::Refused(_) | FaultKind::Unusable(_) => "choose another name",
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
    /// No connection could be established.
    Unreachable,
    /// There was no reply in time.
    TimedOut,
    /// The connection was lost.
    Disconnected,
    /// The connection that the application lent was lost. The store does not make it anew, so every later call fails.
    LentConnectionLost,
    /// The server requires credentials, or rejects those given.
    Unauthenticated,
    /// The user lacks a permission at the server, or the process at the file.
    Forbidden,
    /// The server's memory is full.
    OutOfMemory,
    /// The server is a replica, or refuses writes for another reason.
    ReadOnly,
    /// Too few replicas confirmed a write.
    Unconfirmed {
        /// How many were required.
        required: u32,
        /// How many confirmed in time.
        confirmed: u32,
    },
    /// A write was not synced to the server's append-only file.
    Unsynced,
    /// Too few nodes of a quorum executed the operation, or are known to have done so.
    NoQuorum {
        /// How many were required.
        needed: usize,
        /// How many nodes there are.
        total: usize,
        /// The nodes that did not answer or failed, and why.
        nodes: Vec<Fault>,
    },
    /// The server was started so recently that it may have forgotten holds: as a node of a quorum it grants nothing
    /// until those would have expired.
    RecentlyStarted {
        /// Its uptime.
        uptime: Duration,
        /// The uptime that it needs.
        min_uptime: Duration,
    },
    /// The server is busy: it loads its data, runs a long script, or a part of its cluster is moving.
    Busy,
    /// The server or the file cannot serve these locks, for example because it is too old.
    Unsupported(String),
    /// The server can lose locks, and the configuration refuses such servers
    /// (`RedisConfig::strict`); or it cannot exclude at all, whatever the configuration.
    Unsafe(Vec<Finding>),
    /// The operation does not apply to this name.
    Refused(Refused),
    /// The name or the configuration cannot be used with this store.
    Unusable(String),
    /// TLS could not be established.
    Tls(TlsFault),
    /// The [provider](crate::CredentialsProvider) of credentials gave none, or the server rejects what it gave.
    Credentials(CredentialsFault),
    /// Any other failure that the store reported.
    Failed(String),
}

/// Why TLS could not be established.
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
    /// The server's certificate is signed by an authority that is not trusted.
    #[error(
        "its certificate is signed by an untrusted authority: give the certificate of that authority, as `?ca=FILE`"
    )]
    UnknownIssuer,
    /// The server's certificate is not for the host name used to connect, but for these.
    #[error(
        "its certificate is not for the host that the URL, a Sentinel or the cluster names{}: use a name that it is for",
        listed(.0)
    )]
    WrongName(Vec<String>),
    /// The server's certificate has expired.
    #[error("its certificate has expired: renew it, or correct this machine's clock")]
    Expired,
    /// The server's certificate is not valid yet.
    #[error("its certificate is not valid yet: is this machine's clock correct?")]
    NotYetValid,
    /// The server's certificate is invalid for another reason.
    #[error("its certificate cannot be accepted: {0}")]
    BadCertificate(String),
    /// The server requires a client certificate, and none was sent.
    #[error("it requires a client certificate: give one with its key, as `?cert=FILE&key=FILE`")]
    ClientCertificateMissing,
    /// The server reports that the client certificate has expired.
    #[error("it reports that the client certificate has expired: renew it")]
    ClientCertificateExpired,
    /// The server does not accept the client certificate.
    #[error(
        "it does not accept the client certificate: is that signed by the authority in the server's `tls-ca-cert-file`, and for clients?"
    )]
    ClientCertificateRefused,
    /// The server answers the TLS handshake with something else.
    #[error(
        "it does not speak TLS on this port: connect to its `tls-port`, or use `redis` instead of `rediss` for plain text"
    )]
    NotTls,
    /// The server does not answer the TLS handshake, as a server that expects plain text does.
    #[error(
        "it does not answer the TLS handshake: is this its `tls-port`? If so, the server may be overloaded or restarting"
    )]
    NoResponse,
    /// The server closes the connection after a plain-text handshake, as a server that expects TLS does.
    #[error(
        "it closed the connection during the handshake: if this port expects TLS, write `rediss` instead of `redis`; otherwise the server is restarting, or has too many clients"
    )]
    ConnectionClosed,
    /// Any other TLS failure.
    #[error("TLS failed: {0}")]
    Failed(String),
}

/// Why the [provider](crate::CredentialsProvider) of credentials did not help. Each is transient: the next attempt asks
/// it again.
///
/// ```
/// use leasehold::store::{CredentialsFault, Fault, FaultKind};
/// use std::error::Error;
///
/// fn reason(fault: &Fault) -> Option<String> {
///     match &fault.kind {
///         FaultKind::Credentials(CredentialsFault::Failed) => fault.source().map(|error| error.to_string()),
///         FaultKind::Credentials(other) => Some(other.to_string()),
///         _ => None,
///     }
/// }
/// # let kind = FaultKind::Credentials(CredentialsFault::Failed);
/// # let fault = Fault::new(kind, leasehold::store::Phase::Connect, "locks:6379").with_source(std::fmt::Error);
/// # assert!(reason(&fault).is_some() && fault.is_transient());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsFault {
    /// The provider returned an error, which is the fault's source.
    #[error("the provider of credentials failed")]
    Failed,
    /// The provider panicked.
    #[error("the provider of credentials panicked")]
    Panicked,
    /// The provider did not answer within its time limit.
    #[error("the provider of credentials did not answer within {within:?}")]
    TimedOut {
        /// The limit.
        within: Duration,
    },
    /// The provider had not answered yet when the time of a call was over. Its own time limit is longer.
    #[error("the provider of credentials has not answered yet")]
    Pending,
    /// The server rejects the credentials: they were rotated just now, or are wrong.
    #[error("it rejects the user or the password that the provider of credentials gave")]
    Rejected,
}

/// Names in brackets, or nothing.
fn listed(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
}

/// The phase of a call in which a fault occurred.
///
/// ```
/// use leasehold::store::{Executed, Fault, FaultKind, Outcome, Phase};
///
/// /// For your own store: an operation that was not sent was not executed.
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
    /// While connecting, or opening a file.
    Connect,
    /// During the handshake.
    Handshake,
    /// Before the operation was sent.
    Send,
    /// While waiting for its reply, or in the reply.
    Reply,
}

impl Fault {
    /// Creates a fault at a node.
    pub fn new(kind: FaultKind, phase: Phase, node: impl Into<Arc<str>>) -> Self {
        Self { kind, phase, node: node.into(), source: None }
    }

    /// The fault for a reply that does not match the operation: a refusal, or a store that breaks its contract.
    pub fn unexpected_reply(reply: Reply) -> Self {
        let kind = match reply {
            Reply::Refused(refused) => FaultKind::Refused(refused),
            _ => FaultKind::Failed("its reply does not match the request".into()),
        };
        Self::new(kind, Phase::Reply, "the store")
    }

    /// Adds the cause of the fault.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// The more specific of two faults of one call: an earlier fault, if this one only says that the time was up.
    #[must_use]
    pub fn or_earlier(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(earlier) if self.kind == FaultKind::TimedOut => earlier,
            _ => self,
        }
    }

    /// Whether the store executed a write which too little has confirmed since: too few replicas, or not the disk.
    pub const fn is_unconfirmed(&self) -> bool {
        matches!(self.kind, FaultKind::Unconfirmed { .. } | FaultKind::Unsynced)
    }

    /// Whether the same call may succeed a little later without intervention.
    pub fn is_transient(&self) -> bool {
        match &self.kind {
            FaultKind::Unreachable
            | FaultKind::TimedOut
            | FaultKind::Disconnected
            | FaultKind::ReadOnly
            | FaultKind::Unconfirmed { .. }
            | FaultKind::Unsynced
            | FaultKind::RecentlyStarted { .. }
            | FaultKind::Busy
            | FaultKind::Credentials(_)
            | FaultKind::Tls(TlsFault::NoResponse | TlsFault::ConnectionClosed) => true,
            // The other nodes may come back.
            FaultKind::NoQuorum { needed, total, nodes } => {
                nodes.iter().filter(|node| !node.is_transient()).count() <= total.saturating_sub(*needed)
            }
            FaultKind::LentConnectionLost
            | FaultKind::Unauthenticated
            | FaultKind::Forbidden
            | FaultKind::OutOfMemory
            | FaultKind::Unsupported(_)
            | FaultKind::Unsafe(_)
            | FaultKind::Refused(_)
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
            Phase::Handshake => "handshake with",
            Phase::Send => "sending to",
            Phase::Reply => "reply from",
        };
        write!(f, "{phase} {}: ", self.node)?;
        match &self.kind {
            FaultKind::Unreachable => {
                f.write_str("cannot be reached: is it running, and is the address right?")
            }
            FaultKind::TimedOut => f.write_str("no answer in time"),
            FaultKind::Disconnected => f.write_str("connection lost"),
            FaultKind::LentConnectionLost => f.write_str(
                "connection lost, and the application has to make another: lend that to a new store, or lend one that reconnects",
            ),
            FaultKind::Unauthenticated => {
                f.write_str("user or password are missing or wrong: check the credentials")
            }
            FaultKind::Forbidden => f.write_str(
                "permission denied: see docs/reference/redis-layout.md for what is needed at least",
            ),
            FaultKind::OutOfMemory => f.write_str("its memory is full: raise maxmemory, or free some"),
            FaultKind::ReadOnly => f.write_str("it does not take writes: is it a replica, without the replicas that its `min-replicas-to-write` demands, or unable to save its data?"),
            FaultKind::Unconfirmed { required, confirmed } => write!(
                f,
                "{confirmed} of {required} replicas have confirmed in time: are they running, and in sync with it?"
            ),
            FaultKind::Unsynced => f.write_str(
                "its append-only file was not synced in time: with `appendfsync everysec` that takes up to a second, \
                 more than the call timeout, and with `appendfsync no` it never is",
            ),
            FaultKind::NoQuorum { needed, total, nodes } => {
                write!(f, "fewer than {needed} of {total} nodes succeeded")?;
                let mut sign = ':';
                nodes.iter().try_for_each(|node| {
                    write!(f, "{sign} {node}")?;
                    sign = ';';
                    Ok(())
                })?;
                match time_to_vote(*needed, *total, nodes) {
                    Some(left) => write!(f, "; enough of them vote in {left:?}: wait for that, {WAIVER}"),
                    None => Ok(()),
                }
            }
            FaultKind::RecentlyStarted { uptime, min_uptime } => {
                let left = min_uptime.saturating_sub(*uptime);
                write!(
                    f,
                    "it has been up for {uptime:?} and grants no lock for another {left:?}, until it has been up for {min_uptime:?}: it may have forgotten holds from before its start"
                )
            }
            FaultKind::Busy => f.write_str("it is busy"),
            FaultKind::Unsupported(what) | FaultKind::Unusable(what) | FaultKind::Failed(what) => {
                f.write_str(what)
            }
            FaultKind::Unsafe(findings) => {
                let all: Vec<_> = findings.iter().map(Finding::to_string).collect();
                let critical = findings.iter().any(|finding| finding.severity >= Severity::Critical);
                let by = if critical { "it is refused" } else { "it is rejected by the strict setting" };
                write!(f, "{by}: {}", all.join("; "))?;
                match acceptance(findings) {
                    Some(codes) => write!(f, "; to use it all the same, add `accept={codes}` to its URL"),
                    None => Ok(()),
                }
            }
            FaultKind::Refused(refused) => fmt::Display::fmt(refused, f),
            FaultKind::Tls(what) => fmt::Display::fmt(what, f),
            FaultKind::Credentials(what) => fmt::Display::fmt(what, f),
        }
    }
}

/// The codes to accept so that a server with these findings is used; `None` if one of them cannot be accepted.
fn acceptance(findings: &[Finding]) -> Option<String> {
    let mut codes: Vec<_> = findings.iter().map(|finding| finding.kind.code()).collect();
    codes.dedup();
    let texts: Vec<_> = codes.iter().map(|code| code.as_str()).collect();
    codes.iter().all(|code| code.is_acceptable()).then(|| texts.join(","))
}

/// How to do without the wait after the start of a node, and what that risks.
const WAIVER: &str = "or give all clients `?min_uptime=0s`, if each node keeps every write over a restart: a node that does not may grant a lock that is still held";

/// When enough nodes vote, if the nodes that were started recently are all that is missing.
fn time_to_vote(needed: usize, total: usize, failed: &[Fault]) -> Option<Duration> {
    let mut waits: Vec<_> = failed
        .iter()
        .filter_map(|node| match &node.kind {
            FaultKind::RecentlyStarted { uptime, min_uptime } => Some(min_uptime.saturating_sub(*uptime)),
            _ => None,
        })
        .collect();
    waits.sort_unstable();
    let missing = needed.saturating_sub(total.saturating_sub(failed.len()));
    waits.get(missing.checked_sub(1)?).copied()
}

/// Compares kind, node and phase, but not causes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_of_fresh_nodes_says_when_it_votes_and_how_to_do_without() {
        let s = Duration::from_secs;
        let fresh = |up| FaultKind::RecentlyStarted { uptime: s(up), min_uptime: s(61) };
        let check = |kinds: &[FaultKind], vote_in: Option<&str>| {
            let nodes = kinds.iter().map(|kind| Fault::new(kind.clone(), Phase::Send, "a")).collect();
            let kind = FaultKind::NoQuorum { needed: 3, total: 5, nodes };
            let text = Fault::new(kind, Phase::Send, "the quorum").to_string();
            assert_eq!(text.contains("`?min_uptime=0s`"), vote_in.is_some(), "{text}");
            if let Some(vote_in) = vote_in {
                assert!(text.contains(&format!("; enough of them vote in {vote_in}: ")), "{text}");
            }
        };
        check(&[fresh(1), fresh(2), fresh(3), fresh(4), fresh(5)], Some("58s"));
        check(&[fresh(1), fresh(2), fresh(3)], Some("58s"));
        check(&[fresh(1), fresh(2), FaultKind::TimedOut], Some("59s"));
        check(&[fresh(1), FaultKind::TimedOut, FaultKind::TimedOut, FaultKind::TimedOut], None);
        check(&[FaultKind::TimedOut, FaultKind::TimedOut, FaultKind::TimedOut], None);
        let one = Fault::new(fresh(2), Phase::Send, "a").to_string();
        assert!(one.contains("has been up for 2s and grants no lock for another 59s"), "{one}");
    }
}
