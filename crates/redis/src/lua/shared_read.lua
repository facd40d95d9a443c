-- Reads what an operation on a shared lock needs: the numbers, and each hold alone. Follows shared_hold.lua.
--
-- So it takes as long with ten holders as with ten thousand. Expired holds are taken off by each script that changes the lock,
-- those that ended first, as many as MAX_INSPECTED; and the hold of the request, if it has expired. Until then they count.
--
-- It adds to `lock`, or sets there
--   kind           the kind: the last argument of the script
--   ends           the index
--   value          false: no holder has all of a shared lock
--   other_type     the type of the key if it is no such lock
--   exists         whether the key exists as a lock of this kind
--   hold_count     the number of holds
--   units          the permits or arrivals of all holds
--   writers        the number of writers
--   upgradable     the number of upgradable readers
--   owner_count    the number of owners
--   newest         the greatest fencing token that it has issued
--   by_id          the holds that have been read, by id; false if there is none
--   owners         the numbers of holds of the owners that have been read
--   has_expired    whether expired holds are left, once it is known
--   limit          the limit that the record knows, or nil
-- What `commit` writes
--   expired        the ids of the expired holds
--   removed        the ids of the holds that end
--   added          the new holds, and those with other permits
--   moved          holds with an earlier end in the index
--   new_owners     the owners whose numbers change
--   has_new_counts whether any number changes

-- How many holds one script visits, so that none runs for long.
local MAX_INSPECTED = 64
-- How many texts one command takes: a Lua stack holds 8000.
local MAX_ARGUMENTS = 1000

local HEAD = '^(%l+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
local OWNER_COUNTS = '^(%d+) (%d+) (%d+) (%d+)$'

local function head_text(lock)
  return lock.kind .. ' ' .. digits(lock.hold_count) .. ' ' .. digits(lock.units) .. ' ' .. digits(lock.writers) .. ' '
    .. digits(lock.upgradable) .. ' ' .. digits(lock.owner_count) .. ' ' .. digits(lock.newest)
end

local function owner_text(counts)
  return digits(counts.all) .. ' ' .. digits(counts.u) .. ' ' .. digits(counts.w) .. ' ' .. digits(counts.x)
end

local function parse_owner(text)
  local all, u, w, x = string.match(text or '', OWNER_COUNTS)
  return { all = tonumber(all or 0), u = tonumber(u or 0), w = tonumber(w or 0), x = tonumber(x or 0) }
end

-- How many holds an owner has.
local function owner_counts(lock, owner)
  local counts = lock.owners[owner]
  if not counts then
    counts = parse_owner(lock.exists and redis.call('HGET', lock.key, OWNER_PREFIX .. owner))
    lock.owners[owner] = counts
  end
  return counts
end

-- Adds a hold to the numbers; by -1 removes it.
local function count_hold(lock, held, by)
  local mode = held.mode
  lock.hold_count, lock.has_new_counts = lock.hold_count + by, true
  lock.units = lock.units + by * mode_numbers(mode)
  if mode == 'w' or mode == 'x' then lock.writers = lock.writers + by end
  if mode == 'u' then lock.upgradable = lock.upgradable + by end
  if lock.kind ~= 'rwlock' then return end
  local counts = owner_counts(lock, held.owner)
  if counts.all == 0 then lock.owner_count = lock.owner_count + 1 end
  counts.all = counts.all + by
  if counts.all == 0 then lock.owner_count = lock.owner_count - 1 end
  if counts[mode] then counts[mode] = counts[mode] + by end
  lock.new_owners[held.owner] = counts
end

-- The hold with this id, or false.
local function find_hold(lock, id)
  if lock.by_id[id] == nil then
    lock.by_id[id] = lock.exists and parse_hold(id, redis.call('HGET', lock.key, id)) or false
  end
  return lock.by_id[id]
end

