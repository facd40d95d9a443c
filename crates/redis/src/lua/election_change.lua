-- Announces the leader of an Election. Follows string_change.lua.
--
-- ARGV[#]  the channel of the message, a hint for observers

local channel = ARGV[#ARGV]

-- There is another leader, or a new token of the same one, or none.
function announce_free()
  local message = new_fields.last and 'leader ' .. new_fields.last or (freed or rest_value) and 'nobody'
  if message then publish(channel, message) end
end

