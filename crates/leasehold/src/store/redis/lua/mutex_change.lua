-- Part of acquire, release, evict and free of a Mutex, after change.lua: what becomes of its key.

-- Nobody enters a Mutex again, and nobody but us is told that it is free.
local enter, tell_strangers

-- Makes a claim the holder of the free lock.
local function stand(who)
  given, value, value_ttl_ms = who, who.token, tonumber(who.lease_ms)
end

-- The hold is there: tells so, and mends what a cut-off may have left undone.
local function confirm(ask)
  local holder = tenant()
  local known = last and holder and holder.hold == ask.hold and holder.own == ask.own
  if not known then install(ask) end
  if value_ttl() == -1 then
    new_value_ttl, value_ttl_ms = ask.lease_ms, tonumber(ask.lease_ms)
  end
  return { 'granted', last, value_ttl_ms, first ~= '' and 1 or 0 }
end

-- Frees the lock.
local function give_up()
  freed, value, value_ttl_ms = true, false, nil
end

-- Ends the holds that `goes` says: there is but one.
local function end_holds()
  give_up()
end

-- Writes that something was given up; says whether there was anything.
local function write_off()
  if freed then redis.call('DEL', KEYS[1]) end
  return freed
end

local function write_lock()
  if given then redis.call('SET', KEYS[1], given.token, 'PX', given.lease_ms) end
  if new_value_ttl then redis.call('PEXPIRE', KEYS[1], new_value_ttl) end
end

