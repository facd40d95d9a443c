-- Changes the keys of a shared lock. Follows change.lua.
--
-- Holds that end are removed before anything else, and expired ones with them, or before new ones. New holds are written after the record, all in one HSET with the numbers, so that
-- holds that are admitted together are admitted or not together; and both keys last long enough before. Between the first write and
-- the last, the numbers disagree: see shared_hold.lua.

-- `agreed` is the number for which the clients ask, or nil if it is the same.
local function set_limit(lock, number, agreed)
  if number ~= lock.limit or agreed ~= lock.agreed then
    lock.limit, lock.agreed = number, agreed
    set_field(lock, 'limit', digits(number) .. (agreed and ' ' .. digits(agreed) or ''))
  end
end

-- A new record lasts as long as what it is created for, and then as long as every record.
local function begin_record(lock, lease_ms)
  if not lock.has_record and not lock.new_kept_ms then lock.new_kept_ms = lease_ms + RECORD_KEPT_MS end
end

-- Keeps the newest token when a hold ends: if the record was lost, only the lock's key knows it.
local function keep_token(lock)
  local fence = lock.newest
  if fence > (lock.fence or 0) then
    lock.fence = fence
    set_field(lock, 'last', digits(fence))
  end
end

-- Lists a hold that ends against the will of its holder.
local function record_lost(lock, holder, how)
  begin_record(lock, 0)
  record_ending(lock, holder.hold, how)
  keep_token(lock)
end

-- Adds a hold with a fencing token. If the record was lost, the lock's key knows a greater token than it does.
local function add_hold(lock, request)
  local lease_ms, id, by_id, added = tonumber(request.lease_ms), request.hold, lock.by_id, lock.added
  begin_record(lock, lease_ms)
  local now_ms, now_us = now()
  local newest = lock.hold_count > 0 and lock.newest or 0
  local fence = math.min(math.max(math.max(greatest_fence(lock) or 0, newest) + 1, now_us), GREATEST_FENCE)
  lock.fence, lock.newest = fence, fence
  set_field(lock, 'last', digits(fence))
  prolong_record(lock, lease_ms)
  -- After the clock went back, an expired hold that was requested again may be live again.
  local before = find_hold(lock, id)
  if before then take_off(lock, before) end
  local new = {
    hold = id, session = request.session, until_ms = now_ms + lease_ms, since_ms = now_ms, fence = fence,
    mode = request.mode, liveness = request.liveness, owner = lock.kind == 'rwlock' and request.own or '', label = request.label,
    is_new = true,
  }
  by_id[id], added[#added + 1], lock.front = new, new, nil
  count_hold(lock, new, 1)
end

-- The reply to a claim that has a hold.
local function granted_reply(lock, request)
  local held = find_hold(lock, request.hold)
  return { 'granted', held.fence, held.until_ms - now(), lock.head ~= '' and 1 or 0 }
end

local function end_hold(lock, held)
  lock.removed[#lock.removed + 1], lock.by_id[held.hold], lock.front = held.hold, false, nil
  count_hold(lock, held, -1)
end

-- Leaves a hold no more than so many permits. It is written as a new one is, with what this admits.
local function keep_permits(lock, held, kept)
  local count, of = mode_numbers(held.mode)
  if count <= kept then return end
  count_hold(lock, held, -1)
  held.mode = 'p' .. digits(kept) .. ':' .. digits(of)
  count_hold(lock, held, 1)
  held.is_new, lock.added[#lock.added + 1], lock.front, lock.has_kept = true, held, nil, true
end

-- Ends the holds that match, of those that a script visits.
local function end_holds(lock, matches)
  for _, held in ipairs(holders(lock)) do
    if matches(held) then end_hold(lock, held) end
  end
end

-- Removes the holds that have ended, or expired, from the hash, and then from the index.
local function write_removed(lock)
  local ids, fields = lock.removed, {}
  for _, id in ipairs(lock.expired) do ids[#ids + 1] = id end
  -- A hold that gave permits back is among those to be written, and does not end.
  if lock.hold_count == #lock.added and not lock.has_kept then
    redis.call('DEL', lock.key, lock.ends)
    lock.exists = false
  else
    for i, id in ipairs(ids) do fields[i] = id end
    for owner, counts in pairs(lock.new_owners) do
      if counts.all == 0 then fields[#fields + 1] = OWNER_PREFIX .. owner end
    end
    for at = 1, #fields, MAX_ARGUMENTS do
      redis.call('HDEL', lock.key, unpack(fields, at, math.min(at + MAX_ARGUMENTS - 1, #fields)))
    end
    for at = 1, #ids, MAX_ARGUMENTS do
      redis.call('ZREM', lock.ends, unpack(ids, at, math.min(at + MAX_ARGUMENTS - 1, #ids)))
    end
  end
  lock.removed, lock.expired = {}, {}
end

-- Step 1 of change.lua. Returns whether a hold ended.
local function write_ended(lock)
  if not lock.removed[1] then return false end
  write_removed(lock)
  return true
end

-- Makes both keys last until then.
local function prolong_lock(lock, until_ms)
  local left_ms = lock_ttl(lock)
  if left_ms == -1 then
    -- Another client removed the expiry.
    until_ms = latest_end_ms(lock.key, until_ms)
  elseif now() + left_ms >= until_ms then
    return
  end
  -- A hold that returns permits may end in this very millisecond, in which the server would drop the key.
  local ttl_ms = digits(math.max(1, until_ms - now()))
  redis.call('PEXPIRE', lock.ends, ttl_ms)
  redis.call('PEXPIRE', lock.key, ttl_ms)
end

local function create_index(lock, ttl_ms, scores)
  -- Another client may have deleted the lock's key alone.
  if redis.call('PEXPIRE', lock.ends, ttl_ms) == 1 then redis.call('DEL', lock.ends) end
  redis.call('ZADD', lock.ends, unpack(scores))
  redis.call('PEXPIRE', lock.ends, ttl_ms)
end

-- Step 3.
local function write_lock(lock)
  if lock.expired[1] then write_removed(lock) end
  if not lock.exists and not lock.added[1] then return end
  local scores, texts, until_ms = {}, { 'leasehold', head_text(lock) }, now()
  for _, held in ipairs(lock.added) do
    until_ms = math.max(until_ms, held.until_ms)
    scores[#scores + 1], scores[#scores + 2] = digits(held.until_ms), held.hold
    texts[#texts + 1] = held.hold
    texts[#texts + 1] = digits(held.until_ms) .. ' ' .. digits(held.since_ms) .. ' '
      .. digits(held.fence) .. ' ' .. held.mode .. ' ' .. held.liveness .. '\n' .. held.owner .. '\n' .. held.label
  end
  for owner, counts in pairs(lock.new_owners) do
    if counts.all > 0 then texts[#texts + 1], texts[#texts + 2] = OWNER_PREFIX .. owner, owner_text(counts) end
  end
  if not lock.exists then
    local ttl_ms = digits(math.max(1, until_ms - now()))
    create_index(lock, ttl_ms, scores)
    create_hash(lock.key, ttl_ms, unpack(texts))
    return
  end
  if scores[1] then
    prolong_lock(lock, until_ms)
    redis.call('ZADD', lock.ends, unpack(scores))
  end
  -- Full memory may refuse this one, which only saves the next script some work.
  for _, held in ipairs(lock.moved) do redis.pcall('ZADD', lock.ends, 'XX', digits(held.until_ms), held.hold) end
  if lock.has_new_counts then redis.call('HSET', lock.key, unpack(texts)) end
end

-- Only clients of this library use such locks, and they wait in the queue.
local function announce_free() end
