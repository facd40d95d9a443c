-- Reads the records of sessions. Writes nothing.
--
-- KEYS  the records: see heartbeat.lua
--
-- Replies
--   {now_ms, record, …}   the server's time and the first records, until the reply is large enough: one at least. Each is
--     {until, metadata, activity, other, lock, …}
--                                         `until`, the metadata, the activity, the number of fields that are none of these, and the
--                                         fields of its locks. What is too large counts as another field, and is then empty
--     ''                                  there is no record
--     a word                              it cannot be read: 'type', 'format' or 'size'
--
-- A script, so that no field of any size reaches a client.

-- A field of a lock has a kind and a name of 512 bytes at most; the client limits the other texts to these lengths, in bytes.
local MAX_FIELD, MAX_METADATA, MAX_ACTIVITY, MAX_NUMBER = 600, 4096, 8192, 20
-- How large a record and a reply become, in bytes of texts.
local MAX_RECORD, ENOUGH = 4194304, 1048576

local function read(key)
  local all = redis.pcall('HGETALL', key)
  if all.err then
    if is_wrong_type(all.err) then return 'type', 0 end
    return all, 0
  end
  if #all == 0 then return '', 0 end
  local format, record, size = '', { '', '', '', 0 }, 0
  for at = 1, #all, 2 do
    local field, value = all[at], all[at + 1]
    if field == 'format' then
      format = value
    elseif field == 'until' and #value <= MAX_NUMBER then
      record[1] = value
    elseif field == 'metadata' and #value <= MAX_METADATA then
      record[2], size = value, size + #value
    elseif field == 'activity' and #value <= MAX_ACTIVITY then
      record[3], size = value, size + #value
    elseif string.sub(field, 1, 2) == 'l:' and #field <= MAX_FIELD then
      record[#record + 1], size = field, size + #field
    else
      record[4] = record[4] + 1
    end
  end
  if format ~= '1' then return 'format', 0 end
  if size > MAX_RECORD then return 'size', 0 end
  return record, size
end

local at_ms = now()
local reply, size = { at_ms }, 0
for _, key in ipairs(KEYS) do
  local record, of_record = read(key)
  if type(record) == 'table' and record.err then return record end
  reply[#reply + 1] = record
  size = size + of_record
  if size >= ENOUGH then break end
end
return reply
