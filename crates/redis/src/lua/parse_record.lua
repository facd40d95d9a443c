-- Parses the record on demand. Writes nothing. Follows the fragment of the kind, which has TOKEN_PREFIX and ENTRY_PER_HOLD.

-- The text of a holder.
local HOLDER = '^([^\n]*)\n(%d+)\n(%l%d*)\n([^\n]*)\n(.*)$'

-- A claim: the hold, its own value, the token that the lock's key has for it, its session and the id of its queue entry.
local function claim_of(hold, own)
  local session = string.sub(hold, 1, SESSION_LENGTH)
  return {
    hold = hold, own = own, token = TOKEN_PREFIX .. (own == '' and hold or own), session = session,
    entry_id = ENTRY_PER_HOLD and hold or session,
  }
end

-- The session timeout of a hold or a queue entry in ms, or nil if the death of the session does not end it.
local function session_timeout_ms(of)
  return tonumber(string.match(of.liveness, '^s(%d+)$'))
end

-- The newest holder that the record knows, or false.
local function recorded_holder(lock)
  local recorded = lock.recorded
  if recorded == nil then
    recorded = false
    if lock.holder_text then
      local hold, since_ms, liveness, own, label =
        string.match(lock.holder_text, HOLDER)
      recorded = claim_of(hold, own)
      recorded.since_ms, recorded.liveness, recorded.label = tonumber(since_ms), liveness, label
    end
    lock.recorded = recorded
  end
  return recorded
end

local function parse_entry(text)
  if not text or text == '' then return false end
  -- A ticket is negative if its entry was put before the first.
  local ticket, nonce, expires_ms, lease_ms, liveness, hold, own, label, mode =
    string.match(text, '^(%-?%d+)\n(%x+)\n(%d+)\n(%d+)\n(%l%d*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n?(.*)$')
  local entry = claim_of(hold, own)
  entry.ticket, entry.nonce, entry.expires_ms = tonumber(ticket), nonce, tonumber(expires_ms)
  entry.lease_ms, entry.liveness, entry.label, entry.mode = lease_ms, liveness, label, mode
  return entry
end

-- The queue entry with this id, or false.
local function queue_entry(lock, id)
  local entries = lock.entries
  if entries[id] == nil then
    local text = lock.entry_text
    -- A record without a queue has no entries, and is no hash.
    if id ~= lock.entry_id then text = lock.queue and redis.call('HGET', lock.record, 'w:' .. id) end
    entries[id] = parse_entry(text)
  end
  return entries[id]
end

-- How a hold ended, as in the replies, or nil if the record does not list it.
local function listed_ending(lock, hold)
  local ended = lock.ended or ''
  local _, at = string.find(ended, string.sub(hold, ENDED_FROM, ENDED_TO), 1, true)
  local mark = at and string.sub(ended, at + 1, at + 1)
  return mark == '.' and 'released' or mark == '!' and 'evicted' or mark == '~' and 'force_released' or nil
end

-- Whether the claim has a queue entry. The entry of its session may belong to another hold.
local function is_queued(lock, of)
  local entry = queue_entry(lock, of.entry_id)
  return entry and entry.hold == of.hold
end

-- The remaining time of the lock's key; -1 if it never expires.
local function lock_ttl(lock)
  lock.ttl_ms = lock.ttl_ms or redis.call('PTTL', lock.key)
  return lock.ttl_ms
end

