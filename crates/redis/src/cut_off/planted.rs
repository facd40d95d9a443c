//! Scripts with mistakes that only a cut-off shows: without one they agree with the model, with one each is found.
//!
//! Those of which is said that "it left" something are found by the law alone. Who asks again would mend them; until then
//! the lock is with a hold that the record does not know, or that it says was released, and nobody gets it before the
//! lease ends.

use super::agreement::agrees_with_the_model;
use super::seen::Seen;
use super::site::{Edit, Site};
use super::{Broken, check};
use leasehold_core::Kind;

/// As many states as it may take to find a mistake.
const STATES: u64 = 200;

/// A mistake in the scripts.
struct Mistake {
    kind: Kind,
    name: &'static str,
    edits: &'static [Edit],
    /// What is said of it; one of these between the bars, where it depends on what comes first.
    said: &'static str,
}

const MISTAKES: [Mistake; 31] = [
    Mistake {
        kind: Kind::Mutex,
        name: "the record is created by HSET, and its expiry follows",
        edits: &[
            (
                "redis.call('RESTORE', KEYS[2], digits(new_record_ttl_ms or record_ttl(0)), EMPTY_RECORD)",
                "new_record_ttl_ms = new_record_ttl_ms or record_ttl(0)
                texts[#texts + 1], texts[#texts + 2] = 'format', '1'",
            ),
            ("if record_there and new_record_ttl_ms", "if new_record_ttl_ms"),
        ],
        said: "never expires",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "the lock is given by SET, and its expiry follows",
        edits: &[(
            "redis.call('SET', KEYS[1], given.token, 'PX', given.lease_ms)",
            "redis.call('SET', KEYS[1], given.token) redis.call('PEXPIRE', KEYS[1], given.lease_ms)",
        )],
        said: "never expires",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "the lock is given before the record is written",
        edits: &[(
            "write_record()
  write_lock()",
            "write_lock()
            write_record()",
        )],
        said: "it left",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "the lock is given by SET, and its expiry follows, on the quick way",
        edits: &[(
            "redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[4])",
            "redis.pcall('SET', KEYS[1], ARGV[1], 'NX')
            if set and set.ok then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end",
        )],
        said: "never expires",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "the record is created by HSET, and its expiry follows, on the quick way",
        edits: &[(
            "redis.call('RESTORE', KEYS[2], string.format('%.0f', ARGV[4] + RECORD_KEPT_MS), EMPTY_RECORD)",
            "redis.call('HSET', KEYS[2], 'format', '1')
            redis.call('PEXPIRE', KEYS[2], string.format('%.0f', ARGV[4] + RECORD_KEPT_MS))",
        )],
        said: "never expires",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "a release is written down before the lock is freed",
        edits: &[(
            "  if freed then\n    redis.call('DEL', KEYS[1])",
            "  if freed then
              if record_there and ended then redis.call('HSET', KEYS[2], 'ended', ended) end
              redis.call('DEL', KEYS[1])",
        )],
        said: "it left",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "a release is written down before the lock is freed, on the quick way",
        edits: &[(
            "redis.call('DEL', KEYS[1])\n      redis.call('HSET', KEYS[2], 'ended', ended)",
            "redis.call('HSET', KEYS[2], 'ended', ended)\n      redis.call('DEL', KEYS[1])",
        )],
        said: "it left",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "a release that grants is written down before the lock is freed, on the quick way",
        edits: &[(
            "redis.call('DEL', KEYS[1])\n        local behind",
            "redis.call('HSET', KEYS[2], 'ended', ended)
            redis.call('DEL', KEYS[1])\n        local behind",
        )],
        said: "it left",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "the lock is granted by SET, and its expiry follows, on the quick way",
        edits: &[(
            "redis.pcall('SET', KEYS[1], own == '' and hold or own, 'PX', lease_ms).ok then",
            "(redis.pcall('SET', KEYS[1], own == '' and hold or own).ok and redis.pcall('PEXPIRE', KEYS[1], lease_ms)) then",
        )],
        said: "never expires",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "a lock that is handed on is not freed before",
        edits: &[(
            "  if freed then\n    redis.call('DEL', KEYS[1])",
            "  if freed then\n    if not given then redis.call('DEL', KEYS[1]) end",
        )],
        said: "it left",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "the ends of the queue are written before its places",
        edits: &[(
            "redis.call('HSET', KEYS[2], unpack(texts))",
            "if changes.queue then redis.call('HSET', KEYS[2], 'queue', changes.queue) end
            redis.call('HSET', KEYS[2], unpack(texts))",
        )],
        said: "a place with 1 of 8 parts",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "places that are over are removed before the queue is written",
        edits: &[(
            "local function write_rest()\n",
            "local function write_rest()
            for field in pairs(over) do redis.call('HDEL', KEYS[2], field) end\n",
        )],
        said: "a place with 1 of 8 parts|places, but a queue",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "places that are over are not emptied with the record",
        edits: &[("put('w:' .. place, '')", "changes['w:' .. place] = nil")],
        said: "places, but a queue",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "a grant is told before it is given",
        edits: &[
            (
                "local function write_rest()\n",
                "local function write_rest()
                for _, message in ipairs(messages) do say(ARGV[3] .. message[1], message[2], true) end
                messages = {}\n",
            ),
        ],
        said: "and told",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "who took a lock is written down before it is taken",
        edits: &[(
            "  if freed then\n    redis.call('DEL', KEYS[1])",
            "  if audit then redis.pcall('SET', KEYS[#KEYS], audit, 'PX', AUDIT_KEPT_MS) end
            if freed then\n    redis.call('DEL', KEYS[1])",
        )],
        said: "it left",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "a session begins by HSET, and the expiry of its record follows",
        edits: &[
            ("redis.call('RESTORE', KEYS[1], ARGV[3], EMPTY_RECORD)", "redis.call('HSET', KEYS[1], 'format', '1')"),
            ("local held = tonumber(ARGV[6])", "redis.call('PEXPIRE', KEYS[1], digits(kept_ms))
            local held = tonumber(ARGV[6])"),
        ],
        said: "never expires",
    },
    Mistake {
        kind: Kind::Mutex,
        name: "the index is made by ZADD, and its expiry follows",
        edits: &[
            (
                "  if redis.pcall('RESTORE', KEYS[2], digits(kept_ms), EMPTY_INDEX).err then return 1 end",
                "  redis.pcall('ZADD', KEYS[2], '0', '-') redis.pcall('PEXPIRE', KEYS[2], digits(kept_ms))",
            ),
        ],
        said: "never expires",
    },
    Mistake {
        kind: Kind::Reentrant,
        name: "a hash is made by HSET, and its expiry follows",
        edits: &[(
            "redis.call('RESTORE', KEYS[1], digits(math.max(1, value_ttl_ms)), OPENED, 'REPLACE')",
            "redis.call('DEL', KEYS[1])
            redis.call('HSET', KEYS[1], 'leasehold', packed(), value, digits(count))
            redis.call('PEXPIRE', KEYS[1], digits(value_ttl_ms))",
        )],
        said: "never expires",
    },
    Mistake {
        kind: Kind::Reentrant,
        name: "a hash is made before the record is written",
        edits: &[("write_record()\n  write_lock()", "write_lock()\n write_record()")],
        said: "it left",
    },
    Mistake {
        kind: Kind::Reentrant,
        name: "a hold is added before its key lasts as long",
        edits: &[
            ("elseif entered then\n    redis.call('PEXPIRE', KEYS[1], digits(value_ttl_ms))", ""),
            (
                "redis.call('HSET', KEYS[1], 'leasehold', packed(), value, digits(count))\n  end",
                "redis.call('HSET', KEYS[1], 'leasehold', packed(), value, digits(count))
                if entered then redis.call('PEXPIRE', KEYS[1], digits(value_ttl_ms)) end
                end",
            ),
        ],
        said: "it left",
    },
    Mistake {
        kind: Kind::Reentrant,
        name: "holds and count are written one after the other",
        edits: &[(
            "redis.call('HSET', KEYS[1], 'leasehold', packed(), value, digits(count))\n  end",
            "redis.call('HSET', KEYS[1], 'leasehold', packed()) redis.call('HSET', KEYS[1], value, digits(count))
            end",
        )],
        said: "a field of ours beside 0 others|it left",
    },
    Mistake {
        kind: Kind::Reentrant,
        name: "a release of one of several is written down before the count is lowered",
        edits: &[(
            "if lowered[3] then redis.call('PEXPIRE', KEYS[1], digits(lowered[3])) else redis.call('HDEL', KEYS[1], '') end",
            "if record_there and ended then redis.call('HSET', KEYS[2], 'ended', ended) end",
        )],
        said: "it left",
    },
    Mistake {
        kind: Kind::Reentrant,
        name: "clients of Redisson's hear that a lock is free before it is",
        edits: &[
            ("if freed and not given then", "if freed and not given and messages[1] then"),
            (
                "if freed then\n    redis.call('DEL', KEYS[1])",
                "if freed then
                if not given and not messages[1] then say(channel, '0') end
                redis.call('DEL', KEYS[1])",
            ),
        ],
        said: "and told",
    },
    Mistake {
        kind: Kind::Semaphore,
        name: "a hash of parts is made by HSET, and its expiry follows",
        edits: &[
            ("redis.call('RESTORE', KEYS[1], longest_left(), OPENED[KIND])", "stands = false"),
            (
                "redis.call('HSET', KEYS[1], unpack(holds_and_parts))",
                "redis.call('HSET', KEYS[1], 'leasehold', KIND, unpack(holds_and_parts))
                redis.call('PEXPIRE', KEYS[1], longest_left())",
            ),
        ],
        said: "never expires",
    },
    Mistake {
        kind: Kind::Semaphore,
        name: "a part is given before the record is written",
        edits: &[("write_record()\n  write_lock()", "write_lock()\n write_record()")],
        said: "it left",
    },
    Mistake {
        kind: Kind::Semaphore,
        name: "a part is given before its key lasts as long",
        edits: &[
            (
                "redis.call('PEXPIRE', KEYS[1], longest_left())\n    -- One of those",
                "-- One of those",
            ),
            (
                "redis.call('HSET', KEYS[1], unpack(holds_and_parts))",
                "redis.call('HSET', KEYS[1], unpack(holds_and_parts)) redis.call('PEXPIRE', KEYS[1], longest_left())",
            ),
        ],
        said: "later",
    },
    Mistake {
        kind: Kind::RwLock,
        name: "a hold is lengthened before its key",
        edits: &[
            ("elseif left_ms < lease_ms then\n  redis.call('PEXPIRE', KEYS[1], ARGV[3])", ""),
            (
                "digits(new_until_ms) .. rest) end",
                "digits(new_until_ms) .. rest) end
                if left_ms >= 0 and left_ms < lease_ms then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end",
            ),
        ],
        said: "later",
    },
    Mistake {
        kind: Kind::RwLock,
        name: "a release of one of several is written down before the hold is removed",
        edits: &[(
            "    remove(gone)\n",
            "    if record_there and ended then redis.call('HSET', KEYS[2], 'ended', ended) end
            remove(gone)\n",
        )],
        said: "it left",
    },
    Mistake {
        kind: Kind::Barrier,
        name: "those who meet are let in one after the other",
        edits: &[(
            "redis.call('HSET', KEYS[1], unpack(holds_and_parts))",
            "for i = 1, #holds_and_parts, 2 do
              redis.call('HSET', KEYS[1], holds_and_parts[i], holds_and_parts[i + 1])
            end",
        )],
        said: "it left",
    },
    Mistake {
        kind: Kind::Latch,
        name: "who waits at a latch is told before it is open for him",
        edits: &[(
            "local function write_rest()\n",
            "local function write_rest()
            for _, message in ipairs(messages) do say(ARGV[3] .. message[1], message[2], true) end
            messages = {}\n",
        )],
        said: "and told",
    },
    Mistake {
        kind: Kind::Semaphore,
        name: "a number of permits is written before the record is made",
        edits: &[(
            "redis.call('RESTORE', KEYS[2], digits(new_record_ttl_ms or record_ttl(0)), EMPTY_RECORD)",
            "new_record_ttl_ms, record_there = new_record_ttl_ms or record_ttl(0), true
                texts[#texts + 1], texts[#texts + 2] = 'format', '1'",
        )],
        said: "never expires",
    },
];

#[test]
fn each_planted_mistake_is_found() {
    for Mistake { kind, name, edits, said } in MISTAKES {
        let mut site = Site::edited(kind, edits);
        for seed in 0..20 {
            agrees_with_the_model(&mut site, seed)
                .unwrap_or_else(|Broken(what)| panic!("{name}: shown without a cut-off\n{what}"));
        }
        let found =
            (0..STATES).find_map(|seed| Some((seed, check(&mut site, seed, &mut Seen::default()).err()?)));
        let Some((seed, Broken(what))) = found else { panic!("{name}: not found in {STATES} states") };
        println!("{name}: found in state {seed}");
        assert!(said.split('|').any(|said| what.contains(said)), "{name}: {what}");
    }
}
