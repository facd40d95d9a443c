-- Describes a shared lock. Writes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  its audit, for a full description
-- KEYS[4]  its history, likewise
-- ARGV[1]  a hold whose status is requested, or empty
-- ARGV[2]  its owner, or another value of the user's own, or empty
-- ARGV[3]  the kind
--
-- Replies
--   {waiting, status or '', limit or -1, agreed or -1, {{holder}…}}   status and holder as in shared_release, oldest first; a
--                                                       full description continues with
--     the text of the audit, or ''
--     the text of the history, or ''
--     {{waiter}…} as list_queue.lua describes them
--     {number, text} of the fields that cannot be read, and of the first of them its name and its text
--   {'kind', type}, {'format', found}
--
-- A script, so that holders, queue and status are of one instant.

-- How many holds the reply describes, so that it is bounded.
local MAX_DESCRIBED = 4096

local lock, claim = new_lock(KEYS[1], KEYS[2], nil, KEYS[3], ARGV[3], ARGV[#ARGV]), claim_of(ARGV[1], ARGV[2])
local failed = read_lock(lock, claim)
if failed then return failed end

-- For people the lock is described without fields that cannot be read. A client gets an error: what it does next depends on all
-- holders.
local unread = KEYS[3] and lock.unread
if lock.other_type and not unread then return { 'kind', lock.other_type } end
local waiting = 0
if lock.head ~= '' then
  local at_ms = now()
  for _, text in ipairs(redis.call('HVALS', KEYS[2])) do
    -- Only a queue entry begins with ticket, nonce and time.
    local expires_ms = string.match(text, '^%-?%d+\n%x+\n(%d+)\n')
    if expires_ms and tonumber(expires_ms) >= at_ms then waiting = waiting + 1 end
  end
end
local described = {}
for i, held in ipairs(lock.live) do
  if i > MAX_DESCRIBED then break end
  described[i] = describe(held, {})
end
local reply = { waiting, claim.hold ~= '' and hold_status(lock, claim) or '', lock.limit or -1, lock.agreed or -1, described }
if KEYS[3] then
  reply[6], reply[7] = text_at(KEYS[3], MAX_AUDIT), text_at(KEYS[4], MAX_HISTORY)
  reply[8] = list_queue(lock)
  if unread then reply[9] = { unread.count, string.sub(unread.first, 1, MAX_SHOWN) } end
end
return reply
