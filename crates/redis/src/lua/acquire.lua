-- Takes the lock if it is free and nobody waits before; else queues, if asked so. Sent twice it equals once, so it is
-- also the look of one who waits already.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the record of the session that the last reply named as standing ahead: if it is dead by now, what it has of the
--          lock is taken from it before anything else
-- KEYS[4]  the lock's audit, with KEYS[3]
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  what the channels of all mailboxes begin with, as say.lua takes them
-- ARGV[4]  lease_ms
-- ARGV[5]  label
-- ARGV[6]  nonce, or empty not to queue
-- ARGV[7]  kept_ms: how long the place lasts
-- ARGV[8]  expiry in ms for a lock of somebody else's that has none, or empty
-- ARGV[9]  life
-- ARGV[10] the session of KEYS[3]
-- ARGV[#]  of a lock that several have side by side, behind all others: the portion, and the kind
--
-- Replies
--   fence      the same as {'granted', fence, lease_ms, 0}, of a Mutex: see acquire_quick.lua
--   {'granted', fence, remaining_ms, 1 if others wait else 0}
--   {'taken', position or -1, ahead or '', its alive_ms or -1, holder…}
--     ahead   the session whose death would bring the asker nearer to the lock; how long it is alive is told of the one
--             that was asked about only
--     holder  nothing                                          nobody holds it
--             remaining_ms or -1                               a client of another library holds it
--             remaining_ms or -1, fence, since_ms, label, session or ''
--   {'spent', how}                                             this hold has ended before
--   {'kind', type}, {'format', found}                          nothing was changed
--
-- Of a lock that several have side by side
--   {'taken', position or -1, ahead or '', its alive_ms or -1, others, holder…}
--     others  the sessions of others whose death may bring the asker nearer, with spaces between; where somebody waits before
--             him, and for an arrival, none
--     holder  nothing                                          nobody is in the way
--             remaining_ms, fence, since_ms, label, session or '', owner or '', portion      the first of those who are
--   {'range', count, limit}                                    so much can never be had of so much
--   {'differ', asked, known}                                   others count on another number
--   {'deadlock'}, {'upgradable'}                               its owner would wait for himself; has nothing to upgrade
--
-- A script, since whether the lock is free, who is next and which fencing token comes are one question.

local ask = ask_of(claim, 4)
local reply, asked, alive_ms
if KEYS[3] then
  reply = settled(ask)
  if not reply then
    local alive, trouble = alive_for(ARGV[10])
    -- Of a session that cannot be looked at nobody knows that it is dead.
    if alive then
      asked, alive_ms = ARGV[10], alive
    elseif not trouble then
      bury(ARGV[10], ask.label)
    end
  end
end
reply = reply or acquire(ask, asked, alive_ms)
commit(reply)
return reply
