-- Raises the fencing token of a hold to what a quorum of servers has agreed on, of a Mutex. It is never lowered.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  the fencing token
--
-- Replies
--   1                   the hold is there, and its token is as great, or greater
--   0                   not held, or the record does not know this hold
--   {'format', found}   the record has another format
--
-- A script, since comparing the hold and raising its token are one step: whoever has the lock by then keeps his.

local RECORD_KEPT_MS = 3600000

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then return value end
  return 0
end
local own = ARGV[2]
if value ~= (own == '' and ARGV[1] or own) then return 0 end

local record = redis.pcall('HMGET', KEYS[2], 'format', 'tenant', 'last', 'ended')
if record.err then
  if string.sub(record.err, 1, 9) ~= 'WRONGTYPE' then return record end
  return { 'format', redis.call('TYPE', KEYS[2]).ok }
end
if not record[1] or not record[2] then return 0 end
if record[1] ~= '1' then return { 'format', record[1] } end
local hold, held_own = string.match(record[2], '^([^\n]*)\n%d+\n%l%d*\n([^\n]*)\n')
if hold ~= ARGV[1] or held_own ~= own then return 0 end
-- It was ended, and a stranger has the lock by the same value.
if own ~= '' and record[4] and string.find(record[4], string.sub(hold, 18, 29), 1, true) then return 0 end

local last, fence = tonumber(record[3] or 0), tonumber(ARGV[3])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local kept_ms = math.max(math.floor(math.max(last, fence) / 1000) - now_ms, 0) + RECORD_KEPT_MS
if redis.call('PTTL', KEYS[2]) < kept_ms - RECORD_KEPT_MS / 2 then
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', kept_ms))
end
if fence > last then redis.call('HSET', KEYS[2], 'last', ARGV[3]) end
return 1
