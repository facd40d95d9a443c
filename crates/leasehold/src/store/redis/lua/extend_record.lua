-- Lengthens one hold, where the token alone does not tell it, or the record is to be kept as long. Its end is never
-- brought nearer.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  lease_ms: how long the hold lasts from now at least
-- ARGV[4]  '1' to keep the record as long, or empty
-- ARGV[5]  what stands before the token of a lock of this kind, or empty
--
-- Replies
--   1                   extended
--   0                   not held
--   {'format', found}   the record, which has to be compared for a user's own value, has another format
--
-- A script, since comparing the token and lengthening its key are one step. PEXPIRE comes first among the writes,
-- which full memory does not refuse.

local RECORD_KEPT_MS = 3600000

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then return value end
  return 0
end
local own = ARGV[2]
if value ~= ARGV[5] .. (own == '' and ARGV[1] or own) then return 0 end

local record = redis.pcall('HMGET', KEYS[2], 'format', 'tenant', 'last', 'ended')
if own ~= '' then
  if record.err then
    if string.sub(record.err, 1, 9) ~= 'WRONGTYPE' then return record end
    return { 'format', redis.call('TYPE', KEYS[2]).ok }
  end
  if not record[1] then return 0 end
  if record[1] ~= '1' then return { 'format', record[1] } end
  if not record[2] then return 0 end
  local hold, held_own = string.match(record[2], '^([^\n]*)\n%d+\n%l%d*\n([^\n]*)\n')
  if hold ~= ARGV[1] or held_own ~= own then return 0 end
  -- It was ended, and a stranger has the lock by the same value.
  if record[4] and string.find(record[4], hold .. ' ', 1, true) then return 0 end
end

local lease_ms = tonumber(ARGV[3])
local ttl_ms = redis.call('PTTL', KEYS[1])
if ttl_ms < lease_ms then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end

if ARGV[4] == '1' and not record.err and record[1] == '1' then
  local ahead_ms = 0
  if record[3] then
    local time = redis.call('TIME')
    local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    ahead_ms = math.floor(tonumber(record[3]) / 1000) - now_ms
  end
  local kept_ms = math.max(ahead_ms, lease_ms) + RECORD_KEPT_MS
  if redis.call('PTTL', KEYS[2]) < kept_ms - RECORD_KEPT_MS / 2 then
    redis.call('PEXPIRE', KEYS[2], string.format('%.0f', kept_ms))
  end
end
return 1
