//! Which of the library's scripts a text is.

use super::reply::Failure;
use leasehold_core::Kind;

/// One of the scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Acquire,
    /// Several at once.
    AcquireAll,
    Extend,
    /// One by itself, where more is to be looked at than a token.
    ExtendOne,
    Release,
    Inspect,
    Evict,
    Free,
    Resize,
    Raise,
    Beat,
}

/// What the head of each script says, and no other text.
const HEADS: [(&str, Script); 17] = [
    ("-- Takes the lock if it is free and nobody waits before;", Script::Acquire),
    ("-- Takes all of several Mutexes, or none of them.", Script::AcquireAll),
    ("-- Lengthens holds by their tokens alone:", Script::Extend),
    ("-- Lengthens one hold, where the token alone does not tell it,", Script::ExtendOne),
    ("-- Lengthens one hold of a ReentrantMutex, and its key.", Script::ExtendOne),
    ("-- Gives a hold up: frees the lock if it has it,", Script::Release),
    ("-- Tells how the lock stands. Writes nothing.", Script::Inspect),
    ("-- Takes from a session what it has of the lock, if it is dead:", Script::Evict),
    ("-- Frees the lock by the will of a person, whoever has it:", Script::Free),
    ("-- Lengthens one hold of a lock that several have side by side, and its key.", Script::ExtendOne),
    ("-- Gives a part of a lock up that several have side by side, or leaves the queue;", Script::Release),
    ("-- Tells how a lock stands that several have side by side. Writes nothing.", Script::Inspect),
    (
        "-- Takes a part of a lock that several have side by side from its holder, by the will of a person:",
        Script::Free,
    ),
    ("-- Says how many permits a Semaphore has from now on,", Script::Resize),
    ("-- Raises the fencing token of a hold to what a quorum of servers", Script::Raise),
    ("-- Raises the fencing token of all holds of an owner to what a quorum", Script::Raise),
    ("-- Begins a session, or keeps it alive.", Script::Beat),
];

/// What all scripts on a ReentrantMutex contain, and no others.
const REENTRANT: &str = "-- Part of all scripts on a ReentrantMutex, after numbers.lua:";

/// What all scripts on an Election contain but those that lengthen a hold, and no others.
const ELECTION: &str = "-- Part of all scripts on an Election but extend,";

/// What those contain, one or the other, that are on all kinds that several have side by side.
const SHARED: [&str; 2] = [
    "-- Part of all scripts on a lock that several have side by side but extend, after numbers.lua:",
    "-- Lengthens one hold of a lock that several have side by side, and its key.",
];

/// Which locks a script is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// Those of this kind.
    Kind(Kind),
    /// Those of the kind that the last argument of the call says.
    Named,
}

impl Script {
    /// The script of a text, and which locks it is for. Fails where its head is none of those that are
    /// known, or is not the only one.
    pub(super) fn of(text: &str) -> Result<(Self, For), Failure> {
        let mut found = HEADS.iter().filter(|(head, _)| text.contains(head)).map(|(_, script)| *script);
        let kind = match () {
            () if SHARED.iter().any(|shared| text.contains(shared)) => For::Named,
            () if text.contains(REENTRANT) => For::Kind(Kind::Reentrant),
            () if text.contains(ELECTION) => For::Kind(Kind::Election),
            () => For::Kind(Kind::Mutex),
        };
        match (found.next(), found.next()) {
            (Some(script), None) => Ok((script, kind)),
            _ => Err(Failure::new("ERR this server is a model, and does not know that script")),
        }
    }
}

/// The name of a text: its SHA-1, in hexadecimal digits.
pub(super) fn sha(text: &str) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}
