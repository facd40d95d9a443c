-- Extends holds by their tokens alone. Never shortens one, and touches only the locks' own keys.
--
-- KEYS  the locks
-- ARGV  per lock its token, and lease_ms: the least remaining time of the hold afterwards
--
-- Replies, for one lock by itself, for several in a list
--   1  extended
--   0  not held
--
-- A script, because comparing a token and extending its key are one step. Several locks per call, because a call costs the
-- server more than one extension. MGET returns nothing for a key that is no string. Full memory does not refuse PEXPIRE; any
-- other refusal already meets the first command.

local values = redis.call('MGET', unpack(KEYS))

-- PEXPIRE has GT since 7.0, the first version with REDIS_VERSION_NUM: one command compares and extends.
local greater = redis.REDIS_VERSION_NUM and 'GT'

local extended = {}
for i, key in ipairs(KEYS) do
  local token, lease_ms = ARGV[2 * i - 1], ARGV[2 * i]
  extended[i] = 0
  if values[i] == token then
    extended[i] = 1
    -- GT treats a key without expiry as endless, and returns 0.
    if not greater or redis.call('PEXPIRE', key, lease_ms, greater) == 0 then
      if redis.call('PTTL', key) < tonumber(lease_ms) then redis.call('PEXPIRE', key, lease_ms) end
    end
  end
end
return #KEYS == 1 and extended[1] or extended
