-- Part of release of a Mutex, before all else: the lock is held by this hold, and nobody waits nor is to be queued.
--
-- Reply
--   'held'     and now released
--
-- What is done here is what release.lua does, without what acquire_quick.lua does without.

if ARGV[2] == '' and not ARGV[5] then
  local record = redis.pcall('HMGET', KEYS[2], 'format', 'ended', 'queue')
  local ended, queue = record[2], record[3]
  if record[1] == '1' and not (queue and string.byte(queue) ~= 48) and redis.pcall('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[2], 'ended', string.sub(ARGV[1], 18, 29) .. '.' .. string.sub(ended or '', 1, 91))
    return 'held'
  end
end

