-- Changes the key of a Mutex or an Election. Follows record_holder.lua.

-- Hooks of other kinds: these locks are not reentrant, announce nothing by default, and have one queue entry per session.
local reenter, announce_free, entries_of_session

-- The value that marks the lock as resting, and the rest of its time.
local rest_value, rest_ms

-- Makes the claim the holder of the free lock.
local function set_holder(holder)
  granted, value, lock_ttl_ms = holder, holder.token, tonumber(holder.lease_ms)
end

-- The reply to a claim that holds the lock. Repairs what a cut-off may have left undone.
local function granted_reply(request)
  local holder = recorded_holder()
  local known = last_fence and holder and holder.hold == request.hold and holder.own == request.own
  if not known then record_holder(request) end
  if lock_ttl() == -1 then
    new_lock_ttl, lock_ttl_ms = request.lease_ms, tonumber(request.lease_ms)
  end
  return { 'granted', last_fence, lock_ttl_ms, first_id ~= '' and 1 or 0 }
end

local function free_lock()
  freed, value, lock_ttl_ms = true, false, nil
end

-- Ends the holds that match; there is one at most.
local function end_holds()
  free_lock()
end

-- Keeps the lock taken until `for_ms` after the grant of the hold that is released. Returns the remaining ms, or nil if that
-- time is over.
local function start_rest(for_ms)
  if not for_ms then return end
  local holder = recorded_holder()
  local known = holder and holder.hold == claim.hold
  local left_ms = (known and holder.since_ms or now()) + for_ms - now()
  if left_ms <= 0 then return end
  value = MARK .. 'rest\n' .. digits(known and last_fence or 0)
  rest_value, rest_ms, lock_ttl_ms = value, digits(left_ms), left_ms
  return left_ms
end

-- Step 1 of change.lua. Returns whether a hold ended.
local function write_ended()
  if freed then
    redis.call('DEL', KEYS[1])
  elseif rest_value then
    -- Full memory does not refuse PEXPIRE, and refuses nothing after it. A cut-off in between leaves the hold, which ends when
    -- the rest would.
    redis.call('PEXPIRE', KEYS[1], rest_ms)
    redis.call('SET', KEYS[1], rest_value, 'PX', rest_ms)
  end
  return freed or rest_value
end

local function write_lock()
  if granted then redis.call('SET', KEYS[1], granted.token, 'PX', granted.lease_ms) end
  if new_lock_ttl then redis.call('PEXPIRE', KEYS[1], new_lock_ttl) end
end

