-- Part of acquire, release, evict and free, and of resize, after what decides: writes what was decided, in the order that
-- change.lua gives.

local function write_record()
  local queue = digits(size) .. ' ' .. digits(tail) .. ' ' .. first .. ' ' .. final
  if tail > 0 and queue ~= fields[5] then put('queue', queue) end
  local texts = {}
  for field, text in pairs(changes) do texts[#texts + 1], texts[#texts + 2] = field, text end
  if texts[1] then
    if not record_there then
      redis.call('RESTORE', KEYS[2], digits(new_record_ttl_ms or record_ttl(0)), EMPTY_RECORD)
    end
    redis.call('HSET', KEYS[2], unpack(texts))
  end
  if record_there and new_record_ttl_ms then redis.call('PEXPIRE', KEYS[2], digits(new_record_ttl_ms)) end
end

local function write_rest()
  write_record()
  write_lock()
  local fields_over = {}
  for field in pairs(over) do fields_over[#fields_over + 1] = field end
  if fields_over[1] then redis.call('HDEL', KEYS[2], unpack(fields_over)) end
  -- A user that may not publish has his waiters look by themselves, and holders find out when they extend.
  for _, message in ipairs(messages) do say(ARGV[3] .. message[1], message[2], true) end
  if tell_strangers then tell_strangers() end
  -- The lock's audit is the last key of those that take locks.
  if audit then redis.pcall('SET', KEYS[#KEYS], audit, 'PX', AUDIT_KEPT_MS) end
end

-- Writes what was decided. What goes wrong after a hold was given up is not the releaser's: the next to look mends it. But
-- who has `asked` for something in the same step must not be told that he got what could not be written.
local function commit(asked)
  local given_up = write_off()
  if given_up and not asked then pcall(write_rest) else write_rest() end
end

