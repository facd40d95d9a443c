//! Temporary faults, which the simulation begins and ends.

use crate::environment::SeededRng;

/// A temporary fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No bytes pass between a client and the server, and those in flight are lost.
    Partitioned(usize),
    /// Everything that a client sends is lost.
    RequestsLost(usize),
    /// Everything sent to a client is lost.
    RepliesLost(usize),
    /// Bytes between a client and the server arrive only when the fault ends.
    HeldBack(usize),
    /// Messages to and from a client take long, some longer than others.
    Slow(usize),
    /// A client has crashed, and is restarted at the end.
    ClientDown(usize),
    /// The server has crashed, and is restarted at the end.
    ServerDown,
    /// Published messages reach no client.
    MessagesLost,
}

impl Fault {
    /// A random fault for one of so many clients, or none that lasts.
    pub(crate) fn any(rng: &SeededRng, clients: usize) -> Option<Self> {
        let name = usize::try_from(rng.below(clients as u64)).unwrap_or(0);
        Some(match rng.below(9) {
            0 => Self::Partitioned(name),
            1 => Self::RequestsLost(name),
            2 => Self::RepliesLost(name),
            3 => Self::HeldBack(name),
            4 => Self::Slow(name),
            5 => Self::ClientDown(name),
            6 => Self::ServerDown,
            7 => Self::MessagesLost,
            _ => return None,
        })
    }

    /// The fault's target: the network of a client, a process, or the messages.
    pub(crate) fn target(self) -> (u8, usize) {
        match self {
            Self::Partitioned(name)
            | Self::RequestsLost(name)
            | Self::RepliesLost(name)
            | Self::HeldBack(name)
            | Self::Slow(name) => (0, name),
            Self::ClientDown(name) => (1, name),
            Self::ServerDown => (2, 0),
            Self::MessagesLost => (3, 0),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Partitioned(_) => "partitioned",
            Self::RequestsLost(_) => "requests lost",
            Self::RepliesLost(_) => "replies lost",
            Self::HeldBack(_) => "held back",
            Self::Slow(_) => "slow",
            Self::ClientDown(_) => "client down",
            Self::ServerDown => "server down",
            Self::MessagesLost => "messages lost",
        }
    }
}
