-- Part of acquire, release, evict and free of a ReentrantMutex, after change.lua: what becomes of its key.
--
-- ARGV[#]  the channel on which clients of Redisson's hear that the lock is free

-- DUMP of the hash {leasehold = 'none'}: type 4 (hash), 1 field, '\009leasehold', '\004none', RDB version 9, CRC64 of all
-- that.
local OPENED = '\004\001\009\108\101\097\115\101\104\111\108\100\004\110\111\110\101\009\000\035\230\080\153\099\003\243\224'

local channel = ARGV[#ARGV]

-- No ReentrantMutex rests, and a session has one place.
local rest, places_of

-- What is to be written of the lock's key beside what change.lua says: count and holds, with some given up; or whether a
-- hold was added.
local lowered, entered

-- Adds a hold.
local function add(who)
  local lease_ms = tonumber(who.lease_ms)
  entries[#entries + 1] = {
    hold = who.hold, session = who.session, until_ms = now() + lease_ms, since_ms = now(), life = who.life,
    label = who.label,
  }
  count, longest_ms = count + 1, math.max(longest_ms, lease_ms)
end

-- Makes a claim the holder of the free lock.
local function stand(who)
  value, fence_of_all = who.token, last
  add(who)
  given, value_ttl_ms = who, tonumber(who.lease_ms)
end

-- Enters once more where the asker's owner has the lock: past the queue, and by the same fencing token. False where he does
-- not have it.
local function enter(ask)
  if not value or value ~= ask.token then return false end
  if not fence_of_all then
    -- Only a client of Redisson's has it so far.
    install(ask)
    fence_of_all = last
  end
  add(ask)
  entered, value_ttl_ms = true, math.max(value_ttl(), longest_left())
  -- A record that is begun in this very step has to last as long, too.
  if record_there or new_record_ttl_ms then keep_record(tonumber(ask.lease_ms)) end
  return true
end

-- The hold is there: tells so.
local function confirm(ask)
  local entry = entry_of(ask.hold)
  local remaining_ms = entry and entry.until_ms - now() or 0
  return { 'granted', fence_of_all or 0, remaining_ms, first ~= '' and 1 or 0, count, longest_ms }
end

-- Frees the lock.
local function give_up()
  freed, value, value_ttl_ms, lowered = true, false, nil, nil
  count, entries, fence_of_all, longest_ms = 0, {}, nil, 0
end

-- Ends the holds that `goes` says.
local function end_holds(goes)
  keep(function(entry) return not goes(entry) end)
  if not value then return give_up() end
  local ttl_ms = ours_alone()
  lowered, value_ttl_ms = { packed(), digits(count), ttl_ms }, ttl_ms or value_ttl_ms
end

-- Tells clients of Redisson's that the lock is free, where nobody was given it.
local function tell_strangers()
  if freed and not given then say(channel, '0') end
end

-- Writes that something was given up; says whether there was anything.
local function write_off()
  if freed then
    redis.call('DEL', KEYS[1])
  elseif lowered then
    -- The write that full memory does not refuse; nobody has a field without a name.
    if lowered[3] then redis.call('PEXPIRE', KEYS[1], digits(lowered[3])) else redis.call('HDEL', KEYS[1], '') end
    redis.call('HSET', KEYS[1], 'leasehold', lowered[1], value, lowered[2])
  end
  return freed or lowered
end

-- The key lasts long enough before anything lasts as long. What lies there of a lock that nobody has is replaced.
local function write_lock()
  if given then
    -- RESTORE would take 0 for ever.
    redis.call('RESTORE', KEYS[1], digits(math.max(1, value_ttl_ms)), OPENED, 'REPLACE')
  elseif entered then
    redis.call('PEXPIRE', KEYS[1], digits(value_ttl_ms))
  elseif new_value_ttl then
    redis.call('PEXPIRE', KEYS[1], new_value_ttl)
  end
  if given or entered or new_value_ttl and dropped then
    redis.call('HSET', KEYS[1], 'leasehold', packed(), value, digits(count))
  end
end

