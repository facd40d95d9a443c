-- Releases a hold of a shared lock, some of its permits, or its queue entry, and admits the waiters that can now be admitted, in the same
-- step.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the watermark of the partition
-- KEYS[4]  its index
-- ARGV[1]  the hold
-- ARGV[2]  its owner, or another value of the user's own, or empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  'grant'; or 'keep ' and how many permits the hold keeps at most, at least one: it does not end, nor does its entry
-- ARGV[5…] nothing, or an acquire that follows in the same step: hold, owner, then as ARGV[4] to ARGV[9] of acquire, and mode
-- ARGV[#]  the kind
--
-- Replies
--   {found, {holder}, {reply of the acquire}}, the last only if there was one
--     found   held (and now released), queued, released, evicted, force_released, vanished, superseded, forgotten
--     holder  as after the others of 'taken' in acquire, if the key is no such lock; else empty
--   {'format', found}, and nothing was changed
--
-- The HDEL of the hold comes first, or the DEL of the key, and no later error is a reason to keep the hold: a release must work
-- under full memory, and without permission to publish.

local lock = new_lock(KEYS[1], KEYS[2], KEYS[3], nil, ARGV[3], ARGV[#ARGV], KEYS[4])
local claim = claim_of(ARGV[1], ARGV[2])
local failed = read_lock(lock, claim) or missing_watermark(lock)
if failed then return failed end

local found = hold_status(lock, claim)
local holder = found == 'superseded' and describe_holder(lock, {}) or {}
local kept = tonumber(string.match(ARGV[4], '^keep (%d+)$'))
if kept then
  if found == 'held' then keep_permits(lock, find_hold(lock, claim.hold), kept) end
  grant_next(lock)
  commit(lock)
  return { found, holder }
end
local line = HISTORY and HISTORY.line(lock, find_hold(lock, claim.hold))
if found == 'held' then end_hold(lock, find_hold(lock, claim.hold)) end
-- A release at a Latch or a Barrier is final, also if nothing of the hold exists: its acquire may arrive later, would be counted,
-- and would admit others.
local is_final = (lock.kind == 'latch' or lock.kind == 'barrier') and not lock.other_type and not how_ended(lock, claim.hold)
if found == 'held' or is_final then
  begin_record(lock, 0)
  record_ending(lock, claim.hold, 'released')
  if found == 'held' then keep_token(lock) end
end
if lock.has_record and lock.head ~= '' and queue_entry(lock, claim.entry_id) then dequeue(lock, claim.entry_id) end

local acquire_reply
if ARGV[6] then
  local request = request_of(claim_of(ARGV[5], ARGV[6]), ARGV[#ARGV - 1], unpack(ARGV, 7, 12))
  take_off_expired(lock, request.hold)
  acquire_reply = acquire(lock, request)
end
grant_next(lock)
-- A number of permits, which an operator may have set, is kept for as long as any record; and so are the holds that have ended at a
-- Latch or a Barrier, which have a number, too.
if (found == 'held' or found == 'queued') and not lock.limit and lock.kind ~= 'latch' and lock.kind ~= 'barrier'
  and lock.hold_count == 0 then
  settle_idle(lock)
end
commit(lock, acquire_reply)
if line and found == 'held' then HISTORY.add(lock, line) end
return { found, holder, acquire_reply }
