-- Part of release of a Mutex, after one_string_change.lua: who waits without a place in a queue is told that it lies free.
--
-- ARGV[#]  with 'tell' in ARGV[4]: the channel on which that is said, a hint for all who look then

if ARGV[4] == 'tell' then
  local channel = ARGV[#ARGV]
  function tell_strangers()
    if freed then redis.pcall('PUBLISH', channel, 'free') end
  end
end

