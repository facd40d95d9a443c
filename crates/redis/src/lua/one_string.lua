-- Part of all scripts on a Mutex or an Election but extend, after what tells the one from the other: who has it. It writes
-- nothing.

-- Whether a claim has the lock: its token stands, and for a value of the user's own also the hold. A stranger may use
-- the same value after it was ended.
local function holds(who)
  if value ~= who.token then return false end
  if who.own == '' then return true end
  local holder = tenant()
  return holder and holder.hold == who.hold and holder.own == who.own and not ended_how(who.hold)
end

-- Whether the lock is left taken by nobody, after the hold of whoever had it last: what stands there is then no claim's.
local function rests()
  return value and last and tenant() and value == MARK .. 'rest\n' .. digits(last)
end

-- How a hold was ended. A script that was cut off may have left the lock resting before it could say more.
local noted = ended_how
function ended_how(hold)
  return noted(hold) or record_there and rests() and tenant().hold == hold and 'released' or nil
end

-- Those of ours who have the lock: one, or none. A rest ends with nobody's session.
local function lessees()
  local holder = tenant()
  if rests() then holder.life = 'l' return { holder } end
  return holder and holds(holder) and { holder } or {}
end

-- The fencing token of whoever of ours has the lock.
local function fence()
  return last
end

-- Whether a claim was the last to be given the lock.
local function was_last(who, holder)
  return holder.hold == who.hold
end

-- How often its owner has the lock: nobody enters a Mutex again, so that nothing is told of that.
local count

