-- Describes the holder of a lock that is not shared. Writes nothing.

-- The first holder that is a client of this library, or false.
local function first_holder(lock)
  return holders(lock)[1] or false
end

-- What became of a claim.
local function hold_status(lock, of)
  if is_held_by(lock, of) then return 'held' end
  local is_taken = lock.value or lock.other_type
  if not lock.has_record then return is_taken and 'superseded' or 'forgotten' end
  if is_queued(lock, of) then return 'queued' end
  local how = how_ended(lock, of.hold)
  if how then return how end
  -- The owner of a ReentrantMutex still holds it by other holds: nothing superseded this one.
  if lock.count and lock.value and lock.value == of.token then return 'vanished' end
  if is_taken then return 'superseded' end
  local holder = recorded_holder(lock)
  -- If other holds have ended since, the lock was theirs.
  if not holder then return lock.ended and 'superseded' or 'forgotten' end
  return is_recorded(of, holder) and 'vanished' or 'superseded'
end

-- Appends a description of the holder to `reply`: nothing if the lock is free; the remaining time of the key; if the holder is
-- a client of this library, its fencing token, the time of the grant, its label, and its session, or '', or 'cooldown' for a lock
-- in its cooldown; of a ReentrantMutex also the owner and the number of its holds.
local function describe_holder(lock, reply)
  if not lock.value and not lock.other_type then return reply end
  reply[#reply + 1] = lock_ttl(lock)
  local holder = first_holder(lock)
  if holder then
    reply[#reply + 1] = fence_of(lock, holder) or 0
    reply[#reply + 1] = holder.since_ms
    reply[#reply + 1] = string.sub(holder.label, 1, MAX_SHOWN)
    reply[#reply + 1] = in_cooldown(lock) and 'cooldown' or session_timeout_ms(holder) and holder.session or ''
  end
  if lock.value and lock.count then
    reply[#reply + 1] = string.sub(lock.value, 1, MAX_SHOWN)
    reply[#reply + 1] = lock.count
  end
  return reply
end

