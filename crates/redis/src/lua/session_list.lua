-- Lists the sessions of an index. Writes nothing.
--
-- KEYS[1]  the index: see heartbeat.lua
--
-- Replies
--   {others, session, …}   the sessions, at most 65536; and the number of members that are none
--   {'kind', type}         the index has another type
--
-- A script, because only a server can leave out a member that is of any size and any bytes.

local MAX_SESSIONS = 65536

local members = redis.pcall('ZRANGE', KEYS[1], '0', '-1')
if members.err then
  if not is_wrong_type(members.err) then return members end
  return { 'kind', redis.call('TYPE', KEYS[1]).ok }
end
local reply = { 0 }
for _, member in ipairs(members) do
  if #reply <= MAX_SESSIONS and #member == SESSION_LENGTH and not string.find(member, '[^%w_-]') then
    reply[#reply + 1] = member
  end
end
reply[1] = #members - (#reply - 1)
return reply
