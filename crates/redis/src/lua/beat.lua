-- Begins a session, or keeps it alive.
--
-- KEYS[1]  its record: a HASH
--            format            1; a record of another format is not touched
--            until             until when it is alive if it beats no more, in ms of the server's clock
--            about             who is behind it, for people to read: JSON
--            l:<kind>:<name>   a lock that it holds, for people to find; 1
-- KEYS[2]  the index of all sessions: a ZSET, a session's score the end of its record in ms, for people to find; and the
--          member `-`, which is none. It is left out while a slot of a cluster moves, and only one of the two has gone ahead
-- ARGV[1]  the session
-- ARGV[2]  alive_ms: how long it is alive from now at least
-- ARGV[3]  kept_ms: how long its record lasts from now at least
-- ARGV[4]  '1' to begin it, or empty: then one that has lapsed stays lapsed
-- ARGV[5]  about, or empty
-- ARGV[6]  how many locks follow that it holds since the last beat; then these, as they are called in its record; then
--          those that it does not hold any more
--
-- Replies
--   1                   alive
--   0                   lapsed, and nothing was changed
--   {'format', found}   the record has another format, or is no hash
--
-- A script, since whether it is alive and that it stays so are one step. PEXPIRE comes first among the writes of a beat,
-- which full memory does not refuse. A session is alive once `until` stands there; the index is a help for people, and
-- what goes wrong with it lets no session die.

local function digits(number)
  return string.format('%.0f', number)
end

-- How many texts go into one command: a stack of Lua holds 8000.
local AT_ONCE = 1000

-- DUMP of the hash {format = '1'}, as in change.lua; and of the sorted set {'-' = 0}: type 5, 1 member, '\001-', the score
-- as a double, RDB version 9, CRC64 of all that.
local EMPTY_RECORD = '\004\001\006\102\111\114\109\097\116\001\049\009\000\017\015\014\212\067\157\155\031'
local EMPTY_INDEX = '\005\001\001\045\000\000\000\000\000\000\000\000\009\000\002\183\200\233\067\151\182\247'

local fields = redis.pcall('HMGET', KEYS[1], 'format', 'until')
if fields.err then
  if string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then return fields end
  return { 'format', redis.call('TYPE', KEYS[1]).ok }
end
local record_there = fields[1]
if record_there and record_there ~= '1' then return { 'format', record_there } end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- A record without it was cut off before its session had begun.
local alive_until = fields[2] and tonumber(fields[2])
if alive_until and alive_until < now_ms or not alive_until and ARGV[4] == '' then return 0 end

-- The end of neither is ever brought nearer.
local kept_ms = tonumber(ARGV[3])
if record_there then
  local ttl_ms = redis.call('PTTL', KEYS[1])
  if ttl_ms < kept_ms or not alive_until then redis.call('PEXPIRE', KEYS[1], ARGV[3]) else kept_ms = ttl_ms end
else
  redis.call('RESTORE', KEYS[1], ARGV[3], EMPTY_RECORD)
end
local texts = {}
local new_until = now_ms + tonumber(ARGV[2])
if not alive_until or alive_until < new_until then texts = { 'until', digits(new_until) } end
if ARGV[4] ~= '' then texts[#texts + 1], texts[#texts + 2] = 'about', ARGV[5] end
if texts[1] then redis.call('HSET', KEYS[1], unpack(texts)) end

local held = tonumber(ARGV[6])
for at = 7 + held, #ARGV, AT_ONCE do
  redis.call('HDEL', KEYS[1], unpack(ARGV, at, math.min(at + AT_ONCE - 1, #ARGV)))
end
for at = 7, 6 + held, AT_ONCE do
  local locks = {}
  for i = at, math.min(at + AT_ONCE - 1, 6 + held) do locks[#locks + 1], locks[#locks + 2] = ARGV[i], '1' end
  redis.call('HSET', KEYS[1], unpack(locks))
end

if not KEYS[2] then return 1 end
local index_ttl_ms = redis.pcall('PTTL', KEYS[2])
if index_ttl_ms == -2 then
  if redis.pcall('RESTORE', KEYS[2], digits(kept_ms), EMPTY_INDEX).err then return 1 end
elseif type(index_ttl_ms) == 'number' and index_ttl_ms < kept_ms then
  redis.pcall('PEXPIRE', KEYS[2], digits(kept_ms))
end
redis.pcall('ZADD', KEYS[2], digits(now_ms + kept_ms), ARGV[1])
-- Also with every beat: what is left of the dead is to go soon where nobody begins.
redis.pcall('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. digits(now_ms))
return 1
