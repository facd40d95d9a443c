-- Announces that a Mutex became free to clients that wait outside of a queue, if its releaser wants it: `lock.announces`.

local function announce_free(lock)
  if lock.announces and lock.freed then redis.pcall('PUBLISH', lock.channel, 'free') end
end

