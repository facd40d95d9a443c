-- The holder of a Mutex or an Election. Writes nothing. Follows parse_record.lua.

-- The value of the key during the cooldown after a hold with this fencing token.
local function cooldown_value(fence)
  return TOKEN_PREFIX .. 'cooldown\n' .. digits(fence)
end

-- Whether the lock is in its cooldown: released, but kept taken until a fixed time after its grant.
local function in_cooldown(lock)
  return lock.value and lock.fence and recorded_holder(lock) and lock.value == cooldown_value(lock.fence)
end

-- How a hold ended, as in the replies, or nil if that is not known. A release that was cut off may have begun the cooldown
-- without listing the ending.
local function how_ended(lock, hold)
  return listed_ending(lock, hold)
    or lock.has_record and in_cooldown(lock) and recorded_holder(lock).hold == hold and 'released' or nil
end

-- Whether the claim holds the lock. A value of the user's own is not unique, so there the record must name the hold, too, and
-- must not say that it ended.
local function is_held_by(lock, of)
  if lock.value ~= of.token then return false end
  if of.own == '' then return true end
  local holder = recorded_holder(lock)
  return holder and holder.hold == of.hold and holder.own == of.own and not how_ended(lock, of.hold)
end

-- The holders that are clients of this library: one or none. The death of a session does not end a cooldown.
local function holders(lock)
  local holder = recorded_holder(lock)
  if in_cooldown(lock) then holder.liveness = 'l' return { holder } end
  return holder and is_held_by(lock, holder) and { holder } or {}
end

-- As the others, for scripts that are the same for shared locks.
local function every_holder(lock)
  return holders(lock)
end

-- The fencing token of the holder.
local function fence_of(lock)
  return lock.fence
end

-- Whether the record's newest holder is this claim.
local function is_recorded(of, holder)
  return holder.hold == of.hold
end

