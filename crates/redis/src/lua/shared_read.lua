-- Reads a shared lock (Semaphore, RwLock, Latch, Barrier). Follows check_record.lua.
--
-- `lock.key`  a HASH
--            leasehold   its kind: semaphore, rwlock, latch or barrier. Without any hold the lock is not held
--            <hold>      until_ms, since_ms, fence, mode and liveness, separated by spaces; \n owner, of an RwLock, or nothing
--                        \n label
--          mode is p<count>:<of> for permits of a Semaphore; r, u, w or x for read, upgradable read, write and upgraded write of
--          an RwLock; a<count>:<of> for arrivals and t0:<of> for a wait, of a Latch; m1:<of>, of a Barrier
--
-- The key lasts as long as the longest hold; each hold has an end of its own. Expired holds are left out here, and stay in the
-- hash until the next write. A hash of another kind, or of none, is not read: it may be long.
--
-- It adds to `lock`, or sets there
--   kind           the kind, as in the hash: the last argument of the script
--   value          false: no holder has all of a shared lock
--   other_type     the type of the key if it is no such lock
--   exists         whether the key exists as a lock of this kind, with holds or without
--   holds, by_id   the live holds in no order; the same by id
--   expired        the ids of the expired holds
--   units          the permits or arrivals of all holds
--   writers        the number of writers
--   upgradable     the number of upgradable readers
--   newest         the greatest fencing token of the holds
--   limit          the limit that the record knows, or nil

-- A token is the hold, without a prefix. Each hold has a queue entry of its own: several waiters of a process may be admitted
-- together.
local TOKEN_PREFIX, ENTRY_PER_HOLD = '', true

-- The units that a mode takes, and how many there are in all; 1 and nil for an RwLock.
local function mode_numbers(mode)
  local count, of = string.match(mode, '^%l(%d+):(%d+)$')
  return tonumber(count or 1), tonumber(of)
end

-- Adds a hold to the totals; by -1 removes it.
local function count_hold(lock, held, by)
  local mode = held.mode
  lock.units = lock.units + by * mode_numbers(mode)
  if mode == 'w' or mode == 'x' then lock.writers = lock.writers + by end
  if mode == 'u' then lock.upgradable = lock.upgradable + by end
end

-- Parses a field. Returns false if it is no hold.
local function parse_hold(lock, id, text)
  local until_ms, since_ms, fence, mode, liveness, owner, label =
    string.match(text, '^(%d+) (%d+) (%d+) (%S+) (%l%d*)\n([^\n]*)\n(.*)$')
  if not until_ms then return false end
  local held = {
    hold = id, session = string.sub(id, 1, SESSION_LENGTH), until_ms = tonumber(until_ms), since_ms = tonumber(since_ms),
    fence = tonumber(fence), mode = mode, liveness = liveness, owner = owner, label = label,
  }
  if held.until_ms < now() then
    lock.expired[#lock.expired + 1] = id
  else
    lock.holds[#lock.holds + 1], lock.by_id[id] = held, held
    lock.newest = math.max(lock.newest, held.fence)
    count_hold(lock, held, 1)
  end
  return true
end

-- Reads the holds. Returns an error reply, or nil.
local function read_holds(lock)
  local key = lock.key
  local word = redis.pcall('HGET', key, 'leasehold')
  if type(word) == 'table' then
    if string.sub(word.err, 1, #WRONG_TYPE) ~= WRONG_TYPE then return word end
    lock.other_type = redis.call('TYPE', key).ok
  elseif word == lock.kind then
    lock.exists = true
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
      if all[i] ~= 'leasehold' and not parse_hold(lock, all[i], all[i + 1]) then lock.other_type = 'hash' end
    end
  elseif word or redis.call('HLEN', key) > 0 then
    lock.other_type = 'hash'
  end
end

-- Reads the lock's key and its record. Returns an error reply, or nil.
local function read_lock(lock, claim)
  lock.kind, lock.holds, lock.by_id, lock.expired = lock.channel, {}, {}, {}
  lock.units, lock.writers, lock.upgradable, lock.newest = 0, 0, 0, 0
  local failed = read_holds(lock)
  if failed then return failed end
  local id = claim.hold
  local fields =
    redis.pcall('HMGET', lock.record, 'format', 'last', 'holder', 'ended', 'queue', 'w:' .. id, 'limit')
  failed = check_record(lock, id, fields)
  lock.limit = lock.reserved and tonumber(lock.reserved) or nil
  return failed
end

