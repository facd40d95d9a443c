-- What sets an Election apart from a Mutex, which is a STRING as well. Follows string_read.lua and fetch_record.lua.

-- Prefix of the token in the lock's key.
local TOKEN_PREFIX = 'election\n'

-- As in mutex.lua.
local function read_lock(lock, claim)
  local value, other_type, failed = read_string(lock.key)
  if failed then return failed end
  if value and string.sub(value, 1, #TOKEN_PREFIX) ~= TOKEN_PREFIX then value, other_type = false, 'string' end
  lock.value, lock.other_type = value, other_type
  return fetch_record(lock, claim.session)
end

