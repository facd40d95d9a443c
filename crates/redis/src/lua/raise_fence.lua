-- Raises the fencing token of a Mutex hold to the one that a quorum of servers agreed on. Lowers it only if it is to be exact.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  the fencing token
-- ARGV[4]  '1' if the token is to be exactly that
--
-- Replies
--   1                   held, and the token is at least as great, or exactly that
--   0                   not held, or the record does not know this hold
--   {'format', found}   the record has another format
--
-- A script, because comparing the hold and raising its token are one step: a later holder keeps its own token.

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not is_wrong_type(value.err) then return value end
  return 0
end
local own = ARGV[2]
if value ~= (own == '' and ARGV[1] or own) then return 0 end

local lock = { key = KEYS[1], record = KEYS[2] }
local failed = fetch_fields(lock)
if failed then return failed end
if not is_newest(lock, ARGV[1], own) then return 0 end
-- The hold ended, and another client holds the lock by the same value.
if own ~= '' and lock.ended and string.find(lock.ended, string.sub(ARGV[1], ENDED_FROM, ENDED_TO), 1, true) then return 0 end

local last, fence, exact = lock.fence or 0, tonumber(ARGV[3]), ARGV[4] == '1'
lengthen_record(lock, math.max(last, fence), 0)
if fence > last or (exact and fence < last) then
  local written = write_field(lock, 'last', ARGV[3])
  if type(written) == 'table' and written.err then return written end
end
return 1
