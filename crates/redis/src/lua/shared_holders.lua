-- The holders of a shared lock, and their description. Writes nothing. Follows parse_record.lua.

local function is_held_by(lock, of)
  return not lock.other_type and find_hold(lock, of.hold) ~= false
end

-- How a hold ended, as in the replies, or nil if that is not known.
local function how_ended(lock, hold)
  return listed_ending(lock, hold)
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
  reply[at + 1] = math.max(0, held.until_ms - now())
  reply[at + 2] = held.fence
  reply[at + 3] = held.since_ms
  reply[at + 4] = string.sub(held.label, 1, MAX_SHOWN)
  reply[at + 5] = session_timeout_ms(held) and held.session or ''
  reply[at + 6] = string.sub(held.owner, 1, MAX_SHOWN)
  reply[at + 7] = held.mode
  return reply
end
