-- Fetches the record of a shared lock. Follows check_record.lua.

-- `id` is a hold, whose queue entry is read, too. Sets `lock.limit`: the limit that the record knows, or nil. Returns an error
-- reply, or nil.
local function fetch_shared_record(lock, id)
  local fields =
    redis.pcall('HMGET', lock.record, 'format', 'last', 'holder', 'ended', 'queue', 'w:' .. id, 'limit')
  local failed = check_record(lock, id, fields)
  lock.limit = lock.reserved and tonumber(lock.reserved) or nil
  return failed
end
