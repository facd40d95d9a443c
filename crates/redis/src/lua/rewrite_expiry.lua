-- Writes the expiry of a key again, unchanged. Replicas receive this write after those before it, so a replica that
-- acknowledges it (WAIT) has the hold or the session, too.
--
-- KEYS[1]  the lock, or the record of a session
--
-- Replies
--   1  written
--   0  the key does not exist or has no expiry, and nothing was written
--
-- A script, because another client may set another expiry between the read and the write. It uses that key itself, which is
-- where the hold is also while a slot of a cluster moves. Full memory does not refuse PEXPIRE.

local left_ms = redis.call('PTTL', KEYS[1])
if left_ms < 0 then return 0 end
-- 0 would delete the key.
return redis.call('PEXPIRE', KEYS[1], math.max(left_ms, 1))
