-- Part of all scripts on a lock but extend, after what tells who has it: what others may know. It writes nothing.

-- The first of ours who have the lock, or false.
local function lessee()
  return lessees()[1] or false
end

-- What became of a claim.
local function fate(who)
  if holds(who) then return 'held' end
  if not record_there then return (value or kind) and 'superseded' or 'forgotten' end
  if waits(who) then return 'queued' end
  local how = ended_how(who.hold)
  if how then return how end
  -- The owner of a ReentrantMutex has it by other holds: nobody came after this one.
  if count and value and value == who.token then return 'vanished' end
  if value or kind then return 'superseded' end
  local holder = tenant()
  if not holder then return 'forgotten' end
  return was_last(who, holder) and 'vanished' or 'superseded'
end

-- What a stranger may know of the holder, put behind `reply`: nothing if the lock is free; how long it is held; where the
-- holder is one of ours, its fencing token, since when, its label, and the session it lives with, or '', or
-- 'rests' where it is done with the lock; and of a ReentrantMutex its owner, and how often he has it.
local function tell_holder(reply)
  if not value and not kind then return reply end
  reply[#reply + 1] = value_ttl()
  local holder = lessee()
  if holder then
    reply[#reply + 1] = fence() or 0
    reply[#reply + 1] = holder.since_ms
    reply[#reply + 1] = holder.label
    reply[#reply + 1] = rests and rests() and 'rests' or lives(holder) and holder.session or ''
  end
  if value and count then
    reply[#reply + 1] = value
    reply[#reply + 1] = count
  end
  return reply
end