local function take_off(lock, held)
  lock.expired[#lock.expired + 1], lock.by_id[held.hold] = held.hold, false
  count_hold(lock, held, -1)
end

-- Takes the hold off if it has expired.
local function take_off_expired(lock, id)
  local held = find_hold(lock, id)
  if held and held.until_ms < now() then take_off(lock, held) end
end

-- Takes off those that ended first.
local function take_off_first_expired(lock)
  local ids = redis.call('ZRANGE', lock.ends, '-inf', '(' .. digits(now()), 'BYSCORE', 'LIMIT', '0', digits(MAX_INSPECTED))
  local texts = ids[1] and redis.call('HMGET', lock.key, unpack(ids))
  for i, id in ipairs(ids) do
    local held = parse_hold(id, texts[i])
    if not held then
      lock.expired[#lock.expired + 1] = id
    elseif held.until_ms < now() then
      take_off(lock, held)
    else
      lock.by_id[id], lock.moved[#lock.moved + 1] = held, held
    end
  end
end

-- Whether expired holds are left, which count.
local function has_expired(lock)
  if lock.has_expired == nil and lock.exists then
    local known = #lock.expired + #lock.removed
    local ids = redis.call('ZRANGE', lock.ends, '-inf', '(' .. digits(now()), 'BYSCORE', 'LIMIT', '0', digits(known + 1))
    lock.has_expired = false
    for _, id in ipairs(ids) do
      local held = lock.by_id[id]
      if held == nil or held and held.until_ms < now() then lock.has_expired = true end
    end
  end
  return lock.has_expired
end

-- Reads the numbers and the hold of the claim. Returns an error reply, or nil; and whether the numbers agree.
local function read_holds(lock, claim)
  local found = redis.pcall('HMGET', lock.key, 'leasehold', claim.hold, OWNER_PREFIX .. claim.own)
  if found.err then
    if not is_wrong_type(found.err) then return found end
    lock.other_type = redis.call('TYPE', lock.key).ok
    return
  end
  local kind, holds, units, writers, upgradable, owners, newest = string.match(found[1] or '', HEAD)
  if kind ~= lock.kind then
    if found[1] or redis.call('HLEN', lock.key) > 0 then lock.other_type = 'hash' end
    return
  end
  lock.exists, lock.hold_count, lock.owner_count = true, tonumber(holds), tonumber(owners)
  lock.units, lock.writers, lock.upgradable = tonumber(units), tonumber(writers), tonumber(upgradable)
  lock.newest = tonumber(newest)
  -- A key of another type is no index.
  local indexed = redis.pcall('ZCARD', lock.ends)
  if type(indexed) == 'table' and not is_wrong_type(indexed.err) then return indexed end
  lock.by_id[claim.hold] = parse_hold(claim.hold, found[2])
  if indexed ~= lock.hold_count or redis.call('HLEN', lock.key) ~= 1 + lock.hold_count + lock.owner_count then return nil, false end
  if kind == 'rwlock' and claim.own ~= '' then lock.owners[claim.own] = parse_owner(found[3]) end
  return nil, true
end

-- Writes the index and the numbers anew. The index comes first, and `leasehold` last: they disagree until then. DEL is a write that
-- full memory does not refuse, and after it no write is refused.
local function repair(lock)
  local all, holds, scores, fields = redis.call('HGETALL', lock.key), {}, {}, {}
  lock.exists, lock.hold_count, lock.owner_count = false, 0, 0
  lock.units, lock.writers, lock.upgradable = 0, 0, 0
  for i = 1, #all, 2 do
    local field, held = all[i], parse_hold(all[i], all[i + 1])
    if held then
      holds[#holds + 1] = held
    elseif string.sub(field, 1, #OWNER_PREFIX) == OWNER_PREFIX then
      fields[#fields + 1] = field
    elseif field ~= 'leasehold' then
      lock.other_type, lock.by_id = 'hash', {}
      return
    end
  end
  -- The index lasts as long as the lock's key, so that it is not lost again.
  local until_ms = now() + redis.call('PTTL', lock.key)
  for i, held in ipairs(holds) do
    count_hold(lock, held, 1)
    scores[2 * i - 1], scores[2 * i] = digits(held.until_ms), held.hold
    until_ms = math.max(until_ms, held.until_ms)
  end
  redis.call('DEL', lock.ends)
  if not scores[1] then
    redis.call('DEL', lock.key)
    return
  end
  local ttl_ms = digits(math.max(1, until_ms - now()))
  redis.call('PEXPIRE', lock.ends, ttl_ms)
  for at = 1, #scores, MAX_ARGUMENTS do
    redis.call('ZADD', lock.ends, unpack(scores, at, math.min(at + MAX_ARGUMENTS - 1, #scores)))
    redis.call('PEXPIRE', lock.ends, ttl_ms)
  end
  for at = 1, #fields, MAX_ARGUMENTS do
    redis.call('HDEL', lock.key, unpack(fields, at, math.min(at + MAX_ARGUMENTS - 1, #fields)))
  end
  local texts = {}
  for owner, counts in pairs(lock.new_owners) do
    texts[#texts + 1], texts[#texts + 2] = OWNER_PREFIX .. owner, owner_text(counts)
  end
  texts[#texts + 1], texts[#texts + 2] = 'leasehold', head_text(lock)
  for at = 1, #texts, MAX_ARGUMENTS do
    redis.call('HSET', lock.key, unpack(texts, at, math.min(at + MAX_ARGUMENTS - 1, #texts)))
  end
  lock.exists, lock.new_owners, lock.has_new_counts = true, {}, false
end

-- Reads the lock's key and its record. Returns an error reply, or nil.
local function read_lock(lock, claim)
  lock.kind, lock.by_id, lock.owners, lock.new_owners = lock.channel, {}, {}, {}
  lock.hold_count, lock.units, lock.writers, lock.upgradable, lock.owner_count, lock.newest = 0, 0, 0, 0, 0, 0
  lock.expired, lock.removed, lock.added, lock.moved = {}, {}, {}, {}
  local failed, agree = read_holds(lock, claim)
  if failed then return failed end
  failed = fetch_shared_record(lock, claim.hold)
  if failed then return failed end
  if lock.exists and not agree then repair(lock) end
  if lock.exists then
    take_off_first_expired(lock)
    take_off_expired(lock, claim.hold)
  end
end
