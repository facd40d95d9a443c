-- The operations that the quick paths of batch.lua leave. An operation that fails is left to the caller, too: sent alone, it gets the
-- error of the server.

local function acquire_one(lock, hold, lease_ms, described, queue)
  local claim = claim_of(hold, '')
  local failed = read_lock(lock, claim)
  if failed then return not failed.err and failed end
  local liveness, label = string.match(described, '^([^\n]*)\n\n(.*)$')
  local nonce, kept_ms, adopt_ms = string.match(queue, '^(%x*)\n(%d*)\n(%d*)$')
  local reply = acquire(lock, request_of(claim, nil, lease_ms, label, nonce, kept_ms, adopt_ms, liveness))
  commit(lock, reply)
  return reply
end

local function release_one(lock, hold)
  local claim = claim_of(hold, '')
  local failed = read_lock(lock, claim)
  if failed then return not failed.err and failed end
  local found, holder = end_claim(lock, claim)
  if not lock.value and not lock.other_type then grant_next(lock) end
  if found == 'held' or found == 'queued' then settle_idle(lock) end
  commit(lock)
  return { found, holder }
end

local argument, acquires = 3, tonumber(ARGV[2])
for at = 1, (#KEYS - 1) / 2 do
  local arguments = at <= acquires and 4 or 1
  if not REPLIES[at] and not REFUSED[at] then
    local lock = new_lock(KEYS[2 * at], KEYS[2 * at + 1], KEYS[1], nil, ARGV[1])
    lock.read_value, lock.read_record = READ[2 * at], READ[2 * at + 1]
    local handle = at <= acquires and acquire_one or release_one
    local is_done, reply = pcall(handle, lock, unpack(ARGV, argument, argument + arguments - 1))
    REPLIES[at] = is_done and reply or false
  end
  argument = argument + arguments
end
return REPLIES
