-- Publishes that a Mutex became free, if the release requests it: on a node of a quorum, where waiters are not in a queue but in
-- a line, which is a hint. The message names the first session in it, and that session loses its place: it attempts to get the
-- lock, and joins again if it fails.
--
-- Adds to the table of lock.lua
--   announces   the session that releases, if it requests it
--   line        the key of the line: see join_line.lua
--   next_waiter the session that was named

local function announce_free(lock)
  if not (lock.announces and lock.freed) then return end
  local message, line = 'free', redis.pcall('GET', lock.line)
  if type(line) == 'string' then
    local own = string.find(line, lock.announces, 1, true)
    if own then line = string.sub(line, 1, own - 1) .. string.sub(line, own + LINE_ENTRY_LENGTH) end
    if line ~= '' then
      lock.next_waiter = string.sub(line, 1, SESSION_LENGTH)
      message = 'free ' .. lock.next_waiter
      line = string.sub(line, LINE_ENTRY_LENGTH + 1)
    end
    if line == '' then
      redis.pcall('DEL', lock.line)
    else
      redis.pcall('SET', lock.line, line, 'KEEPTTL')
    end
  end
  redis.pcall('PUBLISH', lock.channel, message)
end
