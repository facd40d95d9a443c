-- Fetches the record of a Mutex, an Election or a ReentrantMutex. Provides `fields` and `entry_per_hold`.
--
-- KEYS[2]  the record, as check_record.lua describes it
-- ARGV[1]  a hold, a session (whose queue entry is read), or empty
-- ARGV[2]  the user's own value, or empty

-- Each session has one entry in the queue, whatever the number of its holds that wait.
local entry_per_hold = false

local session = string.sub(ARGV[1], 1, SESSION_LENGTH)

local fields = redis.pcall('HMGET', KEYS[2], 'format', 'last', 'tenant', 'ended', 'queue', 'w:' .. session, 'reserved')
