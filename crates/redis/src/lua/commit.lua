-- Writes the pending changes in the order that change.lua gives. Follows the fragments that decide.

local function write_record(lock)
  local queue = digits(lock.queued) .. ' ' .. digits(lock.next_ticket) .. ' ' .. lock.head .. ' ' .. lock.tail
  if lock.next_ticket > 0 and queue ~= lock.queue then set_field(lock, 'queue', queue) end
  local texts, kept_ms = {}, lock.new_kept_ms
  for field, text in pairs(lock.fields) do texts[#texts + 1], texts[#texts + 2] = field, text end
  if texts[1] then
    if lock.has_record then
      redis.call('HSET', lock.record, unpack(texts))
    else
      create_hash(lock.record, digits(kept_ms or record_ttl(lock, 0)), 'format', '1', unpack(texts))
    end
  end
  if lock.has_record and kept_ms then redis.call('PEXPIRE', lock.record, digits(kept_ms)) end
end

-- Steps 2 to 6.
local function write_changes(lock)
  write_record(lock)
  write_lock(lock)
  local stale = {}
  for field in pairs(lock.stale) do stale[#stale + 1] = field end
  if stale[1] then redis.call('HDEL', lock.record, unpack(stale)) end
  -- Without permission to publish, waiters still poll, and holders learn of their end when they extend.
  for _, message in ipairs(lock.messages) do publish(lock.mailboxes .. message[1], message[2], true) end
  announce_free(lock)
  -- The audit is the last key of the scripts that end holds of others.
  if lock.new_audit then redis.pcall('SET', lock.audit, lock.new_audit, 'PX', AUDIT_KEPT_MS) end
end

-- An error after a hold ended is not reported to the client that released it, because the next script repairs the state. But the
-- reply to an acquire in the same script must not report a grant that was not written.
local function commit(lock, has_request)
  local ended_any = write_ended(lock)
  if ended_any and not has_request then pcall(write_changes, lock) else write_changes(lock) end
end

