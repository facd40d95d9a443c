//! Scripts with mistakes that only a cut-off shows: without a cut-off they agree with the model, with one each is found.
//!
//! A mutant whose expected report says that "it left" something is found by the invariants alone: a retry would repair the
//! state, but until then the lock is with a hold that the record does not know, or that it lists as released, and no other
//! client gets it before the lease ends.

use crate::agrees_with_the_model;
use crate::coverage::Coverage;
use crate::fixture::{Edit, Fixture};
use crate::{Violation, check};
use leasehold_core::Kind;

/// How many states a search may take to find a mutant.
const STATES: u64 = 200;

/// Scripts with a mistake.
struct Mutant {
    kind: Kind,
    name: &'static str,
    edits: &'static [Edit],
    /// A part of the report about it; or several, separated by bars, if the first one found depends on the state.
    report: &'static str,
    /// A state that has shown it: the search begins there. With another generator it only takes longer.
    near: u64,
}

const MUTANTS: [Mutant; 44] = [
    Mutant {
        kind: Kind::Mutex,
        name: "the queue names an entry before it is written, on the fast path of a taken lock",
        edits: &[(
            "written = redis.pcall('HSET', KEYS[2], 'w:' .. id, text, 'queue', queue, 'p:' .. id, last_id, 'n:' .. last_id, id)",
            "redis.pcall('HSET', KEYS[2], 'queue', queue)
            written = redis.pcall('HSET', KEYS[2], 'w:' .. id, text, 'p:' .. id, last_id, 'n:' .. last_id, id)",
        )],
        report: "but a queue|an entry with",
        near: 20,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the queue names its only entry before it is written, on the fast path of a taken lock",
        edits: &[(
            "written = redis.pcall('HSET', KEYS[2], 'w:' .. id, text, 'queue', queue)",
            "redis.pcall('HSET', KEYS[2], 'queue', queue)
            written = redis.pcall('HSET', KEYS[2], 'w:' .. id, text)",
        )],
        report: "but a queue|an entry with",
        near: 139,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the record of an idle lock forgets its token before the watermark has it, in a call of several operations",
        edits: &[(
            "local settles = true\n",
            "local settles = true
            for at, text in pairs(idle) do redis.pcall('SET', KEYS[2 * at + 1], text, 'PX', RELEASED_KEPT_MS) end\n",
        )],
        report: "it left",
        near: 29,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "a release is recorded before the lock is freed, in a call of several operations",
        edits: &[(
            "if freed[1] and type(",
            "for at in pairs(idle) do redis.pcall('SET', KEYS[2 * at + 1], READ[2 * at + 1] .. ' ', 'KEEPTTL') end
            if freed[1] and type(",
        )],
        report: "it left",
        near: 29,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the lock is granted by SET, and its expiry follows, in a call of several operations",
        edits: &[(
            "redis.pcall('SET', KEYS[2 * at], hold, 'NX', 'PX', lease_ms)",
            "redis.pcall('SET', KEYS[2 * at], hold, 'NX')
            if set and set.ok then redis.call('PEXPIRE', KEYS[2 * at], lease_ms) end",
        )],
        report: "never expires",
        near: 4,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the record is created by SET, and its expiry follows, in a call of several operations",
        edits: &[(
            "redis.pcall('SET', KEYS[2 * at + 1], text, 'NX', 'PX', kept_ms)",
            "redis.pcall('SET', KEYS[2 * at + 1], text, 'NX')
            if recorded and recorded.ok then redis.call('PEXPIRE', KEYS[2 * at + 1], kept_ms) end",
        )],
        report: "never expires",
        near: 0,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the record is created by HSET, and its expiry follows",
        edits: &[(
            "create_hash(lock.record, digits(kept_ms or record_ttl(lock, 0)), 'format', '1', unpack(texts))",
            "redis.call('HSET', lock.record, 'format', '1', unpack(texts))
            redis.call('PEXPIRE', lock.record, digits(kept_ms or record_ttl(lock, 0)))",
        )],
        report: "never expires",
        near: 14,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "a record becomes a hash without a proof of the permission",
        edits: &[(
            "redis.call('SET', key, text, 'PX', ttl_ms)\nredis.call('PEXPIRE', key, ttl_ms)",
            "redis.call('SET', key, text, 'PX', ttl_ms)",
        )],
        report: "never expires|it left",
        near: 1,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the record of an idle lock forgets its token before the watermark has it",
        edits: &[(
            "raise_watermark(lock)\nredis.call('SET', lock.record, packed_text(nil, nil, lock.ended), 'PX', RELEASED_KEPT_MS)",
            "redis.call('SET', lock.record, packed_text(nil, nil, lock.ended), 'PX', RELEASED_KEPT_MS)
            raise_watermark(lock)",
        )],
        report: "it left",
        near: 7,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the record of an idle lock forgets its token before the watermark has it, on the fast path",
        edits: &[
            (
                "redis.call('DEL', KEYS[1])\nif not watermark",
                "redis.call('DEL', KEYS[1])
                redis.call('SET', KEYS[2], '1\\n\\n\\n' .. string.sub(ARGV[1], ENDED_FROM, ENDED_TO) .. '.' .. string.sub(ended, 1, ENDED_KEPT) .. '\\n', 'PX', RELEASED_KEPT_MS)
                if not watermark",
            ),
        ],
        report: "it left",
        near: 23,
    },
    Mutant {
        kind: Kind::Election,
        name: "a hash is created without a proof of the permission",
        edits: &[("redis.call('PEXPIRE', key, ttl_ms)\nredis.call('HSET', key, ...)", "redis.call('HSET', key, ...)")],
        report: "never expires",
        near: 0,
    },
    Mutant {
        kind: Kind::Election,
        name: "another command comes between a new hash and its expiry",
        edits: &[("redis.call('HSET', key, ...)\n", "redis.call('HSET', key, ...) redis.call('HGET', key, 'format')\n")],
        report: "never expires",
        near: 0,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the lock is granted by SET, and its expiry follows",
        edits: &[(
            "redis.call('SET', lock.key, granted.token, 'PX', granted.lease_ms)",
            "redis.call('SET', lock.key, granted.token) redis.call('PEXPIRE', lock.key, granted.lease_ms)",
        )],
        report: "never expires",
        near: 2,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the lock is granted before the record is written",
        edits: &[(
            "write_record(lock)\nwrite_lock(lock)",
            "write_lock(lock)
            write_record(lock)",
        )],
        report: "it left",
        near: 2,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the lock is granted by SET, and its expiry follows, on the fast path",
        edits: &[(
            "redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[4])",
            "redis.pcall('SET', KEYS[1], ARGV[1], 'NX')
            if set and set.ok then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end",
        )],
        report: "never expires",
        near: 24,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the record is created by SET, and its expiry follows, on the fast path",
        edits: &[(
            "redis.pcall('SET', KEYS[2], text, 'NX', 'PX', kept_ms)",
            "redis.pcall('SET', KEYS[2], text, 'NX')
            if recorded and recorded.ok then redis.call('PEXPIRE', KEYS[2], kept_ms) end",
        )],
        report: "never expires",
        near: 0,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "a release is recorded before the lock is freed",
        edits: &[(
            "if lock.freed then\nredis.call('DEL', lock.key)",
            "  if lock.freed then
              if lock.is_packed then
                redis.call('SET', lock.record, packed_text(lock.fence, lock.reserved, lock.ended, lock.holder_text), 'KEEPTTL')
              elseif lock.has_record and lock.ended then
                redis.call('HSET', lock.record, 'ended', lock.ended)
              end
              redis.call('DEL', lock.key)",
        )],
        report: "it left",
        near: 5,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "a release is recorded before the lock is freed, on the fast path",
        edits: &[(
            "redis.call('DEL', KEYS[1])\nif not watermark",
            "redis.call('SET', KEYS[2], record .. ' ', 'KEEPTTL')\nredis.call('DEL', KEYS[1])\nif not watermark",
        )],
        report: "it left",
        near: 23,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "a release that grants is recorded before the lock is freed, on the fast path",
        edits: &[(
            "redis.call('DEL', KEYS[1])\nlocal second_id",
            "redis.call('HSET', KEYS[2], 'ended', ended)
            redis.call('DEL', KEYS[1])\nlocal second_id",
        )],
        report: "it left",
        near: 54,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the lock is granted by SET, and its expiry follows, on the fast path",
        edits: &[(
            "redis.pcall('SET', KEYS[1], own == '' and hold or own, 'PX', lease_ms).ok then",
            "(redis.pcall('SET', KEYS[1], own == '' and hold or own).ok and redis.pcall('PEXPIRE', KEYS[1], lease_ms)) then",
        )],
        report: "never expires",
        near: 54,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "a lock that is handed off is not freed before",
        edits: &[(
            "if lock.freed then\nredis.call('DEL', lock.key)",
            "if lock.freed then\nif not lock.granted then redis.call('DEL', lock.key) end",
        )],
        report: "it left",
        near: 3,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the ends of the queue are written before its entries",
        edits: &[(
            "redis.call('HSET', lock.record, unpack(texts))",
            "if lock.fields.queue then redis.call('HSET', lock.record, 'queue', lock.fields.queue) end
            redis.call('HSET', lock.record, unpack(texts))",
        )],
        report: "an entry with 1 of 8 fields|entries, but a queue",
        near: 3,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "expired entries are removed before the queue is written",
        edits: &[(
            "local function write_changes(lock)\n",
            "local function write_changes(lock)
            for field in pairs(lock.stale) do redis.call('HDEL', lock.record, field) end\n",
        )],
        report: "an entry with 1 of 8 fields|entries, but a queue",
        near: 3,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "expired entries are not emptied with the record",
        edits: &[("set_field(lock, 'w:' .. id, '')", "lock.fields['w:' .. id] = nil")],
        report: "entries, but a queue",
        near: 3,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "a grant is published before it is written",
        edits: &[
            (
                "local function write_changes(lock)\n",
                "local function write_changes(lock)
                for _, message in ipairs(lock.messages) do publish(lock.mailboxes .. message[1], message[2], true) end
                lock.messages = {}\n",
            ),
        ],
        report: "and published",
        near: 3,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "a holder is recorded before it acquires the lock",
        edits: &[(
            "if lock.freed then\nredis.call('DEL', lock.key)",
            "  if lock.new_audit then redis.pcall('SET', lock.audit, lock.new_audit, 'PX', AUDIT_KEPT_MS) end
          if lock.freed then\nredis.call('DEL', lock.key)",
        )],
        report: "it left",
        near: 3,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "a session begins by HSET, and the expiry of its record follows",
        edits: &[
            (
                "create_hash(KEYS[1], ARGV[3], 'format', '1', unpack(texts))",
                "redis.call('HSET', KEYS[1], 'format', '1', unpack(texts))",
            ),
            ("local last_held = FIRST_LOCK - 1 + tonumber(ARGV[7])", "redis.call('PEXPIRE', KEYS[1], digits(kept_ms))
            local last_held = FIRST_LOCK - 1 + tonumber(ARGV[7])"),
        ],
        report: "never expires",
        near: 0,
    },
    Mutant {
        kind: Kind::Mutex,
        name: "the index is created by ZADD, and its expiry follows",
        edits: &[
            ("if is_short and type(", "if is_short and index_ttl_ms ~= -2 and type("),
        ],
        report: "never expires",
        near: 0,
    },
    Mutant {
        kind: Kind::Reentrant,
        name: "a hash is created by HSET, and its expiry follows",
        edits: &[(
            "create_hash(key, digits(math.max(1, lock.ttl_ms)), 'leasehold', packed_holds(lock), lock.value, digits(lock.count))",
            "redis.call('HSET', key, 'leasehold', packed_holds(lock), lock.value, digits(lock.count))
            redis.call('PEXPIRE', key, digits(lock.ttl_ms))",
        )],
        report: "never expires",
        near: 0,
    },
    Mutant {
        kind: Kind::Reentrant,
        name: "a hash is created before the record is written",
        edits: &[("write_record(lock)\nwrite_lock(lock)", "write_lock(lock)\n write_record(lock)")],
        report: "it left",
        near: 0,
    },
    Mutant {
        kind: Kind::Reentrant,
        name: "a hold is added before its key lasts as long",
        edits: &[
            ("if is_new then\nredis.call('PEXPIRE', key, digits(lock.ttl_ms))\nelseif new_ttl then", "if new_ttl and not is_new then"),
            (
                "has_expired then\nredis.call('HSET', key, 'leasehold', packed_holds(lock), lock.value, digits(lock.count))\nend",
                "has_expired then
                redis.call('HSET', key, 'leasehold', packed_holds(lock), lock.value, digits(lock.count))
                if lock.reentered then redis.call('PEXPIRE', key, digits(lock.ttl_ms)) end
                end",
            ),
        ],
        report: "it left",
        near: 81,
    },
    Mutant {
        kind: Kind::Reentrant,
        name: "holds and count are written one after the other",
        edits: &[(
            "has_expired then\nredis.call('HSET', key, 'leasehold', packed_holds(lock), lock.value, digits(lock.count))\nend",
            "has_expired then
            redis.call('HSET', key, 'leasehold', packed_holds(lock)) redis.call('HSET', key, lock.value, digits(lock.count))
            end",
        )],
        report: "a field of ours beside 0 others|it left",
        near: 0,
    },
    Mutant {
        kind: Kind::Reentrant,
        name: "a release of one of several is recorded before the count is lowered",
        edits: &[(
            "if lowered[3] then redis.call('PEXPIRE', lock.key, digits(lowered[3])) else redis.call('HDEL', lock.key, '') end",
            "if lock.is_packed then
                redis.call('SET', lock.record, packed_text(lock.fence, lock.reserved, lock.ended, lock.holder_text), 'KEEPTTL')
              elseif lock.has_record and lock.ended then
                redis.call('HSET', lock.record, 'ended', lock.ended)
              end",
        )],
        report: "it left",
        near: 3,
    },
    Mutant {
        kind: Kind::Reentrant,
        name: "Redisson clients are notified that a lock is free before it is",
        edits: &[
            ("if lock.freed and not lock.granted then", "if lock.freed and not lock.granted and lock.messages[1] then"),
            (
                "if lock.freed then\nredis.call('DEL', lock.key)",
                "if lock.freed then
                if not lock.granted and not lock.messages[1] then publish(lock.channel, '0') end
                redis.call('DEL', lock.key)",
            ),
        ],
        report: "and published",
        near: 0,
    },
    Mutant {
        kind: Kind::Semaphore,
        name: "a hash of shared holds is created by HSET, and its expiry follows",
        edits: &[(
            "create_hash(lock.key, ttl_ms, unpack(texts))",
            "redis.call('HSET', lock.key, unpack(texts)) redis.call('PEXPIRE', lock.key, ttl_ms)",
        )],
        report: "never expires",
        near: 2,
    },
    Mutant {
        kind: Kind::Semaphore,
        name: "a shared hold is granted before the record is written",
        edits: &[("write_record(lock)\nwrite_lock(lock)", "write_lock(lock)\n write_record(lock)")],
        report: "it left",
        near: 1,
    },
    Mutant {
        kind: Kind::Semaphore,
        name: "a shared hold is granted before its key lasts as long",
        edits: &[
            ("prolong_lock(lock, until_ms)\nredis.call('ZADD'", "redis.call('ZADD'"),
            (
                "redis.call('HSET', lock.key, unpack(texts)) end",
                "redis.call('HSET', lock.key, unpack(texts)) end
                if scores[1] then prolong_lock(lock, until_ms) end",
            ),
        ],
        report: "later",
        near: 4,
    },
    Mutant {
        kind: Kind::RwLock,
        name: "a hold is extended before its key",
        edits: &[
            ("redis.call('PEXPIRE', KEYS[1], ttl_ms)\n", "redis.call(left_ms == -1 and 'PEXPIRE' or 'HDEL', KEYS[1], left_ms == -1 and ttl_ms or '')\n"),
            (
                "string.match(found[2], '^%d+(.*)$'))\n",
                "string.match(found[2], '^%d+(.*)$'))
                if left_ms >= 0 and left_ms < lease_ms then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end\n",
            ),
        ],
        report: "later",
        near: 10,
    },
    Mutant {
        kind: Kind::RwLock,
        name: "a release of one of several is recorded before the hold is removed",
        edits: &[(
            "if not lock.removed[1] then return false end\n",
            "if not lock.removed[1] then return false end
            if lock.hold_count ~= #lock.added then
              if lock.is_packed then
                redis.call('SET', lock.record, packed_text(lock.fence, lock.reserved, lock.ended, lock.holder_text), 'KEEPTTL')
              elseif lock.has_record and lock.ended then
                redis.call('HSET', lock.record, 'ended', lock.ended)
              end
            end\n",
        )],
        report: "it left",
        near: 17,
    },
    Mutant {
        kind: Kind::Semaphore,
        name: "an index is created by ZADD, and its expiry follows",
        edits: &[(
            "if redis.call('PEXPIRE', lock.ends, ttl_ms) == 1 then redis.call('DEL', lock.ends) end\n",
            "redis.call('DEL', lock.ends)\n",
        )],
        report: "never expires",
        near: 1,
    },
    Mutant {
        kind: Kind::RwLock,
        name: "the numbers of an owner are written after the holds that they count",
        edits: &[
            (
                "if counts.all > 0 then texts[#texts + 1], texts[#texts + 2] = OWNER_PREFIX .. owner, owner_text(counts) end",
                "if counts.all > 0 then
                  lock.late = lock.late or {}
                  lock.late[#lock.late + 1], lock.late[#lock.late + 2] = OWNER_PREFIX .. owner, owner_text(counts)
                end",
            ),
            (
                "create_hash(lock.key, ttl_ms, unpack(texts))",
                "create_hash(lock.key, ttl_ms, unpack(texts))
                if lock.late then redis.call('HSET', lock.key, unpack(lock.late)) end",
            ),
            (
                "redis.call('HSET', lock.key, unpack(texts)) end",
                "redis.call('HSET', lock.key, unpack(texts)) end
                if lock.late then redis.call('HSET', lock.key, unpack(lock.late)) end",
            ),
        ],
        report: "are not those",
        near: 3,
    },
    Mutant {
        kind: Kind::Barrier,
        name: "the parties of a barrier are admitted one after the other",
        edits: &[
            (
                "redis.call('HSET', lock.key, unpack(texts))",
                "for i = 1, #texts, 2 do
                  redis.call('HSET', lock.key, texts[i], texts[i + 1])
                end",
            ),
            (
                "create_hash(lock.key, ttl_ms, unpack(texts))",
                "create_hash(lock.key, ttl_ms, unpack(texts, 1, 4))
                for i = 5, #texts, 2 do
                  redis.call('HSET', lock.key, texts[i], texts[i + 1])
                end",
            ),
        ],
        report: "it left",
        near: 12,
    },
    Mutant {
        kind: Kind::Latch,
        name: "a latch waiter is notified before the latch is open",
        edits: &[(
            "local function write_changes(lock)\n",
            "local function write_changes(lock)
            for _, message in ipairs(lock.messages) do publish(lock.mailboxes .. message[1], message[2], true) end
            lock.messages = {}\n",
        )],
        report: "and published",
        near: 25,
    },
    Mutant {
        kind: Kind::Semaphore,
        name: "a number of permits is written by SET, and its expiry follows",
        edits: &[(
            "redis.call('SET', lock.record, text, 'PX', digits(kept_ms or record_ttl(lock, 0)))",
            "redis.call('SET', lock.record, text)
            redis.call('PEXPIRE', lock.record, digits(kept_ms or record_ttl(lock, 0)))",
        )],
        report: "never expires",
        near: 2,
    },
];

#[test]
fn every_mutant_is_found() {
    for Mutant { kind, name, edits, report, near } in MUTANTS {
        let mut fixture = Fixture::edited(kind, edits);
        for seed in 0..20 {
            agrees_with_the_model(&mut fixture, seed)
                .unwrap_or_else(|Violation(what)| panic!("{name}: shown without a cut-off\n{what}"));
        }
        let found = (near..STATES)
            .chain(0..near)
            .find_map(|seed| Some((seed, check(&mut fixture, seed, &mut Coverage::default()).err()?)));
        let Some((seed, Violation(what))) = found else { panic!("{name}: not found in {STATES} states") };
        println!("{name}: found in state {seed}");
        assert!(report.split('|').any(|part| what.contains(part)), "{name}: {what}");
    }
}
