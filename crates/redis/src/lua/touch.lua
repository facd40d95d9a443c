-- Writes at a lock's key what stands there already: its end, which stays as it is. Replicas get that behind the hold, and who
-- has one has the other.
--
-- KEYS[1]  the lock
--
-- Replies
--   1  written
--   0  there is no such key, or it has no end, and nothing was written
--
-- A script, since reading the end and writing it are one step: between two, somebody may set another. It is the lock's own key
-- since that one is where the hold is, also while a slot of a cluster moves; and full memory does not refuse PEXPIRE.

local left_ms = redis.call('PTTL', KEYS[1])
if left_ms < 0 then return 0 end
-- 0 would delete the key.
return redis.call('PEXPIRE', KEYS[1], math.max(left_ms, 1))
