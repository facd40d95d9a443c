-- Announces that a Mutex became free to clients that wait outside of a queue. Part of release, after string_change.lua.
--
-- ARGV[#]  with 'tell' in ARGV[4]: the channel of the message

if ARGV[4] == 'tell' then
  local channel = ARGV[#ARGV]
  function announce_free()
    if freed then redis.pcall('PUBLISH', channel, 'free') end
  end
end

