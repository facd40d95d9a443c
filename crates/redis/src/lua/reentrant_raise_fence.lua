-- Raises the fencing token of all holds of a ReentrantMutex to the one that a quorum of servers agreed on for one of them. Lowers
-- it only if it is to be exact.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  its owner
-- ARGV[3]  the fencing token
-- ARGV[4]  '1' if the token is to be exactly that
--
-- Replies
--   1                   held, and the token is at least as great, or exactly that
--   0                   not held, or there is no record
--   {'format', found}   the record has another format
--
-- A script, because finding the hold and raising its token are one step. The record is written first: tokens that are issued
-- later are greater than its token, even if the lock's key was not written.

local lock = { key = KEYS[1], record = KEYS[2] }
local failed = read_holds(lock, ARGV[2] == '' and ARGV[1] or ARGV[2])
if failed then return failed end

local held
for _, entry in ipairs(lock.holds) do
  if entry.hold == ARGV[1] then held = true end
end
if not held then return 0 end

failed = fetch_fields(lock)
if failed then return failed end
if not lock.has_record then return 0 end

local last, fence, exact = lock.fence or 0, tonumber(ARGV[3]), ARGV[4] == '1'
lengthen_record(lock, math.max(last, fence), 0)
if fence > last or (exact and fence < last) then
  local written = write_field(lock, 'last', ARGV[3])
  if type(written) == 'table' and written.err then return written end
end
local owner_fence = lock.owner_fence or 0
if fence > owner_fence or (exact and fence < owner_fence) then
  lock.owner_fence = fence
  local ttl_ms = own_ttl_ms(lock)
  if ttl_ms then redis.call('PEXPIRE', KEYS[1], digits(ttl_ms)) end
  redis.call('HSET', KEYS[1], 'leasehold', packed_holds(lock), lock.value, digits(lock.count))
end
return 1
