-- Part of all scripts on a lock that several have side by side but extend, after numbers.lua: reads what stands at its key,
-- and fetches what is needed of the record.
--
-- KEYS[1]  the lock: a HASH
--            leasehold   its kind: semaphore, rwlock, latch or barrier. Without a hold beside it nobody has the lock: it is being
--                        made
--            <hold>      until_ms, since_ms, fence, portion and life, with spaces between; \n its owner, of an RwLock, or
--                        nothing \n label
--          portion is p<count>:<of>, of a Semaphore; r, u, w or x, a read, an upgradable one, a write and one that was
--          upgraded, of an RwLock; a<count>:<of> or t0:<of>, arrivals and one who waits for them, of a Latch; m1:<of>, of a Barrier
-- KEYS[2]  the record, as read.lua says
-- ARGV[1]  a hold, a session, or empty
-- ARGV[2]  its owner, of an RwLock; what else stands there means nothing
-- ARGV[#]  the kind, as it stands in the hash
--
-- The key lasts as long as the last of the holds, each of which has its own end. Holds that are over are not among those
-- here; they lie there until something else is written. What has another kind, or none, is not read: it may be long.

local KIND = ARGV[#ARGV]

-- Nobody has such a lock whole, so that nothing is ever its one value. `kind` is the type of what is no such lock.
local value, kind = false, nil
-- Those who have a part, in no order; the same by their holds; and the fields of those who are over.
local parts, held, lying = {}, {}, {}
-- Whether a hash of ours lies there, with holds or without.
local stands = false
-- How many permits or arrivals they have together, how many of them write, and how many may come to; and the greatest fencing
-- token among them.
local taken, writers, upgradable, newest = 0, 0, 0, 0

-- How many of those that are counted a portion takes, and how many there are in all; of an RwLock 1, and nil.
local function numbers_of(portion)
  local count, of = string.match(portion, '^%l(%d+):(%d+)$')
  return tonumber(count or 1), tonumber(of)
end

-- Counts a part in, or out by -1.
local function count_in(part, by)
  taken = taken + by * numbers_of(part.portion)
  if part.portion == 'w' or part.portion == 'x' then writers = writers + by end
  if part.portion == 'u' then upgradable = upgradable + by end
end

-- Understands a hold; says whether it is one.
local function understand(hold, text)
  local until_ms, since_ms, fence, portion, life, owner, label =
    string.match(text, '^(%d+) (%d+) (%d+) (%S+) (%l%d*)\n([^\n]*)\n(.*)$')
  if not until_ms then return false end
  local part = {
    hold = hold, session = string.sub(hold, 1, 16), until_ms = tonumber(until_ms), since_ms = tonumber(since_ms),
    fence = tonumber(fence), portion = portion, life = life, owner = owner, label = label,
  }
  if part.until_ms < now() then
    lying[#lying + 1] = hold
  else
    parts[#parts + 1], held[hold] = part, part
    newest = math.max(newest, part.fence)
    count_in(part, 1)
  end
  return true
end

local word = redis.pcall('HGET', KEYS[1], 'leasehold')
if type(word) == 'table' then
  if string.sub(word.err, 1, 9) ~= 'WRONGTYPE' then return word end
  kind = redis.call('TYPE', KEYS[1]).ok
elseif word == KIND then
  stands = true
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if all[i] ~= 'leasehold' and not understand(all[i], all[i + 1]) then kind = 'hash' end
  end
elseif word or redis.call('HLEN', KEYS[1]) > 0 then
  kind = 'hash'
end

-- Each hold has a place of its own in the queue: those who wait in one process may be let in together.
local by_hold = true

local fields =
  redis.pcall('HMGET', KEYS[2], 'format', 'last', 'tenant', 'ended', 'queue', 'w:' .. ARGV[1], 'limit')
