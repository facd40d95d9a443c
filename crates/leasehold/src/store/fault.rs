//! What goes wrong between a client and its store.

use super::hazard::Hazard;
use leasehold_core::{Refused, Reply};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

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
    /// The server is busy: it loads its data, or runs a script that does not end.
    Busy,
    /// The server or the file cannot serve these locks: too old, say.
    Unsupported(String),
    /// The server can serve them, and can lose them; and such servers are to be refused
    /// ([`RedisConfig::strict`](crate::store::RedisConfig::strict)).
    Hazardous(Vec<Hazard>),
    /// The operation has no meaning at this name.
    Meaningless(Refused),
    /// The name or the configuration cannot be used with this store.
    Unusable(String),
    /// Anything else that the store said.
    Failed(String),
}

/// In which phase of a call something happened.
///
/// ```
/// use leasehold::store::{Fault, FaultKind, Outcome, Phase};
///
/// /// For a store of one's own: what was not sent was not executed.
/// fn failed(fault: Fault) -> Outcome {
///     match fault.phase {
///         Phase::Connect | Phase::Handshake | Phase::Send => Outcome::Refused(fault),
///         Phase::Reply => Outcome::Unknown(fault),
///     }
/// }
/// # let late = Fault::new(FaultKind::TimedOut, Phase::Reply, "locks:6379");
/// # assert!(matches!(failed(late), Outcome::Unknown(_)));
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
    pub(crate) fn odd_reply(reply: Reply) -> Self {
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
    pub(crate) fn or_earlier(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(earlier) if self.kind == FaultKind::TimedOut => earlier,
            _ => self,
        }
    }

    /// Whether the same call may succeed a little later without anybody's help.
    pub const fn is_transient(&self) -> bool {
        match self.kind {
            FaultKind::Unreachable
            | FaultKind::TimedOut
            | FaultKind::Disconnected
            | FaultKind::ReadOnly
            | FaultKind::Unconfirmed { .. }
            | FaultKind::Busy => true,
            FaultKind::Unauthenticated
            | FaultKind::Forbidden
            | FaultKind::OutOfMemory
            | FaultKind::Unsupported(_)
            | FaultKind::Hazardous(_)
            | FaultKind::Meaningless(_)
            | FaultKind::Unusable(_)
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
            FaultKind::Forbidden => {
                f.write_str("permission denied: see docs/operations.md for what is needed at least")
            }
            FaultKind::OutOfMemory => f.write_str("its memory is full: raise maxmemory, or free some"),
            FaultKind::ReadOnly => f.write_str("it does not take writes: is it a replica?"),
            FaultKind::Unconfirmed { wanted, found } => write!(
                f,
                "{found} of {wanted} replicas have confirmed it in time: are they running, and in step with it?"
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
        }
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}
