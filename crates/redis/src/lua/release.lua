-- Releases a hold, or removes its queue entry. The free lock is granted to the next waiter
-- in the same step.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the watermark of the partition
-- KEYS[4]  the line of the waiters, with 'publish'
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  'grant'; or 'free' to leave the free lock to the next request; or 'publish' for the same with a message on the channel
--          in the last argument; or a number, to keep the lock taken until that many ms after the grant of this hold, like
--          'grant' if they are over
-- ARGV[5…] nothing, or an acquire that follows in the same step: hold, own value, then as ARGV[4] to ARGV[9] of acquire
--
-- Replies
--   'held'     the same as {'held', {}}, of a Mutex: see release_quick.lua
--   {found, {holder}, {reply of the acquire}}, the last only if there was one
--   {found, {holder}, session}  with 'publish', if it named a waiter
--     found   held (and now released), queued, released, evicted, force_released, vanished, superseded, forgotten
--     holder  as after 'taken' in acquire, if another client holds the lock; else empty
--   {'format', found}, and nothing was changed
--
-- The DEL comes first, and no later error is a reason to keep the lock: a release must work under full memory, and without
-- permission to publish. A number in ARGV[4] is sent only to the text of this script without release_quick.lua, which does not
-- read it.

local lock, claim = new_lock(KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS], ARGV[3], ARGV[#ARGV]), claim_of(ARGV[1], ARGV[2])
if READ then lock.read_value, lock.read_record = READ[1], READ[2] end
local failed = read_lock(lock, claim) or missing_watermark(lock)
if failed then return failed end

local line
if HISTORY then
  for _, holder in ipairs(holders(lock)) do
    if holder.hold == claim.hold then line = HISTORY.line(lock, holder) end
  end
end
if ARGV[4] == 'publish' then
  lock.announces = string.sub(claim.hold, 1, SESSION_LENGTH)
  lock.line = KEYS[4]
end
local found, holder, cooldown_ms = end_claim(lock, claim, tonumber(ARGV[4]))
local reply = { found, holder, lock.count and (lock.value == claim.token and lock.count or 0) }
local acquire_reply
local grants = ARGV[4] ~= 'free' and ARGV[4] ~= 'publish' and not cooldown_ms
if ARGV[6] then
  local request = request_of(claim_of(ARGV[5], ARGV[6]), ARGV[#ARGV - 1], unpack(ARGV, 7, 12))
  -- A retry: the hold may have been granted and ended since.
  acquire_reply = grants and acquire(lock, request)
    or settled_reply(lock, request) or reentered_reply(lock, request) or taken_reply(lock, request)
elseif grants and not lock.value and not lock.other_type then
  grant_next(lock)
end
if found == 'held' or found == 'queued' then settle_idle(lock) end
commit(lock, acquire_reply)
if line and found == 'held' then HISTORY.add(lock, line) end
reply[#reply + 1] = acquire_reply or lock.next_waiter
return reply
