-- The queue of waiters. Follows the fragments that change a lock's key.

-- How many queue entries one script visits, so that none runs for long.
local MAX_VISITED = 64

-- The ids before and after an entry, '' at the ends. Pending changes override the record.
local function neighbours(lock, id)
  if lock.queued == 1 then return '', '' end
  local p, n, fields = 'p:' .. id, 'n:' .. id, lock.fields
  local links = redis.call('HMGET', lock.record, p, n)
  return id ~= lock.head and (fields[p] or links[1]) or '', id ~= lock.tail and (fields[n] or links[2]) or ''
end

-- Removes an entry.
local function dequeue(lock, id)
  local before, after = neighbours(lock, id)
  if before == '' then lock.head = after elseif after ~= '' then set_field(lock, 'n:' .. before, after) end
  if after == '' then lock.tail = before elseif before ~= '' then set_field(lock, 'p:' .. after, before) end
  lock.queued = lock.queued - 1
  if lock.queued == 0 then lock.next_ticket = 0 end
  lock.entries[id] = false
  set_field(lock, 'w:' .. id, '')
  local stale = lock.stale
  stale['w:' .. id], stale['n:' .. id], stale['p:' .. id] = true, true, true
end

-- How many entries are before this one at most. An exact count would cost more the longer the queue is.
local function position_of(lock, entry)
  if lock.head == entry.entry_id then return 0 end
  local front = queue_entry(lock, lock.head)
  return math.min(front and entry.ticket - front.ticket or entry.ticket, lock.queued - 1)
end

-- Reads two entries at once.
local function read_entries(lock, a, b)
  local entries = lock.entries
  if a == b or entries[a] ~= nil or entries[b] ~= nil then return end
  local texts = redis.call('HMGET', lock.record, 'w:' .. a, 'w:' .. b)
  entries[a], entries[b] = parse_entry(texts[1]), parse_entry(texts[2])
end

-- Adds the request to the queue, or renews its entry. Returns how many are before it at most.
local function enqueue(lock, request)
  local kept_ms = tonumber(request.kept_ms)
  local id, head, tail = request.entry_id, lock.head, lock.tail
  local entry = queue_entry(lock, id)
  local ticket = entry and entry.ticket
  if not entry then
    lock.queued = lock.queued + 1
    if request.goes_first and head ~= '' then
      local front = queue_entry(lock, head)
      ticket = (front and front.ticket or 0) - 1
      set_field(lock, 'n:' .. id, head)
      set_field(lock, 'p:' .. head, id)
      lock.head = id
    else
      if tail ~= '' then
        -- The position needs the first one, and the reply the one before.
        read_entries(lock, head, tail)
        set_field(lock, 'p:' .. id, tail)
        set_field(lock, 'n:' .. tail, id)
      end
      ticket = lock.next_ticket
      lock.next_ticket, lock.tail = ticket + 1, id
      if head == '' then lock.head = id end
    end
  end
  request.ticket, request.expires_ms, lock.entries[id] = ticket, now() + kept_ms, request
  local text = digits(ticket) .. '\n' .. request.nonce .. '\n' .. digits(request.expires_ms) .. '\n' .. request.lease_ms
    .. '\n' .. request.liveness .. '\n' .. request.hold .. '\n' .. request.own .. '\n' .. request.label
  set_field(lock, 'w:' .. id, ENTRY_PER_HOLD and text .. '\n' .. request.mode or text)
  prolong_record(lock, kept_ms)
  return position_of(lock, request)
end

-- Makes a claim a request. Takes its mode, of a shared lock, and then arguments as acquire has them: lease_ms, label, nonce and
-- kept_ms (empty not to queue), the expiry in ms for a foreign lock without one (or empty), liveness. An upgrade goes first, because
-- it blocks every other mode until it is granted.
local function request_of(claim, mode, lease_ms, label, nonce, kept_ms, adopt_ms, liveness)
  claim.lease_ms, claim.label, claim.nonce, claim.kept_ms = lease_ms, label, nonce, kept_ms
  claim.adopt_ms, claim.liveness = adopt_ms, liveness
  if ENTRY_PER_HOLD then
    claim.mode, claim.goes_first = mode, mode == 'x'
  end
  return claim
end

-- The reply to a request that needs no decision: the hold ended, or it has the lock. Else nil.
local function settled_reply(lock, request)
  if lock.other_type then return { 'kind', lock.other_type } end
  local how = how_ended(lock, request.hold)
  if how then return { 'ended', how } end
  if is_held_by(lock, request) then return granted_reply(lock, request) end
end

