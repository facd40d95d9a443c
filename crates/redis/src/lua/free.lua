-- Frees the lock by the will of a person, whoever has it: the holder is told, and the next in the queue gets it.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the lock's audit
-- ARGV[1]  empty
-- ARGV[2]  empty
-- ARGV[3]  what the channels of all mailboxes begin with, as say.lua takes them
-- ARGV[4]  who does it
-- ARGV[5]  'hold', and then a fencing token; 'stranger', and then the SHA-1 of what a client of another library has put at
-- ARGV[6]  the lock's key
--
-- Replies
--   {'freed'}
--   {'changed', {holder}}                   it is not held so, and nothing was changed; holder as in release
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, since nobody may lose a lock that has come to him since it was looked at. The DEL comes first: it must work
-- when memory is full.

if kind then return { 'kind', kind } end
local holder, of = lessee(), fence()
if ARGV[5] == 'hold' and holder and of and digits(of) == ARGV[6] then
  local known = {}
  for _, who in ipairs(lessees()) do
    if not known[who.session] then
      known[who.session], messages[#messages + 1] = true, { who.session, 'freed ' .. ARGV[6] }
    end
  end
  take('freed', ARGV[4], function() return true end)
  -- A client of another library may have entered a ReentrantMutex, too.
  give_up()
elseif ARGV[5] == 'stranger' and value and not holder and redis.sha1hex(value) == ARGV[6] then
  give_up()
  note('freed', '', nil, ARGV[4])
else
  return { 'changed', tell_holder({}) }
end
pump()
commit()
return { 'freed' }
