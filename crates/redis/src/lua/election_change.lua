-- Announces the leader of an Election. Follows string_change.lua. `lock.channel` is for observers, and its messages are hints.

-- There is another leader, or a new token of the same one, or none.
local function announce_free(lock)
  local last = lock.fields.last
  local message = last and 'leader ' .. last or (lock.freed or lock.cooldown_token) and 'none'
  if message then publish(lock.channel, message) end
end

