-- Ends a hold of a shared lock for an operator. The holder gets a message, and waiters are admitted.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the lock's audit
-- ARGV[1]  empty
-- ARGV[2]  empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  the operator, for the audit
-- ARGV[5]  'hold': no other library has such locks
-- ARGV[6]  the fencing token of the hold
-- ARGV[7]  the kind
--
-- Replies
--   {'freed'}
--   {'changed', {holder}}                   no hold has that token, and nothing was changed; holder as in shared_release
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, so that a hold that was granted since the operator looked is not ended. The HDEL, or DEL, comes first: it must work
-- under full memory.

if other_type then return { 'kind', other_type } end
local function is_named(held) return ARGV[5] == 'hold' and digits(held.fence) == ARGV[6] end
for _, held in ipairs(holders()) do
  if is_named(held) then messages[#messages + 1] = { held.session, 'freed ' .. ARGV[6] } end
end
if not messages[1] then return { 'changed', describe_holder({}) } end
end_by_force('freed', ARGV[4], is_named)
grant_next()
commit()
return { 'freed' }
