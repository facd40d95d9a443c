-- Fetches the record of a Mutex, an Election or a ReentrantMutex. Follows check_record.lua.

-- Each session has one entry in the queue, whatever the number of its holds that wait.
local ENTRY_PER_HOLD = false
-- The place of the record of a session among the keys of a script.
local SESSION_KEY = 4

-- `id` is a session, whose queue entry is read, too. Returns an error reply, or nil.
local function fetch_record(lock, id)
  if lock.read_record then return check_packed(lock, id, lock.read_record) end
  local fields = lock.read_fields
    or redis.pcall('HMGET', lock.record, 'format', 'last', 'holder', 'ended', 'queue', 'w:' .. id, 'reserved')
  return check_record(lock, id, fields)
end

