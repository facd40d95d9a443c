-- Part of acquire, release, evict and free, after what is changed in a lock: its queue, and giving it.

-- How many places one call looks at, so that no script runs for long.
local LOOKS_AT_MOST = 64

-- Makes a claim the holder of the free lock.
local function give(who)
  install(who)
  stand(who)
end

-- The sessions before and behind one in the queue; empty where there is none. What this script has decided already goes
-- before what the record says.
local function neighbours(session)
  if size == 1 then return '', '' end
  local p, n = 'p:' .. session, 'n:' .. session
  local links = redis.call('HMGET', KEYS[2], p, n)
  return session ~= first and (changes[p] or links[1]) or '', session ~= final and (changes[n] or links[2]) or ''
end

-- Takes a session's place out of the queue.
local function leave(session)
  local before, behind = neighbours(session)
  if before == '' then first = behind elseif behind ~= '' then put('n:' .. before, behind) end
  if behind == '' then final = before elseif before ~= '' then put('p:' .. behind, before) end
  size = size - 1
  places[session] = false
  put('w:' .. session, '')
  over['w:' .. session], over['n:' .. session], over['p:' .. session] = true, true, true
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
      told = place
      return place
    end
  end
  if first == '' and asker then give(asker) return asker end
end

-- Puts a session into the queue, or renews its place; gives how many are before it at most.
local function enqueue(ask)
  local kept_ms = tonumber(ask.kept_ms)
  local place = place_of(ask.session)
  local ticket = place and place.ticket
  if not place then
    if final ~= '' then
      put('p:' .. ask.session, final)
      put('n:' .. final, ask.session)
    end
    ticket, tail, size, final = tail, tail + 1, size + 1, ask.session
    if first == '' then first = ask.session end
  end
  put('w:' .. ask.session, digits(ticket) .. '\n' .. ask.nonce .. '\n' .. digits(now() + kept_ms) .. '\n' .. ask.lease_ms
    .. '\n' .. ask.life .. '\n' .. ask.hold .. '\n' .. ask.own .. '\n' .. ask.label)
  keep_record(kept_ms)
  if first == ask.session then return 0 end
  local front = place_of(first)
  return math.min(front and ticket - front.ticket or ticket, size - 1)
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

-- Queues, if asked so, and tells who has the lock. `asked` is a session that is known to be `alive_ms` yet, or nil.
local function wait(ask, asked, alive_ms)
  local position = ask.nonce ~= '' and enqueue(ask) or -1
  local ahead = ahead_of(ask, position)
  return tell_holder({ 'taken', position, ahead, ahead == asked and alive_ms or -1 })
end

-- An acquire as its arguments from ARGV[at] say: lease_ms, label, nonce and kept_ms to queue with, or empty, the expiry
-- for a lock of somebody else's that has none, or empty, and life.
local function ask_of(who, at)
  who.lease_ms, who.label, who.nonce = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  who.kept_ms, who.adopt_ms, who.life = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  return who
end

-- The reply to a hold that needs nothing more, or nil: it was ended, or it is there.
local function settled(ask)
  if kind then return { 'kind', kind } end
  local how = ended_how(ask.hold)
  if how then return { 'spent', how } end
  if holds(ask) then return confirm(ask) end
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

local function write_record()
  local queue = digits(size) .. ' ' .. digits(tail) .. ' ' .. first .. ' ' .. final
  if tail > 0 and queue ~= fields[5] then put('queue', queue) end
  local texts = {}
  for field, text in pairs(changes) do texts[#texts + 1], texts[#texts + 2] = field, text end
  if texts[1] then
    if not record_there then
      redis.call('RESTORE', KEYS[2], digits(new_record_ttl_ms or record_ttl(0)), EMPTY_RECORD)
    end
    redis.call('HSET', KEYS[2], unpack(texts))
  end
  if record_there and new_record_ttl_ms then redis.call('PEXPIRE', KEYS[2], digits(new_record_ttl_ms)) end
end

local function write_rest()
  write_record()
  write_lock()
  local fields_over = {}
  for field in pairs(over) do fields_over[#fields_over + 1] = field end
  if fields_over[1] then redis.call('HDEL', KEYS[2], unpack(fields_over)) end
  -- A user that may not publish has his waiters look by themselves, and holders find out when they extend.
  for _, session in ipairs(warned) do redis.pcall('PUBLISH', ARGV[3] .. session, 'freed ' .. digits(warned_of)) end
  if told then redis.pcall('PUBLISH', ARGV[3] .. told.session, 'grant ' .. told.nonce .. ' ' .. digits(last)) end
  if tell_strangers then tell_strangers() end
  -- The lock's audit is the last key of those that take locks.
  if audit then redis.pcall('SET', KEYS[#KEYS], audit, 'PX', AUDIT_KEPT_MS) end
end

-- Writes what was decided. What goes wrong after a hold was given up is not the releaser's: the next to look mends it. But
-- who has `asked` for something in the same step must not be told that he got what could not be written.
local function commit(asked)
  local given_up = write_off()
  if given_up and not asked then pcall(write_rest) else write_rest() end
end

