-- Sets the number of permits of a Semaphore, and admits the waiters that can now be admitted, in the same step. Holders keep
-- permits above the new number.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- KEYS[3]  the watermark of the partition
-- KEYS[4]  its index
-- ARGV[1]  empty
-- ARGV[2]  empty
-- ARGV[3]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[4]  the number that the caller saw, or empty
-- ARGV[5]  the new number
-- ARGV[6]  1 if clients ask for this number from now on, or empty
-- ARGV[7]  the kind
--
-- Replies
--   {'resized'}
--   {'changed', limit or -1}                the present number is neither of the two, and nothing was changed
--   {'range', 0, 0}                         0 is no number of permits
--   {'kind', type}, {'format', found}       nothing was changed
--
-- A script, so that a late request does not undo a newer one.

local lock = new_lock(KEYS[1], KEYS[2], KEYS[3], nil, ARGV[3], ARGV[#ARGV], KEYS[4])
local claim = claim_of(ARGV[1], ARGV[2])
local failed = read_lock(lock, claim)
if failed then return failed end

if lock.other_type then return { 'kind', lock.other_type } end
local number = tonumber(ARGV[5])
if number == 0 then return { 'range', 0, 0 } end
if lock.limit ~= tonumber(ARGV[4]) and lock.limit ~= number then return { 'changed', lock.limit or -1 } end
begin_record(lock, 0)
local asked_for = lock.agreed or lock.limit or 0
set_limit(lock, number, ARGV[6] == '' and asked_for ~= number and asked_for or nil)
prolong_record(lock, 0)
grant_next(lock)
commit(lock)
return { 'resized' }
