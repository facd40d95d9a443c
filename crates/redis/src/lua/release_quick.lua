-- Part of release of a Mutex, before all else: the lock is held by this hold, nobody is to be queued, and it is for nobody or
-- for the first in the queue.
--
-- Reply
--   'held'     and now released
--
-- What is done here is what release.lua does, without what acquire_quick.lua does without: whoever is next waits for it.

if ARGV[2] == '' and not ARGV[5] then
  local record = redis.pcall('HMGET', KEYS[2], 'format', 'ended', 'queue')
  local ended, queue = record[2], record[3]
  -- No other number of places begins with a 0.
  local awaited = queue and string.byte(queue) ~= 48
  if record[1] == '1' and (not awaited or ARGV[4] == 'grant') and redis.pcall('GET', KEYS[1]) == ARGV[1] then
    ended = string.sub(ARGV[1], 18, 29) .. '.' .. string.sub(ended or '', 1, 91)
    if not awaited then
      redis.call('DEL', KEYS[1])
      redis.call('HSET', KEYS[2], 'ended', ended)
      return 'held'
    else
      local size, tail, first, final = string.match(queue, '^(%d+) (%d+) (%S*) (%S*)$')
      local more = redis.call('HMGET', KEYS[2], 'last', 'reserved', 'w:' .. first, 'n:' .. first,
        'w:' .. string.sub(ARGV[1], 1, 16))
      local last, reserved, alone = more[1], more[2], size == '1'
      local nonce, expires_ms, lease_ms, life, hold, own, label =
        string.match(more[3] or '', '^%d+\n(%x+)\n(%d+)\n(%d+)\n(%l%d*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')
      local time = redis.call('TIME')
      local s, us = time[1], time[2]
      if #us < 6 then us = string.sub('00000' .. us, -6) end
      local fence, since_ms = s .. us, s .. string.sub(us, 1, 3)
      -- Numbers are compared as texts, as in acquire_quick.lua.
      if nonce and #expires_ms == #since_ms and expires_ms >= since_ms and (alone or more[4]) and not more[5]
        and last and #last == 16 and #fence == 16 and fence < '9' and last < fence and (not reserved or reserved < fence)
        and (string.sub(last, 1, 8) == string.sub(fence, 1, 8) and #lease_ms <= 6) then
        -- From here on nothing is a reason to keep the lock, nor to tell its holder that he has it yet.
        redis.call('DEL', KEYS[1])
        local behind = not alone and more[4] or ''
        queue = string.format('%.0f', size - 1) .. ' ' .. tail .. ' ' .. behind .. ' ' .. (alone and '' or final)
        -- Who has become the first has nobody before him.
        local written = redis.pcall('HSET', KEYS[2], 'ended', ended, 'queue', queue, 'last', fence,
          'tenant', hold .. '\n' .. since_ms .. '\n' .. life .. '\n' .. own .. '\n' .. label,
          'w:' .. first, '', 'p:' .. (alone and first or behind), '')
        if type(written) == 'table' then return 'held' end
        if not redis.pcall('SET', KEYS[1], own == '' and hold or own, 'PX', lease_ms).ok then return 'held' end
        redis.pcall('HDEL', KEYS[2], 'w:' .. first, 'n:' .. first, 'p:' .. first)
        local channel, message = ARGV[3] .. first, 'grant ' .. nonce .. ' ' .. fence
        -- As in say.lua.
        if string.byte(channel) == 10 then
          channel = string.sub(channel, 2)
          local heard = redis.pcall('SPUBLISH', channel, message)
          if type(heard) == 'number' and heard > 0 then return 'held' end
        end
        redis.pcall('PUBLISH', channel, message)
        return 'held'
      end
    end
  end
end

