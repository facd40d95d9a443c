-- Acquires the lock if it is free and no request is queued before this one, else queues the request if it has a nonce.
-- It is idempotent, so waiters also poll with it.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the watermark of the partition
-- Then     of a shared lock, its index
-- Then     the record of the session that the last reply named as predecessor, if any: if the session is dead, its hold and its
--          queue entries are removed first; and the lock's audit
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  lease_ms
-- ARGV[5]  label
-- ARGV[6]  nonce, or empty not to queue
-- ARGV[7]  kept_ms: how long the queue entry lasts
-- ARGV[8]  the expiry in ms for a foreign lock that has none, or empty
-- ARGV[9]  liveness
-- ARGV[10] the session of that record
-- ARGV[#]  of a shared lock, after all others: mode and kind
--
-- Replies
--   fence      the same as {'granted', fence, lease_ms, 0}, of a Mutex: see acquire_quick.lua
--   {'granted', fence, remaining_ms, 1 if others wait else 0}
--   {'taken', position or -1, predecessor or '', its alive_ms or -1, holder…}
--     predecessor  the session whose death would bring the request closer to the lock. alive_ms is known of ARGV[10] only
--     holder  nothing                                          the lock is free
--             remaining_ms or -1                               held by a client of another library
--             remaining_ms or -1, fence, since_ms, label, session or ''
--   {'ended', how}                                             this hold has already ended
--   {'kind', type}, {'format', found}                          nothing was changed
--
-- Of a shared lock
--   {'taken', position or -1, predecessor or '', its alive_ms or -1, others, holder…}
--     others  further sessions whose death may bring the request closer, separated by spaces; none if another entry is before
--             it in the queue, or it waits for arrivals
--     holder  nothing                                          no hold blocks the request
--             remaining_ms, fence, since_ms, label, session or '', owner or '', mode         the first hold that blocks it
--   {'range', count, limit}                                    the request can never be granted
--   {'differ', requested, known, limit}                            other clients use another number
--   {'deadlock'}, {'upgradable'}                               the owner would wait for itself; it holds nothing to upgrade
--
-- A script, because three decisions must be atomic: is the lock free, which waiter is next, and which
-- fencing token follows.

local lock = new_lock(KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS], ARGV[3], ARGV[#ARGV], KEYS[4])
local claim = claim_of(ARGV[1], ARGV[2])
if READ then lock.read_value, lock.read_record, lock.read_fields = READ[1], READ[2], READ.fields end
local failed = read_lock(lock, claim) or missing_watermark(lock)
if failed then return failed end

local request = request_of(claim, ARGV[#ARGV - 1], unpack(ARGV, 4, 9))
local reply, inspected, alive_ms
if KEYS[SESSION_KEY] then
  reply = settled_reply(lock, request)
  if not reply then
    local alive, unreadable = session_alive_ms(lock, KEYS[SESSION_KEY], ARGV[10])
    -- A session whose record is unreadable is not known to be dead.
    if alive then
      inspected, alive_ms = ARGV[10], alive
    elseif not unreadable then
      evict(lock, ARGV[10], request.label)
    end
  end
end
reply = reply or acquire(lock, request, inspected, alive_ms)
commit(lock, reply)
return reply
