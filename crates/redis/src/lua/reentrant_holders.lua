-- The holders of a ReentrantMutex. Writes nothing. Follows parse_record.lua.

lock_ttl_ms = own_ttl_ms()

-- A hold by its id, or nil.
local function hold_of(id)
  for _, entry in ipairs(holds) do
    if entry.hold == id then return entry end
  end
end

local function is_held_by(of)
  return hold_of(of.hold) ~= nil
end

-- The holds of this library, oldest first. All have one owner.
local function holders()
  return holds
end

-- The fencing token that all of them share.
local function current_fence()
  return owner_fence
end

-- Whether the record's newest holder is this claim, or another hold of its owner.
local function is_recorded(of, holder)
  return holder.hold == of.hold or holder.own == of.own
end

-- A ReentrantMutex does not rest.
local is_resting

