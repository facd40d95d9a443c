-- Gives a part of a lock up that several have side by side, or leaves the queue; and lets in whoever there is room for then,
-- in the same step.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  its owner, or what else the user has said, or empty
-- ARGV[3]  what the channels of all mailboxes begin with, as say.lua takes them
-- ARGV[4]  'grant'
-- ARGV[5…] nothing, or an acquire that follows in the same step: hold, owner, as acquire's ARGV[4] to ARGV[9], and portion
-- ARGV[#]  the kind
--
-- Replies
--   {found, {holder}, {reply of the acquire}}, the last only if there was one
--     found   held (and now released), queued, released, evicted, freed, vanished, superseded, forgotten
--     holder  as behind the others of 'taken' in acquire, where something else stands there; else empty
--   {'format', found}, and nothing was changed
--
-- The HDEL of the hold comes first, or the DEL of the key, and what follows is no reason to keep it: it must work when memory
-- is full, and for a user that may not publish.

local found = fate(claim)
local holder = found == 'superseded' and tell_holder({}) or {}
local part = held[claim.hold]
if found == 'held' then end_holds(function(part) return part.hold == claim.hold end) end
-- Who gives up at a latch or a barrier has given up for good, also where nothing of him was there: what comes late of him would
-- be counted, and let others in.
local gathers = (KIND == 'latch' or KIND == 'barrier') and not kind and not ended_how(claim.hold)
if found == 'held' or gathers then
  begin_record(0)
  remember(claim.hold, 'released')
  keep_token(part and part.fence)
end
if record_there and first ~= '' and place_of(claim.place) then leave(claim.place) end

local after
if ARGV[6] then after = acquire(ask_of(claim_of(ARGV[5], ARGV[6]), 7)) end
pump()
commit(after)
return { found, holder, after }
