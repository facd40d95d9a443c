-- The holders of a shared lock, and their description. Writes nothing. Follows parse_record.lua.
--
-- It adds to `lock`
--   in_order  whether its holds are in order

local function is_held_by(lock, of)
  return lock.by_id[of.hold] ~= nil
end

-- How a hold ended, as in the replies, or nil if that is not known.
local function how_ended(lock, hold)
  return listed_ending(lock, hold)
end

-- All holds, oldest first. Only the greatest possible fencing token can occur twice.
local function holders(lock)
  if not lock.in_order then
    table.sort(lock.holds, function(a, b)
      if a.fence ~= b.fence then return a.fence < b.fence end
      return a.hold < b.hold
    end)
    lock.in_order = true
  end
  return lock.holds
end

-- Each hold has a fencing token of its own.
local function fence_of(_, held)
  return held.fence
end

-- What became of a claim. Holds beside it do not supersede it.
local function hold_status(lock, of)
  if is_held_by(lock, of) then return 'held' end
  if not lock.has_record then return lock.other_type and 'superseded' or 'forgotten' end
  if is_queued(lock, of) then return 'queued' end
  return how_ended(lock, of.hold) or (lock.other_type and 'superseded' or 'vanished')
end

-- Appends a description of a hold to `reply`: remaining ms, fencing token, time of the grant, label, session or '', owner or '',
-- and mode.
local function describe(held, reply)
  local at = #reply
  reply[at + 1] = held.until_ms - now()
  reply[at + 2] = held.fence
  reply[at + 3] = held.since_ms
  reply[at + 4] = held.label
  reply[at + 5] = session_timeout_ms(held) and held.session or ''
  reply[at + 6] = held.owner
  reply[at + 7] = held.mode
  return reply
end

-- Appends the description of the first hold; of a key that is no such lock, its remaining time; nothing for a free lock.
local function describe_holder(lock, reply)
  if lock.other_type then
    reply[#reply + 1] = lock_ttl(lock)
    return reply
  end
  local first = holders(lock)[1]
  return first and describe(first, reply) or reply
end

