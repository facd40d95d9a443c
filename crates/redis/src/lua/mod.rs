//! The texts of the Lua scripts.
//!
//! A script is a list of fragments (`lua/*.lua`): preludes that several scripts share, and a tail of its own. The compiler
//! strips and joins them, so that a connection sends no comments. Nothing is joined at run time, and values of users are
//! arguments, never text of a script.
//!
//! 1. Stripping removes comments, blank lines, indentation, and spaces that only readers need, and nothing else.
//! 2. The first line of a script is a comment with its name: `-- leasehold <kind> <script>`. It tells scripts apart in a
//!    server's slow log, and to a server that is a model.
//! 3. The head and the tail of a script read KEYS and ARGV. All other fragments declare functions and constants (in
//!    capitals), which get what they need as arguments: most of them the table that lock.lua describes. A fragment uses
//!    constants and functions of the fragments before it, and none of their variables.

/// A fragment without comments.
struct Stripped<const N: usize> {
    bytes: [u8; N],
    /// How many of the bytes are in use.
    len: usize,
}

impl<const N: usize> Stripped<N> {
    const fn text(&self) -> &str {
        text_of(self.bytes.split_at(self.len).0)
    }
}

/// Whether a byte outside of a string ends the token before it, and begins none that a space could split or join.
const fn is_separator(byte: u8) -> bool {
    matches!(byte, b'\n' | b',' | b'{' | b'}' | b'=' | b'~' | b'<' | b'>')
}

/// Removes comments, blank lines and needless spaces (1). Long brackets, and strings over several lines, fail
/// the build: no fragment needs them.
const fn strip<const N: usize>(source: &str) -> Stripped<N> {
    let source = source.as_bytes();
    let (mut bytes, mut len, mut at) = ([0; N], 0, 0);
    // The quote that ends the present string, or 0.
    let mut quote = 0;
    while at < source.len() {
        let byte = source[at];
        let next = if at + 1 < source.len() { source[at + 1] } else { b'\n' };
        if quote != 0 {
            assert!(byte != b'\n', "a string ends on its line");
            bytes[len] = byte;
            len += 1;
            if byte == b'\\' {
                assert!(next != b'\n', "a string ends on its line");
                bytes[len] = next;
                len += 1;
                at += 1;
            } else if byte == quote {
                quote = 0;
            }
        } else if byte == b'-' && next == b'-' {
            assert!(at + 2 == source.len() || source[at + 2] != b'[', "a comment ends on its line");
            while at + 1 < source.len() && source[at + 1] != b'\n' {
                at += 1;
            }
        } else if byte == b'\n' {
            while len > 0 && bytes[len - 1] == b' ' {
                len -= 1;
            }
            if len > 0 && bytes[len - 1] != b'\n' {
                bytes[len] = b'\n';
                len += 1;
            }
        } else if byte == b' ' && (len == 0 || is_separator(bytes[len - 1]) || is_separator(next)) {
            // Nothing would run together.
        } else {
            assert!(byte != b'\t' && byte != b'\r', "a fragment has spaces and newlines only");
            assert!(byte != b'[' || (next != b'[' && next != b'='), "a fragment has no long brackets");
            if byte == b'\'' || byte == b'"' {
                quote = byte;
            }
            bytes[len] = byte;
            len += 1;
        }
        at += 1;
    }
    assert!(len > 0 && bytes[len - 1] == b'\n', "a fragment ends with a newline");
    Stripped { bytes, len }
}

const fn length(texts: &[&str]) -> usize {
    let (mut sum, mut at) = (0, 0);
    while at < texts.len() {
        sum += texts[at].len();
        at += 1;
    }
    sum
}

const fn join<const N: usize>(texts: &[&str]) -> [u8; N] {
    let (mut bytes, mut start, mut at) = ([0; N], 0, 0);
    while at < texts.len() {
        let (_, rest) = bytes.split_at_mut(start);
        let (target, _) = rest.split_at_mut(texts[at].len());
        target.copy_from_slice(texts[at].as_bytes());
        start += texts[at].len();
        at += 1;
    }
    bytes
}

