-- Part of acquire, evict and free, after commit.lua: taking the lock from whoever has it, and writing that down. It decides;
-- `commit` writes.
--
-- KEYS[3]  the record of a session, in acquire and evict: a HASH, as beat.lua says
-- KEYS[#]  the lock's audit, which is the last key: a STRING, a line an entry, the last one first:
--            at_ms \t how \t fence or '' \t 1 if it is known whose hold it was, else 0 \t whose \t by
--
-- An acquire that names no session makes none of these functions.

local take, note, bury, alive_for
if KEYS[3] then

-- How many entries the audit keeps.
local ENTRIES_AT_MOST = 32

-- Writes down that a hold was ended; `whose` is nil where that is not known.
function note(how, fence, whose, by)
  local at_ms = digits(now())
  local lines = { at_ms .. '\t' .. how .. '\t' .. fence .. '\t' .. (whose and '1\t' .. whose or '0\t') .. '\t' .. by }
  -- What else may stand there is no audit.
  local before = audit or redis.pcall('GET', KEYS[#KEYS])
  for line in string.gmatch(type(before) == 'string' and before or '', '[^\n]+') do
    if #lines == ENTRIES_AT_MOST then break end
    lines[#lines + 1] = line
  end
  audit = table.concat(lines, '\n')
end

-- Ends those holds that `goes` says, which others end than their holders; gives the fencing token of the first, or nil if
-- there are none.
function take(how, by, goes)
  local lost = {}
  for _, holder in ipairs(lessees()) do
    if goes(holder) then lost[#lost + 1] = holder end
  end
  if not lost[1] then return end
  local of = lost[1].fence or fence()
  end_holds(goes)
  if begin_record then begin_record(0) end
  if record_there or begin_record then
    for _, holder in ipairs(lost) do
      remember(holder.hold, how)
      if keep_token then keep_token(holder.fence) end
    end
  end
  note(how, of and digits(of) or '', lost[1].label, by)
  -- Who shares a lock has a fencing token of his own, by which others may look for him.
  for i = 2, lost[1].fence and #lost or 1 do note(how, digits(lost[i].fence), lost[i].label, by) end
  return of
end

-- Ends what a dead session has of the lock; gives the fencing token of its hold, or -1, and 1 if it had a place, else 0.
function bury(dead, by)
  local left = 0
  for _, place in ipairs(first == '' and {} or places_of and places_of(dead) or { place_of(dead) or nil }) do
    if lives(place) then
      leave(place.place)
      left = 1
    end
  end
  local of = take('evicted', by, function(holder) return lives(holder) and holder.session == dead end)
  return of or -1, left
end

-- How long the session of KEYS[3] is to be taken for alive, in ms, or false if it is dead; and what keeps it from being
-- looked at. One that is not known may have been forgotten, with all else that the server knew, and live: it has the benefit
-- of the doubt for as long as its client may believe in the hold that it has here.
function alive_for(session)
  local found = redis.pcall('HMGET', KEYS[3], 'format', 'until')
  if found.err then return false, found end
  if found[1] and found[1] ~= '1' then return false, { 'format', found[1] } end
  local until_ms = found[2] and tonumber(found[2])
  if not until_ms then
    for _, holder in ipairs(lessees()) do
      local alive_ms = holder.session == session and lives(holder)
      if alive_ms then until_ms = math.max(until_ms or 0, holder.since_ms + alive_ms) end
    end
    if not until_ms then return false end
  end
  local left_ms = until_ms - now()
  return left_ms >= 0 and left_ms
end

end

