-- The texts of a shared lock (Semaphore, RwLock, Latch, Barrier). Follows check_record.lua.
--
-- `lock.key`  a HASH
--            leasehold   its kind, then the number of its holds, of their permits or arrivals, of its writers, of its upgradable
--                        readers and of its owners, and the newest token that it has issued; separated by spaces
--            <hold>      until_ms, since_ms, fence, mode and liveness, separated by spaces; \n owner, of an RwLock, or nothing
--                        \n label
--            o:<owner>   of an RwLock the number of the owner's holds: of all, of upgradable reads, of writes, of upgraded writes
--          mode is p<count>:<of> for permits of a Semaphore; r, u, w or x for read, upgradable read, write and upgraded write of
--          an RwLock; a<count>:<of> for arrivals and t0:<of> for a wait, of a Latch; m1:<of>, of a Barrier
--
-- `lock.ends`  a ZSET, the index: each hold by until_ms
--
-- The holds in the hash are the truth, and all else follows from them. The index and the numbers are right if they agree: if the
-- hash has as many holds and owners as `leasehold` says, and the index as many holds. Otherwise a script was cut off, or knew the
-- lock's key alone, and the next one writes them anew: see shared_read.lua. A hold that was extended by its key alone has an
-- earlier end in the index. Both keys last at least as long as each hold.

-- A token is the hold, without a prefix. Each hold has a queue entry of its own: several waiters of a process may be admitted
-- together.
local TOKEN_PREFIX, ENTRY_PER_HOLD = '', true
-- The place of the record of a session among the keys of a script: after the index.
local SESSION_KEY = 5
-- Before an owner, in the name of its field. No hold begins like this.
local OWNER_PREFIX = 'o:'

-- The units that a mode takes, and how many there are in all; 1 and nil for an RwLock.
local function mode_numbers(mode)
  local count, of = string.match(mode, '^%l(%d+):(%d+)$')
  return tonumber(count or 1), tonumber(of)
end

-- The kind of a lock from its field `leasehold`.
local function kind_of(text)
  return string.match(text or '', '^(%l+) %d')
end

-- Parses the text of a hold. Returns false if it is none.
local function parse_hold(id, text)
  local until_ms, since_ms, fence, mode, liveness, owner, label =
    string.match(text or '', '^(%d+) (%d+) (%d+) (%S+) (%l%d*)\n([^\n]*)\n(.*)$')
  return until_ms and {
    hold = id, session = string.sub(id, 1, SESSION_LENGTH), until_ms = tonumber(until_ms), since_ms = tonumber(since_ms),
    fence = tonumber(fence), mode = mode, liveness = liveness, owner = owner, label = label,
  } or false
end

-- The latest end of all holds, at least `until_ms`. It reads all of them.
local function latest_end_ms(key, until_ms)
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local held = parse_hold(all[i], all[i + 1])
    if held then until_ms = math.max(until_ms, held.until_ms) end
  end
  return until_ms
end

-- Whether two holds are in the order in which they were granted. Only the greatest possible fencing token can occur twice.
local function is_older(a, b)
  if a.fence ~= b.fence then return a.fence < b.fence end
  return a.hold < b.hold
end