const fn text_of(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("whole fragments are UTF-8"),
    }
}

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

        /// The files of the heads and tails of scripts, which read KEYS and ARGV (3).
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
    SHARED_READ = "shared_read";
    FETCH_RECORD = "fetch_record";
    CHECK_RECORD = "check_record";
    PARSE_RECORD = "parse_record";

    MUTEX_KIND = "mutex";
    ELECTION_KIND = "election";
    STRING_HOLDER = "string_holder";
    REENTRANT_HOLDERS = "reentrant_holders";
    SHARED_HOLDERS = "shared_holders";
    DESCRIBE = "describe";

    CHANGE = "change";
    RECORD_HOLDER = "record_holder";
    STRING_CHANGE = "string_change";
    ANNOUNCE_FREE = "announce_free";
    ELECTION_CHANGE = "election_change";
    REENTRANT_CHANGE = "reentrant_change";
    SHARED_CHANGE = "shared_change";

    QUEUE = "queue";
    GRANT = "grant";
    SHARED_GRANT = "shared_grant";
    COMMIT = "commit";
    EVICT_COMMON = "evict_common";

    ACQUIRE_QUICK_TAIL = "acquire_quick";
    ACQUIRE_TAIL = "acquire";
    ACQUIRE_ALL_TAIL = "acquire_all";
    EXTEND_TAIL = "extend";
    STRING_EXTEND_TAIL = "string_extend";
    REENTRANT_EXTEND_TAIL = "reentrant_extend";
    SHARED_EXTEND_TAIL = "shared_extend";
    RELEASE_QUICK_TAIL = "release_quick";
    RELEASE_TAIL = "release";
    SHARED_RELEASE_TAIL = "shared_release";
    INSPECT_TAIL = "inspect";
    SHARED_INSPECT_TAIL = "shared_inspect";
    EVICT_TAIL = "evict";
    FORCE_RELEASE_TAIL = "force_release";
    SHARED_FORCE_RELEASE_TAIL = "shared_force_release";
    RAISE_FENCE_TAIL = "raise_fence";
    REENTRANT_RAISE_FENCE_TAIL = "reentrant_raise_fence";
    RESIZE_TAIL = "resize";
    HEARTBEAT_TAIL = "heartbeat";
    RELEASE_BY_TOKEN_TAIL = "release_by_token";
    REENTRANT_RELEASE_BY_TOKEN_TAIL = "reentrant_release_by_token";
    SHARED_RELEASE_BY_TOKEN_TAIL = "shared_release_by_token";
    REWRITE_EXPIRY_TAIL = "rewrite_expiry";
}

