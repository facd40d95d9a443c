-- Frees the lock for an operator, whatever client holds it. The holder gets a message, and the next waiter gets the lock.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the lock's audit
-- ARGV[1]  empty
-- ARGV[2]  empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  the operator, for the audit
-- ARGV[5]  the holder that the operator saw: 'hold', and its fencing token in ARGV[6]; or 'stranger', and in
-- ARGV[6]  the SHA-1 of the value that a client of another library put at the lock's key
--
-- Replies
--   {'freed'}
--   {'changed', {holder}}                   held otherwise, and nothing was changed; holder as in release
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, so that a client that acquired the lock since the operator looked does not lose it. The DEL comes first: it must
-- work under full memory.

if other_type then return { 'kind', other_type } end
local holder, fence = first_holder(), current_fence()
if ARGV[5] == 'hold' and holder and fence and digits(fence) == ARGV[6] then
  local notified = {}
  for _, lost in ipairs(holders()) do
    if not notified[lost.session] then
      notified[lost.session], messages[#messages + 1] = true, { lost.session, 'freed ' .. ARGV[6] }
    end
  end
  end_by_force('freed', ARGV[4], function() return true end)
  -- A client of another library may hold the ReentrantMutex, too.
  free_lock()
elseif ARGV[5] == 'stranger' and value and not holder and redis.sha1hex(value) == ARGV[6] then
  free_lock()
  audit_ending('freed', '', nil, ARGV[4])
else
  return { 'changed', describe_holder({}) }
end
grant_next()
commit()
return { 'freed' }
