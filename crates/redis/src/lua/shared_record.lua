-- Fetches the record of a shared lock. Follows check_record.lua.

-- `id` is a hold, whose queue entry is read, too. Sets `lock.limit` and `lock.agreed`: the numbers of the field `limit`, or nil.
-- Returns an error reply, or nil.
local function fetch_shared_record(lock, id)
  local fields =
    redis.pcall('HMGET', lock.record, 'format', 'last', 'holder', 'ended', 'queue', 'w:' .. id, 'limit')
  local failed = check_record(lock, id, fields)
  local limit, agreed = string.match(lock.reserved or '', '^(%d+) ?(%d*)$')
  lock.limit, lock.agreed = tonumber(limit), tonumber(agreed)
  return failed
end
