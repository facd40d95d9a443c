-- Writes the pending changes in the order that change.lua gives. Follows the fragments that decide.

local function write_record()
  local queue = digits(queue_size) .. ' ' .. digits(next_ticket) .. ' ' .. first_id .. ' ' .. last_id
  if next_ticket > 0 and queue ~= fields[5] then set_field('queue', queue) end
  local texts = {}
  for field, text in pairs(new_fields) do texts[#texts + 1], texts[#texts + 2] = field, text end
  if texts[1] then
    if not record_exists then
      redis.call('RESTORE', KEYS[2], digits(new_record_ttl_ms or record_ttl(0)), EMPTY_RECORD)
    end
    redis.call('HSET', KEYS[2], unpack(texts))
  end
  if record_exists and new_record_ttl_ms then redis.call('PEXPIRE', KEYS[2], digits(new_record_ttl_ms)) end
end

-- Steps 2 to 6.
local function write_changes()
  write_record()
  write_lock()
  local stale = {}
  for field in pairs(stale_fields) do stale[#stale + 1] = field end
  if stale[1] then redis.call('HDEL', KEYS[2], unpack(stale)) end
  -- Without permission to publish, waiters still poll, and holders learn of their end when they extend.
  for _, message in ipairs(messages) do publish(ARGV[3] .. message[1], message[2], true) end
  if announce_free then announce_free() end
  -- The audit is the last key of the scripts that end holds of others.
  if new_audit then redis.pcall('SET', KEYS[#KEYS], new_audit, 'PX', AUDIT_KEPT_MS) end
end

-- Errors after a hold ended are not reported to its releaser: the next script repairs the state. But the reply to an acquire
-- in the same script must not report a grant that was not written.
local function commit(has_request)
  local ended_any = write_ended()
  if ended_any and not has_request then pcall(write_changes) else write_changes() end
end

