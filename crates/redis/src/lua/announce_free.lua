-- Publishes that a Mutex became free, if the release requests it (`lock.announces`): on a node of a quorum, waiters are not in a
-- queue.

local function announce_free(lock)
  if lock.announces and lock.freed then redis.pcall('PUBLISH', lock.channel, 'free') end
end

