-- Gives a hold up: frees the lock if it has it, leaves the queue if it waits there. The freed lock is granted to the
-- next in the queue in the same step.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  what the channels of all mailboxes begin with
-- ARGV[4]  'grant', or 'free' to leave a freed lock to whoever comes first
-- ARGV[5…] nothing, or an acquire that follows in the same step: hold, own value, and as acquire's ARGV[4] to ARGV[8]
--
-- Replies
--   {found, {holder}, {reply of the acquire}}, the last only if there was one
--     found   held (and now released), queued, released, evicted, vanished, superseded, forgotten
--     holder  as behind 'taken' in acquire, where somebody else was found to hold the lock; else empty
--   {'format', found}, and nothing was changed
--
-- The DEL comes first, and what follows it is no reason to keep the lock: it must work when memory is full, and for a
-- user that may not publish.

local found = fate(claim)
local holder = found == 'superseded' and tell_holder({}) or {}
if found == 'held' then
  redis.call('DEL', KEYS[1])
  value, value_ttl_ms = false, nil
  if not record_there then create_record(0) end
  ended = claim.hold .. ' released'
  redis.call('HSET', KEYS[2], 'ended', ended)
end
if record_there and waits(claim) then
  local ticket = place_of(claim.session).ticket
  redis.call('HDEL', KEYS[2], 't:' .. digits(ticket), 'w:' .. claim.session)
  places[claim.session] = false
end

if ARGV[5] then
  local ask = ask_of(claim_of(ARGV[5], ARGV[6]), 7)
  if ARGV[4] == 'grant' then return { found, holder, acquire(ask) } end
  if kind then return { found, holder, { 'kind', kind } } end
  return { found, holder, wait(ask) }
end
-- What goes wrong with a grant is not the releaser's: the next to look grants it.
if ARGV[4] == 'grant' and not value and not kind then pcall(pump) end
return { found, holder }