/// The texts of the scripts on one kind of lock.
#[derive(Debug)]
pub(crate) struct Texts {
    pub(crate) acquire: &'static str,
    /// Extends one hold, if its token alone does not identify it.
    pub(crate) extend: &'static str,
    pub(crate) release: &'static str,
    /// Releases a hold and keeps the lock taken, if the kind can.
    pub(crate) release_and_rest: Option<&'static str>,
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
const STRING_CHANGES: &str = prelude!(PUBLISH, CHANGE, RECORD_HOLDER, STRING_CHANGE);
const QUEUED_GRANT: &str = prelude!(QUEUE, GRANT, COMMIT);

const MUTEX_READS: &str = prelude!(STRING_RECORD, MUTEX_KIND, STRING_HOLDERS);
const MUTEX_CHANGES: &str = prelude!(MUTEX_READS, STRING_CHANGES, ANNOUNCE_FREE);

const ELECTION_READS: &str = prelude!(FORMAT, STRING_RECORD, ELECTION_KIND, STRING_HOLDERS);
const ELECTION_GRANTS: &str = prelude!(ELECTION_READS, STRING_CHANGES, ELECTION_CHANGE, QUEUED_GRANT);

const REENTRANT_LOCK: &str = prelude!(FORMAT, NUMBERS, REENTRANT_READ);
const REENTRANT_READS: &str =
    prelude!(REENTRANT_LOCK, LOCK, CHECK_RECORD, FETCH_RECORD, PARSE_RECORD, REENTRANT_HOLDERS, DESCRIBE);
const REENTRANT_GRANTS: &str =
    prelude!(REENTRANT_READS, PUBLISH, CHANGE, RECORD_HOLDER, REENTRANT_CHANGE, QUEUED_GRANT);

const SHARED_READS: &str =
    prelude!(FORMAT, NUMBERS, LOCK, CHECK_RECORD, SHARED_READ, PARSE_RECORD, SHARED_HOLDERS);
const SHARED_GRANTS: &str =
    prelude!(SHARED_READS, PUBLISH, CHANGE, SHARED_CHANGE, QUEUE, SHARED_GRANT, COMMIT);

const STRING_EXTEND: &str = script!("mutex extend_one": FORMAT, NUMBERS, STRING_EXTEND_TAIL);

pub(crate) const MUTEX: Texts = Texts {
    acquire: script!("mutex acquire":
        FORMAT, ACQUIRE_QUICK_TAIL, MUTEX_CHANGES, QUEUED_GRANT, EVICT_COMMON, ACQUIRE_TAIL),
    extend: STRING_EXTEND,
    release: script!("mutex release":
        FORMAT, RELEASE_QUICK_TAIL, MUTEX_CHANGES, QUEUED_GRANT, RELEASE_TAIL),
    release_and_rest: Some(script!("mutex release_and_rest":
        FORMAT, MUTEX_CHANGES, QUEUED_GRANT, RELEASE_TAIL)),
    inspect: script!("mutex inspect": FORMAT, MUTEX_READS, INSPECT_TAIL),
    evict: script!("mutex evict": FORMAT, MUTEX_CHANGES, QUEUED_GRANT, EVICT_COMMON, EVICT_TAIL),
    force_release: script!("mutex force_release":
        FORMAT, MUTEX_CHANGES, QUEUED_GRANT, EVICT_COMMON, FORCE_RELEASE_TAIL),
    raise_fence: Some(script!("mutex raise_fence": FORMAT, NUMBERS, RAISE_FENCE_TAIL)),
};

/// Like a Mutex with a token of its own form, and every change of the leader is announced. Elections are rare, so there are
/// no quick paths.
pub(crate) const ELECTION: Texts = Texts {
    acquire: script!("election acquire": ELECTION_GRANTS, EVICT_COMMON, ACQUIRE_TAIL),
    extend: STRING_EXTEND,
    release: ELECTION_RELEASE,
    release_and_rest: Some(ELECTION_RELEASE),
    inspect: script!("election inspect": ELECTION_READS, INSPECT_TAIL),
    evict: script!("election evict": ELECTION_GRANTS, EVICT_COMMON, EVICT_TAIL),
    force_release: script!("election force_release": ELECTION_GRANTS, EVICT_COMMON, FORCE_RELEASE_TAIL),
    raise_fence: None,
};
const ELECTION_RELEASE: &str = script!("election release": ELECTION_GRANTS, RELEASE_TAIL);

pub(crate) const REENTRANT: Texts = Texts {
    acquire: script!("reentrant acquire": REENTRANT_GRANTS, EVICT_COMMON, ACQUIRE_TAIL),
    extend: script!("reentrant extend_one": REENTRANT_LOCK, REENTRANT_EXTEND_TAIL),
    release: script!("reentrant release": REENTRANT_GRANTS, RELEASE_TAIL),
    release_and_rest: None,
    inspect: script!("reentrant inspect": REENTRANT_READS, INSPECT_TAIL),
    evict: script!("reentrant evict": REENTRANT_GRANTS, EVICT_COMMON, EVICT_TAIL),
    force_release: script!("reentrant force_release": REENTRANT_GRANTS, EVICT_COMMON, FORCE_RELEASE_TAIL),
    raise_fence: Some(
        script!("reentrant raise_fence": REENTRANT_LOCK, CHECK_RECORD, REENTRANT_RAISE_FENCE_TAIL),
    ),
};

/// Of all shared kinds: the last argument of a call names the kind.
pub(crate) const SHARED: Texts = Texts {
    acquire: script!("shared acquire": SHARED_GRANTS, EVICT_COMMON, ACQUIRE_TAIL),
    extend: script!("shared extend_one": FORMAT, NUMBERS, SHARED_EXTEND_TAIL),
    release: script!("shared release": SHARED_GRANTS, SHARED_RELEASE_TAIL),
    release_and_rest: None,
    inspect: script!("shared inspect": SHARED_READS, SHARED_INSPECT_TAIL),
    evict: script!("shared evict": SHARED_GRANTS, EVICT_COMMON, EVICT_TAIL),
    force_release: script!("shared force_release": SHARED_GRANTS, EVICT_COMMON, SHARED_FORCE_RELEASE_TAIL),
    raise_fence: None,
};
pub(crate) const RESIZE: &str = script!("shared resize": SHARED_GRANTS, RESIZE_TAIL);

/// Several locks in one call.
pub(crate) const EXTEND: &str = script!("mutex extend": EXTEND_TAIL);
pub(crate) const ACQUIRE_ALL: &str = script!("mutex acquire_all": FORMAT, NUMBERS, ACQUIRE_ALL_TAIL);

pub(crate) const HEARTBEAT: &str = script!("session heartbeat": FORMAT, NUMBERS, HEARTBEAT_TAIL);

// Releases that do not need the record.
pub(crate) const RELEASE_BY_TOKEN: &str = script!("mutex release_by_token": PUBLISH, RELEASE_BY_TOKEN_TAIL);
pub(crate) const REENTRANT_RELEASE_BY_TOKEN: &str =
    script!("reentrant release_by_token": REENTRANT_LOCK, PUBLISH, REENTRANT_RELEASE_BY_TOKEN_TAIL);
pub(crate) const SHARED_RELEASE_BY_TOKEN: &str =
    script!("shared release_by_token": FORMAT, NUMBERS, SHARED_RELEASE_BY_TOKEN_TAIL);

/// A write that changes nothing, for replicas to acknowledge.
pub(crate) const REWRITE_EXPIRY: &str = script!("any rewrite_expiry": REWRITE_EXPIRY_TAIL);

/// The texts of all scripts.
#[cfg(test)]
pub(crate) fn all_texts() -> Vec<&'static str> {
    let of_kinds = [MUTEX, REENTRANT, ELECTION, SHARED].map(|texts| {
        let Texts { acquire, extend, release, release_and_rest, inspect, evict, force_release, raise_fence } =
            texts;
        let all = [acquire, extend, release, inspect, evict, force_release];
        all.into_iter().chain(release_and_rest).chain(raise_fence).collect()
    });
    let others = [
        RESIZE,
        EXTEND,
        ACQUIRE_ALL,
        HEARTBEAT,
        RELEASE_BY_TOKEN,
        REENTRANT_RELEASE_BY_TOKEN,
        SHARED_RELEASE_BY_TOKEN,
        REWRITE_EXPIRY,
    ];
    of_kinds.into_iter().chain([others.to_vec()]).collect::<Vec<Vec<_>>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::model::{Audit, EndedHolds};
    use leasehold_core::{FencingToken, HoldId, Kind, SessionId};
    use std::collections::BTreeSet;

