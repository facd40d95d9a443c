-- The holders of a shared lock, and their description. Writes nothing. Follows parse_record.lua.

-- The limit that the record knows, or nil.
local limit = fields[7] and tonumber(fields[7]) or nil

local function is_held_by(of)
  return hold_by_id[of.hold] ~= nil
end

-- All holds, oldest first. Only the greatest possible fencing token can occur twice.
local in_order
local function holders()
  if not in_order then
    table.sort(shared_holds, function(a, b)
      if a.fence ~= b.fence then return a.fence < b.fence end
      return a.hold < b.hold
    end)
    in_order = true
  end
  return shared_holds
end

-- Each hold has a fencing token of its own.
local current_fence

-- What became of a claim. Holds beside it do not supersede it.
local function hold_status(of)
  if is_held_by(of) then return 'held' end
  if not record_exists then return other_type and 'superseded' or 'forgotten' end
  if is_queued(of) then return 'queued' end
  return how_ended(of.hold) or (other_type and 'superseded' or 'vanished')
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

-- The same of the first hold; the remaining life of a key that is no such lock; nothing for a free lock.
local function describe_holder(reply)
  if other_type then
    reply[#reply + 1] = lock_ttl()
    return reply
  end
  local first = holders()[1]
  return first and describe(first, reply) or reply
end

