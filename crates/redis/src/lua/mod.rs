//! The texts of the Lua scripts.
//!
//! Owns which fragments (`lua/*.lua`) a script consists of: preludes that several scripts share, and a tail of its own.
//! [`strip`](mod@strip) removes comments. Fragments are joined when the crate is compiled, and values of users are
//! arguments, never text of a script.
//!
//! 1. The first line of a script is a comment with its name: `-- leasehold <kind> <script>`. It identifies scripts in a
//!    server's slow log, and to a server that simulates them.
//! 2. The head and the tail of a script read KEYS and ARGV. All other fragments declare functions and constants (in
//!    capitals), which get what they need as arguments: most of them the table that lock.lua describes. A fragment uses
//!    constants and functions of the fragments before it, and none of their variables.

mod strip;
#[cfg(test)]
mod tests;

use strip::{Stripped, join, length, strip, text_of};

/// Joins fragments.
macro_rules! prelude {
    ($($fragment:expr),+ $(,)?) => {{
        const TEXTS: &[&str] = &[$($fragment),+];
        const BYTES: &[u8; length(TEXTS)] = &join(TEXTS);
        text_of(BYTES)
    }};
}

/// A script: its name, then preludes and fragments.
macro_rules! script {
    ($name:literal: $($fragment:expr),+ $(,)?) => {
        prelude!(concat!("-- leasehold ", $name, "\n"), $($fragment),+)
    };
}

macro_rules! fragments {
    ($($name:ident = $file:literal;)+) => {
        $(const $name: &str = {
            const SOURCE: &str = include_str!(concat!($file, ".lua"));
            const STRIPPED: &Stripped<{ SOURCE.len() }> = &strip(SOURCE);
            STRIPPED.text()
        };)+

        /// The file of each fragment, its source, and its stripped text.
        #[cfg(test)]
        const FRAGMENTS: &[(&str, &str, &str)] =
            &[$(($file, include_str!(concat!($file, ".lua")), $name)),+];

        /// The files of the heads and tails of scripts, which read KEYS and ARGV (2).
        #[cfg(test)]
        fn is_tail(file: &str) -> bool {
            [$((stringify!($name), $file)),+].iter().any(|(name, of)| *of == file && name.ends_with("_TAIL"))
        }
    };
}

fragments! {
    FORMAT = "format";
    NUMBERS = "numbers";
    PUBLISH = "publish";
    LOCK = "lock";

    STRING_READ = "string_read";
    REENTRANT_READ = "reentrant_read";
    SHARED_RECORD = "shared_record";
    SHARED_HOLD = "shared_hold";
    SHARED_READ = "shared_read";
    SHARED_READ_ALL = "shared_read_all";
    FETCH_RECORD = "fetch_record";
    CHECK_RECORD = "check_record";
    RECORD_FIELDS = "record_fields";
    PARSE_RECORD = "parse_record";
    LIST_QUEUE = "list_queue";

    MUTEX_KIND = "mutex";
    ELECTION_KIND = "election";
    STRING_HOLDER = "string_holder";
    REENTRANT_HOLDERS = "reentrant_holders";
    SHARED_HOLDERS = "shared_holders";
    SHARED_FIRST_HOLDERS = "shared_first_holders";
    DESCRIBE = "describe";

    CREATE_HASH = "create_hash";
    CHANGE = "change";
    WATERMARK = "watermark";
    RECORD_HOLDER = "record_holder";
    STRING_CHANGE = "string_change";
    ANNOUNCE_FREE = "announce_free";
    JOIN_LINE_TAIL = "join_line";
    ELECTION_CHANGE = "election_change";
    REENTRANT_CHANGE = "reentrant_change";
    SHARED_CHANGE = "shared_change";

    QUEUE = "queue";
    GRANT = "grant";
    SHARED_GRANT = "shared_grant";
    COMMIT = "commit";
    EVICT_COMMON = "evict_common";

    ACQUIRE_QUICK_TAIL = "acquire_quick";
    QUEUE_QUICK_TAIL = "queue_quick";
    ACQUIRE_TAIL = "acquire";
    ACQUIRE_ALL_TAIL = "acquire_all";
    BATCH_TAIL = "batch";
    BATCH_REST_TAIL = "batch_rest";
    EXTEND_TAIL = "extend";
    STRING_EXTEND_TAIL = "string_extend";
    REENTRANT_EXTEND_TAIL = "reentrant_extend";
    SHARED_EXTEND_TAIL = "shared_extend";
    END_CLAIM = "end_claim";
    RELEASE_QUICK_TAIL = "release_quick";
    RELEASE_TAIL = "release";
    HISTORY_TAIL = "history";
    SHARED_RELEASE_TAIL = "shared_release";
    INSPECT_TAIL = "inspect";
    SHARED_INSPECT_TAIL = "shared_inspect";
    EVICT_TAIL = "evict";
    FORCE_RELEASE_TAIL = "force_release";
    SHARED_FORCE_RELEASE_TAIL = "shared_force_release";
    RAISE_FENCE_TAIL = "raise_fence";
    PROCLAIM_TAIL = "proclaim";
    REENTRANT_RAISE_FENCE_TAIL = "reentrant_raise_fence";
    RESIZE_TAIL = "resize";
    HEARTBEAT_TAIL = "heartbeat";
    SESSION_LIST_TAIL = "session_list";
    SESSION_READ_TAIL = "session_read";
    STATISTICS_MERGE_TAIL = "statistics_merge";
    STATISTICS_LIST_TAIL = "statistics_list";
    RELEASE_BY_TOKEN_TAIL = "release_by_token";
    REENTRANT_RELEASE_BY_TOKEN_TAIL = "reentrant_release_by_token";
    SHARED_RELEASE_BY_TOKEN_TAIL = "shared_release_by_token";
    REWRITE_EXPIRY_TAIL = "rewrite_expiry";
    TRIALS_TAIL = "trials";
    TRY_ATOMICITY_TAIL = "try_atomicity";
}

