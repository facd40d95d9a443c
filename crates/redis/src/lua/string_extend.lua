-- Extends one hold of a Mutex or an Election where extend.lua is not enough: the token does not identify the hold, the record
-- must last as long, fencing tokens are reserved for local hand-offs, or the hold must be of one grant. Never shortens it.
--
-- KEYS[1]  the lock
-- KEYS[2]  its record
-- ARGV[1]  the hold
-- ARGV[2]  the user's own value in place of the hold as token, or empty
-- ARGV[3]  lease_ms: the least remaining time of the hold afterwards
-- ARGV[4]  '1' to make the record last as long, or empty
-- ARGV[5]  the fencing token of the only grant of the hold that is extended, or empty
-- ARGV[6]  prefix of the token of a lock of this kind, or empty
-- ARGV[7]  how many fencing tokens to reserve, of a Mutex; or nothing
-- ARGV[8]  '1' to get a message when another session requests the lock
--
-- Replies
--   {first, count, 1 if others wait else 0}      extended, and these tokens are reserved
--   1                   extended, and nothing is reserved: the record does not know this hold, or memory is full
--   0                   not held, or of another grant
--   {'format', found}   the record, which identifies a user's own value and a grant, has another format
--
-- A script, because comparing the token and extending its key are one step. PEXPIRE is the first write: full memory does not
-- refuse it.

-- How many tokens are reserved at once at most, and how many of them are ahead of the clock.
local BLOCK, AHEAD = 1024, 32

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not is_wrong_type(value.err) then return value end
  return 0
end
local own = ARGV[2]
if value ~= ARGV[6] .. (own == '' and ARGV[1] or own) then return 0 end

local lock = { key = KEYS[1], record = KEYS[2] }
local failed = fetch_fields(lock)
if own ~= '' or ARGV[5] ~= '' then
  if failed then return failed end
  if not is_newest(lock, ARGV[1], own) then return 0 end
  if ARGV[5] ~= '' and lock.fence ~= tonumber(ARGV[5]) then return 0 end
end
if own ~= '' then
  -- The hold ended, and another client holds the lock by the same value.
  if lock.ended and string.find(lock.ended, string.sub(ARGV[1], ENDED_FROM, ENDED_TO), 1, true) then return 0 end
end

-- Reserves tokens for the newest holder. Returns the reply, or nil if nothing is reserved. They follow all tokens that were
-- issued or reserved, if these are recent, and never outrun the clock.
local function reserve()
  local last = lock.fence
  local upto, notify_word = string.match(lock.reserved or '', '^(%d+) ?(%l*)$')
  upto = upto and tonumber(upto) or 0
  local _, now_us = now()
  local first = math.min(math.max(math.max(last, upto) + 1, now_us - (BLOCK - AHEAD)), GREATEST_FENCE)
  local count = math.min(math.max(tonumber(ARGV[7]), 1), BLOCK)
  local most = math.max(math.min(first + count - 1, now_us + AHEAD - 1, GREATEST_FENCE), first)
  local notify = ARGV[8] == '1' or notify_word == 'notify' and upto > last
  -- Full memory may refuse it, which is no reason not to extend.
  local written = write_field(lock, 'reserved', digits(most) .. (notify and ' notify' or ''))
  if type(written) == 'table' and written.err then return end
  local has_waiters = lock.queue and string.byte(lock.queue) ~= BYTE_ZERO
  return { first, most - first + 1, has_waiters and 1 or 0 }
end

local lease_ms = tonumber(ARGV[3])
local ttl_ms = redis.call('PTTL', KEYS[1])
if ttl_ms < lease_ms then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end

if failed or not lock.has_record then return 1 end
if ARGV[4] == '1' then lengthen_record(lock, lock.fence, lease_ms) end
if ARGV[7] and lock.fence and is_newest(lock, ARGV[1], own) then return reserve() or 1 end
return 1
