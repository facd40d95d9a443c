-- Releases a hold of a shared lock, or removes its queue entry, and admits the waiters that can now be admitted, in the same
-- step.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  its owner, or another value of the user's own, or empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  'grant'
-- ARGV[5…] nothing, or an acquire that follows in the same step: hold, owner, then as ARGV[4] to ARGV[9] of acquire, and mode
-- ARGV[#]  the kind
--
-- Replies
--   {found, {holder}, {reply of the acquire}}, the last only if there was one
--     found   held (and now released), queued, released, evicted, freed, vanished, superseded, forgotten
--     holder  as after the others of 'taken' in acquire, if the key is no such lock; else empty
--   {'format', found}, and nothing was changed
--
-- The HDEL of the hold comes first, or the DEL of the key, and no later error is a reason to keep the hold: a release must work
-- under full memory, and without permission to publish.

local found = hold_status(claim)
local holder = found == 'superseded' and describe_holder({}) or {}
local held = hold_by_id[claim.hold]
if found == 'held' then end_holds(function(other) return other.hold == claim.hold end) end
-- A release at a Latch or a Barrier is final, also if nothing of the hold exists: its acquire may arrive later, would be counted,
-- and would admit others.
local is_final = (KIND == 'latch' or KIND == 'barrier') and not other_type and not how_ended(claim.hold)
if found == 'held' or is_final then
  begin_record(0)
  record_ending(claim.hold, 'released')
  keep_token(held and held.fence)
end
if record_exists and first_id ~= '' and queue_entry(claim.entry_id) then dequeue(claim.entry_id) end

local acquire_reply
if ARGV[6] then acquire_reply = acquire(read_request(claim_of(ARGV[5], ARGV[6]), 7)) end
grant_next()
commit(acquire_reply)
return { found, holder, acquire_reply }