/// The texts of the scripts on one kind of lock.
#[derive(Debug)]
pub(crate) struct Texts {
    pub(crate) acquire: &'static str,
    /// Extends one hold, if its token alone does not identify it.
    pub(crate) extend: &'static str,
    pub(crate) release: &'static str,
    /// Releases a hold and keeps the lock taken, if the kind can.
    pub(crate) release_with_cooldown: Option<&'static str>,
    /// Releases a hold, and adds it to the history.
    pub(crate) release_with_history: &'static str,
    pub(crate) inspect: &'static str,
    pub(crate) evict: &'static str,
    pub(crate) force_release: &'static str,
    /// Set for the kinds that a quorum of servers can hold.
    pub(crate) raise_fence: Option<&'static str>,
}

// What each kind reads, what it changes, and how it grants. The quick paths of a Mutex come before its preludes, and need
// the constants of the format.
const STRING_RECORD: &str = prelude!(NUMBERS, LOCK, STRING_READ, CHECK_RECORD, FETCH_RECORD);
const STRING_HOLDERS: &str = prelude!(PARSE_RECORD, STRING_HOLDER, DESCRIBE);
const STRING_CHANGES: &str = prelude!(PUBLISH, CREATE_HASH, CHANGE, WATERMARK, RECORD_HOLDER, STRING_CHANGE);
const QUEUED_GRANT: &str = prelude!(QUEUE, GRANT, COMMIT);

const MUTEX_READS: &str = prelude!(STRING_RECORD, MUTEX_KIND, STRING_HOLDERS);
const MUTEX_CHANGES: &str = prelude!(MUTEX_READS, STRING_CHANGES, ANNOUNCE_FREE);

const ELECTION_READS: &str = prelude!(FORMAT, STRING_RECORD, ELECTION_KIND, STRING_HOLDERS);
const ELECTION_GRANTS: &str = prelude!(ELECTION_READS, STRING_CHANGES, ELECTION_CHANGE, QUEUED_GRANT);

const REENTRANT_LOCK: &str = prelude!(FORMAT, NUMBERS, REENTRANT_READ);
const REENTRANT_READS: &str =
    prelude!(REENTRANT_LOCK, LOCK, CHECK_RECORD, FETCH_RECORD, PARSE_RECORD, REENTRANT_HOLDERS, DESCRIBE);
const REENTRANT_GRANTS: &str = prelude!(
    REENTRANT_READS,
    PUBLISH,
    CREATE_HASH,
    CHANGE,
    WATERMARK,
    RECORD_HOLDER,
    REENTRANT_CHANGE,
    QUEUED_GRANT
);

const SHARED_HOLDS: &str = prelude!(FORMAT, NUMBERS, LOCK, CHECK_RECORD, SHARED_RECORD, SHARED_HOLD);
const SHARED_READS: &str = prelude!(SHARED_HOLDS, SHARED_READ_ALL, PARSE_RECORD, SHARED_HOLDERS);
const SHARED_GRANTS: &str = prelude!(
    SHARED_HOLDS,
    SHARED_READ,
    PARSE_RECORD,
    SHARED_HOLDERS,
    SHARED_FIRST_HOLDERS,
    PUBLISH,
    CREATE_HASH,
    CHANGE,
    WATERMARK,
    SHARED_CHANGE,
    QUEUE,
    SHARED_GRANT,
    COMMIT
);

const STRING_EXTEND: &str =
    script!("mutex extend_one": FORMAT, NUMBERS, CHECK_RECORD, RECORD_FIELDS, STRING_EXTEND_TAIL);

