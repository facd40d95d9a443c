-- Changes the key of a ReentrantMutex. Follows record_holder.lua.
--
-- `lock.channel`  the channel on which clients of Redisson wait for a free lock
--
-- It adds to `lock`
--   lowered    set if some holds end and others remain: the texts to write
--   reentered  set if a hold is added to an owner that holds the lock

local function add_hold(lock, request)
  local lease_ms, at_ms = tonumber(request.lease_ms), now()
  lock.holds[#lock.holds + 1] = {
    hold = request.hold, session = request.session, until_ms = at_ms + lease_ms, since_ms = at_ms, liveness = request.liveness,
    label = request.label,
  }
  lock.count, lock.lease_ms = lock.count + 1, math.max(lock.lease_ms, lease_ms)
end

-- Makes the claim the holder of the free lock.
local function set_holder(lock, holder)
  lock.value, lock.owner_fence = holder.token, lock.fence
  add_hold(lock, holder)
  lock.granted, lock.ttl_ms = holder, tonumber(holder.lease_ms)
end

-- Adds a hold if the request's owner holds the lock: past the queue, with the same fencing token. Else returns false.
local function reenter(lock, request)
  if not lock.value or lock.value ~= request.token then return false end
  if not lock.owner_fence then
    -- So far only a client of Redisson holds it.
    record_holder(lock, request)
    lock.owner_fence = lock.fence
  end
  add_hold(lock, request)
  lock.reentered, lock.ttl_ms = true, math.max(lock_ttl(lock), longest_left_ms(lock.holds))
  -- A record that is created in this step must last as long, too.
  if lock.has_record or lock.new_kept_ms then prolong_record(lock, tonumber(request.lease_ms)) end
  return true
end

-- The reply to a claim that holds the lock.
local function granted_reply(lock, request)
  local entry = hold_of(lock, request.hold)
  local remaining_ms = entry and entry.until_ms - now() or 0
  return { 'granted', lock.owner_fence or 0, remaining_ms, lock.head ~= '' and 1 or 0, lock.count, lock.lease_ms }
end

local function free_lock(lock)
  lock.freed, lock.value, lock.ttl_ms, lock.lowered = true, false, nil, nil
  lock.count, lock.holds, lock.owner_fence, lock.lease_ms = 0, {}, nil, 0
end

-- Ends the holds that match.
local function end_holds(lock, matches)
  keep_holds(lock, function(entry) return not matches(entry) end)
  if not lock.value then return free_lock(lock) end
  local ttl_ms = own_ttl_ms(lock)
  lock.lowered, lock.ttl_ms = { packed_holds(lock), digits(lock.count), ttl_ms }, ttl_ms or lock.ttl_ms
end

-- A ReentrantMutex has no cooldown.
local function start_cooldown() end

-- Publishes to clients of Redisson that the lock is free.
local function announce_free(lock)
  if lock.freed and not lock.granted then publish(lock.channel, '0') end
end

-- Step 1 of change.lua. Returns whether a hold ended.
local function write_ended(lock)
  local lowered = lock.lowered
  if lock.freed then
    redis.call('DEL', lock.key)
  elseif lowered then
    -- The write that full memory does not refuse. No field has an empty name.
    if lowered[3] then redis.call('PEXPIRE', lock.key, digits(lowered[3])) else redis.call('HDEL', lock.key, '') end
    redis.call('HSET', lock.key, 'leasehold', lowered[1], lock.value, lowered[2])
  end
  return lock.freed or lowered
end

-- The key lasts long enough before a hold lasts as long. Expired holds at the key of a free lock are replaced.
local function write_lock(lock)
  local key, new_ttl, is_new = lock.key, lock.new_ttl, lock.reentered
  if lock.granted then
    if lock.has_key and not lock.freed then redis.call('DEL', key) end
    -- PEXPIRE deletes the key for 0.
    create_hash(key, digits(math.max(1, lock.ttl_ms)), 'leasehold', packed_holds(lock), lock.value, digits(lock.count))
    return
  end
  if is_new then
    redis.call('PEXPIRE', key, digits(lock.ttl_ms))
  elseif new_ttl then
    redis.call('PEXPIRE', key, new_ttl)
  end
  if is_new or new_ttl and lock.has_expired then
    redis.call('HSET', key, 'leasehold', packed_holds(lock), lock.value, digits(lock.count))
  end
end

