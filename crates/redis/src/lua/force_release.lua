-- Releases the lock for an operator, whichever client holds it. The holder gets a message, and the next waiter gets the lock.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the watermark of the partition
-- KEYS[4]  the lock's audit
-- ARGV[1]  empty
-- ARGV[2]  empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  the operator, for the audit
-- ARGV[5]  the holder that the operator saw: 'hold', and its fencing token in ARGV[6]; or 'foreign', and in
-- ARGV[6]  the SHA-1 of the value that a client of another library put at the lock's key
--
-- Replies
--   {'released'}
--   {'changed', {holder}}                   held otherwise, and nothing was changed; holder as in release
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, so that a client that acquired the lock since the operator looked does not lose it. The DEL comes first: it must
-- work under full memory.

local lock, claim = new_lock(KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS], ARGV[3], ARGV[#ARGV]), claim_of(ARGV[1], ARGV[2])
local failed = read_lock(lock, claim)
if failed then return failed end

if lock.other_type then return { 'kind', lock.other_type } end
local holder = first_holder(lock)
local fence = holder and fence_of(lock, holder)
if ARGV[5] == 'hold' and fence and digits(fence) == ARGV[6] then
  local messages, notified = lock.messages, {}
  for _, lost in ipairs(holders(lock)) do
    if not notified[lost.session] then
      notified[lost.session], messages[#messages + 1] = true, { lost.session, 'force_released ' .. ARGV[6] }
    end
  end
  end_by_force(lock, 'force_released', ARGV[4], function() return true end)
  -- A client of another library may hold the ReentrantMutex, too.
  free_lock(lock)
elseif ARGV[5] == 'foreign' and lock.value and not holder and redis.sha1hex(lock.value) == ARGV[6] then
  free_lock(lock)
  audit_ending(lock, 'force_released', '', nil, ARGV[4])
else
  return { 'changed', describe_holder(lock, {}) }
end
grant_next(lock)
commit(lock)
return { 'released' }
