-- Fast path of acquire for a Mutex: another client holds the lock, and the request is not queued yet. Comes after acquire_quick.lua,
-- which has read the lock, and before every fragment but format.lua.
--
-- Reply
--   {'taken', …}   queued, as acquire.lua describes it
--
-- Does what grant.lua, queue.lua and commit.lua do, with the economies that acquire_quick.lua describes. The record must be a hash
-- with a queue, empty or not, with the lock's holder as its newest one, and its expiry must be far. It is read: that the newest token
-- is new does not say so, because a grant that was cut off may have left out the expiry. A request is left to the fragments below
-- if the holder wants a message about it. If a condition does not hold, nothing has been written, and the fragments below handle
-- the request, with what has been read. There is one write, which full memory refuses as a whole; then they repeat it, and report
-- the error.

if READ and READ[1] and not READ[2] and READ[1] ~= ARGV[1] and not KEYS[4] and ARGV[6] ~= '' then
  local id = string.sub(ARGV[1], 1, SESSION_LENGTH)
  -- As fetch_record.lua reads it, which does not read it again.
  local fields = redis.pcall('HMGET', KEYS[2], 'format', 'last', 'holder', 'ended', 'queue', 'w:' .. id, 'reserved')
  READ.fields = fields
  local fence, ended, entry, reserved = fields[2], fields[4], fields[6], fields[7]
  local size, next_ticket, first_id, last_id =
    string.match(fields[1] == '1' and fields[5] or '', '^(%d+) (%d+) (%S*) (%S*)$')
  -- The user's own value is empty.
  local hold, since_ms, holder_liveness, label = string.match(fields[3] or '', '^([^\n]*)\n(%d+)\n(%l%d*)\n\n(.*)$')
  local links_fit = size and (size == '0' and first_id .. last_id == '' or size ~= '0' and first_id ~= id and last_id ~= id)
  if links_fit and hold == READ[1] and fence and tonumber(fence) and (not entry or entry == '')
    and (not reserved or string.sub(reserved, -#WANTS_NOTICE) ~= WANTS_NOTICE)
    and not (ended and string.find(ended, string.sub(ARGV[1], ENDED_FROM, ENDED_TO), 1, true)) then
    local session = ''
    if string.sub(holder_liveness, 1, 1) == LIVES_WITH_SESSION then session = string.sub(hold, 1, SESSION_LENGTH) end
    -- Without other entries the death of the holder brings this request closer, else that of the last one before it.
    local predecessor, liveness = session, holder_liveness
    if size ~= '0' then
      predecessor = last_id
      liveness = string.match(redis.call('HGET', KEYS[2], 'w:' .. last_id) or '', '^%-?%d+\n%x+\n%d+\n%d+\n(%l%d*)\n')
    end
    local time = redis.call('TIME')
    local kept_ms, record_ms, lock_ms = tonumber(ARGV[7]), redis.call('PTTL', KEYS[2]), redis.call('PTTL', KEYS[1])
    local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
    local ahead_ms = math.floor(fence / 1000) - now_ms
    if liveness and lock_ms >= 0 and record_ms >= math.max(ahead_ms, kept_ms) + RECORD_KEPT_MS / 2 then
      local text = next_ticket .. '\n' .. ARGV[6] .. '\n' .. string.format('%.0f', now_ms + kept_ms) .. '\n' .. ARGV[4] .. '\n'
        .. ARGV[9] .. '\n' .. ARGV[1] .. '\n\n' .. ARGV[5]
      local queue = string.format('%.0f %.0f ', size + 1, next_ticket + 1) .. (size == '0' and id or first_id) .. ' ' .. id
      local written
      if size == '0' then
        written = redis.pcall('HSET', KEYS[2], 'w:' .. id, text, 'queue', queue)
      else
        written = redis.pcall('HSET', KEYS[2], 'w:' .. id, text, 'queue', queue, 'p:' .. id, last_id, 'n:' .. last_id, id)
      end
      if type(written) == 'number' then
        if string.sub(liveness, 1, 1) ~= LIVES_WITH_SESSION then predecessor = '' end
        -- The others have tickets of their own, all below this one: at most as many are before it as there are.
        return { 'taken', tonumber(size), predecessor, -1, lock_ms, tonumber(fence), tonumber(since_ms), label, session }
      end
    end
  end
end
