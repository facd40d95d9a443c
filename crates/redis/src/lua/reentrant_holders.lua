-- The holders of a ReentrantMutex. Writes nothing. Follows parse_record.lua.

-- Reads the lock's key and its record. Returns an error reply, or nil.
local function read_lock(lock, claim)
  local failed = read_holds(lock, claim.token) or fetch_record(lock, claim.session)
  if not failed then lock.ttl_ms = own_ttl_ms(lock) end
  return failed
end

-- A hold by its id, or nil.
local function hold_of(lock, id)
  for _, entry in ipairs(lock.holds) do
    if entry.hold == id then return entry end
  end
end

local function is_held_by(lock, of)
  return hold_of(lock, of.hold) ~= nil
end

-- How a hold ended, as in the replies, or nil if that is not known.
local function how_ended(lock, hold)
  return listed_ending(lock, hold)
end

-- The holds of this library, oldest first. All have one owner.
local function holders(lock)
  return lock.holds
end

-- As the others, for scripts that are the same for shared locks.
local function every_holder(lock)
  return holders(lock)
end

-- The fencing token that all of them share.
local function fence_of(lock)
  return lock.owner_fence
end

-- Whether the record's newest holder is this claim, or another hold of its owner.
local function is_recorded(of, holder)
  return holder.hold == of.hold or holder.own == of.own
end

-- A ReentrantMutex has no cooldown.
local function in_cooldown() end

