-- What sets a Mutex apart from an Election, which is a STRING as well. Follows string_read.lua and parse_record.lua.

-- An Election of the same name is no Mutex, and no lock of another library.
local ELECTION_MARK = 'election\n'
if value and string.sub(value, 1, #ELECTION_MARK) == ELECTION_MARK then value, other_type = false, 'string' end

-- Prefix of the token in the lock's key.
local MARK = ''

