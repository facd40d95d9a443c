-- Part of release, after read.lua: the lock is held by this hold, and nobody waits nor is to be queued.
--
-- What is done here is what release.lua does, without the making of functions that it does not need.

if record_there and value == ARGV[1] and ARGV[2] == '' and not ARGV[5] and not awaited then
  redis.call('DEL', KEYS[1])
  ended = ARGV[1] .. ' released' .. (ended and '\n' .. ended or '')
  local over = string.find(ended, '\n', EIGHTH_ENDING, true)
  redis.call('HSET', KEYS[2], 'ended', over and string.sub(ended, 1, over - 1) or ended)
  return { 'held', {} }
end

