-- Creates a hash with an expiry.
--
-- No command does both. But HSET comes after a PEXPIRE that has no key to work on: it proves that this user may send PEXPIRE, here
-- and now. And a script that has written is not killed, full memory does not refuse PEXPIRE, and the commands of a script reach
-- replicas and the append-only file as one transaction. So HSET is never without its PEXPIRE.
--
-- To a server a PEXPIRE without a key is a write, too, after which full memory refuses nothing. So SET comes before it: with XX it
-- has no key to work on either, and full memory refuses it, and the script with it.

local function create_hash(key, ttl_ms, ...)
  redis.call('SET', key, '', 'XX', 'PX', ttl_ms)
  redis.call('PEXPIRE', key, ttl_ms)
  redis.call('HSET', key, ...)
  redis.call('PEXPIRE', key, ttl_ms)
end

-- The same in place of a string with this text, which SET writes once more.
local function replace_by_hash(key, text, ttl_ms, ...)
  redis.call('SET', key, text, 'PX', ttl_ms)
  redis.call('PEXPIRE', key, ttl_ms)
  -- As long as the key is a string, HSET fails. Only the reason is of interest: whether this user may send it.
  local refused = redis.pcall('HSET', key, ...)
  if not is_wrong_type(refused.err) then error(refused.err) end
  redis.call('DEL', key)
  redis.call('HSET', key, ...)
  redis.call('PEXPIRE', key, ttl_ms)
end
