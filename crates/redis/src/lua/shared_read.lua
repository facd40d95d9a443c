-- Reads the key of a shared lock (Semaphore, RwLock, Latch, Barrier), and fetches its record. Follows numbers.lua.
--
-- KEYS[1]  the lock: a HASH
--            leasehold   its kind: semaphore, rwlock, latch or barrier. Without any hold the lock is being created: it is not
--                        held yet
--            <hold>      until_ms, since_ms, fence, mode and life, separated by spaces; \n owner, of an RwLock, or nothing
--                        \n label
--          mode is p<count>:<of> for permits of a Semaphore; r, u, w or x for read, upgradable read, write and upgraded write of
--          an RwLock; a<count>:<of> for arrivals and t0:<of> for a wait, of a Latch; m1:<of>, of a Barrier
-- KEYS[2]  the record, as check_record.lua describes it
-- ARGV[1]  a hold, a session, or empty
-- ARGV[2]  its owner, of an RwLock; ignored for other kinds
-- ARGV[#]  the kind, as in the hash
--
-- The key lasts as long as the longest hold; each hold has an end of its own. Expired holds are left out here, and stay in the
-- hash until the next write. A hash of another kind, or of none, is not read: it may be long.

local KIND = ARGV[#ARGV]

-- No holder has all of a shared lock, so there is no `value`. `other_type` is the type of the key if it is no such lock.
local value, other_type = false, nil
-- The live holds in no order; the same by id; and the ids of the expired ones.
local shared_holds, hold_by_id, expired_ids = {}, {}, {}
-- Whether the key exists as a lock of this kind, with holds or without.
local lock_exists = false
-- The permits or arrivals of all holds, the number of writers, of upgradable readers, and the greatest fencing token.
local units_held, writers, upgradable, newest_fence = 0, 0, 0, 0

-- The units that a mode takes, and how many there are in all; 1 and nil for an RwLock.
local function mode_numbers(mode)
  local count, of = string.match(mode, '^%l(%d+):(%d+)$')
  return tonumber(count or 1), tonumber(of)
end

-- Adds a hold to the totals; by -1 removes it.
local function count_hold(held, by)
  units_held = units_held + by * mode_numbers(held.mode)
  if held.mode == 'w' or held.mode == 'x' then writers = writers + by end
  if held.mode == 'u' then upgradable = upgradable + by end
end

-- Parses a field. Returns false if it is no hold.
local function parse_hold(id, text)
  local until_ms, since_ms, fence, mode, life, owner, label =
    string.match(text, '^(%d+) (%d+) (%d+) (%S+) (%l%d*)\n([^\n]*)\n(.*)$')
  if not until_ms then return false end
  local held = {
    hold = id, session = string.sub(id, 1, SESSION_LENGTH), until_ms = tonumber(until_ms), since_ms = tonumber(since_ms),
    fence = tonumber(fence), mode = mode, life = life, owner = owner, label = label,
  }
  if held.until_ms < now() then
    expired_ids[#expired_ids + 1] = id
  else
    shared_holds[#shared_holds + 1], hold_by_id[id] = held, held
    newest_fence = math.max(newest_fence, held.fence)
    count_hold(held, 1)
  end
  return true
end

local word = redis.pcall('HGET', KEYS[1], 'leasehold')
if type(word) == 'table' then
  if string.sub(word.err, 1, #WRONG_TYPE) ~= WRONG_TYPE then return word end
  other_type = redis.call('TYPE', KEYS[1]).ok
elseif word == KIND then
  lock_exists = true
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if all[i] ~= 'leasehold' and not parse_hold(all[i], all[i + 1]) then other_type = 'hash' end
  end
elseif word or redis.call('HLEN', KEYS[1]) > 0 then
  other_type = 'hash'
end

-- Each hold has a queue entry of its own: several waiters of a process may be admitted together.
local entry_per_hold = true

local fields =
  redis.pcall('HMGET', KEYS[2], 'format', 'last', 'tenant', 'ended', 'queue', 'w:' .. ARGV[1], 'limit')
