-- Reads all live holds of a shared lock, for a script that describes them. Follows shared_hold.lua.
--
-- It adds to `lock`, or sets there
--   value       false: no holder has all of a shared lock
--   other_type  the type of the key if it is no such lock
--   live        the live holds, the oldest first
--   by_id       the same by id
--   unread      of the fields that cannot be read: their number, and the first. Then `other_type` is set, too

-- Reads the holds. Returns an error reply, or nil.
local function read_holds(lock)
  local text = redis.pcall('HGET', lock.key, 'leasehold')
  if type(text) == 'table' then
    if not is_wrong_type(text.err) then return text end
    lock.other_type = redis.call('TYPE', lock.key).ok
  elseif kind_of(text) == lock.channel then
    local all = redis.call('HGETALL', lock.key)
    for i = 1, #all, 2 do
      local held = parse_hold(all[i], all[i + 1])
      if held and held.until_ms >= now() then lock.live[#lock.live + 1], lock.by_id[held.hold] = held, held end
      local is_known = held or all[i] == 'leasehold' or string.sub(all[i], 1, #OWNER_PREFIX) == OWNER_PREFIX
      if not is_known then
        lock.other_type, lock.unread = 'hash', lock.unread or { count = 0, first = all[i] .. ' ' .. all[i + 1] }
        lock.unread.count = lock.unread.count + 1
      end
    end
    table.sort(lock.live, is_older)
  elseif text or redis.call('HLEN', lock.key) > 0 then
    -- A hash of another kind, or of none, is not read: it may be long.
    lock.other_type = 'hash'
  end
end

-- Reads the lock's key and its record. Returns an error reply, or nil.
local function read_lock(lock, claim)
  lock.live, lock.by_id = {}, {}
  local failed = read_holds(lock)
  if failed then return failed end
  return fetch_shared_record(lock, claim.hold)
end

-- The hold with this id, or false.
local function find_hold(lock, id)
  return lock.by_id[id] or false
end
