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
    RaiseFence,
    Heartbeat,
}

/// The first line of a script: `-- leasehold <kind> <script>`.
const HEAD: &str = "-- leasehold ";

/// The scripts, by the last word of their first line.
const NAMES: [(&str, Script); 12] = [
    ("acquire", Script::Acquire),
    ("acquire_all", Script::AcquireAll),
    ("extend", Script::Extend),
    ("extend_one", Script::ExtendOne),
    ("release", Script::Release),
    ("release_and_rest", Script::Release),
    ("inspect", Script::Inspect),
    ("evict", Script::Evict),
    ("force_release", Script::Free),
    ("resize", Script::Resize),
    ("raise_fence", Script::RaiseFence),
    ("heartbeat", Script::Heartbeat),
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
    /// The script of a text, and which locks it is for. Fails if its first line names no known script.
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
