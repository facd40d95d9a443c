-- Part of all scripts on an Election but extend, after string.lua and record.lua: what stands there is an Election.

-- What stands before the token of a lock of this kind, so that a Mutex of the same name knows it, and it a Mutex.
local MARK = 'election\n'
if value and string.sub(value, 1, 9) ~= MARK then value, kind = false, 'string' end

local plain = claim_of
function claim_of(hold, own)
  local who = plain(hold, own)
  who.token = MARK .. who.token
  return who
end
claim = claim_of(ARGV[1], ARGV[2])