pub(crate) const MUTEX: Texts = Texts {
    acquire: script!("mutex acquire":
        FORMAT, ACQUIRE_QUICK_TAIL, QUEUE_QUICK_TAIL, MUTEX_CHANGES, QUEUED_GRANT, EVICT_COMMON, ACQUIRE_TAIL),
    extend: STRING_EXTEND,
    release: script!("mutex release":
        FORMAT, RELEASE_QUICK_TAIL, MUTEX_CHANGES, QUEUED_GRANT, END_CLAIM, RELEASE_TAIL),
    release_with_cooldown: Some(script!("mutex release_with_cooldown":
        FORMAT, MUTEX_CHANGES, QUEUED_GRANT, END_CLAIM, RELEASE_TAIL)),
    release_with_history: script!("mutex release_with_history":
        FORMAT, MUTEX_CHANGES, QUEUED_GRANT, END_CLAIM, HISTORY_TAIL, RELEASE_TAIL),
    inspect: script!("mutex inspect": FORMAT, MUTEX_READS, LIST_QUEUE, INSPECT_TAIL),
    evict: script!("mutex evict": FORMAT, MUTEX_CHANGES, QUEUED_GRANT, EVICT_COMMON, EVICT_TAIL),
    force_release: script!("mutex force_release":
        FORMAT, MUTEX_CHANGES, QUEUED_GRANT, EVICT_COMMON, FORCE_RELEASE_TAIL),
    raise_fence: Some(
        script!("mutex raise_fence": FORMAT, NUMBERS, CHECK_RECORD, RECORD_FIELDS, RAISE_FENCE_TAIL),
    ),
};

/// Like a Mutex with a token of its own form, and every change of the leader is announced. Elections are rare, so there are
/// no quick paths.
pub(crate) const ELECTION: Texts = Texts {
    acquire: script!("election acquire": ELECTION_GRANTS, EVICT_COMMON, ACQUIRE_TAIL),
    extend: STRING_EXTEND,
    release: ELECTION_RELEASE,
    release_with_cooldown: Some(ELECTION_RELEASE),
    release_with_history: script!("election release_with_history":
        ELECTION_GRANTS, END_CLAIM, HISTORY_TAIL, RELEASE_TAIL),
    inspect: script!("election inspect": ELECTION_READS, LIST_QUEUE, INSPECT_TAIL),
    evict: script!("election evict": ELECTION_GRANTS, EVICT_COMMON, EVICT_TAIL),
    force_release: script!("election force_release": ELECTION_GRANTS, EVICT_COMMON, FORCE_RELEASE_TAIL),
    raise_fence: None,
};
/// Replaces the text of the leader.
pub(crate) const PROCLAIM: &str =
    script!("election proclaim": FORMAT, NUMBERS, PUBLISH, CHECK_RECORD, RECORD_FIELDS, PROCLAIM_TAIL);
const ELECTION_RELEASE: &str = script!("election release": ELECTION_GRANTS, END_CLAIM, RELEASE_TAIL);

pub(crate) const REENTRANT: Texts = Texts {
    acquire: script!("reentrant acquire": REENTRANT_GRANTS, EVICT_COMMON, ACQUIRE_TAIL),
    extend: script!("reentrant extend_one": REENTRANT_LOCK, CHECK_RECORD, RECORD_FIELDS, REENTRANT_EXTEND_TAIL),
    release: script!("reentrant release": REENTRANT_GRANTS, END_CLAIM, RELEASE_TAIL),
    release_with_cooldown: None,
    release_with_history: script!("reentrant release_with_history":
        REENTRANT_GRANTS, END_CLAIM, HISTORY_TAIL, RELEASE_TAIL),
    inspect: script!("reentrant inspect": REENTRANT_READS, LIST_QUEUE, INSPECT_TAIL),
    evict: script!("reentrant evict": REENTRANT_GRANTS, EVICT_COMMON, EVICT_TAIL),
    force_release: script!("reentrant force_release": REENTRANT_GRANTS, EVICT_COMMON, FORCE_RELEASE_TAIL),
    raise_fence: Some(
        script!("reentrant raise_fence": REENTRANT_LOCK, CHECK_RECORD, RECORD_FIELDS, REENTRANT_RAISE_FENCE_TAIL),
    ),
};

