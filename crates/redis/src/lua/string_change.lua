-- Changes the key of a Mutex or an Election. Follows record_holder.lua.

-- It adds to `lock`
--   cooldown_token, cooldown_ms  the value of the key during a cooldown, and the remaining time

-- Makes the claim the holder of the free lock.
local function set_holder(lock, holder)
  lock.granted, lock.value, lock.ttl_ms = holder, holder.token, tonumber(holder.lease_ms)
end

-- These locks are not reentrant.
local function reenter() end

-- The reply to a claim that holds the lock. Repairs what a cut-off may have left undone.
local function granted_reply(lock, request)
  local holder = recorded_holder(lock)
  local known = lock.fence and holder and holder.hold == request.hold and holder.own == request.own
  if not known then record_holder(lock, request) end
  if lock_ttl(lock) == -1 then
    lock.new_ttl, lock.ttl_ms = request.lease_ms, tonumber(request.lease_ms)
  end
  return { 'granted', lock.fence, lock.ttl_ms, lock.head ~= '' and 1 or 0 }
end

local function free_lock(lock)
  lock.freed, lock.value, lock.ttl_ms = true, false, nil
end

-- Ends the holds that match; there is one at most.
local function end_holds(lock)
  free_lock(lock)
end

-- Keeps the lock taken until `for_ms` after the grant of the hold that is released. Returns the remaining ms, or nil if that
-- time is over.
local function start_cooldown(lock, hold, for_ms)
  if not for_ms then return end
  local holder = recorded_holder(lock)
  local known = holder and holder.hold == hold
  local left_ms = (known and holder.since_ms or now()) + for_ms - now()
  if left_ms <= 0 then return end
  lock.value = cooldown_value(known and lock.fence or 0)
  lock.cooldown_token, lock.cooldown_ms, lock.ttl_ms = lock.value, digits(left_ms), left_ms
  return left_ms
end

-- Step 1 of change.lua. Returns whether a hold ended.
local function write_ended(lock)
  if lock.freed then
    redis.call('DEL', lock.key)
  elseif lock.cooldown_token then
    -- Full memory does not refuse PEXPIRE, and refuses nothing after it. A cut-off in between leaves the hold, which ends when
    -- the cooldown would.
    redis.call('PEXPIRE', lock.key, lock.cooldown_ms)
    redis.call('SET', lock.key, lock.cooldown_token, 'PX', lock.cooldown_ms)
  end
  return lock.freed or lock.cooldown_token
end

local function write_lock(lock)
  local granted = lock.granted
  if granted then redis.call('SET', lock.key, granted.token, 'PX', granted.lease_ms) end
  if lock.new_ttl then redis.call('PEXPIRE', lock.key, lock.new_ttl) end
end

