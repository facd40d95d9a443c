-- Ends one hold of a lock that several have side by side by what stands at its key alone: see let_go.lua.
--
-- KEYS[1]  the lock: a HASH, as parts.lua says
-- ARGV[1]  the hold
-- ARGV[2]  the kind
--
-- Replies
--   0   it was held, and is over
--   -1  it was not, and nothing was changed
--
-- A script, since finding the hold and ending it are one step. The key lasts as long as it did: who is not in it is not kept
-- out by it.

local found = redis.pcall('HMGET', KEYS[1], 'leasehold', ARGV[1])
if found.err or found[1] ~= ARGV[2] or not found[2] then return -1 end
local until_ms = tonumber(string.match(found[2], '^(%d+) ') or 0)
if until_ms < now() then return -1 end
redis.call('HDEL', KEYS[1], ARGV[1])
return 0