    /// The tokens of a text, by the grammar of Lua 5.1 as far as the fragments use it.
    fn tokens(text: &str) -> Vec<&str> {
        let (mut tokens, mut rest) = (Vec::new(), text.trim_start());
        while let Some(first) = rest.chars().next() {
            let len = match first {
                '-' if rest.starts_with("--") => {
                    let end = rest.find('\n').unwrap_or(rest.len());
                    rest = rest[end..].trim_start();
                    continue;
                }
                '\'' | '"' => string_len(rest, first),
                _ if first.is_ascii_alphanumeric() || first == '_' => {
                    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    rest.find(|c| !word(c)).unwrap_or(rest.len())
                }
                _ => {
                    let symbols = ["...", "..", "==", "~=", "<=", ">="];
                    let symbol = symbols.iter().find(|symbol| rest.starts_with(**symbol));
                    symbol.map_or(first.len_utf8(), |symbol| symbol.len())
                }
            };
            tokens.push(&rest[..len]);
            rest = rest[len..].trim_start();
        }
        tokens
    }

    fn string_len(text: &str, quote: char) -> usize {
        let mut escaped = false;
        let end = text.char_indices().skip(1).find(|(_, c)| {
            let is_end = *c == quote && !escaped;
            escaped = *c == '\\' && !escaped;
            is_end
        });
        end.expect("a string ends").0 + 1
    }

