-- What sets an Election apart from a Mutex, which is a STRING as well. Follows string_read.lua and parse_record.lua.

-- Prefix of the token in the lock's key.
local MARK = 'election\n'
if value and string.sub(value, 1, #MARK) ~= MARK then value, other_type = false, 'string' end

local unmarked_claim = claim_of
function claim_of(hold, own)
  local marked = unmarked_claim(hold, own)
  marked.token = MARK .. marked.token
  return marked
end
claim = claim_of(ARGV[1], ARGV[2])

