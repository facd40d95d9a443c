-- Changes the key of a shared lock. Follows change.lua.
--
-- Ended holds are removed before anything else. New holds are written after the record, all in one HSET, so that holds that are
-- admitted together are admitted or not together; and the key lasts long enough before.

-- How many texts one command takes: a Lua stack holds 8000.
local MAX_ARGUMENTS = 1000

-- DUMP of a hash with its kind alone: type 4 (hash), 1 field, '\009leasehold', the length of the kind and the kind, RDB version
-- 9, CRC64 of these bytes.
local EMPTY_LOCK = {
  semaphore = '\004\001\009\108\101\097\115\101\104\111\108\100\009\115\101\109\097\112\104\111\114\101\009\000\227\062\231\024\071\008\241\210',
  rwlock = '\004\001\009\108\101\097\115\101\104\111\108\100\006\114\119\108\111\099\107\009\000\198\156\167\008\017\109\013\138',
  latch = '\004\001\009\108\101\097\115\101\104\111\108\100\005\108\097\116\099\104\009\000\106\149\204\031\195\093\204\065',
  barrier = '\004\001\009\108\101\097\115\101\104\111\108\100\007\098\097\114\114\105\101\114\009\000\071\066\003\007\125\197\111\124',
}

-- Hook of other kinds: no other library has such locks.
local announce_free

-- The ids of ended holds, and the new holds.
local removed, added = {}, {}

local function set_limit(number)
  if number ~= limit then
    limit = number
    set_field('limit', digits(number))
  end
end

-- A new record lasts as long as what it is created for, and then as long as every record.
local function begin_record(lease_ms)
  if not record_exists and not new_record_ttl_ms then new_record_ttl_ms = lease_ms + RECORD_KEPT_MS end
end

-- Keeps the token of a hold that ends: if the record was lost, only the holds know it.
local function keep_token(fence)
  if fence and fence > (last_fence or 0) then
    last_fence = fence
    set_field('last', digits(last_fence))
  end
end

-- Adds a hold with a fencing token. If the record was lost, the holds know greater tokens than it does.
local function add_hold(request)
  local lease_ms = tonumber(request.lease_ms)
  begin_record(lease_ms)
  now()
  last_fence = math.min(math.max(math.max(last_fence or 0, newest_fence) + 1, now_us), GREATEST_FENCE)
  newest_fence, in_order = last_fence, nil
  set_field('last', digits(last_fence))
  prolong_record(lease_ms)
  -- After the clock went back, an expired hold that was requested again may be live again.
  local before = hold_by_id[request.hold]
  for i, held in ipairs(before and shared_holds or {}) do
    if held == before then
      table.remove(shared_holds, i)
      count_hold(held, -1)
      break
    end
  end
  local new = {
    hold = request.hold, session = request.session, until_ms = now_ms + lease_ms, since_ms = now_ms, fence = last_fence,
    mode = request.mode, life = request.life, owner = KIND == 'rwlock' and request.own or '', label = request.label,
  }
  shared_holds[#shared_holds + 1], hold_by_id[request.hold], added[#added + 1] = new, new, new
  count_hold(new, 1)
end

-- The reply to a claim that has a hold.
local function granted_reply(request)
  local held = hold_by_id[request.hold]
  return { 'granted', held.fence, held.until_ms - now(), first_id ~= '' and 1 or 0 }
end

-- Ends the holds that match.
local function end_holds(matches)
  local kept = {}
  for _, held in ipairs(holders()) do
    if matches(held) then
      removed[#removed + 1], hold_by_id[held.hold] = held.hold, nil
      count_hold(held, -1)
    else
      kept[#kept + 1] = held
    end
  end
  shared_holds, newest_fence = kept, 0
  for _, held in ipairs(kept) do newest_fence = math.max(newest_fence, held.fence) end
end

local function delete_holds(ids)
  for at = 1, #ids, MAX_ARGUMENTS do
    redis.call('HDEL', KEYS[1], unpack(ids, at, math.min(at + MAX_ARGUMENTS - 1, #ids)))
  end
end

-- The remaining time of the longest hold.
local function longest_left_ms()
  local until_ms = 0
  for _, held in ipairs(shared_holds) do until_ms = math.max(until_ms, held.until_ms) end
  -- PEXPIRE deletes the key for 0.
  return digits(math.max(1, until_ms - now()))
end

-- Step 1 of change.lua. Returns whether a hold ended. Until the rest is written the key may last too long, but no hold does.
local function write_ended()
  if not removed[1] then return false end
  if #shared_holds == #added then
    redis.call('DEL', KEYS[1])
    lock_exists = false
  else
    delete_holds(removed)
    delete_holds(expired_ids)
    if not added[1] then redis.call('PEXPIRE', KEYS[1], longest_left_ms()) end
  end
  expired_ids = {}
  return true
end

local function write_lock()
  if not added[1] then return end
  if lock_exists then
    redis.call('PEXPIRE', KEYS[1], longest_left_ms())
    -- An expired hold may be among the new ones.
    delete_holds(expired_ids)
  else
    redis.call('RESTORE', KEYS[1], longest_left_ms(), EMPTY_LOCK[KIND])
  end
  local new_holds = {}
  for i, held in ipairs(added) do
    new_holds[2 * i - 1] = held.hold
    new_holds[2 * i] = digits(held.until_ms) .. ' ' .. digits(held.since_ms) .. ' '
      .. digits(held.fence) .. ' ' .. held.mode .. ' ' .. held.life .. '\n' .. held.owner .. '\n' .. held.label
  end
  redis.call('HSET', KEYS[1], unpack(new_holds))
end

