-- The holder of a Mutex or an Election. Writes nothing. Follows mutex.lua or election.lua.

-- Whether the claim holds the lock. A value of the user's own is not unique, so there the record must name the hold, too, and
-- must not say that it ended.
local function is_held_by(of)
  if value ~= of.token then return false end
  if of.own == '' then return true end
  local holder = recorded_holder()
  return holder and holder.hold == of.hold and holder.own == of.own and not how_ended(of.hold)
end

-- Whether the lock is resting: released, but kept taken for the rest of a fixed time.
local function is_resting()
  return value and last_fence and recorded_holder() and value == MARK .. 'rest\n' .. digits(last_fence)
end

-- A release that was cut off may have left the lock resting before it could list the ending.
local listed_ending = how_ended
function how_ended(hold)
  return listed_ending(hold) or record_exists and is_resting() and recorded_holder().hold == hold and 'released' or nil
end

-- The holders that are clients of this library: one or none. The death of a session does not end a rest.
local function holders()
  local holder = recorded_holder()
  if is_resting() then holder.life = 'l' return { holder } end
  return holder and is_held_by(holder) and { holder } or {}
end

-- The fencing token of the holder.
local function current_fence()
  return last_fence
end

-- Whether the record's newest holder is this claim.
local function is_recorded(of, holder)
  return holder.hold == of.hold
end

-- The number of holds of one owner, which a Mutex does not have.
local hold_count

