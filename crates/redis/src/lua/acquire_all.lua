-- Takes all of several Mutexes, or none of them. Nobody queues, and nobody is passed: a free lock that others wait for stays
-- theirs. Places that are over are nobody's. Sent twice it equals once.
--
-- KEYS     of each lock its own key, and its record
-- ARGV[1]  label
-- ARGV[2]  life
-- ARGV[3…] of each lock the hold, the user's own value or empty, lease_ms
--
-- Replies, for each lock
--   {'granted', fence, remaining_ms, 1 if others wait else 0}      for all of them; or for each, where one is in the way
--   {'taken', -1, ahead or '', -1, holder…}, {'spent', how}, {'kind', type}, {'format', found}     as in acquire
--   'open'                                                          it could have been taken
--   'held'                                                          this hold is there already
--
-- A script, since whether all are free is one question. What is decided is written last, lock by lock, each as acquire
-- writes one: a script that is cut off leaves some of the holds, which end by themselves.

local RECORD_KEPT_MS = 3600000
local GREATEST_FENCE = 9007199254740991
local RAISED_EVERY_US, SHORT_LEASE_MS = 100000000, 1000000

-- How many places of a queue are looked at, so that no script runs for long.
local LOOKS_AT_MOST = 64

-- As in change.lua.
local EMPTY_RECORD = '\004\001\006\102\111\114\109\097\116\001\049\009\000\017\015\014\212\067\157\155\031'

local function digits(number)
  return string.format('%.0f', number)
end

-- The server's time is read once, and only by those who need it.
local now_us, now_ms
local function now()
  if not now_us then
    local time = redis.call('TIME')
    local s, us = tonumber(time[1]), tonumber(time[2])
    now_us, now_ms = s * 1000000 + us, s * 1000 + math.floor(us / 1000)
  end
  return now_ms
end

