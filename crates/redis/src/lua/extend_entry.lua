-- Lengthens one hold of a ReentrantMutex, and its key. Its end is never brought nearer.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  its owner
-- ARGV[3]  lease_ms: how long the hold lasts from now at least
-- ARGV[4]  '1' to keep the record as long, or empty
--
-- Replies
--   1  extended
--   0  not held
--
-- A script, since finding the hold and lengthening it are one step. PEXPIRE comes first among the writes: full memory does
-- not refuse it, and refuses nothing after it; and no hold lasts longer than its key.

local RECORD_KEPT_MS = 3600000

local extended
for _, entry in ipairs(entries) do
  if entry.hold == ARGV[1] then extended = entry end
end
if not extended then return 0 end

local lease_ms = tonumber(ARGV[3])
local left_ms, until_ms = redis.call('PTTL', KEYS[1]), now() + lease_ms
-- A client of Redisson's with the same owner may have brought the key's end nearer.
if extended.until_ms < until_ms or longest_ms < lease_ms or left_ms < lease_ms then
  redis.call('PEXPIRE', KEYS[1], digits(math.max(ours_alone() or left_ms, lease_ms)))
  extended.until_ms, longest_ms = math.max(extended.until_ms, until_ms), math.max(longest_ms, lease_ms)
  redis.call('HSET', KEYS[1], 'leasehold', packed(), value, digits(count))
end

if ARGV[4] == '1' then
  local record = redis.pcall('HMGET', KEYS[2], 'format', 'last')
  if not record.err and record[1] == '1' then
    local last = record[2] and tonumber(record[2])
    local ahead_ms = last and math.floor(last / 1000) - now() or 0
    local kept_ms = math.max(ahead_ms, lease_ms) + RECORD_KEPT_MS
    if redis.call('PTTL', KEYS[2]) < kept_ms - RECORD_KEPT_MS / 2 then
      redis.call('PEXPIRE', KEYS[2], digits(kept_ms))
    end
  end
end
return 1
