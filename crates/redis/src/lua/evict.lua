-- Takes from a session what it has of the lock, if it is dead: its hold, its place, or both. A lock that is found free is
-- granted to the next in the same step.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the session's record
-- KEYS[4]  the lock's audit
-- ARGV[1]  the session
-- ARGV[2]  empty
-- ARGV[3]  what the channels of all mailboxes begin with, as say.lua takes them
-- ARGV[4]  who does it
-- ARGV[#]  what the kind has behind all others: see reentrant_change.lua and parts.lua
--
-- Replies
--   {'alive'}                               nothing was changed
--   {'gone', fence or -1, 1 if it had a place else 0}
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, since whether the session is dead and what it has are one question. The DEL comes first, and what follows it
-- is no reason to leave the lock with the dead.

if kind then return { 'kind', kind } end
local alive, trouble = alive_for(ARGV[1])
if trouble then return trouble end
if alive then return { 'alive' } end
local of, left = bury(ARGV[1], ARGV[4])
if not value then pump() end
commit()
return { 'gone', of, left }