    #[test]
    fn stripping_removes_comments_only() {
        for (name, source, stripped) in FRAGMENTS {
            assert_eq!(tokens(source), tokens(stripped), "{name}");
            // A statement that begins with a parenthesis is the only place where Lua 5.1 looks at line ends.
            for line in stripped.lines() {
                assert!(!line.is_empty() && line == line.trim() && !line.starts_with('('), "{name}: {line}");
            }
        }
        let tricky = concat!(
            "-- a comment\n",
            "\n",
            "local a = '--' .. \"-- '\" -- a comment\n",
            "  -- indented\n",
            "  a = '\\'--' - -1 -- [[ not long\n",
            "  b = { 1, ' , ', {} } ~= c <= d\n",
            "return a--'\n",
        );
        let stripped = strip::<200>(tricky);
        assert_eq!(
            stripped.text(),
            "local a='--' .. \"-- '\"\na='\\'--' - -1\nb={1,' , ',{}}~=c<=d\nreturn a\n"
        );
        assert_eq!(tokens(tricky), tokens(stripped.text()));
    }

    #[test]
    fn every_file_is_a_fragment_and_every_script_has_a_name() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lua");
        let files = std::fs::read_dir(dir).expect("a directory").filter_map(|file| {
            let name = file.expect("a file").file_name().into_string().expect("a plain name");
            name.strip_suffix(".lua").map(ToOwned::to_owned)
        });
        let declared = FRAGMENTS.iter().map(|(name, ..)| (*name).to_owned());
        assert_eq!(files.collect::<BTreeSet<_>>(), declared.collect::<BTreeSet<_>>());

