-- Releases a Mutex or an Election by its token alone. While a slot of a cluster moves and only one of the lock's two keys has
-- moved, no script can use both, and a released lock must not stay taken for so long.
--
-- KEYS[1]  the lock
-- ARGV[1]  the token
-- ARGV[2]  of an Election, the channel that announces the leader
--
-- Replies
--   0   it was held, and is free now
--   -1  it was not held, and nothing was changed
--
-- A script, because comparing the token and deleting the key are one step. The result is that of a release that was cut off after
-- its DEL: the next script finds the lock free and grants it to the first in the queue.

local value = redis.pcall('GET', KEYS[1])
if value ~= ARGV[1] then return -1 end
redis.call('DEL', KEYS[1])
if ARGV[2] then publish(ARGV[2], 'none') end
return 0
