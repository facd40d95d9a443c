-- Acquires all of several Mutexes, or none. It does not queue, and does not overtake waiters: a free lock with a live queue counts
-- as taken.
-- It is idempotent.
--
-- KEYS     per lock its own key, and its record; at last the watermark of the partition
-- ARGV[1]  label
-- ARGV[2]  liveness
-- ARGV[3…] per lock the hold, the user's own value or empty, lease_ms
--
-- Replies, per lock
--   {'granted', fence, remaining_ms, 1 if others wait else 0}      for all of them; or, if a lock is not available, for each
--   {'taken', -1, predecessor or '', -1, holder…}, {'ended', how}, {'kind', type}, {'format', found}     as in acquire
--   'open'                                                          it could have been acquired
--   'held'                                                          this hold already has it
--
-- A script, because all locks are checked at one instant. Changes are written last, lock by lock, each in the order of
-- acquire. A cut-off leaves some of the holds, which end by their leases.

-- How many queue entries are visited per lock, so that the script does not run for long.
local MAX_VISITED = 64
-- How many arguments each lock has. Those of the first begin at this index, too.
local PER_LOCK = 3

local ELECTION_PREFIX = 'election\n'

-- The sessions in a queue from first to last if all entries have expired, else nil.
local function expired_entries(record, queue)
  local size, at, last_id = string.match(queue, '^(%d+) %d+ (%S*) (%S*)$')
  if tonumber(size) > MAX_VISITED then return end
  local sessions = {}
  repeat
    sessions[#sessions + 1] = at
    local links = redis.call('HMGET', KEYS[record], 'w:' .. at, 'n:' .. at)
    local expires_ms = string.match(links[1] or '', '^%d+\n%x+\n(%d+)\n')
    if expires_ms and tonumber(expires_ms) >= now() then return end
    local is_last = at == last_id or not links[2]
    at = links[2]
  until is_last
  return sessions
end

-- Reads the keys of one lock. Returns the reply for the request, or nil and an error; and the state of a lock that is no obstacle.
local function read_keys(name, record, hold, own)
  local value = redis.pcall('GET', KEYS[name])
  if type(value) == 'table' then
    if not is_wrong_type(value.err) then return nil, value end
    return { 'kind', redis.call('TYPE', KEYS[name]).ok }
  end
  -- As in mutex.lua.
  if value and string.sub(value, 1, #ELECTION_PREFIX) == ELECTION_PREFIX then return { 'kind', 'string' } end
  local lock = { record = KEYS[record] }
  local unreadable = fetch_fields(lock)
  if unreadable then
    if unreadable.err then return nil, unreadable end
    return unreadable
  end
  local last, ended = lock.fence, lock.ended
  -- As in parse_record.lua.
  local _, at = string.find(ended or '', string.sub(hold, ENDED_FROM, ENDED_TO), 1, true)
  local mark = at and string.sub(ended, at + 1, at + 1)
  if mark then return { 'ended', mark == '.' and 'released' or mark == '!' and 'evicted' or 'force_released' } end

  local holder, since_ms, liveness, holders_own, label
  if lock.holder_text then
    holder, since_ms, liveness, holders_own, label = string.match(lock.holder_text, '^([^\n]*)\n(%d+)\n(%l%d*)\n([^\n]*)\n(.*)$')
  end
  -- As in string_holder.lua.
  local in_cooldown = value and last and holder and value == 'cooldown\n' .. digits(last)
  if in_cooldown and holder == hold then return { 'ended', 'released' } end
  local ours = value and holder and value == (holders_own == '' and holder or holders_own)
  if ours and holders_own ~= '' and ended
    and string.find(ended, string.sub(holder, ENDED_FROM, ENDED_TO), 1, true) then ours = false end
  if in_cooldown then ours, liveness = true, 'l' end
  local state = { fields = lock, last = last, known = holder == hold and holders_own == own }
  local has_waiters = lock.queued > 0
  if value == (own == '' and hold or own) and (own == '' or ours and state.known) then
    state.ttl_ms, state.has_waiters = redis.call('PTTL', KEYS[name]), has_waiters and 1 or 0
    return 'held', nil, state
  end
  if not value then
    state.expired = has_waiters and expired_entries(record, lock.queue) or {}
    state.queue = has_waiters and '0 0  '
    if not has_waiters or state.expired[1] then return 'open', nil, state end
  end

  local timeout_ms = ours and string.match(liveness, '^s(%d+)$')
  local predecessor = timeout_ms and string.sub(holder, 1, SESSION_LENGTH) or ''
  local taken = { 'taken', -1, predecessor, -1 }
  if value then
    taken[5] = redis.call('PTTL', KEYS[name])
    if ours then
      taken[6], taken[7], taken[8], taken[9] = last or 0, tonumber(since_ms), label, in_cooldown and 'cooldown' or predecessor
    end
  end
  return taken
end

local replies, states, all_free = {}, {}, true
for i = 1, (#KEYS - 1) / 2 do
  local at = PER_LOCK * i
  local reply, failed, state = read_keys(2 * i - 1, 2 * i, ARGV[at], ARGV[at + 1])
  if failed then return failed end
  replies[i], states[i] = reply, state
  all_free = all_free and state
end
if not all_free then return replies end

local now_ms, now_us = now()
for i, state in ipairs(states) do
  local at = PER_LOCK * i
  local hold, own, lease_ms = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local held, last, texts, stale = replies[i] == 'held', state.last, {}, {}
  if not held or not state.known or not last then
    local before, record = last, state.fields
    local greatest
    if last then
      greatest = math.max(last, record.reserved and tonumber(string.match(record.reserved, '^%d+')) or 0)
    else
      local found = redis.pcall('GET', KEYS[#KEYS])
      greatest = type(found) == 'string' and tonumber(found)
    end
    last = math.min(greatest and math.max(greatest + 1, now_us) or now_us, GREATEST_FENCE)
    -- As in record_holder.lua.
    local same_period = before and math.floor(before / PERIOD_US) == math.floor(last / PERIOD_US)
    local lasts = same_period and tonumber(lease_ms) < SHORT_LEASE_MS
    local kept_ms = digits(math.max(math.floor(last / 1000) - now_ms, tonumber(lease_ms)) + RECORD_KEPT_MS)
    if state.queue then texts[1], texts[2] = 'queue', state.queue end
    for _, session in ipairs(state.expired or {}) do
      texts[#texts + 1], texts[#texts + 2] = 'w:' .. session, ''
      stale[#stale + 1], stale[#stale + 2], stale[#stale + 3] = 'w:' .. session, 'n:' .. session, 'p:' .. session
    end
    local holder = hold .. '\n' .. digits(now_ms) .. '\n' .. ARGV[2] .. '\n' .. own .. '\n' .. ARGV[1]
    if record.has_record and not record.is_packed then
      redis.call('HSET', KEYS[2 * i], 'last', digits(last), 'holder', holder, unpack(texts))
      if not lasts then redis.call('PEXPIRE', KEYS[2 * i], kept_ms) end
    else
      local text = packed_text(last, record.reserved, record.ended, holder)
      if record.has_record and lasts then
        redis.call('SET', KEYS[2 * i], text, 'KEEPTTL')
      else
        redis.call('SET', KEYS[2 * i], text, 'PX', kept_ms)
      end
    end
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
  if stale[1] then redis.call('HDEL', KEYS[2 * i], unpack(stale)) end
  replies[i] = { 'granted', last, remaining_ms, state.has_waiters or 0 }
end
return replies
