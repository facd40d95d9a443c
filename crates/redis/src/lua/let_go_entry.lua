-- Ends one hold of a ReentrantMutex by what stands at its key alone: see let_go.lua.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold
-- ARGV[2]  its owner
-- ARGV[3]  the channel on which clients of Redisson's hear that the lock is free
--
-- Replies
--   count   it was held, and its owner has the lock so often yet; 0 where it is free now
--   -1      it was not, and nothing was changed
--
-- A script, since finding the hold and ending it are one step. What is left is what a release leaves that is cut off behind
-- its first writes.

local found
for _, entry in ipairs(entries) do found = found or entry.hold == ARGV[1] end
if not found then return -1 end
keep(function(entry) return entry.hold ~= ARGV[1] end)
if not value then
  redis.call('DEL', KEYS[1])
  say(ARGV[3], '0')
  return 0
end
-- The write that full memory does not refuse, as in reentrant_change.lua.
local ttl_ms = ours_alone()
if ttl_ms then redis.call('PEXPIRE', KEYS[1], digits(ttl_ms)) else redis.call('HDEL', KEYS[1], '') end
redis.call('HSET', KEYS[1], 'leasehold', packed(), value, digits(count))
return count
