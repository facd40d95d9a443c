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
    Beat,
}

/// What the head of each script says, and no other text.
const HEADS: [(&str, Script); 10] = [
    ("-- Takes the lock if it is free and nobody waits before;", Script::Acquire),
    ("-- Takes all of several Mutexes, or none of them.", Script::AcquireAll),
    ("-- Lengthens holds by their tokens alone:", Script::Extend),
    ("-- Lengthens one hold, where the token alone does not tell it,", Script::ExtendOne),
    ("-- Lengthens one hold of a ReentrantMutex, and its key.", Script::ExtendOne),
    ("-- Gives a hold up: frees the lock if it has it,", Script::Release),
    ("-- Tells how the lock stands. Writes nothing.", Script::Inspect),
    ("-- Takes from a session what it has of the lock, if it is dead:", Script::Evict),
    ("-- Frees the lock by the will of a person, whoever has it:", Script::Free),
    ("-- Begins a session, or keeps it alive.", Script::Beat),
];

/// What all scripts on a ReentrantMutex contain, and no others.
const REENTRANT: &str = "-- Part of all scripts on a ReentrantMutex, after numbers.lua:";

/// What all scripts on an Election contain but those that lengthen a hold, and no others.
const ELECTION: &str = "-- Part of all scripts on an Election but extend,";

impl Script {
    /// The script of a text, and the kind of the locks that it is for. Fails where its head is none of those that are
    /// known, or is not the only one.
    pub(super) fn of(text: &str) -> Result<(Self, Kind), Failure> {
        let mut found = HEADS.iter().filter(|(head, _)| text.contains(head)).map(|(_, script)| *script);
        let kind = match () {
            () if text.contains(REENTRANT) => Kind::Reentrant,
            () if text.contains(ELECTION) => Kind::Election,
            () => Kind::Mutex,
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
