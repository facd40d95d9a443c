-- Describes the lock. Writes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  its audit, for a full description
-- KEYS[4]  its history, likewise
-- KEYS[5]  of a Mutex, for a full description: the line of its waiters, on a node of a quorum
-- ARGV[1]  a hold whose status is requested, or empty
-- ARGV[2]  the user's own value in place of that hold as token, or empty
--
-- Replies
--   {waiting, status or '', {holder}}   status and holder as in release; a full description continues with
--     the SHA-1 of the value that a client of another library put at the lock's key, or ''
--     the text of the audit, or ''
--     the text of the history, or ''
--     {{waiter}…} as list_queue.lua describes them
--     {1, text} if the record has a holder that cannot be read, and its text
--   {'kind', type}, {'format', found}
--
-- A script, so that holder, queue and status are of one instant.

local lock, claim = new_lock(KEYS[1], KEYS[2], nil, KEYS[3], ARGV[3], ARGV[#ARGV]), claim_of(ARGV[1], ARGV[2])
local failed = read_lock(lock, claim)
if failed then return failed end

if lock.other_type then return { 'kind', lock.other_type } end
-- For people the lock is described without a holder that cannot be read. A client gets an error: what it does next depends on it.
local unread = KEYS[3] and lock.holder_text and not string.match(lock.holder_text, HOLDER) and lock.holder_text
if unread then lock.recorded = false end
local waiting = 0
if lock.head ~= '' then
  local at_ms = now()
  for _, text in ipairs(redis.call('HVALS', KEYS[2])) do
    -- Only a queue entry begins with ticket, nonce and time.
    local expires_ms = string.match(text, '^%d+\n%x+\n(%d+)\n')
    if expires_ms and tonumber(expires_ms) >= at_ms then waiting = waiting + 1 end
  end
end
local reply = { waiting, claim.hold ~= '' and hold_status(lock, claim) or '', describe_holder(lock, {}) }
if KEYS[3] then
  reply[4] = lock.value and not first_holder(lock) and redis.sha1hex(lock.value) or ''
  local past = redis.pcall('MGET', KEYS[3], KEYS[4])
  reply[5], reply[6] = string.sub(past[1] or '', 1, MAX_AUDIT), string.sub(past[2] or '', 1, MAX_HISTORY)
  reply[7] = list_queue(lock)
  if KEYS[5] and lock.head == '' then reply[7] = list_line(redis.pcall('GET', KEYS[5])) end
  if unread then reply[8] = { 1, string.sub(unread, 1, MAX_SHOWN) } end
end
return reply