        let mut by_name = std::collections::BTreeMap::new();
        for text in all_texts() {
            let name = text.lines().next().and_then(|line| line.strip_prefix("-- leasehold "));
            let name = name.expect("the first line names the script");
            assert_eq!(name.split(' ').count(), 2, "{name}");
            assert_eq!(text.matches("--").count(), 1, "{name} has another comment");
            assert_eq!(*by_name.entry(name).or_insert(text), text, "{name} names two scripts");
        }
    }

    /// CRC-64 of Jones, as Redis computes it: reflected, from zero.
    fn crc64(bytes: &[u8]) -> u64 {
        const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9;
        bytes.iter().fold(0_u64, |crc, byte| {
            (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
                let carry = if crc & 1 == 1 { POLYNOMIAL.reverse_bits() } else { 0 };
                (crc >> 1) ^ carry
            })
        })
    }

    /// A payload of RESTORE with its checksum, as a Lua string.
    fn payload(bytes: &[u8]) -> String {
        let mut bytes = bytes.to_vec();
        bytes.extend_from_slice(&crc64(&bytes).to_le_bytes());
        bytes.iter().fold(String::new(), |text, byte| text + &format!("\\{byte:03}"))
    }

    #[test]
    fn the_payload_of_an_empty_record_is_what_dump_would_give() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca, "the check value in Redis's crc64.c");
        let escaped = payload(b"\x04\x01\x06format\x011\x09\x00");
        for text in [MUTEX.acquire, HEARTBEAT, ACQUIRE_ALL] {
            assert!(text.contains(&format!("EMPTY_RECORD='{escaped}'")), "{escaped}");
        }
        assert_eq!(leasehold_core::FORMAT, 1, "the payload and check_record.lua name the format");
        let escaped = payload(b"\x04\x01\x09leasehold\x04none\x09\x00");
        assert!(REENTRANT.acquire.contains(&format!("EMPTY_LOCK='{escaped}'")), "{escaped}");
        for kind in Kind::ALL.into_iter().filter(|kind| kind.is_shared()) {
            let word = kind.as_str();
            let mut bytes = b"\x04\x01\x09leasehold".to_vec();
            bytes.push(u8::try_from(word.len()).expect("a word is short"));
            bytes.extend_from_slice(word.as_bytes());
            bytes.extend_from_slice(b"\x09\x00");
            let escaped = payload(&bytes);
            assert!(SHARED.acquire.contains(&format!("{word}='{escaped}'")), "{escaped}");
        }
        let escaped = payload(b"\x05\x01\x01-\0\0\0\0\0\0\0\0\x09\x00");
        assert!(HEARTBEAT.contains(&format!("EMPTY_INDEX='{escaped}'")), "{escaped}");
    }

    #[test]
    fn the_scripts_know_the_marks_of_the_model() {
        let mark = Kind::Election.token_prefix().replace('\n', "\\n");
        let mutex = [MUTEX.acquire, MUTEX.inspect, ACQUIRE_ALL].map(|text| (text, "ELECTION_MARK"));
        let election = [ELECTION.acquire, ELECTION.inspect].map(|text| (text, "MARK"));
        for (text, name) in mutex.into_iter().chain(election) {
            assert!(text.contains(&format!("local {name}='{mark}'\n")), "{text}");
            assert!(text.contains(&format!("string.sub(value,1,#{name})")), "{text}");
        }
        assert_eq!(
            Kind::Mutex.cooldown_token(None),
            "rest\n0",
            "as in string_holder.lua and acquire_all.lua"
        );
    }

    #[test]
    fn the_scripts_know_the_numbers_of_the_model() {
        let contains = |text: &str, expected: &str| assert!(text.contains(expected), "{expected}\n{text}");
        let record_kept_ms = format!("RECORD_KEPT_MS={}\n", leasehold_core::RECORD_TTL.as_millis());
        let greatest_fence = format!("GREATEST_FENCE={}\n", FencingToken::MAX);
        // Of each hold the first characters after the session's, and a mark.
        let session = SessionId::from_random([0; 12]);
        let (short, random) =
            (12, HoldId::from_random(session, [0; 16]).token().find('.').expect("a dot") + 1);
        let ended = format!("ENDED_FROM,ENDED_TO={},{}\n", random + 1, random + short);
        let ended_kept = format!("ENDED_KEPT={}\n", (EndedHolds::MAX_LEN - 1) * (short + 1));
        let session_length = format!("SESSION_LENGTH={}\n", session.to_string().len());
        for expected in [record_kept_ms, greatest_fence, ended, ended_kept, session_length] {
            contains(FORMAT, &expected);
        }
        contains(FORMAT, "PERIOD_US,SHORT_LEASE_MS=100000000,1000000\n");
        contains(EVICT_COMMON, &format!("AUDIT_ENTRIES={}\n", Audit::MAX_ENTRIES));
        contains(CHANGE, &format!("AUDIT_KEPT_MS='{}'\n", leasehold_core::AUDIT_TTL.as_millis()));
        contains(SHARED_INSPECT_TAIL, &format!("MAX_DESCRIBED={}\n", leasehold_core::MAX_SHARED_HOLDERS));
        for script in [MUTEX, REENTRANT, ELECTION, SHARED]
            .iter()
            .flat_map(|texts| [texts.release, texts.evict, texts.force_release])
        {
            let ended = script.split("'.'").skip(1);
            assert!(ended.filter(|rest| rest.contains("string.sub(ended or '',1,ENDED_KEPT)")).count() > 0);
            contains(script, "string.sub(hold,ENDED_FROM,ENDED_TO)");
        }
        // Declared once: no fragment has a number of the format besides.
        for (name, _, stripped) in FRAGMENTS.iter().filter(|(name, ..)| *name != "format") {
            for number in ["3600000", "9007199254740991", "18,29", ",91)", "~=48", "==10 ", "100000000"] {
                assert!(!stripped.contains(number), "{name}: {number}");
            }
        }
        let used = ["RECORD_KEPT_MS", "GREATEST_FENCE", "EMPTY_RECORD", "WRONG_TYPE", "BYTE_ZERO"];
        for text in all_texts().into_iter().filter(|text| !text.contains(FORMAT)) {
            assert!(!used.iter().any(|name| text.contains(name)), "it needs format.lua:\n{text}");
        }
    }

    #[test]
    fn every_key_of_a_command_is_a_declared_one() {
        for script in all_texts() {
            assert!(!script.starts_with("#!"), "Redis 6.2 knows no headers");
            let loops = script.split("key in ").skip(1).all(|rest| rest.starts_with("ipairs(KEYS) do"));
            assert!(loops, "`key` is one that is declared");
            for (place, expected) in [
                ("local key", "=lock.key\n"),
                ("local key,", "=lock.key,"),
                ("{key=", "KEYS[1]"),
                ("{key=KEYS[1],record=", "KEYS[2]}"),
                ("new_lock(", "KEYS[1],KEYS[2],KEYS[#KEYS],"),
                ("read_string(", "lock.key)"),
                ("delete_holds(", "key,"),
                ("session_alive_ms(", "lock,KEYS[3],"),
            ] {
                let mut parts = script.split(place);
                let mut before = parts.next().unwrap_or_default();
                for rest in parts {
                    let is_declaration = before.ends_with("local function ");
                    let is_other = place == "local key" && rest.starts_with(',');
                    let values = if place == "local key," { rest.split_once('=') } else { None };
                    let fits = match values {
                        Some((_, values)) => values.starts_with("lock.key,"),
                        None => rest.starts_with(expected),
                    };
                    assert!(fits || is_declaration || is_other, "{place} {rest}");
                    before = rest;
                }
            }
            for key in ["lock.key", "lock.record", "lock.audit", "session_record"] {
                assert!(!script.contains(&format!("{key}=")), "{key} is one that is declared");
            }
            let calls = script.split("redis.call(").skip(1);
            for call in calls.chain(script.split("redis.pcall(").skip(1)) {
                let (command, rest) = call.trim_start().split_once([',', ')']).unwrap_or_default();
                let rest = rest.trim_start();
                // `key` is one of KEYS, in a loop over them.
                let declared = [
                    "KEYS[",
                    "unpack(KEYS)",
                    "key,",
                    "key)",
                    "lock.key",
                    "lock.record",
                    "lock.audit",
                    "session_record,",
                ]
                .iter()
                .any(|key| rest.starts_with(key));
                assert!(
                    declared || matches!(command, "'TIME'" | "'PUBLISH'" | "'SPUBLISH'"),
                    "{command} {rest}"
                );
            }
        }
    }
    /// The names that a fragment reads or writes and does not declare, and those that it declares for later ones.
    #[derive(Default)]
    struct Names<'a> {
        free: BTreeSet<&'a str>,
        exported: BTreeSet<&'a str>,
    }

    const KEYWORDS: [&str; 21] = [
        "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
        "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
    ];
    const BUILTINS: [&str; 10] =
        ["ipairs", "math", "pairs", "pcall", "redis", "string", "table", "tonumber", "type", "unpack"];

    fn is_name(token: &str) -> bool {
        token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !KEYWORDS.contains(&token)
    }

    /// The names in a list that begins at `tokens[at]`, and the index of the token after it.
    fn name_list<'a>(tokens: &[&'a str], mut at: usize) -> (Vec<&'a str>, usize) {
        let mut names = Vec::new();
        while tokens.get(at).is_some_and(|token| is_name(token) || *token == ",") {
            names.extend(is_name(tokens[at]).then_some(tokens[at]));
            at += 1;
        }
        (names, at)
    }

    /// Follows the scopes of a stripped fragment. A local is in scope from the end of its line on.
    fn names(text: &str) -> Names<'_> {
        let mut names = Names::default();
        let mut scopes: Vec<BTreeSet<&str>> = vec![BTreeSet::new()];
        let (mut brackets, mut loop_names) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let tokens = tokens(line);
            let (mut at, mut declared, mut depth, mut is_closed_late) = (0, Vec::new(), 0, false);
            while at < tokens.len() {
                let (token, previous) = (tokens[at], at.checked_sub(1).map_or("", |before| tokens[before]));
                at += 1;
                match token {
                    "local" if tokens.get(at) != Some(&"function") => {
                        depth = scopes.len() - 1;
                        (declared, at) = name_list(&tokens, at);
                    }
                    "for" => (loop_names, at) = name_list(&tokens, at),
                    "function" => {
                        if tokens[at] != "(" {
                            assert_eq!(previous, "local", "{line}");
                            if let [global] = &mut scopes[..] {
                                global.insert(tokens[at]);
                                names.exported.insert(tokens[at]);
                            }
                            scopes.last_mut().expect("a scope").insert(tokens[at]);
                            at += 1;
                        }
                        let (parameters, after) = name_list(&tokens, at + 1);
                        scopes.push(parameters.into_iter().collect());
                        at = after + 1;
                    }
                    "do" => scopes.push(std::mem::take(&mut loop_names).into_iter().collect()),
                    "then" | "repeat" => scopes.push(BTreeSet::new()),
                    "else" => *scopes.last_mut().expect("a scope") = BTreeSet::new(),
                    "elseif" | "end" => drop(scopes.pop()),
                    // Its condition sees the locals of the loop.
                    "until" => is_closed_late = true,
                    "{" | "(" | "[" => brackets.push(token),
                    "}" | ")" | "]" => drop(brackets.pop()),
                    _ => {
                        let is_key = brackets.last() == Some(&"{") && tokens.get(at) == Some(&"=");
                        let is_used = is_name(token) && !is_key && !matches!(previous, "." | ":");
                        if is_used && !scopes.iter().any(|scope| scope.contains(token)) {
                            names.free.insert(token);
                        }
                    }
                }
            }
            let is_constant = |name: &&str| !name.contains(|c: char| c.is_ascii_lowercase());
            if depth == 0 {
                names.exported.extend(declared.iter().copied().filter(is_constant));
            }
            // The scope may have ended on this line.
            if let Some(scope) = scopes.get_mut(depth) {
                scope.extend(declared);
            }
            if is_closed_late {
                scopes.pop();
            }
        }
        assert_eq!((scopes.len(), brackets.len()), (1, 0), "every scope ends: {text}");
        names
    }

    /// The names that fragments of a script read although no fragment before declares them for others (3).
    fn undeclared(fragments: &[(&str, &str)]) -> Vec<String> {
        let (mut declared, mut found) = (BTreeSet::from(BUILTINS), Vec::new());
        for (file, text) in fragments {
            let Names { free, exported } = names(text);
            let is_allowed = |name: &&str| is_tail(file) && matches!(*name, "KEYS" | "ARGV");
            found.extend(
                free.iter()
                    .filter(|name| !declared.contains(*name) && !is_allowed(name))
                    .map(|name| format!("{file}: {name}")),
            );
            declared.extend(exported);
        }
        found
    }

    /// The fragments of a script, by file and text.
    fn parts_of(script: &'static str) -> Vec<(&'static str, &'static str)> {
        let (_, mut rest) = script.split_once('\n').expect("a name");
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let fits = FRAGMENTS.iter().filter(|(_, _, text)| rest.starts_with(text));
            let (file, _, text) = fits.max_by_key(|(_, _, text)| text.len()).expect("a script is fragments");
            parts.push((*file, *text));
            rest = &rest[text.len()..];
        }
        parts
    }

    #[test]
    fn no_fragment_reads_a_variable_of_another() {
        for script in all_texts() {
            assert_eq!(
                undeclared(&parts_of(script)),
                [""; 0],
                "{}",
                script.lines().next().unwrap_or_default()
            );
        }
    }

    #[test]
    fn a_variable_of_another_fragment_is_found() {
        let numbers = ("numbers", NUMBERS);
        for (text, expected) in [
            ("local function f()\nreturn now_ms\nend\n", &["x: now_ms"][..]),
            ("local function f(a)\nlocal b=a\nreturn function(c)\nreturn b+c+d\nend\nend\n", &["x: d"]),
            ("local function f(lock)\nlock.value,value=value,1\nend\n", &["x: value"]),
            ("local function f(lock)\nlocal ended=ended\nreturn{ended=lock.ended}\nend\n", &["x: ended"]),
            ("local function f(a)\nfor i,b in ipairs(a) do\na[i]=digits(b)\nend\nreturn b\nend\n", &["x: b"]),
            ("local function f()\nreturn KEYS[1],ARGV[1]\nend\n", &["x: ARGV", "x: KEYS"]),
            ("local function f()\nrepeat\nlocal last=now()\nuntil last\nreturn NONE\nend\n", &["x: NONE"]),
            ("local A=1\nlocal function f()\nif A then\nlocal b=A\nelse\nreturn b\nend\nend\n", &["x: b"]),
        ] {
            assert_eq!(undeclared(&[numbers, ("x", text)]), expected, "{text}");
        }
        // A function that comes later is no function yet.
        assert_eq!(undeclared(&[("x", "local function f()\nreturn now()\nend\n"), numbers]), ["x: now"]);
        // In a real script.
        let planted = QUEUE.replace("lock.queued==1", "queued==1");
        let mut parts = parts_of(MUTEX.acquire);
        let queue = parts.iter_mut().find(|(file, _)| *file == "queue").expect("it queues");
        queue.1 = &planted;
        assert_eq!(undeclared(&parts), ["queue: queued"]);
    }
}
