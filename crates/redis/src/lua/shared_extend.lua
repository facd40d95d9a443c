-- Extends one hold of a shared lock, and its keys. Never shortens it, and neither reads nor writes the other holds.
--
-- KEYS[1]  the lock: a HASH, as shared_hold.lua describes it
-- KEYS[2]  its index; absent while the slot moves: the next script that visits the hold then moves it in the index
-- KEYS[3]  its record, with ARGV[4]
-- ARGV[1]  the hold
-- ARGV[2]  its owner, or another value of the user's own, or empty
-- ARGV[3]  lease_ms: the least remaining time of the hold afterwards
-- ARGV[4]  '1' to make the record last as long, or empty
-- ARGV[5]  the fencing token of the only grant of the hold that is extended, or empty
-- ARGV[6]  the kind
--
-- Replies
--   1  extended
--   0  not held, or of another grant
--
-- A script, because finding the hold and extending it are one step. The first write is one that full memory does not refuse, and
-- then it refuses nothing; and no hold lasts longer than its key.

local found = redis.pcall('HMGET', KEYS[1], 'leasehold', ARGV[1])
if found.err then
  if not is_wrong_type(found.err) then return found end
  return 0
end
if kind_of(found[1]) ~= ARGV[6] then return 0 end
local held = parse_hold(ARGV[1], found[2])
if not held or held.until_ms < now() then return 0 end
if ARGV[5] ~= '' and held.fence ~= tonumber(ARGV[5]) then return 0 end

local lease_ms = tonumber(ARGV[3])
local new_until_ms, left_ms = now() + lease_ms, redis.call('PTTL', KEYS[1])
-- If another client removed the expiry, the key gets the end of the longest hold again, so that no waiter waits for ever.
if left_ms == -1 or left_ms < lease_ms then
  local until_ms = left_ms == -1 and latest_end_ms(KEYS[1], new_until_ms) or new_until_ms
  local ttl_ms = digits(until_ms - now())
  if KEYS[2] then redis.call('PEXPIRE', KEYS[2], ttl_ms) end
  redis.call('PEXPIRE', KEYS[1], ttl_ms)
elseif held.until_ms < new_until_ms then
  -- No field has an empty name.
  redis.call('HDEL', KEYS[1], '')
end
if held.until_ms < new_until_ms then
  redis.call('HSET', KEYS[1], ARGV[1], digits(new_until_ms) .. string.match(found[2], '^%d+(.*)$'))
  -- The hold is extended, whatever becomes of the index.
  if KEYS[2] then redis.pcall('ZADD', KEYS[2], 'XX', digits(new_until_ms), ARGV[1]) end
end

if ARGV[4] == '1' then
  local lock = { key = KEYS[1], record = KEYS[3] }
  if not fetch_fields(lock) and lock.has_record then lengthen_record(lock, lock.fence, lease_ms) end
end
return 1
