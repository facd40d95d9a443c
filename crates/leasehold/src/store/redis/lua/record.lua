-- Part of all scripts on a Mutex but extend, after read.lua: what it has read, understood. It writes nothing.
--
-- Whatever is to be changed at the server is changed in these variables at once, so that no key is read twice.

-- Never `..`, which makes 1.762e+15 of a fencing token.
local function digits(number)
  return string.format('%.0f', number)
end

local function claim_of(hold, own)
  return { hold = hold, own = own, token = own == '' and hold or own, session = string.sub(hold, 1, 16) }
end

local claim = claim_of(ARGV[1], ARGV[2])

-- The queue.
local tail, size, first, final = 0, 0, '', ''
if fields[5] then
  size, tail, first, final = string.match(fields[5], '^(%d+) (%d+) (%S*) (%S*)$')
  size, tail = tonumber(size), tonumber(tail)
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

-- How long the session of a hold or a place lives without a beat, in ms, where its death ends them; else nil.
local function lives(who)
  return tonumber(string.match(who.life, '^s(%d+)$'))
end

-- Who was given the lock last, or false.
local the_tenant
local function tenant()
  if the_tenant == nil then
    the_tenant = false
    if fields[3] then
      local hold, since_ms, life, own, label =
        string.match(fields[3], '^([^\n]*)\n(%d+)\n(%l%d*)\n([^\n]*)\n(.*)$')
      the_tenant = claim_of(hold, own)
      the_tenant.since_ms, the_tenant.life, the_tenant.label = tonumber(since_ms), life, label
    end
  end
  return the_tenant
end

-- The place of a session in the queue, or false.
local places = {}
local function unpacked(packed)
  if not packed or packed == '' then return false end
  local ticket, nonce, expires_ms, lease_ms, life, hold, own, label =
    string.match(packed, '^(%d+)\n(%x+)\n(%d+)\n(%d+)\n(%l%d*)\n([^\n]*)\n([^\n]*)\n(.*)$')
  local place = claim_of(hold, own)
  place.ticket, place.nonce, place.expires_ms = tonumber(ticket), nonce, tonumber(expires_ms)
  place.lease_ms, place.life, place.label = lease_ms, life, label
  return place
end
local function place_of(session)
  if places[session] == nil then
    local packed = fields[6]
    if session ~= claim.session then packed = redis.call('HGET', KEYS[2], 'w:' .. session) end
    places[session] = unpacked(packed)
  end
  return places[session]
end

-- How a hold was ended, or nil.
local function ended_how(hold)
  if ended and string.sub(ended, 1, #hold + 1) == hold .. ' ' then return string.sub(ended, #hold + 2) end
end

-- Whether a claim has the lock: its token stands, and for a value of the user's own also the hold. A stranger may use
-- the same value after it was ended.
local function holds(who)
  if value ~= who.token then return false end
  if who.own == '' then return true end
  local holder = tenant()
  return holder and holder.hold == who.hold and holder.own == who.own and not ended_how(who.hold)
end

-- The one of ours who has the lock, or false.
local function lessee()
  local holder = tenant()
  return holder and holds(holder) and holder
end

local function waits(who)
  local place = place_of(who.session)
  return place and place.hold == who.hold
end

-- What became of a claim.
local function fate(who)
  if holds(who) then return 'held' end
  if not record_there then return (value or kind) and 'superseded' or 'forgotten' end
  if waits(who) then return 'queued' end
  local how = ended_how(who.hold)
  if how then return how end
  if value or kind then return 'superseded' end
  local holder = tenant()
  if not holder then return 'forgotten' end
  return holder.hold == who.hold and 'vanished' or 'superseded'
end

-- How long the lock's key lasts; -1 if it never expires.
local value_ttl_ms
local function value_ttl()
  value_ttl_ms = value_ttl_ms or redis.call('PTTL', KEYS[1])
  return value_ttl_ms
end

-- What a stranger may know of the holder, put behind `reply`: nothing if the lock is free; how long it is held; and
-- where the holder is one of ours, its fencing token, since when, its label, and the session it lives with, or ''.
local function tell_holder(reply)
  if not value and not kind then return reply end
  reply[#reply + 1] = value_ttl()
  local holder = lessee()
  if holder then
    reply[#reply + 1] = last or 0
    reply[#reply + 1] = holder.since_ms
    reply[#reply + 1] = holder.label
    reply[#reply + 1] = lives(holder) and holder.session or ''
  end
  return reply
end

