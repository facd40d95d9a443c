-- Changes the key of a shared lock. Follows change.lua.
--
-- Ended holds are removed before anything else. New holds are written after the record, all in one HSET, so that holds that are
-- admitted together are admitted or not together; and the key lasts long enough before.
--
-- It adds to `lock`
--   removed, added  the ids of ended holds, and the new holds, once there are any

-- How many texts one command takes: a Lua stack holds 8000.
local MAX_ARGUMENTS = 1000

local function set_limit(lock, number)
  if number ~= lock.limit then
    lock.limit = number
    set_field(lock, 'limit', digits(number))
  end
end

-- A new record lasts as long as what it is created for, and then as long as every record.
local function begin_record(lock, lease_ms)
  if not lock.has_record and not lock.new_kept_ms then lock.new_kept_ms = lease_ms + RECORD_KEPT_MS end
end

-- Keeps the token of a hold that ends: if the record was lost, only the holds know it.
local function keep_token(lock, fence)
  if fence and fence > (lock.fence or 0) then
    lock.fence = fence
    set_field(lock, 'last', digits(fence))
  end
end

-- Lists a hold that ends against the will of its holder.
local function record_lost(lock, holder, how)
  begin_record(lock, 0)
  record_ending(lock, holder.hold, how)
  keep_token(lock, holder.fence)
end

-- Adds a hold with a fencing token. If the record was lost, the holds know greater tokens than it does.
local function add_hold(lock, request)
  local lease_ms, id = tonumber(request.lease_ms), request.hold
  begin_record(lock, lease_ms)
  local now_ms, now_us = now()
  local fence = math.min(math.max(math.max(greatest_fence(lock) or 0, lock.newest) + 1, now_us), GREATEST_FENCE)
  lock.fence, lock.newest, lock.in_order = fence, fence, nil
  set_field(lock, 'last', digits(fence))
  prolong_record(lock, lease_ms)
  local holds, by_id, added = lock.holds, lock.by_id, lock.added or {}
  -- After the clock went back, an expired hold that was requested again may be live again.
  local before = by_id[id]
  for i, held in ipairs(before and holds or {}) do
    if held == before then
      table.remove(holds, i)
      count_hold(lock, held, -1)
      break
    end
  end
  local new = {
    hold = id, session = request.session, until_ms = now_ms + lease_ms, since_ms = now_ms, fence = fence,
    mode = request.mode, liveness = request.liveness, owner = lock.kind == 'rwlock' and request.own or '', label = request.label,
  }
  holds[#holds + 1], by_id[id], added[#added + 1] = new, new, new
  lock.added = added
  count_hold(lock, new, 1)
end

-- The reply to a claim that has a hold.
local function granted_reply(lock, request)
  local held = lock.by_id[request.hold]
  return { 'granted', held.fence, held.until_ms - now(), lock.head ~= '' and 1 or 0 }
end

-- Ends the holds that match.
local function end_holds(lock, matches)
  local kept, removed = {}, lock.removed or {}
  for _, held in ipairs(holders(lock)) do
    if matches(held) then
      removed[#removed + 1], lock.by_id[held.hold] = held.hold, nil
      count_hold(lock, held, -1)
    else
      kept[#kept + 1] = held
    end
  end
  lock.holds, lock.removed, lock.newest = kept, removed, 0
  for _, held in ipairs(kept) do lock.newest = math.max(lock.newest, held.fence) end
end

local function delete_holds(key, ids)
  for at = 1, #ids, MAX_ARGUMENTS do
    redis.call('HDEL', key, unpack(ids, at, math.min(at + MAX_ARGUMENTS - 1, #ids)))
  end
end

-- The remaining time of the longest hold.
local function longest_left_ms(lock)
  local until_ms = 0
  for _, held in ipairs(lock.holds) do until_ms = math.max(until_ms, held.until_ms) end
  -- PEXPIRE deletes the key for 0.
  return digits(math.max(1, until_ms - now()))
end

-- Step 1 of change.lua. Returns whether a hold ended. Until the other changes are written, the key may last too long, but no hold does.
local function write_ended(lock)
  local key, removed, added = lock.key, lock.removed, lock.added
  if not (removed and removed[1]) then return false end
  if #lock.holds == (added and #added or 0) then
    redis.call('DEL', key)
    lock.exists = false
  else
    delete_holds(key, removed)
    delete_holds(key, lock.expired)
    if not added then redis.call('PEXPIRE', key, longest_left_ms(lock)) end
  end
  lock.expired = {}
  return true
end

local function write_lock(lock)
  local key, added = lock.key, lock.added
  if not added then return end
  if lock.exists then
    redis.call('PEXPIRE', key, longest_left_ms(lock))
    -- An expired hold may be among the new ones.
    delete_holds(key, lock.expired)
  end
  local new_holds = {}
  for i, held in ipairs(added) do
    new_holds[2 * i - 1] = held.hold
    new_holds[2 * i] = digits(held.until_ms) .. ' ' .. digits(held.since_ms) .. ' '
      .. digits(held.fence) .. ' ' .. held.mode .. ' ' .. held.liveness .. '\n' .. held.owner .. '\n' .. held.label
  end
  if lock.exists then
    redis.call('HSET', key, unpack(new_holds))
  else
    create_hash(key, longest_left_ms(lock), 'leasehold', lock.kind, unpack(new_holds))
  end
end

-- Only clients of this library use such locks, and they wait in the queue.
local function announce_free() end

