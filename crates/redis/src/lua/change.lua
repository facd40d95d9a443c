-- The pending changes to a lock and its record: see lock.lua.
--
-- A script decides on them, and `commit` in commit.lua writes at the end, in this order, so that the next script can
-- continue from whatever a cut-off leaves:
--   1. What ends holds. DEL of a lock that becomes free: full memory does not refuse it, and no later error is a reason to
--      keep the lock. For a ReentrantMutex with remaining holds the new count: a write that full memory does not refuse comes
--      first, and after it no write is refused. For a shared lock HDEL of the ended holds. A script that ends no hold begins with
--      a write that full memory refuses as a whole; but a shared lock may be repaired before it. (Expired holds of a shared
--      lock leave in step 1 with others, else in step 3.)
--   2. The record in one SET, or in one HSET: new holder, queue, entries. If the hash is new, its expiry follows at once: see
--      create_hash.lua. Of a lock that became idle, first the watermark.
--   3. The lock with its expiry: SET for a Mutex; see reentrant_change.lua and shared_change.lua for the others. Until then
--      the lock is free, and the next script grants it anew. (acquire_quick.lua does this before step 2 if there is a
--      record.)
--   4. Fields that are no longer needed. Stale queue entries were emptied in step 2.
--   5. Messages, which are hints.
--   6. The audit, which only people read.

-- How long the audit is kept after its newest entry.
local AUDIT_KEPT_MS = '604800000'

local function set_field(lock, field, text)
  lock.fields[field], lock.stale[field] = text, nil
end

-- Lists how a hold ended. The oldest ending is dropped if there are too many.
local function record_ending(lock, hold, how)
  local mark = how == 'released' and '.' or how == 'evicted' and '!' or '~'
  local ended = lock.ended
  lock.ended = string.sub(hold, ENDED_FROM, ENDED_TO) .. mark .. string.sub(ended or '', 1, ENDED_KEPT)
  set_field(lock, 'ended', lock.ended)
end

-- How long a record must last that is used now by a hold or a queue entry of `lease_ms`.
local function record_ttl(lock, lease_ms)
  local ahead_ms = lock.fence and math.floor(lock.fence / 1000) - now() or 0
  return math.max(ahead_ms, lease_ms) + RECORD_KEPT_MS
end

-- Prolongs the record if its expiry is near. A new record already has its full time.
local function prolong_record(lock, lease_ms)
  if not lock.new_kept_ms and lock.has_record then
    lock.kept_ms = lock.kept_ms or redis.call('PTTL', lock.record)
  end
  local ttl_ms = record_ttl(lock, lease_ms)
  local kept_ms = lock.new_kept_ms or lock.kept_ms
  if not kept_ms or kept_ms < ttl_ms - RECORD_KEPT_MS / 2 then lock.new_kept_ms = ttl_ms end
end

-- Lets the record of a lock that a release left idle only list endings: without a holder and a queue, it needs no token.
local function settle_idle(lock)
  local is_idle = not lock.value and not lock.other_type and lock.queued == 0
  lock.is_settled = is_idle and (lock.has_record or lock.ended) and lock.watermark ~= lock.key
end
