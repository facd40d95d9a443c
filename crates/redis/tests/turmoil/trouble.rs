//! Temporary faults. The storm begins and ends them.

use crate::host::Chance;

/// A temporary fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No bytes pass between a client and the server, and those in flight are lost.
    Cut(usize),
    /// Everything that a client sends is lost.
    Unheard(usize),
    /// Everything sent to a client is lost.
    Deaf(usize),
    /// Bytes between a client and the server arrive only when the fault ends.
    Held(usize),
    /// Messages to and from a client take long, some longer than others.
    Slow(usize),
    /// A client has crashed, and is restarted at the end.
    ClientDown(usize),
    /// The server has crashed, and is restarted at the end.
    ServerDown,
    /// Published messages reach no client.
    Mute,
}

impl Trouble {
    /// A random fault for one of so many clients, or none that lasts.
    pub(crate) fn any(chance: &Chance, clients: usize) -> Option<Self> {
        let who = usize::try_from(chance.below(clients as u64)).unwrap_or(0);
        Some(match chance.below(9) {
            0 => Self::Cut(who),
            1 => Self::Unheard(who),
            2 => Self::Deaf(who),
            3 => Self::Held(who),
            4 => Self::Slow(who),
            5 => Self::ClientDown(who),
            6 => Self::ServerDown,
            7 => Self::Mute,
            _ => return None,
        })
    }

    /// The fault's target: the network of a client, a process, or the messages.
    pub(crate) fn concerns(self) -> (u8, usize) {
        match self {
            Self::Cut(who) | Self::Unheard(who) | Self::Deaf(who) | Self::Held(who) | Self::Slow(who) => {
                (0, who)
            }
            Self::ClientDown(who) => (1, who),
            Self::ServerDown => (2, 0),
            Self::Mute => (3, 0),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cut(_) => "cut",
            Self::Unheard(_) => "unheard",
            Self::Deaf(_) => "deaf",
            Self::Held(_) => "held back",
            Self::Slow(_) => "slow",
            Self::ClientDown(_) => "client down",
            Self::ServerDown => "server down",
            Self::Mute => "mute",
        }
    }
}
