-- What a release ends. Follows queue.lua.

-- Ends the hold of a claim, or removes its queue entry; a number keeps the lock taken until that many ms after the grant of the
-- hold. Returns how the hold was found, the holder if that is another client, and how long the lock is kept taken.
local function end_claim(lock, claim, cooldown_for_ms)
  local found = hold_status(lock, claim)
  local holder = found == 'superseded' and describe_holder(lock, {}) or {}
  local cooldown_ms
  if found == 'held' then
    cooldown_ms = start_cooldown(lock, claim.hold, cooldown_for_ms)
    if not cooldown_ms then end_holds(lock, function(holder) return holder.hold == claim.hold end) end
    record_ending(lock, claim.hold, 'released')
    if not lock.has_record then lock.new_kept_ms = record_ttl(lock, 0) end
    if cooldown_ms then prolong_record(lock, cooldown_ms) end
  end
  if lock.has_record and is_queued(lock, claim) then dequeue(lock, claim.entry_id) end
  return found, holder, cooldown_ms
end
