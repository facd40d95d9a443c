-- Part of acquire, release, evict and free, and of resize, after what others may know: what is to be changed, and the record.
--
-- ARGV[3]  what the channels of all mailboxes begin with, as say.lua takes them; the session follows
--
-- What is decided is decided on the variables of what was read. Only `commit` of commit.lua writes, at the end and in this
-- order, so that a script that is cut off leaves a state that the next one handles right:
--   1. The DEL of a lock that is given up: full memory does not refuse it, and what follows is no reason to keep the
--      lock. Of a ReentrantMutex that its owner has by other holds yet, its count without those that are given up: behind
--      a write that full memory does not refuse, after which it refuses none. Of a lock that others share, the HDEL of
--      the holds that are given up. Without any of that, taking the lock or a place begins with a write that full memory
--      refuses, as a whole.
--   2. The record, in one HSET: the new holder, the queue without it, the places. It is created, with its expiry, by a
--      RESTORE of a constant, since HSET alone would create it without. No key is ever without an expiry.
--   3. The lock, with its expiry: the SET of a Mutex; of the others as reentrant_change.lua and parts_change.lua say. Until then it lies free, and the next who comes gives it away anew.
--      (A Mutex that nobody waits for is set before its record: see acquire_quick.lua.)
--   4. The fields that are over. A place that is over was emptied in step 2 already.
--   5. The messages, which are hints.
--   6. The audit, which people read.

-- How long the audit is kept after its last entry.
local AUDIT_KEPT_MS = '604800000'

-- DUMP of the hash {format = '1'}: type 4 (hash), 1 field, '\006format', '\0011', RDB version 9 (Redis 5, which all
-- later ones load), CRC64 of all that.
local EMPTY_RECORD = '\004\001\006\102\111\114\109\097\116\001\049\009\000\017\015\014\212\067\157\155\031'

-- What is to be written: fields of the record, those that are over, its expiry, a lock that is freed, one that is given,
-- the expiry of a lock that has none, the audit; and the messages, each a session and its text.
local changes, over, new_record_ttl_ms = {}, {}, nil
local freed, given, new_value_ttl, audit = false, nil, nil, nil
local messages = {}

-- How long the record lasts, once that is known.
local record_ttl_ms

local function put(field, text)
  changes[field], over[field] = text, nil
end

-- Notes how a hold was ended, and forgets the oldest where there are too many.
local function remember(hold, how)
  local mark = how == 'released' and '.' or how == 'evicted' and '!' or '~'
  ended = string.sub(hold, 18, 29) .. mark .. string.sub(ended or '', 1, 91)
  put('ended', ended)
end

-- How long a record is kept that is used now, for a hold or a place that lasts `lease_ms`.
local function record_ttl(lease_ms)
  local ahead_ms = last and math.floor(last / 1000) - now() or 0
  return math.max(ahead_ms, lease_ms) + RECORD_KEPT_MS
end

-- Raises the record's expiry where it has come near. A record that is new has all its time.
local function keep_record(lease_ms)
  if not new_record_ttl_ms and record_there then
    record_ttl_ms = record_ttl_ms or redis.call('PTTL', KEYS[2])
  end
  local ttl_ms = record_ttl(lease_ms)
  local kept_ms = new_record_ttl_ms or record_ttl_ms
  if not kept_ms or kept_ms < ttl_ms - RECORD_KEPT_MS / 2 then new_record_ttl_ms = ttl_ms end
end

