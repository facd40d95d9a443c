-- Begins a session, or keeps it alive.
--
-- KEYS[1]  its record: a HASH
--            format            1. A script does not touch a record of another format
--            until             the session is dead after this time without a heartbeat, in ms of the server's clock
--            metadata          a description of the process, for people: JSON
--            activity          what it does, for people: a text; no field if there is nothing
--            l:<kind>:<name>   a lock that it holds, for people; 1
-- KEYS[2]  the index of all sessions: a ZSET with a score in ms for each session: no record is left after that time. For people, and for what
--          looks for dead sessions. Left out by most heartbeats, and while a slot of a cluster moves and only one of the two keys has moved
-- ARGV[1]  the session
-- ARGV[2]  alive_ms: the least time from now for which it is alive
-- ARGV[3]  kept_ms: the least time from now for which its record lasts
-- ARGV[4]  '1' to begin the session, or empty: then a lapsed session stays lapsed
-- ARGV[5]  metadata, or empty
-- ARGV[6]  its activity after a '=', or empty to leave that as it is
-- ARGV[7]  the number of locks that it acquired since the last heartbeat; these locks follow, as its record names them, and then
--          the locks that it no longer holds
--
-- Replies
--   1                   alive
--   0                   lapsed, and nothing was changed
--   {'format', found}   the record has another format, or is no hash
--
-- A heartbeat that leaves the index as it is comes at most one lifetime after one that renews it. So its entry lasts for one lifetime
-- more than the record that it knows.
--
-- A script, because checking that the session is alive and keeping it so are one step. PEXPIRE is the first write of a
-- heartbeat: full memory does not refuse it. A session is alive as soon as `until` is written; an error of the index ends
-- no session.

-- How many texts one command takes: a Lua stack holds 8000.
local MAX_ARGUMENTS = 1000
-- The first argument that names a lock.
local FIRST_LOCK = 8

local fields = redis.pcall('HMGET', KEYS[1], 'format', 'until')
if fields.err then
  if not is_wrong_type(fields.err) then return fields end
  return { 'format', redis.call('TYPE', KEYS[1]).ok }
end
local record_exists = fields[1]
if record_exists and record_exists ~= '1' then return { 'format', record_exists } end

local at_ms = now()
local alive_until = record_exists and tonumber(fields[2])
if alive_until and alive_until < at_ms or not alive_until and ARGV[4] == '' then return 0 end

-- Neither end is ever brought nearer.
local kept_ms = tonumber(ARGV[3])
if record_exists then
  local ttl_ms = redis.call('PTTL', KEYS[1])
  if ttl_ms < kept_ms then redis.call('PEXPIRE', KEYS[1], ARGV[3]) else kept_ms = ttl_ms end
end
local texts = {}
local new_until = at_ms + tonumber(ARGV[2])
if not alive_until or alive_until < new_until then texts = { 'until', digits(new_until) } end
if ARGV[4] ~= '' then texts[#texts + 1], texts[#texts + 2] = 'metadata', ARGV[5] end
if #ARGV[6] > 1 then texts[#texts + 1], texts[#texts + 2] = 'activity', string.sub(ARGV[6], 2) end
if not record_exists then
  create_hash(KEYS[1], ARGV[3], 'format', '1', unpack(texts))
elseif texts[1] then
  redis.call('HSET', KEYS[1], unpack(texts))
end

if ARGV[6] == '=' then redis.call('HDEL', KEYS[1], 'activity') end

local last_held = FIRST_LOCK - 1 + tonumber(ARGV[7])
for at = last_held + 1, #ARGV, MAX_ARGUMENTS do
  redis.call('HDEL', KEYS[1], unpack(ARGV, at, math.min(at + MAX_ARGUMENTS - 1, #ARGV)))
end
for at = FIRST_LOCK, last_held, MAX_ARGUMENTS do
  local locks = {}
  for i = at, math.min(at + MAX_ARGUMENTS - 1, last_held) do locks[#locks + 1], locks[#locks + 2] = ARGV[i], '1' end
  redis.call('HSET', KEYS[1], unpack(locks))
end

if not KEYS[2] then return 1 end
kept_ms = kept_ms + tonumber(ARGV[2])
local index_ttl_ms = redis.pcall('PTTL', KEYS[2])
local is_short = type(index_ttl_ms) == 'number' and index_ttl_ms < kept_ms
-- Before ZADD it proves the permission, as in create_hash.lua, or raises the expiry of the index.
if is_short and type(redis.pcall('PEXPIRE', KEYS[2], digits(kept_ms))) ~= 'number' then return 1 end
redis.pcall('ZADD', KEYS[2], digits(at_ms + kept_ms), ARGV[1])
if index_ttl_ms == -2 then redis.pcall('PEXPIRE', KEYS[2], digits(kept_ms)) end
-- With every change, so that dead sessions disappear also where none begins.
redis.pcall('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. digits(at_ms))
return 1
