-- Writes the pending changes in the order that change.lua gives. Follows the fragments that decide.

-- The record of an idle lock lists endings, for a while. The watermark has the token.
local function write_settled(lock)
  raise_watermark(lock)
  redis.call('SET', lock.record, packed_text(nil, nil, lock.ended), 'PX', RELEASED_KEPT_MS)
end

local function write_string(lock)
  local kept_ms = lock.new_kept_ms
  if not next(lock.fields) and not (lock.has_record and kept_ms) then return end
  local fields = lock.fields
  local text = packed_text(lock.fence, fields.limit or lock.reserved, lock.ended, fields.holder or lock.holder_text)
  if lock.has_record and not kept_ms then
    redis.call('SET', lock.record, text, 'KEEPTTL')
  else
    redis.call('SET', lock.record, text, 'PX', digits(kept_ms or record_ttl(lock, 0)))
  end
end

local function write_hash(lock)
  local queue = digits(lock.queued) .. ' ' .. digits(lock.next_ticket) .. ' ' .. lock.head .. ' ' .. lock.tail
  if queue ~= lock.queue then set_field(lock, 'queue', queue) end
  local fields, kept_ms = lock.fields, lock.new_kept_ms
  local texts = {}
  for field, text in pairs(fields) do texts[#texts + 1], texts[#texts + 2] = field, text end
  if lock.is_packed then
    local fence = lock.fence and digits(lock.fence)
    local kept = { last = fence, holder = lock.holder_text, ended = lock.ended }
    kept[ENTRY_PER_HOLD and 'limit' or 'reserved'] = lock.reserved
    for field, text in pairs(kept) do
      if text and not fields[field] then texts[#texts + 1], texts[#texts + 2] = field, text end
    end
    local ttl_ms = digits(kept_ms or lock.kept_ms)
    replace_by_hash(lock.record, lock.is_packed, ttl_ms, 'format', '1', unpack(texts))
  elseif not lock.has_record then
    create_hash(lock.record, digits(kept_ms or record_ttl(lock, 0)), 'format', '1', unpack(texts))
  else
    if texts[1] then redis.call('HSET', lock.record, unpack(texts)) end
    if kept_ms then redis.call('PEXPIRE', lock.record, digits(kept_ms)) end
  end
end

local function write_record(lock)
  if lock.is_settled then
    write_settled(lock)
  elseif lock.queued > 0 or lock.has_record and not lock.is_packed then
    return write_hash(lock)
  else
    write_string(lock)
  end
  -- There is no field to delete.
  lock.stale = {}
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

