-- Part of acquire and release, after record.lua: giving the lock, and its queue.
--
-- ARGV[3]  what the channels of all mailboxes begin with; the session follows
--
-- A script that is cut off leaves what it has done. So:
--   1. No key is ever without an expiry: the lock gets it in the same SET; the record is created, with its expiry, by
--      a RESTORE of a constant, since HSET alone would create it without.
--   2. The record names the new holder before the lock does, and the queue forgets it after that: whoever comes next
--      either finds the lock free and the place still there, or the hold, and its owner learns of it when it looks.
--   3. A place goes before the head of the queue moves past it, so that none is left behind the head.
--   4. Taking the lock begins with a write that full memory refuses, so that it is refused as a whole.

-- How many places one call looks at, so that no script runs for long.
local LOOKS_AT_MOST = 64

-- DUMP of the hash {format = '1'}: type 4 (hash), 1 field, '\006format', '\0011', RDB version 9 (Redis 5, which all
-- later ones load), CRC64 of all that.
local EMPTY_RECORD = '\004\001\006\102\111\114\109\097\116\001\049\009\000\017\015\014\212\067\157\155\031'

-- How long a record is kept that is used now, for a hold or a place that lasts `lease_ms`.
local function record_ttl(lease_ms)
  local ahead_ms = last and math.floor(last / 1000) - now() or 0
  return math.max(ahead_ms, lease_ms) + RECORD_KEPT_MS
end

local function create_record(lease_ms)
  record_ttl_ms = record_ttl(lease_ms)
  redis.call('RESTORE', KEYS[2], digits(record_ttl_ms), EMPTY_RECORD)
  record_there = '1'
end

-- Raises the record's expiry where it has come near.
local function keep_record(lease_ms)
  record_ttl_ms = record_ttl_ms or redis.call('PTTL', KEYS[2])
  local ttl_ms = record_ttl(lease_ms)
  if record_ttl_ms < ttl_ms - RECORD_KEPT_MS / 2 then
    redis.call('PEXPIRE', KEYS[2], digits(ttl_ms))
    record_ttl_ms = ttl_ms
  end
end

-- Writes a new holder and its fencing token into the record.
local function install(who)
  local lease_ms = tonumber(who.lease_ms)
  local created = not record_there
  if created then create_record(lease_ms) end
  now()
  last = math.min(last and math.max(last + 1, now_us) or now_us, GREATEST_FENCE)
  the_tenant = who
  who.since_ms = now_ms
  redis.call('HSET', KEYS[2], 'last', digits(last),
    'tenant', who.hold .. '\n' .. digits(now_ms) .. '\n' .. who.own .. '\n' .. who.label)
  if not created then
    record_ttl_ms = record_ttl(lease_ms)
    redis.call('PEXPIRE', KEYS[2], digits(record_ttl_ms))
  end
end

-- Makes a claim the holder of the free lock.
local function give(who)
  install(who)
  redis.call('SET', KEYS[1], who.token, 'PX', who.lease_ms)
  value, value_ttl_ms = who.token, tonumber(who.lease_ms)
end

-- Finds who is next: the first live place, or the asker if none is before it. Also says which fields of the record
-- are over with that.
local function next_in_queue(asker)
  local over = {}
  for _ = 1, LOOKS_AT_MOST do
    if head >= tail then return asker, over end
    local ticket = 't:' .. digits(head)
    local session = redis.call('HGET', KEYS[2], ticket)
    head = head + 1
    if session then
      local place = place_of(session)
      places[session] = false
      over[#over + 1], over[#over + 2] = ticket, 'w:' .. session
      if asker and session == asker.session then return asker, over end
      if place and place.expires_ms >= now() then return place, over end
    end
  end
  return head >= tail and asker or nil, over
end

-- Gives the free lock to whoever is next, and says to whom.
local function pump(asker)
  local first = head
  local who, over = next_in_queue(asker)
  if who then give(who) end
  if over[1] then redis.call('HDEL', KEYS[2], unpack(over)) end
  if head > first then redis.call('HSET', KEYS[2], 'head', digits(head)) end
  if who and who ~= asker then
    -- A message is a hint: a user that may not publish has his waiters look by themselves.
    redis.pcall('PUBLISH', ARGV[3] .. who.session, 'grant ' .. who.nonce .. ' ' .. digits(last))
  end
  return who
end

-- Puts a session into the queue, or renews its place; gives its position.
local function enqueue(ask)
  local kept_ms = tonumber(ask.kept_ms)
  if not record_there then create_record(kept_ms) end
  local place = place_of(ask.session)
  local ticket = place and place.ticket or tail
  local packed = digits(ticket) .. '\n' .. ask.nonce .. '\n' .. digits(now() + kept_ms) .. '\n' .. ask.lease_ms
    .. '\n' .. ask.hold .. '\n' .. ask.own .. '\n' .. ask.label
  if place then
    redis.call('HSET', KEYS[2], 'w:' .. ask.session, packed)
  else
    tail = tail + 1
    redis.call('HSET', KEYS[2], 'tail', digits(tail), 't:' .. digits(ticket), ask.session,
      'w:' .. ask.session, packed)
  end
  keep_record(kept_ms)
  return ticket - head
end

-- The hold is there: tells so, and mends what a cut-off may have left undone.
local function confirm(ask)
  local holder = tenant()
  local known = last and holder and holder.hold == ask.hold and holder.own == ask.own
  if not known then install(ask) end
  if value_ttl() == -1 then
    redis.call('PEXPIRE', KEYS[1], ask.lease_ms)
    value_ttl_ms = tonumber(ask.lease_ms)
  end
  return { 'granted', last, value_ttl_ms, head < tail and 1 or 0 }
end

-- Queues, if asked so, and tells who has the lock.
local function wait(ask)
  local position = ask.nonce ~= '' and enqueue(ask) or -1
  return tell_holder({ 'taken', position })
end

-- An acquire as its arguments from ARGV[at] say: lease_ms, label, nonce and kept_ms to queue with, or empty, and the
-- expiry for a lock of somebody else's that has none, or empty.
local function ask_of(who, at)
  who.lease_ms, who.label, who.nonce = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  who.kept_ms, who.adopt_ms = ARGV[at + 3], ARGV[at + 4]
  return who
end

local function acquire(ask)
  if kind then return { 'kind', kind } end
  local how = ended_how(ask.hold)
  if how then return { 'spent', how } end
  if holds(ask) then return confirm(ask) end
  if not value and pump(ask) == ask then return confirm(ask) end
  if value and ask.adopt_ms ~= '' and value_ttl() == -1 then
    redis.call('PEXPIRE', KEYS[1], ask.adopt_ms)
    value_ttl_ms = tonumber(ask.adopt_ms)
  end
  return wait(ask)
end

