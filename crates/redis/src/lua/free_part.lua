-- Takes a part of a lock that several have side by side from its holder, by the will of a person: the holder is told, and who is
-- next gets it.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the lock's audit
-- ARGV[1]  empty
-- ARGV[2]  empty
-- ARGV[3]  what the channels of all mailboxes begin with, as say.lua takes them
-- ARGV[4]  who does it
-- ARGV[5]  'hold', and then a fencing token; no client of another library has such a lock
-- ARGV[6]  the fencing token
-- ARGV[7]  the kind
--
-- Replies
--   {'freed'}
--   {'changed', {holder}}                   nobody has it by that token, and nothing was changed; holder as in release
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, since nobody may lose what has come to him since it was looked at. The HDEL, or DEL, comes first: it must work
-- when memory is full.

if kind then return { 'kind', kind } end
local function is_seen(part) return ARGV[5] == 'hold' and digits(part.fence) == ARGV[6] end
for _, part in ipairs(lessees()) do
  if is_seen(part) then messages[#messages + 1] = { part.session, 'freed ' .. ARGV[6] } end
end
if not messages[1] then return { 'changed', tell_holder({}) } end
take('freed', ARGV[4], is_seen)
pump()
commit()
return { 'freed' }
