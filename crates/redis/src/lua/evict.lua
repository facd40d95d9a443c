-- Removes the hold and the queue entries of a session from the lock if the session is dead. If the lock is then free, it is
-- granted to the next waiter in the same step.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the watermark of the partition
-- Then     of a shared lock, its index
-- Then     the session's record, and the lock's audit
-- ARGV[1]  the session
-- ARGV[2]  empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  the client that evicts, for the audit
-- ARGV[#]  the channel or the kind, for kinds that need one: see reentrant_change.lua and shared_read.lua
--
-- Replies
--   {'alive'}                               nothing was changed
--   {'gone', fence or -1, 1 if it had a queue entry else 0}
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, because no heartbeat may arrive between the check and the eviction. The DEL comes first, and no later error is a
-- reason to keep the lock with the dead session.

local lock = new_lock(KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS], ARGV[3], ARGV[#ARGV], KEYS[4])
local claim = claim_of(ARGV[1], ARGV[2])
local failed = read_lock(lock, claim)
if failed then return failed end

if lock.other_type then return { 'kind', lock.other_type } end
-- All holds of the session end, however many: nothing asks again.
lock.front = every_holder(lock)
local alive, unreadable = session_alive_ms(lock, KEYS[SESSION_KEY], ARGV[1])
if unreadable then return unreadable end
if alive then return { 'alive' } end
local fence, entries_left = evict(lock, ARGV[1], ARGV[4])
if not lock.value then grant_next(lock) end
commit(lock)
return { 'gone', fence, entries_left }
