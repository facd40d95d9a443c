-- Extends one hold of a shared lock, and its key. Never shortens it, and neither reads nor writes the other holds.
--
-- KEYS[1]  the lock: a HASH, as shared_read.lua describes it
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  its owner, or another value of the user's own, or empty
-- ARGV[3]  lease_ms: the least remaining time of the hold afterwards
-- ARGV[4]  '1' to make the record last as long, or empty
-- ARGV[5]  the kind
--
-- Replies
--   1  extended
--   0  not held
--
-- A script, because finding the hold and extending it are one step. The first write is one that full memory does not refuse, and
-- then it refuses nothing; and no hold lasts longer than its key.

local found = redis.pcall('HMGET', KEYS[1], 'leasehold', ARGV[1])
if found.err then
  if string.sub(found.err, 1, #WRONG_TYPE) ~= WRONG_TYPE then return found end
  return 0
end
if found[1] ~= ARGV[5] or not found[2] then return 0 end
local until_ms, rest = string.match(found[2], '^(%d+)( .*)$')
until_ms = until_ms and tonumber(until_ms)
if not until_ms or until_ms < now() then return 0 end

local lease_ms = tonumber(ARGV[3])
local new_until_ms, left_ms = now() + lease_ms, redis.call('PTTL', KEYS[1])
if left_ms == -1 then
  -- Another client removed the expiry. The key gets the end of the longest hold again, so that no waiter waits for ever.
  local all, last_ms = redis.call('HGETALL', KEYS[1]), new_until_ms
  for i = 2, #all, 2 do last_ms = math.max(last_ms, tonumber(string.match(all[i], '^(%d+) ') or 0)) end
  redis.call('PEXPIRE', KEYS[1], digits(last_ms - now()))
elseif left_ms < lease_ms then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
elseif until_ms < new_until_ms then
  -- No field has an empty name.
  redis.call('HDEL', KEYS[1], '')
end
if until_ms < new_until_ms then redis.call('HSET', KEYS[1], ARGV[1], digits(new_until_ms) .. rest) end

if ARGV[4] == '1' then
  local lock = { key = KEYS[1], record = KEYS[2] }
  if not fetch_fields(lock) and lock.has_record then lengthen_record(lock, lock.fence, lease_ms) end
end
return 1
