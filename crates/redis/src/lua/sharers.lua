-- Part of all scripts on a lock that several have side by side but extend, after record.lua: who has it, and what others may
-- know. It writes nothing.

-- How many there are in all, as the record knows; or nil.
local limit = fields[7] and tonumber(fields[7]) or nil

-- Whether a claim has a part: its hold is there.
local function holds(who)
  return held[who.hold] ~= nil
end

-- All who have a part, in the order in which they came. Only at the greatest of all fencing tokens several have the same.
local in_order
local function lessees()
  if not in_order then
    table.sort(parts, function(a, b)
      if a.fence ~= b.fence then return a.fence < b.fence end
      return a.hold < b.hold
    end)
    in_order = true
  end
  return parts
end

-- Each has a fencing token of his own.
local fence

-- What became of a claim. Others may have a part beside those that are gone: nobody came in their place.
local function fate(who)
  if holds(who) then return 'held' end
  if not record_there then return kind and 'superseded' or 'forgotten' end
  if waits(who) then return 'queued' end
  return ended_how(who.hold) or (kind and 'superseded' or 'vanished')
end

-- What others may know of one who has a part, put behind `reply`: how long he has it, his fencing token, since when, his
-- label, the session that he lives with, or '', his owner, or '', and his portion.
local function tell(part, reply)
  local at = #reply
  reply[at + 1] = part.until_ms - now()
  reply[at + 2] = part.fence
  reply[at + 3] = part.since_ms
  reply[at + 4] = part.label
  reply[at + 5] = lives(part) and part.session or ''
  reply[at + 6] = part.owner
  reply[at + 7] = part.portion
  return reply
end

-- The same of the first of them; how long it lasts, of what is no such lock; nothing, where nothing is there.
local function tell_holder(reply)
  if kind then
    reply[#reply + 1] = value_ttl()
    return reply
  end
  local first_of_them = lessees()[1]
  return first_of_them and tell(first_of_them, reply) or reply
end

