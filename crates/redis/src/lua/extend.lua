-- Lengthens holds by their tokens alone: no end is brought nearer, and nothing is touched but the locks' own keys.
--
-- KEYS  the locks
-- ARGV  for each lock its hold, and lease_ms: how long it lasts from now at least
--
-- Replies, for one lock by itself, for several in a list
--   1  extended
--   0  not held
--
-- A script, since comparing a token and lengthening its key are one step. Many locks in one, since a call costs the
-- server more than what is done in it. MGET gives nothing for what is no string. PEXPIRE is not refused by full memory;
-- and what else a server refuses, it refuses at the first of them.

local values = redis.call('MGET', unpack(KEYS))

-- From 7.0 on, which is also the first that tells its number, one command looks at the end and lengthens it.
local greater = redis.REDIS_VERSION_NUM and 'GT'

local extended = {}
for i, key in ipairs(KEYS) do
  local hold, lease_ms = ARGV[2 * i - 1], ARGV[2 * i]
  extended[i] = 0
  if values[i] == hold then
    extended[i] = 1
    -- GT takes no expiry for a late one.
    if not greater or redis.call('PEXPIRE', key, lease_ms, greater) == 0 then
      if redis.call('PTTL', key) < tonumber(lease_ms) then redis.call('PEXPIRE', key, lease_ms) end
    end
  end
end
return #KEYS == 1 and extended[1] or extended
