-- Publishes messages. All of them are hints, so errors are ignored.

-- A channel that begins with a newline, which no name contains, belongs to a slot of a cluster: SPUBLISH, without the newline.
-- PUBLISH replaces it if this server has no SPUBLISH, or if `needs_receiver` is set and there was none: the slot may be moving.
local function publish(channel, message, needs_receiver)
  if string.sub(channel, 1, 1) ~= '\n' then
    redis.pcall('PUBLISH', channel, message)
    return
  end
  channel = string.sub(channel, 2)
  local receivers = redis.pcall('SPUBLISH', channel, message)
  if type(receivers) ~= 'number' or needs_receiver and receivers == 0 then redis.pcall('PUBLISH', channel, message) end
end

