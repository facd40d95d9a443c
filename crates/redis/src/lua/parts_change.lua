-- Part of acquire, release, evict, free and resize of a lock that several have side by side, after change.lua: what becomes of
-- its key.
--
-- Who gives his part up is removed before all else. Who is given one is written behind the record, all of them in one
-- HSET, so that those who go on together do so or not at all; and the key lasts long enough before.

-- How many texts go into one command: a stack of Lua holds 8000.
local AT_ONCE = 1000

-- DUMP of a hash with its kind alone: type 4 (hash), 1 field, '\009leasehold', the length of the kind and the kind, RDB
-- version 9, CRC64 of all that.
local OPENED = {
  semaphore = '\004\001\009\108\101\097\115\101\104\111\108\100\009\115\101\109\097\112\104\111\114\101\009\000\227\062\231\024\071\008\241\210',
  rwlock = '\004\001\009\108\101\097\115\101\104\111\108\100\006\114\119\108\111\099\107\009\000\198\156\167\008\017\109\013\138',
  latch = '\004\001\009\108\101\097\115\101\104\111\108\100\005\108\097\116\099\104\009\000\106\149\204\031\195\093\204\065',
  barrier = '\004\001\009\108\101\097\115\101\104\111\108\100\007\098\097\114\114\105\101\114\009\000\071\066\003\007\125\197\111\124',
}

-- Nobody but us is told that such a lock is free.
local tell_strangers

-- The holds that are given up, and those who were given a part.
local gone, added = {}, {}

-- Notes how many there are in all.
local function set_limit(number)
  if number ~= limit then
    limit = number
    put('limit', digits(number))
  end
end

-- A record that is begun lasts as long as what it is begun for, and then as every record.
local function begin_record(lease_ms)
  if not record_there and not new_record_ttl_ms then new_record_ttl_ms = lease_ms + RECORD_KEPT_MS end
end

-- Keeps the token of a hold that ends: where the record was lost, only those who have a part know of it.
local function keep_token(of)
  if of and of > (last or 0) then
    last = of
    put('last', digits(last))
  end
end

-- Gives a part, and with it a fencing token. Where the record was lost, those who have a part know of later ones than it.
local function add(who)
  local lease_ms = tonumber(who.lease_ms)
  begin_record(lease_ms)
  now()
  last = math.min(math.max(math.max(last or 0, newest) + 1, now_us), GREATEST_FENCE)
  newest, in_order = last, nil
  put('last', digits(last))
  keep_record(lease_ms)
  -- Where the clock went back, it may have come to wait once more since it was over.
  local before = held[who.hold]
  for i, part in ipairs(before and parts or {}) do
    if part == before then
      table.remove(parts, i)
      count_in(part, -1)
      break
    end
  end
  local part = {
    hold = who.hold, session = who.session, until_ms = now_ms + lease_ms, since_ms = now_ms, fence = last,
    portion = who.portion, life = who.life, owner = KIND == 'rwlock' and who.own or '', label = who.label,
  }
  parts[#parts + 1], held[who.hold], added[#added + 1] = part, part, part
  count_in(part, 1)
end

-- The hold is there: tells so.
local function confirm(ask)
  local part = held[ask.hold]
  return { 'granted', part.fence, part.until_ms - now(), first ~= '' and 1 or 0 }
end

-- Ends the holds that `goes` says.
local function end_holds(goes)
  local kept = {}
  for _, part in ipairs(lessees()) do
    if goes(part) then
      gone[#gone + 1], held[part.hold] = part.hold, nil
      count_in(part, -1)
    else
      kept[#kept + 1] = part
    end
  end
  parts, newest = kept, 0
  for _, part in ipairs(kept) do newest = math.max(newest, part.fence) end
end

-- Removes holds.
local function remove(fields_of)
  for at = 1, #fields_of, AT_ONCE do
    redis.call('HDEL', KEYS[1], unpack(fields_of, at, math.min(at + AT_ONCE - 1, #fields_of)))
  end
end

-- How long the last of those lasts who have a part.
local function longest_left()
  local until_ms = 0
  for _, part in ipairs(parts) do until_ms = math.max(until_ms, part.until_ms) end
  -- PEXPIRE takes 0 for the end of the key.
  return digits(math.max(1, until_ms - now()))
end

-- Writes that holds were given up; says whether there were any. Until the rest is written the key may last too long, but
-- no hold does.
local function write_off()
  if not gone[1] then return false end
  if #parts == #added then
    redis.call('DEL', KEYS[1])
    stands = false
  else
    remove(gone)
    remove(lying)
    if not added[1] then redis.call('PEXPIRE', KEYS[1], longest_left()) end
  end
  lying = {}
  return true
end

local function write_lock()
  if not added[1] then return end
  if stands then
    redis.call('PEXPIRE', KEYS[1], longest_left())
    -- One of those may be had anew.
    remove(lying)
  else
    redis.call('RESTORE', KEYS[1], longest_left(), OPENED[KIND])
  end
  local holds_and_parts = {}
  for i, part in ipairs(added) do
    holds_and_parts[2 * i - 1] = part.hold
    holds_and_parts[2 * i] = digits(part.until_ms) .. ' ' .. digits(part.since_ms) .. ' '
      .. digits(part.fence) .. ' ' .. part.portion .. ' ' .. part.life .. '\n' .. part.owner .. '\n' .. part.label
  end
  redis.call('HSET', KEYS[1], unpack(holds_and_parts))
end

