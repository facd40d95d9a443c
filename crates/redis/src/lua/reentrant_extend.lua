-- Extends one hold of a ReentrantMutex, and its key. Never shortens it.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  its owner
-- ARGV[3]  lease_ms: the least remaining time of the hold afterwards
-- ARGV[4]  '1' to make the record last as long, or empty
-- ARGV[5]  the fencing token of the only grant of the hold that is extended, or empty
--
-- Replies
--   1  extended
--   0  not held, or of another grant
--
-- A script, because finding the hold and extending it are one step. PEXPIRE is the first write: full memory does not refuse it,
-- and refuses nothing after it; and no hold lasts longer than its key.

local lock = { key = KEYS[1], record = KEYS[2] }
local failed = read_holds(lock, ARGV[2] == '' and ARGV[1] or ARGV[2])
if failed then return failed end

local extended
for _, entry in ipairs(lock.holds) do
  if entry.hold == ARGV[1] then extended = entry end
end
if not extended then return 0 end
if ARGV[5] ~= '' and lock.owner_fence ~= tonumber(ARGV[5]) then return 0 end

local lease_ms = tonumber(ARGV[3])
local left_ms, until_ms = redis.call('PTTL', KEYS[1]), now() + lease_ms
-- A client of Redisson with the same owner may have shortened the key's expiry.
if extended.until_ms < until_ms or lock.lease_ms < lease_ms or left_ms < lease_ms then
  redis.call('PEXPIRE', KEYS[1], digits(math.max(own_ttl_ms(lock) or left_ms, lease_ms)))
  extended.until_ms, lock.lease_ms = math.max(extended.until_ms, until_ms), math.max(lock.lease_ms, lease_ms)
  redis.call('HSET', KEYS[1], 'leasehold', packed_holds(lock), lock.value, digits(lock.count))
end

if ARGV[4] == '1' then
  if not fetch_fields(lock) and lock.has_record then lengthen_record(lock, lock.fence, lease_ms) end
end
return 1
