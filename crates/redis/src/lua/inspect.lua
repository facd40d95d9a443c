-- Describes a lock, or several locks, each without details. Writes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  its audit, for a full description
-- KEYS[4]  its history, likewise
-- KEYS[5]  of a Mutex, for a full description: the line of its waiters, on a node of a quorum
-- ARGV[1]  a hold whose status is requested, or empty
-- ARGV[2]  the user's own value in place of that hold as token, or empty
-- ARGV[3]  'each' for several: then KEYS are each lock and its record, and ARGV[1] and ARGV[2] are empty
--
-- Replies
--   {waiting, status or '', {holder}}   status and holder as in release; a full description continues with
--     the SHA-1 of the value that a client of another library put at the lock's key, or ''
--     the text of the audit, or ''
--     the text of the history, or ''
--     {{waiter}…} as list_queue.lua describes them
--     {1, text} if the record has a holder that cannot be read, and its text
--   {'kind', type}, {'format', found}
--   of several: a list with a reply to each; nil if the caller should ask for it alone
--
-- A script, so that holder, queue and status are of one instant. Several in one call, because most of what a call costs is to
-- begin it.

local claim, EACH = claim_of(ARGV[1], ARGV[2]), ARGV[3] == 'each'

local function waiting_for(lock)
  local waiting = 0
  if lock.head ~= '' then
    local at_ms = now()
    for _, text in ipairs(redis.call('HVALS', lock.record)) do
      -- Only a queue entry begins with ticket, nonce and time.
      local expires_ms = string.match(text, '^%d+\n%x+\n(%d+)\n')
      if expires_ms and tonumber(expires_ms) >= at_ms then waiting = waiting + 1 end
    end
  end
  return waiting
end

-- The lock whose key is the one at this place. `full` is the place of the audit, for a full description.
local function inspect(at, full)
  local lock = new_lock(KEYS[at], KEYS[at + 1], nil, full and KEYS[full])
  -- A string as a rule. A hash is read again.
  local record = redis.pcall('GET', lock.record)
  if type(record) == 'string' then lock.read_record = record end
  local failed = read_lock(lock, claim)
  if failed then return failed end

  if lock.other_type then return { 'kind', lock.other_type } end
  -- For people the lock is described without a holder that cannot be read. A client gets an error: what it does next depends on it.
  local unread = full and lock.holder_text and not string.match(lock.holder_text, HOLDER) and lock.holder_text
  if unread then lock.recorded = false end
  local reply = { waiting_for(lock), claim.hold ~= '' and hold_status(lock, claim) or '', describe_holder(lock, {}) }
  if full then
    reply[4] = lock.value and not first_holder(lock) and redis.sha1hex(lock.value) or ''
    reply[5], reply[6] = text_at(KEYS[full], MAX_AUDIT), text_at(KEYS[full + 1], MAX_HISTORY)
    reply[7] = list_queue(lock)
    if KEYS[full + 2] and lock.head == '' then reply[7] = list_line(redis.pcall('GET', KEYS[full + 2])) end
    if unread then reply[8] = { 1, string.sub(unread, 1, MAX_SHOWN) } end
  end
  return reply
end

if not EACH then return inspect(1, KEYS[3] and 3) end
local replies = {}
for at = 1, #KEYS, 2 do
  local is_done, reply = pcall(inspect, at)
  replies[#replies + 1] = is_done and not reply.err and reply
end
return replies
