//! Recognises the library's scripts.

use super::reply::Failure;
use leasehold_core::Kind;

/// One of the scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Acquire,
    /// Of several locks.
    AcquireAll,
    /// Acquires and releases of several locks.
    Batch,
    Extend,
    /// Of one lock, whose state is more than a token.
    ExtendOne,
    Release,
    Inspect,
    Evict,
    ForceRelease,
    Resize,
    RaiseFence,
    Proclaim,
    Heartbeat,
    /// Of the sessions in an index.
    SessionList,
    /// Of the records of sessions.
    SessionRead,
    /// Tries what the other scripts rely on.
    Trials,
}

/// The first line of a script: `-- leasehold <kind> <script>`.
const HEAD: &str = "-- leasehold ";

/// The scripts, by the last word of their first line.
const NAMES: [(&str, Script); 18] = [
    ("acquire", Script::Acquire),
    ("acquire_all", Script::AcquireAll),
    ("batch", Script::Batch),
    ("extend", Script::Extend),
    ("extend_one", Script::ExtendOne),
    ("release", Script::Release),
    ("release_with_cooldown", Script::Release),
    ("release_with_history", Script::Release),
    ("inspect", Script::Inspect),
    ("evict", Script::Evict),
    ("force_release", Script::ForceRelease),
    ("resize", Script::Resize),
    ("raise_fence", Script::RaiseFence),
    ("proclaim", Script::Proclaim),
    ("heartbeat", Script::Heartbeat),
    ("list", Script::SessionList),
    ("read", Script::SessionRead),
    ("trials", Script::Trials),
];

/// Where the kind of a call's lock comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KindSource {
    /// The script is for this kind.
    Script(Kind),
    /// The last argument of the call.
    LastArgument,
}

impl Script {
    /// The script of a text, and the source of its kind. Fails if its first line names no known script.
    pub(super) fn of(text: &str) -> Result<(Self, KindSource), Failure> {
        let unknown = || Failure::new("ERR this model server does not know the script");
        let name = text.lines().next().and_then(|line| line.strip_prefix(HEAD)).ok_or_else(unknown)?;
        let (kind, script) = name.split_once(' ').ok_or_else(unknown)?;
        let (_, script) = NAMES.into_iter().find(|(name, _)| *name == script).ok_or_else(unknown)?;
        let kind = match kind {
            "shared" => KindSource::LastArgument,
            "reentrant" => KindSource::Script(Kind::Reentrant),
            "election" => KindSource::Script(Kind::Election),
            // Those of sessions and the trials are for no lock.
            "mutex" | "session" | "any" => KindSource::Script(Kind::Mutex),
            _ => return Err(unknown()),
        };
        Ok((script, kind))
    }
}

/// The SHA-1 of a text, in hexadecimal digits.
pub(super) fn sha(text: &str) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}
