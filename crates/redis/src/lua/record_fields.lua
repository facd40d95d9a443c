-- Changes of a record by scripts that change nothing else of the lock's state. Follows check_record.lua.

-- Fetches the record without a queue entry. Returns an error reply, or nil.
local function fetch_fields(lock)
  local fields = redis.pcall('HMGET', lock.record, 'format', 'last', 'holder', 'ended', 'queue', 'w:', 'reserved')
  return check_record(lock, nil, fields)
end

-- Whether the newest holder of the record is this hold with this value of the user's own.
local function is_newest(lock, hold, own)
  if not lock.holder_text then return false end
  local newest, newest_own = string.match(lock.holder_text, '^([^\n]*)\n%d+\n%l%d*\n([^\n]*)\n')
  return newest == hold and newest_own == own
end

-- Makes the record last as long as a token, or a hold of `lease_ms`, needs it.
local function lengthen_record(lock, fence, lease_ms)
  local ahead_ms = fence and math.floor(fence / 1000) - now() or 0
  local kept_ms = math.max(ahead_ms, lease_ms) + RECORD_KEPT_MS
  if redis.call('PTTL', lock.record) < kept_ms - RECORD_KEPT_MS / 2 then
    redis.call('PEXPIRE', lock.record, digits(kept_ms))
  end
end

-- Writes the record's newest token, or what is reserved. Returns the reply of the server.
local function write_field(lock, field, text)
  local written
  if lock.is_packed then
    local fence, reserved = lock.fence, lock.reserved
    if field == 'last' then fence = tonumber(text) else reserved = text end
    written = redis.pcall('SET', lock.record, packed_text(fence, reserved, lock.ended, lock.holder_text), 'KEEPTTL')
  else
    written = redis.pcall('HSET', lock.record, field, text)
  end
  return written
end
