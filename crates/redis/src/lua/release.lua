-- Gives a hold up: frees the lock if it has it, leaves the queue if it waits there. The freed lock is granted to the
-- next in the queue in the same step.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  what the channels of all mailboxes begin with, as say.lua takes them
-- ARGV[4]  'grant', or 'free' to leave a freed lock to whoever comes first; or 'tell' for the same, and to say so on the
--          channel that stands behind all others; or a number, where the lock is to stay taken by
--          nobody until so many ms after it was given to this hold, or as with 'grant' if they are over
-- ARGV[5…] nothing, or an acquire that follows in the same step: hold, own value, and as acquire's ARGV[4] to ARGV[9]
--
-- Replies
--   'held'     the same as {'held', {}}, of a Mutex: see release_quick.lua
--   {found, {holder}, {reply of the acquire}}, the last only if there was one
--     found   held (and now released), queued, released, evicted, freed, vanished, superseded, forgotten
--     holder  as behind 'taken' in acquire, where somebody else was found to hold the lock; else empty
--   {'format', found}, and nothing was changed
--
-- The DEL comes first, and what follows it is no reason to keep the lock: it must work when memory is full, and for a
-- user that may not publish. A number in ARGV[4] is for the text of this script that has no part of release_quick, which does
-- not look there.

local found = fate(claim)
local holder = found == 'superseded' and tell_holder({}) or {}
local resting
if found == 'held' then
  resting = rest and rest(tonumber(ARGV[4]))
  if not resting then end_holds(function(holder) return holder.hold == claim.hold end) end
  remember(claim.hold, 'released')
  if not record_there then new_record_ttl_ms = record_ttl(0) end
  if resting then keep_record(resting) end
end
if record_there and waits(claim) then leave(claim.place) end

local reply = { found, holder, count and (value == claim.token and count or 0) }
local after
local grants = ARGV[4] ~= 'free' and ARGV[4] ~= 'tell' and not resting
if ARGV[6] then
  local ask = ask_of(claim_of(ARGV[5], ARGV[6]), 7)
  -- It may be here for the second time: the hold may have been granted since, and ended.
  after = grants and acquire(ask) or settled(ask) or enter_again(ask) or wait(ask)
elseif grants and not value and not kind then
  pump()
end
commit(after)
reply[#reply + 1] = after
return reply
