-- Tells how the lock stands. Writes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  its audit, to be told in full
-- ARGV[1]  a hold whose fate is asked for, or empty
-- ARGV[2]  the user's own value in place of that hold as token, or empty
--
-- Replies
--   {waiting, fate or '', {holder}}     fate and holder as in release; in full there follow
--     the SHA-1 of what a client of another library has put at the lock's key, or ''
--     the text of the audit, or ''
--   {'kind', type}, {'format', found}
--
-- A script, so that holder, queue and fate are of one instant.

if kind then return { 'kind', kind } end
local waiting = 0
if first ~= '' then
  local at_ms = now()
  for _, packed in ipairs(redis.call('HVALS', KEYS[2])) do
    -- A place, and no other value, begins with ticket, nonce and time.
    local expires_ms = string.match(packed, '^%d+\n%x+\n(%d+)\n')
    if expires_ms and tonumber(expires_ms) >= at_ms then waiting = waiting + 1 end
  end
end
local reply = { waiting, claim.hold ~= '' and fate(claim) or '', tell_holder({}) }
if KEYS[3] then
  reply[4] = value and not lessee() and redis.sha1hex(value) or ''
  local audit = redis.pcall('GET', KEYS[3])
  reply[5] = type(audit) == 'string' and audit or ''
end
return reply
