-- Describes the holder of a lock that is not shared. Writes nothing.

-- The first holder that is a client of this library, or false.
local function first_holder()
  return holders()[1] or false
end

-- What became of a claim.
local function hold_status(of)
  if is_held_by(of) then return 'held' end
  if not record_exists then return (value or other_type) and 'superseded' or 'forgotten' end
  if is_queued(of) then return 'queued' end
  local how = how_ended(of.hold)
  if how then return how end
  -- The owner of a ReentrantMutex still holds it by other holds: nothing superseded this one.
  if hold_count and value and value == of.token then return 'vanished' end
  if value or other_type then return 'superseded' end
  local holder = recorded_holder()
  if not holder then return 'forgotten' end
  return is_recorded(of, holder) and 'vanished' or 'superseded'
end

-- Appends a description of the holder to `reply`: nothing if the lock is free; the remaining life of the key; if the holder is
-- a client of this library, its fencing token, the time of the grant, its label, and its session, or '', or 'rests' for a
-- resting lock; of a ReentrantMutex also the owner and the number of its holds.
local function describe_holder(reply)
  if not value and not other_type then return reply end
  reply[#reply + 1] = lock_ttl()
  local holder = first_holder()
  if holder then
    reply[#reply + 1] = current_fence() or 0
    reply[#reply + 1] = holder.since_ms
    reply[#reply + 1] = holder.label
    reply[#reply + 1] = is_resting and is_resting() and 'rests' or session_timeout_ms(holder) and holder.session or ''
  end
  if value and hold_count then
    reply[#reply + 1] = value
    reply[#reply + 1] = hold_count
  end
  return reply
end

