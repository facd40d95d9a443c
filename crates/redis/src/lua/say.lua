-- Part of all scripts that say something, before whatever says it.

-- Says something, which is a hint: what goes wrong with it is no reason for anything. A channel that begins with a newline,
-- which no name has, is one of a slot of a cluster, and is said there alone; in all of the cluster where this server cannot,
-- or where it is to be heard and nobody has heard it here, since the slot moves.
local function say(channel, message, is_awaited)
  if string.byte(channel) ~= 10 then
    redis.pcall('PUBLISH', channel, message)
    return
  end
  channel = string.sub(channel, 2)
  local heard = redis.pcall('SPUBLISH', channel, message)
  if type(heard) ~= 'number' or is_awaited and heard == 0 then redis.pcall('PUBLISH', channel, message) end
end

