-- Raises the fencing token of a Mutex hold to the one that a quorum of servers agreed on. Never lowers it.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  the fencing token
--
-- Replies
--   1                   held, and the token is at least as great
--   0                   not held, or the record does not know this hold
--   {'format', found}   the record has another format
--
-- A script, because comparing the hold and raising its token are one step: a later holder keeps its own token.

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if string.sub(value.err, 1, #WRONG_TYPE) ~= WRONG_TYPE then return value end
  return 0
end
local own = ARGV[2]
if value ~= (own == '' and ARGV[1] or own) then return 0 end

local record = redis.pcall('HMGET', KEYS[2], 'format', 'holder', 'last', 'ended')
if record.err then
  if string.sub(record.err, 1, #WRONG_TYPE) ~= WRONG_TYPE then return record end
  return { 'format', redis.call('TYPE', KEYS[2]).ok }
end
if not record[1] or not record[2] then return 0 end
if record[1] ~= '1' then return { 'format', record[1] } end
local hold, held_own = string.match(record[2], '^([^\n]*)\n%d+\n%l%d*\n([^\n]*)\n')
if hold ~= ARGV[1] or held_own ~= own then return 0 end
-- The hold ended, and another client holds the lock by the same value.
if own ~= '' and record[4] and string.find(record[4], string.sub(hold, ENDED_FROM, ENDED_TO), 1, true) then return 0 end

local last, fence = tonumber(record[3] or 0), tonumber(ARGV[3])
local kept_ms = math.max(math.floor(math.max(last, fence) / 1000) - now(), 0) + RECORD_KEPT_MS
if redis.call('PTTL', KEYS[2]) < kept_ms - RECORD_KEPT_MS / 2 then
  redis.call('PEXPIRE', KEYS[2], digits(kept_ms))
end
if fence > last then redis.call('HSET', KEYS[2], 'last', ARGV[3]) end
return 1
