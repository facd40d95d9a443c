-- Ends a hold of a shared lock for an operator. The holder gets a message, and waiters are admitted.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the watermark of the partition
-- KEYS[4]  its index
-- KEYS[5]  the lock's audit
-- ARGV[1]  empty
-- ARGV[2]  empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  the operator, for the audit
-- ARGV[5]  'hold': no other library has such locks
-- ARGV[6]  the fencing token of the hold
-- ARGV[7]  the kind
--
-- Replies
--   {'released'}
--   {'changed', {holder}}                   no hold has that token, and nothing was changed; holder as in shared_release
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, so that a hold that was granted since the operator looked is not ended. The HDEL, or DEL, comes first: it must work
-- under full memory.

local lock = new_lock(KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS], ARGV[3], ARGV[#ARGV], KEYS[4])
local claim = claim_of(ARGV[1], ARGV[2])
local failed = read_lock(lock, claim)
if failed then return failed end

if lock.other_type then return { 'kind', lock.other_type } end
-- An operator knows a hold by its token alone.
lock.front = every_holder(lock)
local messages, oldest = lock.messages, nil
local function is_named(held) return ARGV[5] == 'hold' and digits(held.fence) == ARGV[6] end
for _, held in ipairs(lock.front) do
  if is_named(held) then messages[#messages + 1] = { held.session, 'force_released ' .. ARGV[6] } end
  if not oldest or is_older(held, oldest) then oldest = held end
end
if not messages[1] then return { 'changed', oldest and describe(oldest, {}) or {} } end
end_by_force(lock, 'force_released', ARGV[4], is_named)
grant_next(lock)
commit(lock)
return { 'released' }
