-- Fast path of acquire for a Mutex: the lock is free and has no waiter. Comes before every fragment but format.lua. The
-- record of the predecessor is not read, because no session holds a free lock.
--
-- Reply
--   fence      granted for the whole lease, and no waiters
--
-- Does what record_holder.lua and commit.lua do at a third of their cost: it reads only what it needs, creates no function
-- or table, and formats no number. Fencing tokens are compared as texts, which is correct as long as both have FENCE_DIGITS
-- digits. If a condition does not hold, nothing has been written, and the fragments below handle the request.
--
-- SET NX also tests whether the lock is free, so it comes before the record. Under full memory it fails as a whole. A script
-- that is cut off after it leaves a lock that the record does not know: the requesting hold finds itself the holder when it
-- retries, or deletes the key when it gives up; other clients see a foreign holder until the lease ends. So the value must
-- identify the hold, and a value chosen by the user does not.

if ARGV[2] == '' then
  local record = redis.pcall('HMGET', KEYS[2], 'format', 'last', 'ended', 'queue', 'reserved')
  local format, last, ended, queue, reserved = record[1], record[2], record[3], record[4], record[5]
  if (format == '1' and last and #last == FENCE_DIGITS or format == false and not last)
    and not (queue and string.byte(queue) ~= BYTE_ZERO)
    and not (ended and string.find(ended, string.sub(ARGV[1], ENDED_FROM, ENDED_TO), 1, true)) then
    local time = redis.call('TIME')
    local s, us = time[1], time[2]
    if #us < US_DIGITS then us = string.sub('00000' .. us, -US_DIGITS) end
    local fence = s .. us
    if #fence == FENCE_DIGITS and fence < '9' and (not last or last < fence) and (not reserved or reserved < fence) then
      -- The fragments below repeat this command, and report its error.
      local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[4])
      if set and set.ok then
        local holder = ARGV[1] .. '\n' .. s .. string.sub(us, 1, MS_DIGITS) .. '\n' .. ARGV[9] .. '\n\n' .. ARGV[5]
        if not format then
          -- As in create_hash.lua.
          local kept_ms = string.format('%.0f', ARGV[4] + RECORD_KEPT_MS)
          redis.call('PEXPIRE', KEYS[2], kept_ms)
          redis.call('HSET', KEYS[2], 'format', '1', 'last', fence, 'holder', holder)
          redis.call('PEXPIRE', KEYS[2], kept_ms)
          return fence
        end
        if string.sub(last, 1, PERIOD_DIGITS) ~= string.sub(fence, 1, PERIOD_DIGITS) or #ARGV[4] > SHORT_LEASE_DIGITS then
          redis.call('PEXPIRE', KEYS[2], string.format('%.0f', ARGV[4] + RECORD_KEPT_MS))
        end
        redis.call('HSET', KEYS[2], 'last', fence, 'holder', holder)
        return fence
      end
    end
  end
end