-- The sessions in a queue, from the front on, if all their places are over; else nil.
local function all_over(record, queue)
  local size, at, final = string.match(queue, '^(%d+) %d+ (%S*) (%S*)$')
  if tonumber(size) > LOOKS_AT_MOST then return end
  local sessions = {}
  repeat
    sessions[#sessions + 1] = at
    local links = redis.call('HMGET', KEYS[record], 'w:' .. at, 'n:' .. at)
    local expires_ms = string.match(links[1] or '', '^%d+\n%x+\n(%d+)\n')
    if expires_ms and tonumber(expires_ms) >= now() then return end
    local last = at == final or not links[2]
    at = links[2]
  until last
  return sessions
end

-- Of one lock what stands at its keys, and what that means for the one who asks.
local function look(name, record, hold, own)
  local value = redis.pcall('GET', KEYS[name])
  if type(value) == 'table' then
    if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then return nil, value end
    return { 'kind', redis.call('TYPE', KEYS[name]).ok }
  end
  -- As in mutex.lua.
  if value and string.sub(value, 1, 9) == 'election\n' then return { 'kind', 'string' } end
  local fields = redis.pcall('HMGET', KEYS[record], 'format', 'last', 'tenant', 'ended', 'queue', 'reserved')
  if fields.err then
    if string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then return nil, fields end
    return { 'format', redis.call('TYPE', KEYS[record]).ok }
  end
  local there, last, ended = fields[1], fields[2] and tonumber(fields[2]), fields[4]
  if there and there ~= '1' then return { 'format', there } end
  -- As in record.lua.
  local short = string.sub(hold, 18, 29)
  local _, at = string.find(ended or '', short, 1, true)
  local mark = at and string.sub(ended, at + 1, at + 1)
  if mark then return { 'spent', mark == '.' and 'released' or mark == '!' and 'evicted' or 'freed' } end

  local holder, since_ms, life, holders_own, label
  if fields[3] then
    holder, since_ms, life, holders_own, label = string.match(fields[3], '^([^\n]*)\n(%d+)\n(%l%d*)\n([^\n]*)\n(.*)$')
  end
  -- As in one_string.lua.
  local rests = value and last and holder and value == 'rest\n' .. digits(last)
  if rests and holder == hold then return { 'spent', 'released' } end
  local ours = value and holder and value == (holders_own == '' and holder or holders_own)
  if ours and holders_own ~= '' and ended and string.find(ended, string.sub(holder, 18, 29), 1, true) then ours = false end
  if rests then ours, life = true, 'l' end
  local reserved = fields[6] and tonumber(string.match(fields[6], '^%d+')) or 0
  local state = { there = there, last = last, reserved = reserved, known = holder == hold and holders_own == own }
  local awaited = fields[5] and string.byte(fields[5]) ~= 48
  if value == (own == '' and hold or own) and (own == '' or ours and state.known) then
    state.ttl_ms, state.awaited = redis.call('PTTL', KEYS[name]), awaited and 1 or 0
    return 'held', nil, state
  end
  if not value then
    state.over = awaited and all_over(record, fields[5]) or {}
    state.queue = awaited and string.gsub(fields[5], '^%d+ (%d+) .*$', '0 %1  ')
    if not awaited or state.over[1] then return 'open', nil, state end
  end

  local alive_ms = ours and string.match(life, '^s(%d+)$')
  local ahead = alive_ms and string.sub(holder, 1, 16) or ''
  local taken = { 'taken', -1, ahead, -1 }
  if value then
    taken[5] = redis.call('PTTL', KEYS[name])
    if ours then
      taken[6], taken[7], taken[8], taken[9] = last or 0, tonumber(since_ms), label, rests and 'rests' or ahead
    end
  end
  return taken
end

local replies, states, free = {}, {}, true
for i = 1, #KEYS / 2 do
  local at = 3 * i
  local reply, failed, state = look(2 * i - 1, 2 * i, ARGV[at], ARGV[at + 1])
  if failed then return failed end
  replies[i], states[i] = reply, state
  free = free and state
end
if not free then return replies end

now()
for i, state in ipairs(states) do
  local at = 3 * i
  local hold, own, lease_ms = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local held, last, texts, over = replies[i] == 'held', state.last, {}, {}
  if not held or not state.known or not last then
    local before = last
    last = math.min(last and math.max(last + 1, state.reserved + 1, now_us) or now_us, GREATEST_FENCE)
    -- As in install.lua.
    local raised = before and math.floor(before / RAISED_EVERY_US) == math.floor(last / RAISED_EVERY_US)
    raised = raised and tonumber(lease_ms) < SHORT_LEASE_MS
    local kept_ms = digits(math.max(math.floor(last / 1000) - now_ms, tonumber(lease_ms)) + RECORD_KEPT_MS)
    if not state.there then redis.call('RESTORE', KEYS[2 * i], kept_ms, EMPTY_RECORD) end
    if state.queue then texts[1], texts[2] = 'queue', state.queue end
    for _, session in ipairs(state.over or {}) do
      texts[#texts + 1], texts[#texts + 2] = 'w:' .. session, ''
      over[#over + 1], over[#over + 2], over[#over + 3] = 'w:' .. session, 'n:' .. session, 'p:' .. session
    end
    redis.call('HSET', KEYS[2 * i], 'last', digits(last), 'tenant',
      hold .. '\n' .. digits(now_ms) .. '\n' .. ARGV[2] .. '\n' .. own .. '\n' .. ARGV[1], unpack(texts))
    if state.there and not raised then redis.call('PEXPIRE', KEYS[2 * i], kept_ms) end
  end
  local remaining_ms = tonumber(lease_ms)
  if held then
    remaining_ms = state.ttl_ms
    if remaining_ms == -1 then
      redis.call('PEXPIRE', KEYS[2 * i - 1], lease_ms)
      remaining_ms = tonumber(lease_ms)
    end
  else
    redis.call('SET', KEYS[2 * i - 1], own == '' and hold or own, 'PX', lease_ms)
  end
  if over[1] then redis.call('HDEL', KEYS[2 * i], unpack(over)) end
  replies[i] = { 'granted', last, remaining_ms, state.awaited or 0 }
end
return replies
