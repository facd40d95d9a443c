-- The pending changes to a lock and its record.
--
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them; the session follows
--
-- A script decides on the variables, and `commit` in commit.lua writes at the end, in this order, so that the next script can
-- continue from whatever a cut-off leaves:
--   1. What ends holds. DEL of a lock that becomes free: full memory does not refuse it, and no later error is a reason to
--      keep the lock. For a ReentrantMutex with remaining holds the new count, after a write that full memory does not refuse,
--      after which it refuses none. For a shared lock HDEL of the ended holds. A script that ends no hold begins with a write
--      that full memory refuses as a whole.
--   2. The record in one HSET: new holder, queue, entries. It is created by RESTORE of a constant with its expiry, because
--      HSET alone would create a key without expiry.
--   3. The lock with its expiry: SET for a Mutex; see reentrant_change.lua and shared_change.lua for the others. Until then
--      the lock is free, and the next script grants it anew. (acquire_quick.lua does this before step 2.)
--   4. Fields that are no longer needed. Stale queue entries were emptied in step 2.
--   5. Messages, which are hints.
--   6. The audit, which only people read.

-- How long the audit is kept after its newest entry.
local AUDIT_KEPT_MS = '604800000'

-- Fields of the record to write, fields to delete, and the record's new expiry.
local new_fields, stale_fields, new_record_ttl_ms = {}, {}, nil
-- Whether the lock becomes free, the claim that is granted, the new expiry of a key without one, and the new audit.
local freed, granted, new_lock_ttl, new_audit = false, nil, nil, nil
-- Messages: pairs of a session and a text.
local messages = {}

-- The remaining life of the record, once it has been read.
local record_ttl_ms

local function set_field(field, text)
  new_fields[field], stale_fields[field] = text, nil
end

-- Lists how a hold ended. The oldest ending is dropped if there are too many.
local function record_ending(hold, how)
  local mark = how == 'released' and '.' or how == 'evicted' and '!' or '~'
  ended = string.sub(hold, ENDED_FROM, ENDED_TO) .. mark .. string.sub(ended or '', 1, ENDED_KEPT)
  set_field('ended', ended)
end

-- How long a record must last that is used now by a hold or a queue entry of `lease_ms`.
local function record_ttl(lease_ms)
  local ahead_ms = last_fence and math.floor(last_fence / 1000) - now() or 0
  return math.max(ahead_ms, lease_ms) + RECORD_KEPT_MS
end

-- Prolongs the record if its expiry is near. A new record already has its full time.
local function prolong_record(lease_ms)
  if not new_record_ttl_ms and record_exists then
    record_ttl_ms = record_ttl_ms or redis.call('PTTL', KEYS[2])
  end
  local ttl_ms = record_ttl(lease_ms)
  local kept_ms = new_record_ttl_ms or record_ttl_ms
  if not kept_ms or kept_ms < ttl_ms - RECORD_KEPT_MS / 2 then new_record_ttl_ms = ttl_ms end
end

