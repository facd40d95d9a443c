-- Releases one hold of a shared lock by the lock's key alone: see release_by_token.lua.
--
-- KEYS[1]  the lock: a HASH, as shared_hold.lua describes it
-- ARGV[1]  the hold
-- ARGV[2]  the kind
--
-- Replies
--   0   it was held, and has ended
--   -1  it was not held, and nothing was changed
--
-- A script, because finding the hold and ending it are one step. The key keeps its expiry, which blocks no other client; and the next
-- script writes the numbers and the index anew: see shared_read.lua.

local found = redis.pcall('HMGET', KEYS[1], 'leasehold', ARGV[1])
if found.err or kind_of(found[1]) ~= ARGV[2] then return -1 end
local held = parse_hold(ARGV[1], found[2])
if not held or held.until_ms < now() then return -1 end
redis.call('HDEL', KEYS[1], ARGV[1])
return 0
