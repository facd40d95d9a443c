-- Lists the first waiters, for a script that describes a lock. Writes nothing. Follows parse_record.lua.

-- How many queue entries are listed at most, and how much of a label, so that the reply is bounded.
local MAX_LISTED, MAX_LABEL = 256, 1024
-- The parts of a queue entry that are listed: its expiry, its label, and its mode or nothing.
local LISTED_ENTRY = '^%-?%d+\n%x+\n(%d+)\n%d+\n%l%d*\n[^\n]*\n[^\n]*\n([^\n]*)\n?(.*)$'

-- The first entries that have not expired, in their order: of each its session, its label and its mode. An entry that cannot be
-- read is an empty list, and so is the rest of a queue whose links end too early.
local function list_queue(lock)
  local listed, seen, id = {}, {}, lock.head
  for _ = 1, math.min(lock.queued or 0, MAX_LISTED) do
    local found = id and id ~= '' and not seen[id] and redis.call('HMGET', lock.record, 'w:' .. id, 'n:' .. id)
    if not found or not found[1] then
      listed[#listed + 1] = {}
      break
    end
    local expires_ms, label, mode = string.match(found[1], LISTED_ENTRY)
    if not expires_ms then
      listed[#listed + 1] = {}
    elseif tonumber(expires_ms) >= now() then
      -- What follows the session in an id is a secret.
      listed[#listed + 1] = { string.sub(id, 1, SESSION_LENGTH), string.sub(label, 1, MAX_LABEL), string.sub(mode, 1, MAX_LABEL) }
    end
    seen[id], id = true, found[2]
  end
  return listed
end

-- The text at a key of strings, or so much of it; empty if there is none.
local function text_at(key, longest)
  local text = redis.pcall('GET', key)
  return type(text) == 'string' and string.sub(text, 1, longest) or ''
end

-- The line of a node of a quorum as such a list: of each entry the session, two empty texts, and since when it waits in ms.
local function list_line(line)
  local listed = {}
  if type(line) ~= 'string' or #line % LINE_ENTRY_LENGTH ~= 0 then return listed end
  for at = 1, math.min(#line, LINE_ENTRIES * LINE_ENTRY_LENGTH), LINE_ENTRY_LENGTH do
    local since_at = at + SESSION_LENGTH + 1
    listed[#listed + 1] =
      { string.sub(line, at, at + SESSION_LENGTH - 1), '', '', tonumber(string.sub(line, since_at, since_at + LINE_SINCE_DIGITS - 1)) }
  end
  return listed
end
