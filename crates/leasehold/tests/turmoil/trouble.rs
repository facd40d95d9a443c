//! What can be wrong for a while. How it is brought about and ended is the storm's.

use crate::host::Chance;

/// Something that is wrong for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing passes between a client and the server, and what was on its way is lost.
    Cut(usize),
    /// What a client sends is lost.
    Unheard(usize),
    /// What a client is sent is lost.
    Deaf(usize),
    /// What passes between a client and the server arrives only at the end.
    Held(usize),
    /// Messages to and from a client take long, some longer than others.
    Slow(usize),
    /// A client has crashed, and is started anew at the end.
    ClientDown(usize),
    /// The server has crashed, and is started anew at the end.
    ServerDown,
    /// What is published reaches nobody.
    Mute,
}

impl Trouble {
    /// Some trouble for one of so many clients, or nothing that lasts.
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

    /// What it concerns: the network of a client, a process, the messages.
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
