-- The holders of a shared lock that a script visits. Writes nothing. Follows shared_holders.lua and shared_read.lua.
--
-- It adds to `lock`
--   all    all holds before any change, for a script that needs them
--   front  the holds that `holders` returns, until one is added or ended

-- The order of the index.
local function is_indexed_before(a, b)
  if a.until_ms ~= b.until_ms then return a.until_ms < b.until_ms end
  return a.hold < b.hold
end

-- Of those that end in the same millisecond, the oldest first.
local function ends_earlier(a, b)
  if a.until_ms ~= b.until_ms then return a.until_ms < b.until_ms end
  return is_older(a, b)
end

-- The holds that end first, `count` at most. Those of dead clients are among them soon: they are not extended.
local function first_to_end(lock, count)
  local found, by_id = {}, lock.by_id
  if lock.exists then
    local last = count + #lock.expired + #lock.removed + #lock.added - 1
    local ids = redis.call('ZRANGE', lock.ends, '0', digits(last))
    local texts = ids[1] and redis.call('HMGET', lock.key, unpack(ids))
    for i, id in ipairs(ids) do
      if by_id[id] == nil then by_id[id] = parse_hold(id, texts[i]) end
      if by_id[id] and not by_id[id].is_new then found[#found + 1] = by_id[id] end
    end
  end
  for _, held in ipairs(lock.added) do found[#found + 1] = held end
  if #found > count then
    table.sort(found, is_indexed_before)
    found = { unpack(found, 1, count) }
  end
  table.sort(found, ends_earlier)
  return found
end

-- The holds that a script visits to find those of a session: a session with more takes several scripts.
local function holders(lock)
  lock.front = lock.front or first_to_end(lock, MAX_INSPECTED)
  return lock.front
end

-- All holds, the first to end first: for a script that looks for one which may end last.
local function every_holder(lock)
  if lock.all then return lock.all end
  local found, all = {}, lock.exists and redis.call('HGETALL', lock.key) or {}
  for i = 1, #all, 2 do
    local held = parse_hold(all[i], all[i + 1])
    if held and lock.by_id[held.hold] ~= false then
      lock.by_id[held.hold], found[#found + 1] = held, held
    end
  end
  table.sort(found, ends_earlier)
  lock.all = found
  return found
end

-- Appends the remaining time of a key that is no such lock.
local function describe_holder(lock, reply)
  if lock.other_type then reply[#reply + 1] = lock_ttl(lock) end
  return reply
end
