-- What sets a Mutex apart from an Election, which is a STRING as well. Follows string_read.lua and fetch_record.lua.

-- An Election of the same name is not a Mutex, and not a lock of another library.
local ELECTION_PREFIX = 'election\n'

-- Prefix of the token in the lock's key.
local TOKEN_PREFIX = ''

-- Sets `lock.value`, false if the key does not exist; and `lock.other_type`, the type of the key if it is no lock of this kind.
-- Returns an error reply, or nil.
local function read_lock(lock, claim)
  local value, other_type, failed = lock.read_value, nil, nil
  if not value then value, other_type, failed = read_string(lock.key) end
  if failed then return failed end
  if value and string.sub(value, 1, #ELECTION_PREFIX) == ELECTION_PREFIX then value, other_type = false, 'string' end
  lock.value, lock.other_type = value, other_type
  return fetch_record(lock, claim.session)
end

