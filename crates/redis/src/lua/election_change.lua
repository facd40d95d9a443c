-- Part of acquire, release, evict and free of an Election, after one_string_change.lua: who leads is said.
--
-- ARGV[#]  the channel on which is said who leads: a hint, for all who look then

local channel = ARGV[#ARGV]

-- Says that there is another leader, or another token of the same, or none.
function tell_strangers()
  local said = changes.last and 'leader ' .. changes.last or (freed or left_resting) and 'nobody'
  if said then say(channel, said) end
end

