-- Changes the key of a ReentrantMutex. Follows record_holder.lua.
--
-- ARGV[#]  the channel on which clients of Redisson wait for a free lock

-- DUMP of the hash {leasehold = 'none'}: type 4 (hash), 1 field, '\009leasehold', '\004none', RDB version 9, CRC64 of these
-- bytes.
local EMPTY_LOCK = '\004\001\009\108\101\097\115\101\104\111\108\100\004\110\111\110\101\009\000\035\230\080\153\099\003\243\224'

local channel = ARGV[#ARGV]

-- Hooks of other kinds: a ReentrantMutex does not rest, and a session has one queue entry.
local start_rest, entries_of_session

-- Set if some holds end and others remain: the texts to write. Set if a hold is added to an owner that holds the lock.
local lowered, reentered

local function add_hold(request)
  local lease_ms = tonumber(request.lease_ms)
  holds[#holds + 1] = {
    hold = request.hold, session = request.session, until_ms = now() + lease_ms, since_ms = now(), life = request.life,
    label = request.label,
  }
  hold_count, longest_lease_ms = hold_count + 1, math.max(longest_lease_ms, lease_ms)
end

-- Makes the claim the holder of the free lock.
local function set_holder(holder)
  value, owner_fence = holder.token, last_fence
  add_hold(holder)
  granted, lock_ttl_ms = holder, tonumber(holder.lease_ms)
end

-- Adds a hold if the request's owner holds the lock: past the queue, with the same fencing token. Else returns false.
local function reenter(request)
  if not value or value ~= request.token then return false end
  if not owner_fence then
    -- So far only a client of Redisson holds it.
    record_holder(request)
    owner_fence = last_fence
  end
  add_hold(request)
  reentered, lock_ttl_ms = true, math.max(lock_ttl(), longest_left_ms())
  -- A record that is created in this step must last as long, too.
  if record_exists or new_record_ttl_ms then prolong_record(tonumber(request.lease_ms)) end
  return true
end

-- The reply to a claim that holds the lock.
local function granted_reply(request)
  local entry = hold_of(request.hold)
  local remaining_ms = entry and entry.until_ms - now() or 0
  return { 'granted', owner_fence or 0, remaining_ms, first_id ~= '' and 1 or 0, hold_count, longest_lease_ms }
end

local function free_lock()
  freed, value, lock_ttl_ms, lowered = true, false, nil, nil
  hold_count, holds, owner_fence, longest_lease_ms = 0, {}, nil, 0
end

-- Ends the holds that match.
local function end_holds(matches)
  keep_holds(function(entry) return not matches(entry) end)
  if not value then return free_lock() end
  local ttl_ms = own_ttl_ms()
  lowered, lock_ttl_ms = { packed_holds(), digits(hold_count), ttl_ms }, ttl_ms or lock_ttl_ms
end

-- Tells clients of Redisson that the lock is free.
local function announce_free()
  if freed and not granted then publish(channel, '0') end
end

-- Step 1 of change.lua. Returns whether a hold ended.
local function write_ended()
  if freed then
    redis.call('DEL', KEYS[1])
  elseif lowered then
    -- The write that full memory does not refuse. No field has an empty name.
    if lowered[3] then redis.call('PEXPIRE', KEYS[1], digits(lowered[3])) else redis.call('HDEL', KEYS[1], '') end
    redis.call('HSET', KEYS[1], 'leasehold', lowered[1], value, lowered[2])
  end
  return freed or lowered
end

-- The key lasts long enough before a hold lasts as long. Expired holds at the key of a free lock are replaced.
local function write_lock()
  if granted then
    -- RESTORE takes 0 for no expiry.
    redis.call('RESTORE', KEYS[1], digits(math.max(1, lock_ttl_ms)), EMPTY_LOCK, 'REPLACE')
  elseif reentered then
    redis.call('PEXPIRE', KEYS[1], digits(lock_ttl_ms))
  elseif new_lock_ttl then
    redis.call('PEXPIRE', KEYS[1], new_lock_ttl)
  end
  if granted or reentered or new_lock_ttl and has_expired then
    redis.call('HSET', KEYS[1], 'leasehold', packed_holds(), value, digits(hold_count))
  end
end

