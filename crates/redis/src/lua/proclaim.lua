-- Replaces the text that observers of an Election see for its leader. Its fencing token and its lease stay as they are.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  the fencing token of the hold
-- ARGV[4]  the text that the caller last saw
-- ARGV[5]  the new text
-- ARGV[6]  the channel for observers
--
-- Replies
--   {'proclaimed'}      the record has the new text, from this call or an earlier one
--   {'changed', text}   held, and the text is neither of the two: nothing was changed
--   {'not_held'}        not held, or of another grant, or the record does not know this hold
--   {'format', found}   the record has another format
--
-- A script, because comparing the hold and its text and replacing the text are one step: a late call undoes no later one.

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not is_wrong_type(value.err) then return value end
  return { 'not_held' }
end
local own = ARGV[2]
if value ~= 'election\n' .. (own == '' and ARGV[1] or own) then return { 'not_held' } end

local lock = { key = KEYS[1], record = KEYS[2] }
local failed = fetch_fields(lock)
if failed then return failed end
if not is_newest(lock, ARGV[1], own) or lock.fence ~= tonumber(ARGV[3]) then return { 'not_held' } end
-- The hold ended, and another client leads by the same value.
if own ~= '' and lock.ended and string.find(lock.ended, string.sub(ARGV[1], ENDED_FROM, ENDED_TO), 1, true) then
  return { 'not_held' }
end

local before, text = string.match(lock.holder_text, '^([^\n]*\n%d+\n%l%d*\n[^\n]*\n)(.*)$')
if text ~= ARGV[5] then
  if text ~= ARGV[4] then return { 'changed', text } end
  local written
  if lock.is_packed then
    local packed = packed_text(lock.fence, lock.reserved, lock.ended, before .. ARGV[5])
    written = redis.pcall('SET', KEYS[2], packed, 'KEEPTTL')
  else
    written = redis.pcall('HSET', KEYS[2], 'holder', before .. ARGV[5])
  end
  if type(written) == 'table' and written.err then return written end
  publish(ARGV[6], 'leader ' .. ARGV[3])
end
return { 'proclaimed' }
