-- Part of all scripts on a ReentrantMutex, after numbers.lua: reads what stands at its key.
--
-- KEYS[1]  the lock: a HASH, as Redisson keeps its RLock, with one field of ours
--            <owner>          how often he has the lock
--            leasehold        fence, space, the longest lease that was asked for in ms \n the owner; then for each hold of
--                             ours, the oldest first: \n hold, until_ms, since_ms, life, label, with spaces between.
--                             Without holds fence and lease are 0: only clients of Redisson's have the lock. `none` while the lock
--                             is being made: nobody has it yet. Without this field the lock is Redisson's
-- ARGV[1]  a hold, a session, or empty
-- ARGV[2]  the owner of the hold, or empty
--
-- Never more is read than that: what is no lock may be long. Holds that are over are not among those here, and the count is
-- less by as many; they lie there until something else is written.

-- `value` is the owner, or false if nobody has the lock; `kind` is the type of what is no such lock.
local value, kind, count = false, nil, 0
-- Our holds, their fencing token, and the longest lease.
local entries, fence_of_all, longest_ms = {}, nil, 0
-- Whether some of them were over.
local dropped

-- Keeps those of our holds that are to stay. Nobody has the lock where no count is left.
local function keep(stays)
  local kept = {}
  for _, entry in ipairs(entries) do
    if stays(entry) then kept[#kept + 1] = entry end
  end
  count = math.max(0, count - (#entries - #kept))
  if count == 0 then value, kept = false, {} end
  entries = kept
  if not entries[1] then fence_of_all, longest_ms = nil, 0 end
end

-- How long the last of ours lasts.
local function longest_left()
  local until_ms = 0
  for _, entry in ipairs(entries) do until_ms = math.max(until_ms, entry.until_ms) end
  -- PEXPIRE takes 0 for the end of the key.
  return math.max(1, until_ms - now())
end

-- How long the key is to last where nobody has a part of the count but us, or nil: as long as the last of ours, so that
-- clients of Redisson's do not wait for those that are gone.
local function ours_alone()
  return value and count == #entries and longest_left() or nil
end

-- The field of ours.
local function packed()
  local lines = { digits(fence_of_all or 0) .. ' ' .. digits(longest_ms), value }
  for i, entry in ipairs(entries) do
    lines[i + 2] = entry.hold .. ' ' .. digits(entry.until_ms) .. ' ' .. digits(entry.since_ms) .. ' '
      .. entry.life .. ' ' .. entry.label
  end
  return table.concat(lines, '\n')
end

-- Understands the field of ours, beside so many fields in all; `times` is what the owner's says, or false.
local function understand(text, fields, times)
  local of, lease_ms, owner, lines = string.match(text, '^(%d+) (%d+)\n([^\n]+)(.*)$')
  times = times and #times <= 15 and string.match(times, '^%d+$')
  if not owner or fields ~= (times and 2 or 1) then
    kind = 'hash'
    return
  end
  value, count, longest_ms = owner, tonumber(times or 0), tonumber(lease_ms)
  fence_of_all = of ~= '0' and tonumber(of) or nil
  for hold, until_ms, since_ms, life, label in string.gmatch(lines, '\n(%S+) (%d+) (%d+) (%l%d*) ([^\n]*)') do
    entries[#entries + 1] = {
      hold = hold, session = string.sub(hold, 1, 16), until_ms = tonumber(until_ms), since_ms = tonumber(since_ms),
      life = life, label = label,
    }
  end
  local at_ms, lying = entries[1] and now(), #entries
  keep(function(entry) return entry.until_ms >= at_ms end)
  dropped = #entries < lying
end

local asker = ARGV[2] == '' and ARGV[1] or ARGV[2]
local stands = redis.pcall('HMGET', KEYS[1], 'leasehold', asker)
if stands.err then
  if string.sub(stands.err, 1, 9) ~= 'WRONGTYPE' then return stands end
  kind = redis.call('TYPE', KEYS[1]).ok
else
  local size = redis.call('HLEN', KEYS[1])
  local ours = stands[1]
  if ours and not (ours == 'none' and size == 1) then
    local owner = string.match(ours, '^[^\n]*\n([^\n]+)')
    understand(ours, size, owner and (owner == asker and stands[2] or redis.call('HGET', KEYS[1], owner)))
  elseif size == 1 and not ours then
    local pair = stands[2] and { asker, stands[2] } or redis.call('HGETALL', KEYS[1])
    if #pair[2] <= 15 and string.match(pair[2], '^[1-9]%d*$') then
      value, count = pair[1], tonumber(pair[2])
    else
      kind = 'hash'
    end
  elseif size > 1 then
    kind = 'hash'
  end
end

