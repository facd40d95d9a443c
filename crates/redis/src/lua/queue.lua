-- Part of acquire, release, evict and free, and of resize, after what is changed in a lock: its queue, and who asks.

-- How many places one call looks at, so that no script runs for long.
local LOOKS_AT_MOST = 64

-- The places before and behind one in the queue; empty where there is none. What this script has decided already goes
-- before what the record says.
local function neighbours(place)
  if size == 1 then return '', '' end
  local p, n = 'p:' .. place, 'n:' .. place
  local links = redis.call('HMGET', KEYS[2], p, n)
  return place ~= first and (changes[p] or links[1]) or '', place ~= final and (changes[n] or links[2]) or ''
end

-- Takes a place out of the queue.
local function leave(place)
  local before, behind = neighbours(place)
  if before == '' then first = behind elseif behind ~= '' then put('n:' .. before, behind) end
  if behind == '' then final = before elseif before ~= '' then put('p:' .. behind, before) end
  size = size - 1
  places[place] = false
  put('w:' .. place, '')
  over['w:' .. place], over['n:' .. place], over['p:' .. place] = true, true, true
end

-- How many are before a place at most: counting them would cost the more the longer the queue.
local function position_of(place)
  if first == place.place then return 0 end
  local front = place_of(first)
  return math.min(front and place.ticket - front.ticket or place.ticket, size - 1)
end

-- Puts one who asks into the queue, or renews his place; gives how many are before it at most.
local function enqueue(ask)
  local kept_ms = tonumber(ask.kept_ms)
  local own = ask.place
  local place = place_of(own)
  local ticket = place and place.ticket
  if not place and ask.goes_first and first ~= '' then
    local front = place_of(first)
    ticket, size = (front and front.ticket or 0) - 1, size + 1
    put('n:' .. own, first)
    put('p:' .. first, own)
    first = own
  elseif not place then
    if final ~= '' then
      put('p:' .. own, final)
      put('n:' .. final, own)
    end
    ticket, tail, size, final = tail, tail + 1, size + 1, own
    if first == '' then first = own end
  end
  ask.ticket, ask.expires_ms, places[own] = ticket, now() + kept_ms, ask
  local text = digits(ticket) .. '\n' .. ask.nonce .. '\n' .. digits(ask.expires_ms) .. '\n' .. ask.lease_ms
    .. '\n' .. ask.life .. '\n' .. ask.hold .. '\n' .. ask.own .. '\n' .. ask.label
  put('w:' .. own, by_hold and text .. '\n' .. ask.portion or text)
  keep_record(kept_ms)
  return position_of(ask)
end

-- An acquire as its arguments from ARGV[at] say: lease_ms, label, nonce and kept_ms to queue with, or empty, the expiry
-- for a lock of somebody else's that has none, or empty, and life. Of a lock that several share, the portion stands before
-- the kind, which is the last of all arguments; and who upgrades is waited for by everybody, and goes before them.
local function ask_of(who, at)
  who.lease_ms, who.label, who.nonce = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  who.kept_ms, who.adopt_ms, who.life = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  if by_hold then
    who.portion = ARGV[#ARGV - 1]
    who.goes_first = who.portion == 'x'
  end
  return who
end

-- The reply to a hold that needs nothing more, or nil: it was ended, or it is there.
local function settled(ask)
  if kind then return { 'kind', kind } end
  local how = ended_how(ask.hold)
  if how then return { 'spent', how } end
  if holds(ask) then return confirm(ask) end
end

