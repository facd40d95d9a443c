-- Ends a hold of a Mutex or an Election by its token alone: while a slot of a cluster moves, and only one of the lock's two
-- keys has gone ahead, nothing can look at both, and who is done with a lock is not to keep it for so long.
--
-- KEYS[1]  the lock
-- ARGV[1]  the hold, as it stands there
-- ARGV[2]  of an Election, the channel on which is said who leads
--
-- Replies
--   0   it was held, and is free now
--   -1  it was not, and nothing was changed
--
-- A script, since comparing the token and deleting the key are one step. What is left is what a release leaves that is cut
-- off behind its DEL: whoever comes next finds the lock free, gives it to the first in the queue, and says so.

local value = redis.pcall('GET', KEYS[1])
if value ~= ARGV[1] then return -1 end
redis.call('DEL', KEYS[1])
if ARGV[2] then say(ARGV[2], 'nobody') end
return 0
