-- Takes the lock if it is free and nobody waits before; else queues, if asked so. Sent twice it equals once, so it is
-- also the look of one who waits already.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  what the channels of all mailboxes begin with
-- ARGV[4]  lease_ms
-- ARGV[5]  label
-- ARGV[6]  nonce, or empty not to queue
-- ARGV[7]  kept_ms: how long the place lasts
-- ARGV[8]  expiry in ms for a lock of somebody else's that has none, or empty
--
-- Replies
--   {'granted', fence, remaining_ms, 1 if others wait else 0}
--   {'taken', position or -1}                                       and nobody holds it
--   {'taken', position or -1, remaining_ms or -1}                   a client of another library holds it
--   {'taken', position or -1, remaining_ms or -1, fence, since_ms, label}
--   {'spent', how}                                                  this hold has ended before
--   {'kind', type}, {'format', found}                               nothing was changed
--
-- A script, since whether the lock is free, who is next and which fencing token comes are one question.

local reply = acquire(ask_of(claim, 4))
commit()
return reply
