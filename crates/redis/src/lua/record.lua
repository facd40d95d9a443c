-- Part of all scripts on a lock but extend, after read.lua and numbers.lua: what was read, understood. It writes nothing.
--
-- Whatever is to be changed at the server is changed in these variables at once, so that no key is read twice.

-- `place` is what its place in the queue is called.
local function claim_of(hold, own)
  local session = string.sub(hold, 1, 16)
  return {
    hold = hold, own = own, token = own == '' and hold or own, session = session, place = by_hold and hold or session,
  }
end

local claim = claim_of(ARGV[1], ARGV[2])

-- The queue.
local tail, size, first, final = 0, 0, '', ''
if fields[5] then
  size, tail, first, final = string.match(fields[5], '^(%d+) (%d+) (%S*) (%S*)$')
  size, tail = tonumber(size), tonumber(tail)
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

-- A place in the queue, or false.
local places = {}
local function unpacked(packed)
  if not packed or packed == '' then return false end
  -- Who goes before the first has a ticket that may be negative.
  local ticket, nonce, expires_ms, lease_ms, life, hold, own, label, portion =
    string.match(packed, '^(%-?%d+)\n(%x+)\n(%d+)\n(%d+)\n(%l%d*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n?(.*)$')
  local place = claim_of(hold, own)
  place.ticket, place.nonce, place.expires_ms = tonumber(ticket), nonce, tonumber(expires_ms)
  place.lease_ms, place.life, place.label, place.portion = lease_ms, life, label, portion
  return place
end
local function place_of(of)
  if places[of] == nil then
    local packed = fields[6]
    if of ~= claim.place then packed = redis.call('HGET', KEYS[2], 'w:' .. of) end
    places[of] = unpacked(packed)
  end
  return places[of]
end

-- How a hold was ended, or nil.
local function ended_how(hold)
  local _, at = string.find(ended or '', string.sub(hold, 18, 29), 1, true)
  local mark = at and string.sub(ended, at + 1, at + 1)
  return mark == '.' and 'released' or mark == '!' and 'evicted' or mark == '~' and 'freed' or nil
end

-- Whether a claim has the place that is its own or its session's.
local function waits(who)
  local place = place_of(who.place)
  return place and place.hold == who.hold
end

-- How long the lock's key lasts; -1 if it never expires.
local value_ttl_ms
local function value_ttl()
  value_ttl_ms = value_ttl_ms or redis.call('PTTL', KEYS[1])
  return value_ttl_ms
end

