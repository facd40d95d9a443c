-- Reads the statistics. Writes nothing.
--
-- KEYS[1]  the statistics: see statistics_merge.lua
--
-- Replies
--   {others, class, text, …}   the number of fields that are no class of this format; and each class
--   a word                     they cannot be read: 'type', 'format' or 'size'
--
-- A script, so that no field of any size reaches a client.

-- The greatest numbers of fields and of bytes in one: more than this library writes.
local MAX_FIELDS, MAX_CLASS, MAX_TEXT = 256, 256, 65536

local size = redis.pcall('HLEN', KEYS[1])
if type(size) == 'table' then
  if is_wrong_type(size.err) then return 'type' end
  return size
end
if size == 0 then return { 0 } end
if size > MAX_FIELDS then return 'size' end
if redis.call('HGET', KEYS[1], 'format') ~= '1' then return 'format' end
local reply, all = { 0 }, redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  local field, text = all[at], all[at + 1]
  if string.sub(field, 1, 2) == 'c:' and #field <= MAX_CLASS and #text <= MAX_TEXT then
    reply[#reply + 1], reply[#reply + 2] = string.sub(field, 3), text
  elseif field ~= 'format' then
    reply[1] = reply[1] + 1
  end
end
return reply
