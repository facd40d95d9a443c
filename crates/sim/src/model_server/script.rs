//! Which of the library's scripts a text is.

use super::reply::Failure;
use leasehold_core::Kind;

/// A script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Acquire,
    /// Several at once.
    AcquireAll,
    Extend,
    /// A single lock, with more to read than its token.
    ExtendOne,
    Release,
    Inspect,
    Evict,
    Free,
    Resize,
    Raise,
    Beat,
}

/// The first line of each script, which no other text contains.
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

/// Contained in all scripts on a ReentrantMutex, and in no others.
const REENTRANT: &str = "-- Part of all scripts on a ReentrantMutex, after numbers.lua:";

/// Contained in all scripts on an Election except extends, and in no others.
const ELECTION: &str = "-- Part of all scripts on an Election but extend,";

/// All scripts on locks with several holders contain one of these.
const SHARED: [&str; 2] = [
    "-- Part of all scripts on a lock that several have side by side but extend, after numbers.lua:",
    "-- Lengthens one hold of a lock that several have side by side, and its key.",
];

/// Which locks a script is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// Those of this kind.
    Kind(Kind),
    /// The kind that the last argument of the call names.
    Named,
}

impl Script {
    /// Identifies a script and the locks that it is for. Fails unless it has exactly one known first line.
    pub(super) fn of(text: &str) -> Result<(Self, For), Failure> {
        let unknown = || Failure::new("ERR this server is a model, and does not know that script");
        let name = text.lines().next().and_then(|line| line.strip_prefix(HEAD)).ok_or_else(unknown)?;
        let (kind, script) = name.split_once(' ').ok_or_else(unknown)?;
        let (_, script) = NAMES.into_iter().find(|(name, _)| *name == script).ok_or_else(unknown)?;
        let kind = match kind {
            "shared" => For::Named,
            "reentrant" => For::Kind(Kind::Reentrant),
            "election" => For::Kind(Kind::Election),
            // A heartbeat is for no lock.
            "mutex" | "session" => For::Kind(Kind::Mutex),
            _ => return Err(unknown()),
        };
        Ok((script, kind))
    }
}

/// The name of a text: its SHA-1, in hexadecimal digits.
pub(super) fn sha(text: &str) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}
