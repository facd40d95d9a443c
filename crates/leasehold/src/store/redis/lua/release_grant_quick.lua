-- Part of release, after release_quick.lua: the lock is held by this hold, and the first in the queue is there to get it.
--
-- What is done here is what release.lua does, in the same order and for the same reasons, without the making of functions that
-- it does not need: the next holder waits for it.

if record_there and last and value == ARGV[1] and ARGV[2] == '' and ARGV[4] == 'grant' and not ARGV[5] and awaited
  and not fields[6] then
  local size, tail, first, final = string.match(fields[5], '^(%d+) (%d+) (%S*) (%S*)$')
  local place = redis.call('HMGET', KEYS[2], 'w:' .. first, 'n:' .. first)
  local nonce, expires_ms, lease_ms, life, hold, own, label =
    string.match(place[1] or '', '^%-?%d+\n(%x+)\n(%d+)\n(%d+)\n(%l%d*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')
  local time = redis.call('TIME')
  local s, us = tonumber(time[1]), tonumber(time[2])
  local now_ms = s * 1000 + math.floor(us / 1000)
  local alone = size == '1'
  if nonce and tonumber(expires_ms) >= now_ms and (alone or place[2]) then
    -- From here on nothing is a reason to keep the lock, nor to tell its holder that he has it yet.
    local held = { 'held', {} }
    redis.call('DEL', KEYS[1])
    ended = ARGV[1] .. ' released' .. (ended and '\n' .. ended or '')
    local over = string.find(ended, '\n', EIGHTH_ENDING, true)
    local reserved = fields[7] and tonumber(string.match(fields[7], '^%d+')) or 0
    local fence = math.min(math.max(last + 1, reserved + 1, s * 1000000 + us), GREATEST_FENCE)
    local behind = not alone and place[2] or ''
    local queue = string.format('%.0f', size - 1) .. ' ' .. tail .. ' ' .. behind .. ' ' .. (alone and '' or final)
    local token = string.format('%.0f', fence)
    local tenant = hold .. '\n' .. string.format('%.0f', now_ms) .. '\n' .. life .. '\n' .. own .. '\n' .. label
    local written
    if alone then
      written = redis.pcall('HSET', KEYS[2], 'ended', over and string.sub(ended, 1, over - 1) or ended,
        'last', token, 'tenant', tenant, 'queue', queue, 'w:' .. first, '')
    else
      written = redis.pcall('HSET', KEYS[2], 'ended', over and string.sub(ended, 1, over - 1) or ended,
        'last', token, 'tenant', tenant, 'queue', queue, 'w:' .. first, '', 'p:' .. behind, '')
    end
    if type(written) == 'table' then return held end
    local kept_ms = math.max(math.floor(fence / 1000) - now_ms, tonumber(lease_ms)) + RECORD_KEPT_MS
    redis.pcall('PEXPIRE', KEYS[2], string.format('%.0f', kept_ms))
    if redis.pcall('SET', KEYS[1], own == '' and hold or own, 'PX', lease_ms).err then return held end
    redis.pcall('HDEL', KEYS[2], 'w:' .. first, 'n:' .. first, 'p:' .. first)
    redis.pcall('PUBLISH', ARGV[3] .. first, 'grant ' .. nonce .. ' ' .. token)
    return held
  end
end

