-- Part of acquire, after read.lua: the lock is free, has been used lately, and nobody waits. A session that is asked about
-- has nothing of it.
--
-- What is done here is what grant.lua and commit.lua do, in the same order and for the same reasons, without the making of
-- its functions, which would take as long again.

if record_there and last and not value and not kind and not awaited
  and not (ended and string.find(ended, ARGV[1] .. ' ', 1, true)) then
  local time = redis.call('TIME')
  local s, us = tonumber(time[1]), tonumber(time[2])
  local now_ms = s * 1000 + math.floor(us / 1000)
  local reserved = fields[7] and tonumber(string.match(fields[7], '^%d+')) or 0
  local fence = math.min(math.max(last + 1, reserved + 1, s * 1000000 + us), GREATEST_FENCE)
  redis.call('HSET', KEYS[2], 'last', string.format('%.0f', fence),
    'tenant', ARGV[1] .. '\n' .. string.format('%.0f', now_ms) .. '\n' .. ARGV[9] .. '\n' .. ARGV[2] .. '\n' .. ARGV[5])
  local kept_ms = math.max(math.floor(fence / 1000) - now_ms, tonumber(ARGV[4])) + RECORD_KEPT_MS
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', kept_ms))
  redis.call('SET', KEYS[1], ARGV[2] == '' and ARGV[1] or ARGV[2], 'PX', ARGV[4])
  return { 'granted', fence, tonumber(ARGV[4]), 0 }
end

