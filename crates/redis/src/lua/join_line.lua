-- Adds a session to the line of the waiters of a Mutex, on a node of a quorum: a hint, by which a release names the next waiter.
--
-- KEYS[1]  the line: a STRING of entries, the longest wait first, each a session, a space, the ms since when it waits, in
--          LINE_SINCE_DIGITS digits, and a newline
-- ARGV[1]  the session
-- ARGV[2]  how long it has waited, in ms
-- ARGV[3]  kept_ms: how long the line lasts
--
-- Replies
--   1    it is in the line
--   0    the line is full, or the key has another type

local line = redis.pcall('GET', KEYS[1])
if type(line) == 'table' then return 0 end
-- No script leaves such a line.
if not line or #line % LINE_ENTRY_LENGTH ~= 0 then line = '' end
if string.find(line, ARGV[1], 1, true) then
  redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
else
  if #line >= LINE_ENTRIES * LINE_ENTRY_LENGTH then return 0 end
  local time = redis.call('TIME')
  local since = string.format('%0' .. LINE_SINCE_DIGITS .. '.0f', time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[2])
  local at = 1
  while at <= #line and string.sub(line, at + SESSION_LENGTH + 1, at + SESSION_LENGTH + LINE_SINCE_DIGITS) <= since do
    at = at + LINE_ENTRY_LENGTH
  end
  line = string.sub(line, 1, at - 1) .. ARGV[1] .. ' ' .. since .. '\n' .. string.sub(line, at)
  redis.call('SET', KEYS[1], line, 'PX', ARGV[3])
end
return 1
