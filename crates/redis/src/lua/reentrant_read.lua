-- Reads the key of a ReentrantMutex. Follows numbers.lua. Provides `value`, `other_type`, `hold_count` and `holds`.
--
-- KEYS[1]  the lock: a HASH in the format of Redisson's RLock, with one field of this library
--            <owner>          the number of holds of the owner
--            leasehold        fence, space, longest requested lease in ms \n owner; then for each hold of this library, oldest
--                             first: \n hold, until_ms, since_ms, life, label, separated by spaces. Without holds fence and
--                             lease are 0: only clients of Redisson hold the lock. `none` while the lock is being created: it is
--                             not held yet. Without this field the lock is Redisson's
-- ARGV[1]  a hold, a session, or empty
-- ARGV[2]  the owner of the hold, or empty
--
-- Nothing else is read: a hash that is no lock may be long. Expired holds are left out here and subtracted from the count. They
-- stay in the hash until the next write.

-- `value` is the owner, or false if the lock is free. `other_type` is the type of the key if it is no such lock.
local value, other_type, hold_count = false, nil, 0
-- The holds of this library, their common fencing token, and the longest lease.
local holds, owner_fence, longest_lease_ms = {}, nil, 0
-- Whether some holds had expired.
local has_expired

-- Keeps the holds for which `stays` returns true. The lock is free if the count becomes 0.
local function keep_holds(stays)
  local kept = {}
  for _, entry in ipairs(holds) do
    if stays(entry) then kept[#kept + 1] = entry end
  end
  hold_count = math.max(0, hold_count - (#holds - #kept))
  if hold_count == 0 then value, kept = false, {} end
  holds = kept
  if not holds[1] then owner_fence, longest_lease_ms = nil, 0 end
end

-- The remaining time of the longest hold.
local function longest_left_ms()
  local until_ms = 0
  for _, entry in ipairs(holds) do until_ms = math.max(until_ms, entry.until_ms) end
  -- PEXPIRE deletes the key for 0.
  return math.max(1, until_ms - now())
end

-- How long the key must last if all of the count is this library's, else nil. Clients of Redisson then do not wait for expired
-- holds.
local function own_ttl_ms()
  return value and hold_count == #holds and longest_left_ms() or nil
end

-- The text of the field `leasehold`.
local function packed_holds()
  local lines = { digits(owner_fence or 0) .. ' ' .. digits(longest_lease_ms), value }
  for i, entry in ipairs(holds) do
    lines[i + 2] = entry.hold .. ' ' .. digits(entry.until_ms) .. ' ' .. digits(entry.since_ms) .. ' '
      .. entry.life .. ' ' .. entry.label
  end
  return table.concat(lines, '\n')
end

-- The longest count that a Lua number holds exactly.
local COUNT_DIGITS = 15

-- Parses the field `leasehold` of a hash with `field_count` fields; `times` is the owner's field, or false.
local function parse_holds(text, field_count, times)
  local fence, lease_ms, owner, lines = string.match(text, '^(%d+) (%d+)\n([^\n]+)(.*)$')
  times = times and #times <= COUNT_DIGITS and string.match(times, '^%d+$')
  if not owner or field_count ~= (times and 2 or 1) then
    other_type = 'hash'
    return
  end
  value, hold_count, longest_lease_ms = owner, tonumber(times or 0), tonumber(lease_ms)
  owner_fence = fence ~= '0' and tonumber(fence) or nil
  for hold, until_ms, since_ms, life, label in string.gmatch(lines, '\n(%S+) (%d+) (%d+) (%l%d*) ([^\n]*)') do
    holds[#holds + 1] = {
      hold = hold, session = string.sub(hold, 1, SESSION_LENGTH), until_ms = tonumber(until_ms),
      since_ms = tonumber(since_ms), life = life, label = label,
    }
  end
  local at_ms, all = holds[1] and now(), #holds
  keep_holds(function(entry) return entry.until_ms >= at_ms end)
  has_expired = #holds < all
end

local caller = ARGV[2] == '' and ARGV[1] or ARGV[2]
local found = redis.pcall('HMGET', KEYS[1], 'leasehold', caller)
if found.err then
  if string.sub(found.err, 1, #WRONG_TYPE) ~= WRONG_TYPE then return found end
  other_type = redis.call('TYPE', KEYS[1]).ok
else
  local field_count = redis.call('HLEN', KEYS[1])
  local ours = found[1]
  if ours and not (ours == 'none' and field_count == 1) then
    local owner = string.match(ours, '^[^\n]*\n([^\n]+)')
    parse_holds(ours, field_count, owner and (owner == caller and found[2] or redis.call('HGET', KEYS[1], owner)))
  elseif field_count == 1 and not ours then
    local pair = found[2] and { caller, found[2] } or redis.call('HGETALL', KEYS[1])
    if #pair[2] <= COUNT_DIGITS and string.match(pair[2], '^[1-9]%d*$') then
      value, hold_count = pair[1], tonumber(pair[2])
    else
      other_type = 'hash'
    end
  elseif field_count > 1 then
    other_type = 'hash'
  end
end

