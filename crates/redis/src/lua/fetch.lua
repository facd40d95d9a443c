-- Part of all scripts on a Mutex or a ReentrantMutex but extend, before read.lua: fetches what is needed of the record.
--
-- KEYS[2]  the record, as read.lua says
-- ARGV[1]  a hold, a session (whose place is read), or empty
-- ARGV[2]  the user's own value, or empty

-- Whether each hold has a place of its own in the queue; here it is each session that has one.
local by_hold = false

local session = string.sub(ARGV[1], 1, 16)

local fields = redis.pcall('HMGET', KEYS[2], 'format', 'last', 'tenant', 'ended', 'queue', 'w:' .. session, 'reserved')
