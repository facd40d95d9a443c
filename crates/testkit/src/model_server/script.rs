//! Which of the library's scripts a text is.

use super::reply::Failure;

/// One of the scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Acquire,
    Extend,
    ExtendRecord,
    Release,
    Inspect,
    Evict,
    Free,
    Beat,
}

/// What the head of each script says, and no other text.
const HEADS: [(&str, Script); 8] = [
    ("-- Takes the lock if it is free and nobody waits before;", Script::Acquire),
    ("-- Lengthens holds by their tokens alone:", Script::Extend),
    ("-- Lengthens one hold, where the token alone does not tell it,", Script::ExtendRecord),
    ("-- Gives a hold up: frees the lock if it has it,", Script::Release),
    ("-- Tells how the lock stands. Writes nothing.", Script::Inspect),
    ("-- Takes from a session what it has of the lock, if it is dead:", Script::Evict),
    ("-- Frees the lock by the will of a person, whoever has it:", Script::Free),
    ("-- Begins a session, or keeps it alive.", Script::Beat),
];

impl Script {
    /// The script of a text. Fails where its head is none of those that are known, or is not the only one.
    pub(super) fn of(text: &str) -> Result<Self, Failure> {
        let mut found = HEADS.iter().filter(|(head, _)| text.contains(head)).map(|(_, script)| *script);
        match (found.next(), found.next()) {
            (Some(script), None) => Ok(script),
            _ => Err(Failure::new("ERR this server is a model, and does not know that script")),
        }
    }
}

/// The name of a text: its SHA-1, in hexadecimal digits.
pub(super) fn sha(text: &str) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}
