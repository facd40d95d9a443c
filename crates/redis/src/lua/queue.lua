-- The queue of waiters. Follows the fragments that change a lock's key.

-- How many queue entries one script visits, so that none runs for long.
local MAX_VISITED = 64

-- The ids before and after an entry, '' at the ends. Pending changes override the record.
local function neighbours(id)
  if queue_size == 1 then return '', '' end
  local p, n = 'p:' .. id, 'n:' .. id
  local links = redis.call('HMGET', KEYS[2], p, n)
  return id ~= first_id and (new_fields[p] or links[1]) or '', id ~= last_id and (new_fields[n] or links[2]) or ''
end

-- Removes an entry.
local function dequeue(id)
  local before, after = neighbours(id)
  if before == '' then first_id = after elseif after ~= '' then set_field('n:' .. before, after) end
  if after == '' then last_id = before elseif before ~= '' then set_field('p:' .. after, before) end
  queue_size = queue_size - 1
  queue_entries[id] = false
  set_field('w:' .. id, '')
  stale_fields['w:' .. id], stale_fields['n:' .. id], stale_fields['p:' .. id] = true, true, true
end

-- How many entries are before this one at most. An exact count would cost more the longer the queue is.
local function position_of(entry)
  if first_id == entry.entry_id then return 0 end
  local front = queue_entry(first_id)
  return math.min(front and entry.ticket - front.ticket or entry.ticket, queue_size - 1)
end

-- Adds the request to the queue, or renews its entry. Returns how many are before it at most.
local function enqueue(request)
  local kept_ms = tonumber(request.kept_ms)
  local id = request.entry_id
  local entry = queue_entry(id)
  local ticket = entry and entry.ticket
  if not entry and request.goes_first and first_id ~= '' then
    local front = queue_entry(first_id)
    ticket, queue_size = (front and front.ticket or 0) - 1, queue_size + 1
    set_field('n:' .. id, first_id)
    set_field('p:' .. first_id, id)
    first_id = id
  elseif not entry then
    if last_id ~= '' then
      set_field('p:' .. id, last_id)
      set_field('n:' .. last_id, id)
    end
    ticket, next_ticket, queue_size, last_id = next_ticket, next_ticket + 1, queue_size + 1, id
    if first_id == '' then first_id = id end
  end
  request.ticket, request.expires_ms, queue_entries[id] = ticket, now() + kept_ms, request
  local text = digits(ticket) .. '\n' .. request.nonce .. '\n' .. digits(request.expires_ms) .. '\n' .. request.lease_ms
    .. '\n' .. request.life .. '\n' .. request.hold .. '\n' .. request.own .. '\n' .. request.label
  set_field('w:' .. id, entry_per_hold and text .. '\n' .. request.mode or text)
  prolong_record(kept_ms)
  return position_of(request)
end

-- Reads an acquire request from ARGV[at] on: lease_ms, label, nonce and kept_ms (empty not to queue), the expiry in ms for a
-- foreign lock without one (or empty), life. For shared locks the last two arguments are mode and kind. An upgrade goes first,
-- because it blocks every other mode until it is granted.
local function read_request(request, at)
  request.lease_ms, request.label, request.nonce = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  request.kept_ms, request.adopt_ms, request.life = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  if entry_per_hold then
    request.mode = ARGV[#ARGV - 1]
    request.goes_first = request.mode == 'x'
  end
  return request
end

-- The reply to a request that needs no decision: the hold ended, or it has the lock. Else nil.
local function settled_reply(request)
  if other_type then return { 'kind', other_type } end
  local how = how_ended(request.hold)
  if how then return { 'spent', how } end
  if is_held_by(request) then return granted_reply(request) end
end

