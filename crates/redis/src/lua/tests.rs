//! The fragments and the scripts: names, numbers and payloads that they share with the model, keys, and scopes.

mod scopes;

use super::*;
use leasehold_core::model::{Audit, EndedHolds};
use leasehold_core::{FencingToken, HoldId, Kind, SessionId};
use scopes::{tokens, undeclared};
use std::collections::BTreeSet;

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
    assert_eq!(stripped.text(), "local a='--' .. \"-- '\"\na='\\'--' - -1\nb={1,' , ',{}}~=c<=d\nreturn a\n");
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

#[test]
fn no_script_restores_a_payload() {
    for text in all_texts() {
        assert!(!text.contains("RESTORE"), "{text}");
    }
}

#[test]
fn the_scripts_know_the_format_of_a_record() {
    let format = format!("'format','{}'", leasehold_core::FORMAT);
    for text in [MUTEX.acquire, REENTRANT.acquire, SHARED.acquire, ELECTION.acquire, HEARTBEAT] {
        assert!(text.contains(&format), "{text}");
    }
    let packed = format!("'^{}\\n", leasehold_core::FORMAT);
    assert!(FORMAT.contains(&packed), "{packed}");
}

#[test]
fn the_scripts_know_the_token_prefixes_of_the_model() {
    let mark = Kind::Election.token_prefix().replace('\n', "\\n");
    let mutex = [MUTEX.acquire, MUTEX.inspect, ACQUIRE_ALL].map(|text| (text, "ELECTION_PREFIX"));
    let election = [ELECTION.acquire, ELECTION.inspect].map(|text| (text, "TOKEN_PREFIX"));
    for (text, name) in mutex.into_iter().chain(election) {
        assert!(text.contains(&format!("local {name}='{mark}'\n")), "{text}");
        assert!(text.contains(&format!("string.sub(value,1,#{name})")), "{text}");
    }
    assert_eq!(
        Kind::Mutex.cooldown_token(None),
        "cooldown\n0",
        "as in string_holder.lua and acquire_all.lua"
    );
}

#[test]
fn the_scripts_know_the_numbers_of_the_model() {
    let contains = |text: &str, expected: &str| assert!(text.contains(expected), "{expected}\n{text}");
    let record_kept_ms = format!("RECORD_KEPT_MS={}\n", leasehold_core::RECORD_TTL.as_millis());
    let released_kept_ms = format!("RELEASED_KEPT_MS='{}'\n", leasehold_core::RELEASED_TTL.as_millis());
    let greatest_fence = format!("GREATEST_FENCE={}\n", FencingToken::MAX);
    // Of each hold the first characters after the session's, and a mark.
    let session = SessionId::from_random([0; 12]);
    let (short, random) = (12, HoldId::from_random(session, [0; 16]).token().find('.').expect("a dot") + 1);
    let ended = format!("ENDED_FROM,ENDED_TO={},{}\n", random + 1, random + short);
    let ended_kept = format!("ENDED_KEPT={}\n", (EndedHolds::MAX_LEN - 1) * (short + 1));
    let session_length = format!("SESSION_LENGTH={}\n", session.to_string().len());
    for expected in [record_kept_ms, released_kept_ms, greatest_fence, ended, ended_kept, session_length] {
        contains(FORMAT, &expected);
    }
    contains(FORMAT, "PERIOD_US,SHORT_LEASE_MS=100000000,1000000\n");
    contains(EVICT_COMMON, &format!("AUDIT_ENTRIES={}\n", Audit::MAX_ENTRIES));
    contains(CHANGE, &format!("AUDIT_KEPT_MS='{}'\n", leasehold_core::AUDIT_TTL.as_millis()));
    contains(HISTORY_TAIL, &format!("HISTORY_KEPT_MS='{}'\n", leasehold_core::HISTORY_TTL.as_millis()));
    contains(SHARED_INSPECT_TAIL, &format!("MAX_DESCRIBED={}\n", leasehold_core::MAX_SHARED_HOLDERS));
    contains(LIST_QUEUE, &format!("MAX_LISTED,MAX_LABEL={},1024\n", leasehold_core::MAX_LISTED_WAITERS));
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
    let used = ["RECORD_KEPT_MS", "GREATEST_FENCE", "is_wrong_type", "BYTE_ZERO"];
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
        for (use_of_key, expected) in [
            ("local key", "=lock.key\n"),
            ("local key,", "=lock.key,"),
            ("{key=", "KEYS[1]"),
            ("{key=KEYS[1],record=", "KEYS[2]}|KEYS[3]}"),
            ("{record=", "KEYS[record]}"),
            ("replace_by_hash(", "lock.record,|key,"),
            (
                "new_lock(",
                "KEYS[1],KEYS[2],KEYS[3],KEYS[#KEYS],|KEYS[1],KEYS[2],KEYS[3],nil,|KEYS[1],KEYS[2],nil,KEYS[3],|KEYS[at],KEYS[at + 1],nil,full and KEYS[full])|KEYS[2 * at],KEYS[2 * at + 1],KEYS[1],nil,",
            ),
            ("read_string(", "lock.key)"),
            ("text_at(", "KEYS["),
            ("latest_end_ms(", "lock.key,|KEYS[1],|key,"),
            ("create_hash(", "KEYS[|lock.record,|lock.key,|key,"),
            ("session_alive_ms(", "lock,KEYS[SESSION_KEY],"),
            ("freed[", "1]|#freed + 1]=KEYS["),
            ("lock.line=", "KEYS[4]\n"),
            ("lock.history=", "KEYS[#KEYS]\n"),
        ] {
            let mut parts = script.split(use_of_key);
            let mut before = parts.next().unwrap_or_default();
            for rest in parts {
                let is_declaration = before.ends_with("local function ");
                let is_other = use_of_key == "local key" && rest.starts_with(',');
                let values = if use_of_key == "local key," { rest.split_once('=') } else { None };
                let fits = match values {
                    Some((_, values)) => values.starts_with("lock.key,"),
                    None => expected.split('|').any(|expected| rest.starts_with(expected)),
                };
                assert!(fits || is_declaration || is_other, "{use_of_key} {rest}");
                before = rest;
            }
        }
        for key in ["lock.key", "lock.record", "lock.watermark", "lock.audit", "lock.ends", "session_record"]
        {
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
                "unpack(freed)",
                "key,",
                "key)",
                "lock.key",
                "lock.record",
                "lock.watermark",
                "lock.audit",
                "lock.ends",
                "lock.line",
                "lock.history",
                "session_record,",
            ]
            .iter()
            .any(|key| rest.starts_with(key));
            assert!(declared || matches!(command, "'TIME'" | "'PUBLISH'" | "'SPUBLISH'"), "{command} {rest}");
        }
    }
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
        assert_eq!(undeclared(&parts_of(script)), [""; 0], "{}", script.lines().next().unwrap_or_default());
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
