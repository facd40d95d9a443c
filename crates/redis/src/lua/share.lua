-- Part of acquire, release, evict, free and resize of a lock that several have side by side, after queue.lua: who gets on with
-- whom, and letting in who is next.
--
-- Whoever finds room serves the queue, from the front on, until there is none for the next: nobody is passed by one who came
-- later and wants less. Past the queue go only those for whom it would wait.

-- How many sessions one who waits is told of that may be what he waits for.
local WATCHED_AT_MOST = 16

-- How many there are in all: as the record knows, or as who asks says. Those who meet, or wait for arrivals, have agreed.
local function limit_of(portion)
  local _, of = numbers_of(portion)
  return KIND == 'semaphore' and limit or of
end

-- How many of the parts of an owner have a portion, or any.
local function has(who, portion)
  if KIND ~= 'rwlock' then return 0 end
  local count = 0
  for _, part in ipairs(parts) do
    if part.owner == who.own and (not portion or part.portion == portion) then count = count + 1 end
  end
  return count
end

-- The places at the front, as many as one call looks at: what each is called, its place or false.
local function front()
  local found, at = {}, first
  while at ~= '' and #found < LOOKS_AT_MOST do
    local n = 'n:' .. at
    local behind = changes[n]
    if places[at] == nil then
      local texts = redis.call('HMGET', KEYS[2], 'w:' .. at, n)
      places[at], behind = unpacked(texts[1]), behind or texts[2]
    elseif not behind and at ~= final then
      behind = redis.call('HGET', KEYS[2], n)
    end
    found[#found + 1] = { at, places[at] }
    at = at ~= final and behind or ''
  end
  return found
end

-- The places of a session, from the front on: no more than one call looks at.
local function places_of(session)
  local found = {}
  for _, text in ipairs(redis.call('HVALS', KEYS[2])) do
    -- A place, and no other value, begins so.
    local hold = string.match(text, '^%-?%d+\n%x+\n%d+\n%d+\n%l%d*\n([^\n]*)\n')
    if hold and string.sub(hold, 1, 16) == session then
      places[hold] = unpacked(text)
      found[#found + 1] = places[hold]
    end
  end
  table.sort(found, function(a, b) return a.ticket < b.ticket end)
  return { unpack(found, 1, math.min(#found, LOOKS_AT_MOST)) }
end

-- Whether nobody has a part, nor waits for one, as far as one call looks.
local function is_idle()
  if parts[1] or size > LOOKS_AT_MOST then return false end
  for _, found in ipairs(front()) do
    if found[2] and found[2].expires_ms >= now() then return false end
  end
  return true
end

-- The reply to who asks for what can never be, or nil: he is not to stand in the way of the others.
local function judge(ask)
  local count, of = numbers_of(ask.portion)
  if KIND == 'semaphore' then
    local most = limit_of(ask.portion)
    return (count == 0 or count > most) and { 'range', count, most } or nil
  elseif KIND == 'rwlock' then
    local portion = ask.portion
    if portion == 'x' then
      if has(ask, 'w') + has(ask, 'x') > 0 then return { 'deadlock' } end
      return has(ask, 'u') == 0 and { 'upgradable' } or nil
    end
    if portion == 'r' or portion == 'u' and has(ask, 'w') > 0 then return end
    return has(ask) > 0 and { 'deadlock' } or nil
  end
  if KIND == 'barrier' then
    if of == 0 or of > LOOKS_AT_MOST then return { 'range', of, LOOKS_AT_MOST } end
  elseif of == 0 or count == 0 and string.byte(ask.portion) == 97 then
    -- Of 'a', arrivals: who waits for them is none.
    return { 'range', count, of }
  end
  return limit and limit ~= of and not is_idle() and { 'differ', of, limit } or nil
end

-- Whether there is room for a part: 'now', 'later', once others have left, or 'never', as long as he asks for this.
local function room(who)
  local portion = who.portion
  local letter, free = string.sub(portion, 1, 1), false
  if letter == 'p' then
    local count, most = numbers_of(portion), limit_of(portion)
    if count > most then return 'never' end
    free = taken + count <= most
  elseif letter == 'r' then
    free = writers == 0
  elseif letter == 'u' then
    free = writers == 0 and upgradable == 0
  elseif letter == 'w' then
    free = not parts[1]
  elseif letter == 'x' then
    if has(who, 'u') == 0 then return 'never' end
    free = writers == 0 and has(who) == #parts
  elseif letter == 't' then
    free = taken >= limit_of(portion)
  elseif letter == 'a' then
    free = true
  end
  return free and 'now' or 'later'
end

-- Whether one goes past the queue: an owner who has the lock already, who arrives, and who upgrades: he would be the first
-- of the queue, also where he does not queue.
local function passes(ask)
  local letter = string.sub(ask.portion, 1, 1)
  return letter == 'a' or (letter == 'r' or letter == 'u') and has(ask) > 0 or letter == 'x' and room(ask) == 'now'
end

-- Lets one in.
local function let_in(who)
  local number = limit_of(who.portion)
  if number then set_limit(number) end
  add(who)
end

-- Lets one in whose turn has come, and tells him, unless he is the one who asks.
local function grant(place, asker)
  let_in(place)
  if not asker or asker.hold ~= place.hold then
    messages[#messages + 1] = { place.session, 'grant ' .. place.nonce .. ' ' .. digits(last) }
  end
end

-- Lets in as many as are to meet, if so many are there: together, or none of them. `asker` stands behind them, if he does not
-- queue; `known` is told by his reply.
local function meet(asker, known)
  local present, extra = {}, asker
  for _, found in ipairs(front()) do
    local place = found[2]
    if place and place.expires_ms >= now() then
      present[#present + 1] = place
      if asker and place.hold == asker.hold then extra = nil end
    else
      leave(found[1])
    end
  end
  -- One who does not queue stands behind them all.
  if size ~= #present then extra = nil end
  local _, said = numbers_of(extra and extra.portion or '')
  local of = limit or said
  if not of or of == 0 or #present + (extra and 1 or 0) < of then return end
  for i = 1, math.min(of, #present) do
    leave(present[i].place)
    grant(present[i], known)
  end
  if extra and #present < of then let_in(extra) end
end

-- Lets in whoever is next; `asker` is told by his reply.
local function serve(asker)
  if KIND == 'barrier' then return meet(nil, asker) end
  for _ = 1, LOOKS_AT_MOST do
    if first == '' then break end
    local place = place_of(first)
    local when = place and place.expires_ms >= now() and room(place) or 'never'
    if when == 'later' then return end
    leave(first)
    if when == 'now' then grant(place, asker) end
  end
end

-- The same; and lets in the asker, if none is before him.
local function pump(asker)
  if kind then return end
  if KIND == 'barrier' then return meet(asker, asker) end
  serve(asker)
  if asker and first == '' and not holds(asker) and room(asker) == 'now' then let_in(asker) end
end

-- The reply to one who has to wait: whose death would bring him nearer. That is who stands right before him, or else those
-- whose leaving may let him in, from the one on whom he asked about: so each of them is told in turn, however many there are.
local function taken_for(ask, position, asked, alive_ms)
  local in_the_way, before = {}, nil
  if KIND == 'semaphore' or KIND == 'rwlock' then
    for _, part in ipairs(lessees()) do
      if part.owner == '' or part.owner ~= ask.own then in_the_way[#in_the_way + 1] = part end
    end
  end
  if position ~= -1 and place_of(ask.place) and first ~= ask.place then
    local link = changes['p:' .. ask.place] or redis.call('HGET', KEYS[2], 'p:' .. ask.place)
    before = link and place_of(link)
  end
  local sessions, known = {}, { [ask.session] = true }
  for _, who in ipairs(before and { before } or in_the_way) do
    if lives(who) and not known[who.session] then
      known[who.session], sessions[#sessions + 1] = true, who.session
    end
  end
  local turned, others = 0, {}
  for at, session in ipairs(sessions) do
    if session == asked then turned = at - 1 end
  end
  local ahead = sessions[turned + 1] or ''
  for at = 1, math.min(WATCHED_AT_MOST, #sessions) - 1 do others[at] = sessions[(turned + at) % #sessions + 1] end
  local reply = { 'taken', position, ahead, ahead == asked and alive_ms or -1, table.concat(others, ' ') }
  return in_the_way[1] and tell(in_the_way[1], reply) or reply
end

-- `asked` is a session that is known to be `alive_ms` yet, or nil.
local function acquire(ask, asked, alive_ms)
  local reply = settled(ask)
  if reply then return reply end
  -- Those first who have room by now: one of the asker's owner may be among them, and that changes what he can have.
  serve(ask)
  if holds(ask) then return confirm(ask) end
  reply = judge(ask)
  if reply then
    -- Nobody will look for his place any more.
    if first ~= '' and place_of(ask.place) then
      leave(ask.place)
      pump()
    end
    return reply
  end
  -- Who finds room, and nobody before him, needs no place.
  if first == '' and room(ask) == 'now' or passes(ask) then
    if first ~= '' and place_of(ask.place) then leave(ask.place) end
    let_in(ask)
    -- Others may have waited for this one to arrive.
    pump()
  else
    if ask.nonce ~= '' then
      local number = limit_of(ask.portion)
      if number then set_limit(number) end
      enqueue(ask)
    end
    pump(ask)
  end
  if holds(ask) then return confirm(ask) end
  -- Only now: those who were before him may just have been let in.
  local queued = ask.nonce ~= '' and place_of(ask.place)
  local position = queued and position_of(queued) or -1
  return taken_for(ask, position, asked, alive_ms)
end

