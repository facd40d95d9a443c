-- Part of all scripts on a Mutex but extend, after string.lua and record.lua: what stands there is a Mutex.

-- An Election of the same name is a string, too, and no client of another library.
if value and string.sub(value, 1, 9) == 'election\n' then value, kind = false, 'string' end

-- What stands before the token of a lock of this kind.
local MARK = ''


