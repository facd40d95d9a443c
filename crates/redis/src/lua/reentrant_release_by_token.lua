-- Releases one hold of a ReentrantMutex by the lock's key alone: see release_by_token.lua.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold
-- ARGV[2]  its owner
-- ARGV[3]  the channel on which clients of Redisson wait for a free lock
--
-- Replies
--   count   it was held, and its owner has this many holds left; 0 if the lock is free now
--   -1      it was not held, and nothing was changed
--
-- A script, because finding the hold and ending it are one step. The result is that of a release that was cut off after its
-- first writes.

local lock = { key = KEYS[1] }
local failed = read_holds(lock, ARGV[2] == '' and ARGV[1] or ARGV[2])
if failed then return failed end

local held
for _, entry in ipairs(lock.holds) do held = held or entry.hold == ARGV[1] end
if not held then return -1 end
keep_holds(lock, function(entry) return entry.hold ~= ARGV[1] end)
if not lock.value then
  redis.call('DEL', KEYS[1])
  publish(ARGV[3], '0')
  return 0
end
-- The write that full memory does not refuse, as in reentrant_change.lua.
local ttl_ms = own_ttl_ms(lock)
if ttl_ms then redis.call('PEXPIRE', KEYS[1], digits(ttl_ms)) else redis.call('HDEL', KEYS[1], '') end
redis.call('HSET', KEYS[1], 'leasehold', packed_holds(lock), lock.value, digits(lock.count))
return lock.count
