-- Fast path of release for a Mutex: this hold has the lock, no acquire follows, and no client waits or the first waiter is
-- alive. Comes before every fragment but format.lua.
--
-- Reply
--   'held'     released
--
-- Does what release.lua does, with the economies that acquire_quick.lua describes.

local READ = ARGV[2] == '' and not ARGV[5] and KEYS[3] ~= KEYS[1] and redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
if READ then
  local record, watermark = READ[2], READ[3]
  if READ[1] ~= ARGV[1] then
    -- Not held, or the key has another type.
  elseif record then
    local last, reserved, ended = string.match(record, PACKED_HEAD)
    if last then
      local greatest, upto = last, string.match(reserved, '^%d*')
      if upto > last then greatest = upto end
      if #greatest == FENCE_DIGITS and #last == FENCE_DIGITS
        and (not watermark or #watermark == FENCE_DIGITS and watermark < '9') then
        redis.call('DEL', KEYS[1])
        -- As write_settled in commit.lua.
        if not watermark or watermark < greatest then
          local expires_ms = string.format('%.0f', string.sub(greatest, 1, FENCE_MS_DIGITS) + RECORD_KEPT_MS)
          -- From the DEL on, no error is a reason to report that it is still held.
          if not redis.pcall('SET', KEYS[3], greatest, 'PXAT', expires_ms).ok then return 'held' end
        end
        ended = string.sub(ARGV[1], ENDED_FROM, ENDED_TO) .. '.' .. string.sub(ended, 1, ENDED_KEPT)
        redis.pcall('SET', KEYS[2], '1\n\n\n' .. ended .. '\n', 'PX', RELEASED_KEPT_MS)
        return 'held'
      end
    end
  elseif ARGV[4] == 'grant' then
    -- A hash, if any, has the queue.
    local fields = redis.pcall('HMGET', KEYS[2], 'format', 'ended', 'queue')
    local ended, queue = fields[2], fields[3]
    if fields[1] == '1' and queue and string.byte(queue) ~= BYTE_ZERO then
      ended = string.sub(ARGV[1], ENDED_FROM, ENDED_TO) .. '.' .. string.sub(ended or '', 1, ENDED_KEPT)
      local size, next_ticket, first_id, last_id = string.match(queue, '^(%d+) (%d+) (%S*) (%S*)$')
      local more = redis.call('HMGET', KEYS[2], 'last', 'reserved', 'w:' .. first_id, 'n:' .. first_id,
        'w:' .. string.sub(ARGV[1], 1, SESSION_LENGTH))
      local last, reserved, is_only = more[1], more[2], size == '1'
      local nonce, expires_ms, lease_ms, liveness, hold, own, label =
        string.match(more[3] or '', '^%d+\n(%x+)\n(%d+)\n(%d+)\n(%l%d*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')
      local time = redis.call('TIME')
      local s, us = time[1] .. '', time[2] .. ''
      if #us < US_DIGITS then us = string.sub('00000' .. us, -US_DIGITS) end
      local fence, since_ms = s .. us, s .. string.sub(us, 1, MS_DIGITS)
      if nonce and #expires_ms == #since_ms and expires_ms >= since_ms and (is_only or more[4]) and not more[5]
        and last and #last == FENCE_DIGITS and #fence == FENCE_DIGITS and fence < '9' and last < fence
        and (not reserved or reserved < fence)
        and string.sub(last, 1, PERIOD_DIGITS) == string.sub(fence, 1, PERIOD_DIGITS)
        and #lease_ms <= SHORT_LEASE_DIGITS then
        -- From the DEL on, no error is a reason to keep the lock, or to report that it is still held.
        redis.call('DEL', KEYS[1])
        local second_id = not is_only and more[4] or ''
        queue = is_only and '0 0  ' or string.format('%.0f', size - 1) .. ' ' .. next_ticket .. ' ' .. second_id .. ' ' .. last_id
        local written = redis.pcall('HSET', KEYS[2], 'ended', ended, 'queue', queue, 'last', fence,
          'holder', hold .. '\n' .. since_ms .. '\n' .. liveness .. '\n' .. own .. '\n' .. label,
          'w:' .. first_id, '')
        if type(written) == 'table' then return 'held' end
        if not redis.pcall('SET', KEYS[1], own == '' and hold or own, 'PX', lease_ms).ok then return 'held' end
        redis.pcall('HDEL', KEYS[2], 'w:' .. first_id, 'n:' .. first_id, 'p:' .. first_id)
        local channel, message = ARGV[3] .. first_id, 'grant ' .. nonce .. ' ' .. fence
        -- The same rule as in publish.lua.
        if string.sub(channel, 1, 1) == '\n' then
          channel = string.sub(channel, 2)
          local receivers = redis.pcall('SPUBLISH', channel, message)
          if type(receivers) == 'number' and receivers > 0 then return 'held' end
        end
        redis.pcall('PUBLISH', channel, message)
        return 'held'
      end
    end
  end
end

