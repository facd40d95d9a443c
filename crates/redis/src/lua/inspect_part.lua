-- Tells how a lock stands that several have side by side. Writes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  its audit, to be told in full
-- ARGV[1]  a hold whose fate is asked for, or empty
-- ARGV[2]  its owner, or what else the user has said, or empty
-- ARGV[3]  the kind
--
-- Replies
--   {waiting, fate or '', limit or -1, {{holder}…}}     fate and holder as in release, the oldest first; in full there follows
--     the text of the audit, or ''
--   {'kind', type}, {'format', found}
--
-- A script, so that holders, queue and fate are of one instant.

-- How many of those who share it are told, so that no answer is endless.
local SHARERS_TOLD = 4096

if kind then return { 'kind', kind } end
local waiting = 0
if first ~= '' then
  local at_ms = now()
  for _, text in ipairs(redis.call('HVALS', KEYS[2])) do
    -- A place, and no other value, begins with ticket, nonce and time.
    local expires_ms = string.match(text, '^%-?%d+\n%x+\n(%d+)\n')
    if expires_ms and tonumber(expires_ms) >= at_ms then waiting = waiting + 1 end
  end
end
local told = {}
for i, part in ipairs(lessees()) do
  if i > SHARERS_TOLD then break end
  told[i] = tell(part, {})
end
local reply = { waiting, claim.hold ~= '' and fate(claim) or '', limit or -1, told }
if KEYS[3] then
  local audit = redis.pcall('GET', KEYS[3])
  reply[5] = type(audit) == 'string' and audit or ''
end
return reply