/// Of all shared kinds: the last argument of a call names the kind.
pub(crate) const SHARED: Texts = Texts {
    acquire: script!("shared acquire": SHARED_GRANTS, EVICT_COMMON, ACQUIRE_TAIL),
    extend: script!("shared extend_one": FORMAT, NUMBERS, CHECK_RECORD, RECORD_FIELDS, SHARED_HOLD, SHARED_EXTEND_TAIL),
    release: script!("shared release": SHARED_GRANTS, SHARED_RELEASE_TAIL),
    release_with_cooldown: None,
    release_with_history: script!("shared release_with_history":
        SHARED_GRANTS, HISTORY_TAIL, SHARED_RELEASE_TAIL),
    inspect: script!("shared inspect": SHARED_READS, LIST_QUEUE, SHARED_INSPECT_TAIL),
    evict: script!("shared evict": SHARED_GRANTS, EVICT_COMMON, EVICT_TAIL),
    force_release: script!("shared force_release": SHARED_GRANTS, EVICT_COMMON, SHARED_FORCE_RELEASE_TAIL),
    raise_fence: None,
};
pub(crate) const RESIZE: &str = script!("shared resize": SHARED_GRANTS, RESIZE_TAIL);

/// Several locks in one call.
pub(crate) const EXTEND: &str = script!("mutex extend": EXTEND_TAIL);
pub(crate) const ACQUIRE_ALL: &str =
    script!("mutex acquire_all": FORMAT, NUMBERS, CHECK_RECORD, RECORD_FIELDS, ACQUIRE_ALL_TAIL);
pub(crate) const BATCH: &str = script!("mutex batch":
    FORMAT, BATCH_TAIL, MUTEX_CHANGES, QUEUED_GRANT, END_CLAIM, BATCH_REST_TAIL);

pub(crate) const HEARTBEAT: &str = script!("session heartbeat": FORMAT, NUMBERS, CREATE_HASH, HEARTBEAT_TAIL);

/// Listings, for people and monitors.
pub(crate) const SESSION_LIST: &str = script!("session list": FORMAT, SESSION_LIST_TAIL);
pub(crate) const SESSION_READ: &str = script!("session read": FORMAT, NUMBERS, SESSION_READ_TAIL);

/// What clients have counted.
pub(crate) const STATISTICS_MERGE: &str =
    script!("statistics merge": FORMAT, NUMBERS, CREATE_HASH, STATISTICS_MERGE_TAIL);
pub(crate) const STATISTICS_LIST: &str = script!("statistics list": FORMAT, STATISTICS_LIST_TAIL);

// Releases that do not need the record.
pub(crate) const RELEASE_BY_TOKEN: &str = script!("mutex release_by_token": PUBLISH, RELEASE_BY_TOKEN_TAIL);
pub(crate) const REENTRANT_RELEASE_BY_TOKEN: &str =
    script!("reentrant release_by_token": REENTRANT_LOCK, PUBLISH, REENTRANT_RELEASE_BY_TOKEN_TAIL);
pub(crate) const SHARED_RELEASE_BY_TOKEN: &str =
    script!("shared release_by_token": FORMAT, NUMBERS, SHARED_HOLD, SHARED_RELEASE_BY_TOKEN_TAIL);

pub(crate) const JOIN_LINE: &str = script!("mutex join_line": FORMAT, JOIN_LINE_TAIL);

/// A write that changes nothing, for replicas to acknowledge.
pub(crate) const REWRITE_EXPIRY: &str = script!("any rewrite_expiry": REWRITE_EXPIRY_TAIL);

/// What the other scripts rely on, tried.
pub(crate) const TRIALS: &str = script!("any trials": FORMAT, CREATE_HASH, TRIALS_TAIL);
pub(crate) const TRY_ATOMICITY: &str = script!("any try_atomicity": TRY_ATOMICITY_TAIL);

/// The texts of all scripts.
#[cfg(test)]
pub(crate) fn all_texts() -> Vec<&'static str> {
    let of_kinds = [MUTEX, REENTRANT, ELECTION, SHARED].map(|texts| {
        let Texts {
            acquire,
            extend,
            release,
            release_with_cooldown,
            release_with_history,
            inspect,
            evict,
            force_release,
            raise_fence,
        } = texts;
        let all = [acquire, extend, release, release_with_history, inspect, evict, force_release];
        all.into_iter().chain(release_with_cooldown).chain(raise_fence).collect()
    });
    let others = [
        RESIZE,
        PROCLAIM,
        EXTEND,
        ACQUIRE_ALL,
        BATCH,
        HEARTBEAT,
        SESSION_LIST,
        SESSION_READ,
        STATISTICS_MERGE,
        STATISTICS_LIST,
        RELEASE_BY_TOKEN,
        REENTRANT_RELEASE_BY_TOKEN,
        SHARED_RELEASE_BY_TOKEN,
        JOIN_LINE,
        REWRITE_EXPIRY,
        TRIALS,
        TRY_ATOMICITY,
    ];
    of_kinds.into_iter().chain([others.to_vec()]).collect::<Vec<Vec<_>>>().concat()
}
