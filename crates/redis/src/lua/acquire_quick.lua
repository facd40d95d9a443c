-- Part of acquire of a Mutex, before all else: the lock is free, and nobody waits for it. A session that is asked about has
-- nothing of it.
--
-- Reply
--   fence      granted for all of the lease, and nobody waits
--
-- What is done here is what install.lua and commit.lua do, for a third of what that costs: nothing is read that is not
-- needed, no function or table is made, and no number formatted. Tokens are compared as texts, which have 16 digits where
-- the clock is right. Where anything does not fit, nothing has been changed, and what follows reads all of it.
--
-- SET is the question whether the lock is free, too, so it comes before the record; and full memory refuses all or nothing.
-- Whoever is cut off behind it leaves a lock that its record does not know: he who asked for it has it when he asks again,
-- or ends it when he gives it up; to all others it is a stranger's until its lease ends. So it must be his by the hold alone,
-- and not by a value that others may have, too.

if ARGV[2] == '' then
  local record = redis.pcall('HMGET', KEYS[2], 'format', 'last', 'ended', 'queue', 'reserved')
  local there, last, ended, queue, reserved = record[1], record[2], record[3], record[4], record[5]
  -- No other number of places begins with a 0.
  if (there == '1' and last and #last == 16 or there == false and not last) and not (queue and string.byte(queue) ~= 48)
    and not (ended and string.find(ended, string.sub(ARGV[1], 18, 29), 1, true)) then
    local time = redis.call('TIME')
    local s, us = time[1], time[2]
    if #us < 6 then us = string.sub('00000' .. us, -6) end
    local fence = s .. us
    if #fence == 16 and fence < '9' and (not last or last < fence) and (not reserved or reserved < fence) then
      -- What goes wrong does so again where it is told.
      local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[4])
      if set and set.ok then
        local RECORD_KEPT_MS = 3600000
        if not there then
          -- As in change.lua.
          local EMPTY_RECORD = '\004\001\006\102\111\114\109\097\116\001\049\009\000\017\015\014\212\067\157\155\031'
          redis.call('RESTORE', KEYS[2], string.format('%.0f', ARGV[4] + RECORD_KEPT_MS), EMPTY_RECORD)
        elseif string.sub(last, 1, 8) ~= string.sub(fence, 1, 8) or #ARGV[4] > 6 then
          -- It was raised within the same 100 s before, as install.lua says.
          redis.call('PEXPIRE', KEYS[2], string.format('%.0f', ARGV[4] + RECORD_KEPT_MS))
        end
        redis.call('HSET', KEYS[2], 'last', fence,
          'tenant', ARGV[1] .. '\n' .. s .. string.sub(us, 1, 3) .. '\n' .. ARGV[9] .. '\n\n' .. ARGV[5])
        return fence
      end
    end
  end
end

