-- Ends holds against the will of their holder, and keeps the audit. Part of acquire, evict and force_release, after commit.lua.
-- It decides; `commit` writes.
--
-- `lock.audit`  the lock's audit, the last key: a STRING, a line per entry, newest first:
--                 at_ms \t how \t fence or '' \t 1 if the holder is known, else 0 \t its label \t by

-- How many entries the audit keeps.
local AUDIT_ENTRIES = 32

-- Adds an entry to the audit; `label` is nil if the holder is not known.
local function audit_ending(lock, how, fence, label, by)
  local at_ms = digits(now())
  local lines = { at_ms .. '\t' .. how .. '\t' .. fence .. '\t' .. (label and '1\t' .. label or '0\t') .. '\t' .. by }
  -- A key of another type is no audit.
  local before = lock.new_audit or redis.pcall('GET', lock.audit)
  for line in string.gmatch(type(before) == 'string' and before or '', '[^\n]+') do
    if #lines == AUDIT_ENTRIES then break end
    lines[#lines + 1] = line
  end
  lock.new_audit = table.concat(lines, '\n')
end

-- Ends the holds that match. Returns the fencing token of the first, or nil if none matches. A hold that ends no longer waits: another
-- client may have restored the value of a holder that had queued again. No client restores a single hold of a shared lock.
local function end_by_force(lock, how, by, matches)
  local lost = {}
  for _, holder in ipairs(holders(lock)) do
    if matches(holder) then lost[#lost + 1] = holder end
  end
  if not lost[1] then return end
  local fence = fence_of(lock, lost[1])
  end_holds(lock, matches)
  for _, holder in ipairs(lost) do
    local entry = lock.queued > 0 and not ENTRY_PER_HOLD and queue_entry(lock, holder.session)
    if entry and entry.hold == holder.hold then dequeue(lock, holder.session) end
    record_lost(lock, holder, how)
  end
  audit_ending(lock, how, fence and digits(fence) or '', lost[1].label, by)
  -- Holds of a shared lock have a fencing token each, and people search the audit by token.
  for i = math.max(2, #lost - AUDIT_ENTRIES + 1), lost[1].fence and #lost or 1 do
    audit_ending(lock, how, digits(lost[i].fence), lost[i].label, by)
  end
  return fence
end

-- Ends the holds and the queue entries of a dead session. Returns the fencing token of its hold, or -1; and 1 if it had a queue entry, else 0.
local function evict(lock, dead, by)
  local entries_left = 0
  for _, entry in ipairs(lock.head == '' and {} or entries_of_session(lock, dead)) do
    if session_timeout_ms(entry) then
      dequeue(lock, entry.entry_id)
      entries_left = 1
    end
  end
  local fence = end_by_force(lock, 'evicted', by, function(holder)
    return session_timeout_ms(holder) and holder.session == dead
  end)
  return fence or -1, entries_left
end

-- How long a session counts as alive, in ms, or false if it is dead; then the reply if its record is unreadable. `session_record`
-- is a HASH, as heartbeat.lua describes it. A session without a record may live on a server that lost its data. It counts as alive
-- for as long as its client may trust the hold that it has here.
local function session_alive_ms(lock, session_record, session)
  local found = redis.pcall('HMGET', session_record, 'format', 'until')
  if found.err then return false, found end
  if found[1] and found[1] ~= '1' then return false, { 'format', found[1] } end
  local until_ms = found[2] and tonumber(found[2])
  if not until_ms then
    for _, holder in ipairs(every_holder(lock)) do
      local timeout_ms = holder.session == session and session_timeout_ms(holder)
      if timeout_ms then until_ms = math.max(until_ms or 0, holder.since_ms + timeout_ms) end
    end
    if not until_ms then return false end
  end
  local left_ms = until_ms - now()
  return left_ms >= 0 and left_ms
end

