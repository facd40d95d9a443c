-- Part of acquire, release and inspect, before their own text: what stands at a Mutex's two keys.
--
-- KEYS[1]  the lock: a STRING, its value the token, as clients of other libraries keep it
-- KEYS[2]  the record: a HASH
--            format           1; a record of another format is not touched
--            last             the fencing token that was given last
--            tenant           who was given the lock last: hold \n since_ms \n own value \n label
--            ended            the hold that was ended last other than by its lease: hold, space, how
--            head, tail       the queue's tickets run from head to tail - 1, with gaps
--            t:<ticket>       the session that waits there
--            w:<session>      its place: ticket \n nonce \n expires_ms \n lease_ms \n hold \n own value \n label
-- ARGV[1]  a hold, or empty
-- ARGV[2]  the user's own value in place of the hold as token, or empty
--
-- Reading comes first, so that a key of the wrong type is found before anything is written:
--   {'kind', type}      something else stands at the lock's key (who may meet it says so himself)
--   {'format', found}   the record has another format, or is no hash
--
-- None of these texts contains a control character but the \n between them. Whatever is changed below is changed in
-- these variables as well, so that no key is read twice.

local RECORD_KEPT_MS = 3600000
local GREATEST_FENCE = 9007199254740991

-- Never `..`, which makes 1.762e+15 of a fencing token.
local function digits(number)
  return string.format('%.0f', number)
end

local function claim_of(hold, own)
  return { hold = hold, own = own, token = own == '' and hold or own, session = string.sub(hold, 1, 16) }
end

local claim = claim_of(ARGV[1], ARGV[2])

-- The lock. `value` is false and `kind` nil where nothing stands there; `kind` is the type of what is no string.
local value, kind, value_ttl_ms = redis.pcall('GET', KEYS[1]), nil, nil
if type(value) == 'table' then
  if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then return value end
  value, kind = false, redis.call('TYPE', KEYS[1]).ok
end

local fields = redis.pcall(
  'HMGET', KEYS[2], 'format', 'last', 'tenant', 'ended', 'head', 'tail', 'w:' .. claim.session)
if fields.err then
  if string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then return fields end
  return { 'format', redis.call('TYPE', KEYS[2]).ok }
end
local record_there, record_ttl_ms = fields[1], nil
if record_there and record_there ~= '1' then return { 'format', record_there } end
local last = fields[2] and tonumber(fields[2])
local ended = fields[4]
local head, tail = tonumber(fields[5] or 0), tonumber(fields[6] or 0)

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

-- Who was given the lock last, or false.
local the_tenant
local function tenant()
  if the_tenant == nil then
    the_tenant = false
    if fields[3] then
      local hold, since_ms, own, label = string.match(fields[3], '^([^\n]*)\n(%d+)\n([^\n]*)\n(.*)$')
      the_tenant = claim_of(hold, own)
      the_tenant.since_ms, the_tenant.label = tonumber(since_ms), label
    end
  end
  return the_tenant
end

-- The place of a session in the queue, or false.
local places = {}
local function unpacked(packed)
  if not packed then return false end
  local ticket, nonce, expires_ms, lease_ms, hold, own, label =
    string.match(packed, '^(%d+)\n(%x+)\n(%d+)\n(%d+)\n([^\n]*)\n([^\n]*)\n(.*)$')
  local place = claim_of(hold, own)
  place.ticket, place.nonce, place.expires_ms = tonumber(ticket), nonce, tonumber(expires_ms)
  place.lease_ms, place.label = lease_ms, label
  return place
end
local function place_of(session)
  if places[session] == nil then
    local packed = fields[7]
    if session ~= claim.session then packed = redis.call('HGET', KEYS[2], 'w:' .. session) end
    places[session] = unpacked(packed)
  end
  return places[session]
end

-- Whether a claim has the lock: its token stands, and for a value of the user's own also the hold.
local function holds(who)
  if value ~= who.token then return false end
  if who.own == '' then return true end
  local holder = tenant()
  return holder and holder.hold == who.hold and holder.own == who.own
end

-- How a hold was ended, or nil.
local function ended_how(hold)
  if ended and string.sub(ended, 1, #hold + 1) == hold .. ' ' then return string.sub(ended, #hold + 2) end
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
local function value_ttl()
  value_ttl_ms = value_ttl_ms or redis.call('PTTL', KEYS[1])
  return value_ttl_ms
end

-- What a stranger may know of the holder, put behind `reply`: nothing if the lock is free; how long it is held; and
-- where the holder is one of ours, its fencing token, since when, and its label.
local function tell_holder(reply)
  if not value and not kind then return reply end
  reply[#reply + 1] = value_ttl()
  local holder = tenant()
  if holder and value == holder.token then
    reply[#reply + 1] = last or 0
    reply[#reply + 1] = holder.since_ms
    reply[#reply + 1] = holder.label
  end
  return reply
end

