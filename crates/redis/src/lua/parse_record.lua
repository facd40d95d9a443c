-- Parses the record on demand. Writes nothing. Follows check_record.lua and numbers.lua.
--
-- Scripts change these variables first and write them at the end, so no key is read twice.

-- A claim: the hold, its own value, the token that the lock's key has for it, its session and the id of its queue entry.
local function claim_of(hold, own)
  local session = string.sub(hold, 1, SESSION_LENGTH)
  return {
    hold = hold, own = own, token = own == '' and hold or own, session = session,
    entry_id = entry_per_hold and hold or session,
  }
end

local claim = claim_of(ARGV[1], ARGV[2])

-- The queue.
local next_ticket, queue_size, first_id, last_id = 0, 0, '', ''
if fields[5] then
  queue_size, next_ticket, first_id, last_id = string.match(fields[5], '^(%d+) (%d+) (%S*) (%S*)$')
  queue_size, next_ticket = tonumber(queue_size), tonumber(next_ticket)
end

-- The session timeout of a hold or a queue entry in ms, or nil if the death of the session does not end it.
local function session_timeout_ms(of)
  return tonumber(string.match(of.life, '^s(%d+)$'))
end

-- The newest holder that the record knows, or false.
local recorded
local function recorded_holder()
  if recorded == nil then
    recorded = false
    if fields[3] then
      local hold, since_ms, life, own, label =
        string.match(fields[3], '^([^\n]*)\n(%d+)\n(%l%d*)\n([^\n]*)\n(.*)$')
      recorded = claim_of(hold, own)
      recorded.since_ms, recorded.life, recorded.label = tonumber(since_ms), life, label
    end
  end
  return recorded
end

-- Queue entries read so far, by id; false if there is none.
local queue_entries = {}
local function parse_entry(text)
  if not text or text == '' then return false end
  -- A ticket is negative if its entry was put before the first.
  local ticket, nonce, expires_ms, lease_ms, life, hold, own, label, mode =
    string.match(text, '^(%-?%d+)\n(%x+)\n(%d+)\n(%d+)\n(%l%d*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n?(.*)$')
  local entry = claim_of(hold, own)
  entry.ticket, entry.nonce, entry.expires_ms = tonumber(ticket), nonce, tonumber(expires_ms)
  entry.lease_ms, entry.life, entry.label, entry.mode = lease_ms, life, label, mode
  return entry
end
local function queue_entry(id)
  if queue_entries[id] == nil then
    local text = fields[6]
    if id ~= claim.entry_id then text = redis.call('HGET', KEYS[2], 'w:' .. id) end
    queue_entries[id] = parse_entry(text)
  end
  return queue_entries[id]
end

-- How a hold ended, as in the replies, or nil if `ended` does not list it.
local function how_ended(hold)
  local _, at = string.find(ended or '', string.sub(hold, ENDED_FROM, ENDED_TO), 1, true)
  local mark = at and string.sub(ended, at + 1, at + 1)
  return mark == '.' and 'released' or mark == '!' and 'evicted' or mark == '~' and 'freed' or nil
end

-- Whether the claim has a queue entry. The entry of its session may belong to another hold.
local function is_queued(of)
  local entry = queue_entry(of.entry_id)
  return entry and entry.hold == of.hold
end

-- The remaining life of the lock's key; -1 if it never expires.
local lock_ttl_ms
local function lock_ttl()
  lock_ttl_ms = lock_ttl_ms or redis.call('PTTL', KEYS[1])
  return lock_ttl_ms
end

