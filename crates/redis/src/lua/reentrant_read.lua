-- Reads the key of a ReentrantMutex. Follows numbers.lua.
--
-- `lock.key`  a HASH in the format of Redisson's RLock, with one field of this library
--            <owner>          the number of holds of the owner
--            leasehold        fence, space, longest requested lease in ms \n owner; then for each hold of this library, oldest
--                             first: \n hold, until_ms, since_ms, liveness, label, separated by spaces. Without holds fence and
--                             lease are 0: only clients of Redisson hold the lock. Without this field the lock is
--                             Redisson's
--
-- Nothing else is read: a hash that is no lock may be long. Expired holds are left out here and subtracted from the count. They
-- stay in the hash until the next write.
--
-- It adds to `lock`, or sets there
--   value        the owner, or false if the lock is free
--   other_type   the type of the key if it is no such lock
--   count        the number of holds of the owner
--   holds        those of this library
--   owner_fence  their common fencing token
--   lease_ms     the longest lease
--   has_expired  whether some holds had expired
--   has_key      whether the key exists, as a lock of this kind or another hash

-- A token is the owner or the hold, without a prefix.
local TOKEN_PREFIX = ''

-- Keeps the holds for which `stays` returns true. The lock is free if the count becomes 0.
local function keep_holds(lock, stays)
  local kept, before = {}, lock.holds
  for _, entry in ipairs(before) do
    if stays(entry) then kept[#kept + 1] = entry end
  end
  lock.count = math.max(0, lock.count - (#before - #kept))
  if lock.count == 0 then lock.value, kept = false, {} end
  lock.holds = kept
  if not kept[1] then lock.owner_fence, lock.lease_ms = nil, 0 end
end

-- The remaining time of the longest hold.
local function longest_left_ms(holds)
  local until_ms = 0
  for _, entry in ipairs(holds) do until_ms = math.max(until_ms, entry.until_ms) end
  -- PEXPIRE deletes the key for 0.
  return math.max(1, until_ms - now())
end

-- How long the key must last if all of the count is this library's, else nil. Clients of Redisson then do not wait for expired
-- holds.
local function own_ttl_ms(lock)
  return lock.value and lock.count == #lock.holds and longest_left_ms(lock.holds) or nil
end

-- The text of the field `leasehold`.
local function packed_holds(lock)
  local lines = { digits(lock.owner_fence or 0) .. ' ' .. digits(lock.lease_ms), lock.value }
  for i, entry in ipairs(lock.holds) do
    lines[i + 2] = entry.hold .. ' ' .. digits(entry.until_ms) .. ' ' .. digits(entry.since_ms) .. ' '
      .. entry.liveness .. ' ' .. entry.label
  end
  return table.concat(lines, '\n')
end

-- The longest count that a Lua number holds exactly.
local COUNT_DIGITS = 15

-- Parses the field `leasehold` of a hash with `field_count` fields; `times` is the owner's field, or false.
local function parse_holds(lock, text, field_count, times)
  local fence, lease_ms, owner, lines = string.match(text, '^(%d+) (%d+)\n([^\n]+)(.*)$')
  times = times and #times <= COUNT_DIGITS and string.match(times, '^%d+$')
  if not owner or field_count ~= (times and 2 or 1) then
    lock.other_type = 'hash'
    return
  end
  lock.value, lock.count, lock.lease_ms = owner, tonumber(times or 0), tonumber(lease_ms)
  lock.owner_fence = fence ~= '0' and tonumber(fence) or nil
  local holds = lock.holds
  for hold, until_ms, since_ms, liveness, label in string.gmatch(lines, '\n(%S+) (%d+) (%d+) (%l%d*) ([^\n]*)') do
    holds[#holds + 1] = {
      hold = hold, session = string.sub(hold, 1, SESSION_LENGTH), until_ms = tonumber(until_ms),
      since_ms = tonumber(since_ms), liveness = liveness, label = label,
    }
  end
  local at_ms = holds[1] and now()
  keep_holds(lock, function(entry) return entry.until_ms >= at_ms end)
  lock.has_expired = #lock.holds < #holds
end

-- Reads the key; `caller` is the token of the claim. Returns an error reply, or nil.
local function read_holds(lock, caller)
  local key = lock.key
  lock.value, lock.count, lock.holds, lock.lease_ms = false, 0, {}, 0
  local found = redis.pcall('HMGET', key, 'leasehold', caller)
  if found.err then
    if not is_wrong_type(found.err) then return found end
    lock.other_type = redis.call('TYPE', key).ok
    return
  end
  local field_count = redis.call('HLEN', key)
  local ours = found[1]
  lock.has_key = field_count > 0
  if ours then
    local owner = string.match(ours, '^[^\n]*\n([^\n]+)')
    parse_holds(lock, ours, field_count, owner and (owner == caller and found[2] or redis.call('HGET', key, owner)))
  elseif field_count == 1 and not ours then
    local pair = found[2] and { caller, found[2] } or redis.call('HGETALL', key)
    if #pair[2] <= COUNT_DIGITS and string.match(pair[2], '^[1-9]%d*$') then
      lock.value, lock.count = pair[1], tonumber(pair[2])
    else
      lock.other_type = 'hash'
    end
  elseif field_count > 1 then
    lock.other_type = 'hash'
  end
end

