-- Part of acquire, release, evict and free of a Mutex or an Election, after change.lua: what becomes of its key.

-- Nobody enters such a lock again, nobody but us is told that a Mutex is free, and a session has one place.
local enter, tell_strangers, places_of

-- What stands there while the lock rests, and for how long yet, where it is left so.
local left_resting, rest_ms

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

-- Leaves the lock taken by nobody until `for_ms` after it was given to the hold that gives it up; says for how long yet, or
-- nil where that is over.
local function rest(for_ms)
  if not for_ms then return end
  local holder = tenant()
  local known = holder and holder.hold == claim.hold
  local left_ms = (known and holder.since_ms or now()) + for_ms - now()
  if left_ms <= 0 then return end
  value = MARK .. 'rest\n' .. digits(known and last or 0)
  left_resting, rest_ms, value_ttl_ms = value, digits(left_ms), left_ms
  return left_ms
end

-- Writes that something was given up; says whether there was anything.
local function write_off()
  if freed then
    redis.call('DEL', KEYS[1])
  elseif left_resting then
    -- Full memory does not refuse the first, and nothing behind it. Whoever is cut off in between has the hold yet, which
    -- ends as the rest would.
    redis.call('PEXPIRE', KEYS[1], rest_ms)
    redis.call('SET', KEYS[1], left_resting, 'PX', rest_ms)
  end
  return freed or left_resting
end

local function write_lock()
  if given then redis.call('SET', KEYS[1], given.token, 'PX', given.lease_ms) end
  if new_value_ttl then redis.call('PEXPIRE', KEYS[1], new_value_ttl) end
end

