-- Part of acquire, release, evict and free of a Mutex or a ReentrantMutex, after queue.lua: giving the lock.

-- Makes a claim the holder of the free lock.
local function give(who)
  install(who)
  stand(who)
end

-- Gives the free lock to whoever is next, and says to whom: the first live place, or the asker if none is before it.
local function pump(asker)
  for _ = 1, LOOKS_AT_MOST do
    if first == '' then break end
    local session = first
    local place = place_of(session)
    leave(session)
    -- It stands for all of the process who wait; who does not is one more who comes.
    if asker and session == asker.session and (asker.nonce ~= '' or place and place.hold == asker.hold) then
      give(asker)
      return asker
    end
    if place and place.expires_ms >= now() then
      give(place)
      messages[#messages + 1] = { session, 'grant ' .. place.nonce .. ' ' .. digits(last) }
      return place
    end
  end
  if first == '' and asker then give(asker) return asker end
end

-- Whose death would bring nearer to the lock whoever has asked, or '': who has the place right before his own, or else
-- who holds the lock.
local function ahead_of(ask, position)
  local place
  if position ~= -1 and first ~= ask.session then
    local before = changes['p:' .. ask.session] or redis.call('HGET', KEYS[2], 'p:' .. ask.session)
    place = before and place_of(before)
  end
  local who = place or lessee()
  return who and lives(who) and who.session or ''
end

-- Tells the holder that another asks for the lock, if he wants to know.
local function note(ask)
  local upto = fields[7] and last and string.match(fields[7], '^(%d+) tell$')
  local holder = upto and tonumber(upto) > last and tenant()
  if holder and holder.session ~= ask.session and holds(holder) then
    messages[#messages + 1] = { holder.session, 'wanted ' .. digits(last) }
  end
end

-- Queues, if asked so, and tells who has the lock. `asked` is a session that is known to be `alive_ms` yet, or nil.
local function wait(ask, asked, alive_ms)
  local position = ask.nonce ~= '' and enqueue(ask) or -1
  note(ask)
  local ahead = ahead_of(ask, position)
  return tell_holder({ 'taken', position, ahead, ahead == asked and alive_ms or -1 })
end

-- The reply to one whose owner has the ReentrantMutex, and who has it once more now; or nil.
local function enter_again(ask)
  if not enter or not enter(ask) then return end
  if waits(ask) then leave(ask.session) end
  return confirm(ask)
end

local function acquire(ask, asked, alive_ms)
  local reply = settled(ask)
  if reply then return reply end
  if not value and pump(ask) == ask then return confirm(ask) end
  -- Also where the first in the queue has just been given it: his owner may be the asker's.
  local entered = enter_again(ask)
  if entered then return entered end
  -- Holds of a ReentrantMutex have their own ends, and are not to lose the key before them.
  if value and ask.adopt_ms ~= '' and not (count and lessee()) and value_ttl() == -1 then
    new_value_ttl, value_ttl_ms = ask.adopt_ms, tonumber(ask.adopt_ms)
  end
  return wait(ask, asked, alive_ms)
end

