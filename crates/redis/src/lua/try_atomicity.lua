-- Writes its own value, and reads it again and again: another one is that of a script that runs at the same time.
--
-- KEYS[1]  a key that no lock has
-- ARGV[1]  the value
-- ARGV[2]  how often to read it
-- ARGV[3]  ms until the key expires
--
-- Replies
--   the value of another script, or 'nothing' if it is gone; '' if neither was seen

redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
for _ = 1, tonumber(ARGV[2]) do
  local seen = redis.call('GET', KEYS[1])
  if seen ~= ARGV[1] then return seen or 'nothing' end
end
return ''
