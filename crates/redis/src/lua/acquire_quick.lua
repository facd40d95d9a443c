-- Fast path of acquire for a Mutex: the lock is free and has no waiter. Comes before every fragment but format.lua. The
-- record of the predecessor is not read, because no session holds a free lock.
--
-- Reply
--   fence      granted for the whole lease, and no waiters
--
-- Does what record_holder.lua and commit.lua do at a third of their cost: it reads only what it needs, creates no function
-- or table, and formats no number. Fencing tokens are compared as texts, which is correct as long as both have FENCE_DIGITS
-- digits. If a condition does not hold, nothing has been written, and the fragments below handle the request, with what has been read.
--
-- SET NX also tests whether the lock is free, so with a record it comes before it. Under full memory it fails as a whole. A script
-- that is cut off after it leaves a lock that the record does not know: the requesting hold finds itself the holder when it
-- retries, or deletes the key when it gives up; other clients see a foreign holder until the lease ends. So the value must
-- identify the hold, and a value chosen by the user does not. Without a record, SET NX of the record comes first: a record with a
-- queue is a hash, for which MGET returns nothing. Cut off after that, the record names a hold that was never granted.

local READ = ARGV[2] == '' and KEYS[3] ~= KEYS[1] and redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
if READ then
  local record, last, reserved, ended = READ[2], '', '', ''
  if record then last, reserved, ended = string.match(record, PACKED_HEAD) end
  if not READ[1] and last and (ended == '' or not string.find(ended, string.sub(ARGV[1], ENDED_FROM, ENDED_TO), 1, true)) then
    local time = redis.call('TIME')
    local s, us = time[1] .. '', time[2] .. ''
    if #us < US_DIGITS then us = string.sub('00000' .. us, -US_DIGITS) end
    local fence, before = s .. us, last
    if last == '' then before = READ[3] or '' end
    if #fence == FENCE_DIGITS and fence < '9' and (before == '' or #before == FENCE_DIGITS and before < fence)
      and (reserved == '' or reserved < fence) then
      local text = '1\n' .. fence .. '\n' .. reserved .. '\n' .. ended .. '\n' .. ARGV[1] .. '\n' .. s
        .. string.sub(us, 1, MS_DIGITS) .. '\n' .. ARGV[9] .. '\n\n' .. ARGV[5]
      local kept_ms = string.format('%.0f', ARGV[4] + RECORD_KEPT_MS)
      -- The fragments below repeat the first command that is refused, and report its error.
      if not record then
        local recorded = redis.pcall('SET', KEYS[2], text, 'NX', 'PX', kept_ms)
        if recorded and recorded.ok then
          if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[4]) then return fence end
          -- The key has another type.
          redis.call('DEL', KEYS[2])
        end
      else
        local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[4])
        if set and set.ok then
          if string.sub(last, 1, PERIOD_DIGITS) == string.sub(fence, 1, PERIOD_DIGITS) and #ARGV[4] <= SHORT_LEASE_DIGITS then
            redis.call('SET', KEYS[2], text, 'KEEPTTL')
          else
            redis.call('SET', KEYS[2], text, 'PX', kept_ms)
          end
          return fence
        end
      end
    end
  end
end
