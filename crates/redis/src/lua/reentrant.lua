-- Part of all scripts on a ReentrantMutex but extend, after record.lua: who has it. It writes nothing.

value_ttl_ms = ours_alone()

-- The hold that is there, or nil.
local function entry_of(hold)
  for _, entry in ipairs(entries) do
    if entry.hold == hold then return entry end
  end
end

-- Whether a claim has the lock: its hold is there.
local function holds(who)
  return entry_of(who.hold) ~= nil
end

-- Those of ours who have the lock, the oldest first: holds of one owner.
local function lessees()
  return entries
end

-- The fencing token that all of them have.
local function fence()
  return fence_of_all
end

-- Whether a claim was the last to be given the lock: all holds of an owner go with the first.
local function was_last(who, holder)
  return holder.hold == who.hold or holder.own == who.own
end

-- No ReentrantMutex rests.
local rests

