-- Says how many permits a Semaphore has from now on, whoever holds how many of them; and lets in whoever there is room for
-- then, in the same step. Who holds more than there are goes on.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  empty
-- ARGV[2]  empty
-- ARGV[3]  what the channels of all mailboxes begin with, as say.lua takes them
-- ARGV[4]  how many there were when it was looked at, or empty
-- ARGV[5]  how many there are to be
-- ARGV[6]  the kind
--
-- Replies
--   {'resized'}
--   {'changed', limit or -1}                there are neither as many as were seen, nor as many as there are to be, and nothing
--                                           was changed
--   {'range', 0, 0}                         nothing is no number of permits
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, since one that comes late is to undo nobody's later word.

if kind then return { 'kind', kind } end
local number = tonumber(ARGV[5])
if number == 0 then return { 'range', 0, 0 } end
if limit ~= tonumber(ARGV[4]) and limit ~= number then return { 'changed', limit or -1 } end
begin_record(0)
set_limit(number)
keep_record(0)
pump()
commit()
return { 'resized' }
