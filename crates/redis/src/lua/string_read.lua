-- Reads the key of a Mutex or an Election.
--
-- `lock.key`  a STRING whose value is the holder's token, the format that clients of other libraries use

-- Returns the value, or false if the key does not exist; the type of the key if it is no such lock; and an error reply or nil.
local function read_string(key)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'table' then return value end
  if not is_wrong_type(value.err) then return false, nil, value end
  return false, redis.call('TYPE', key).ok
end

