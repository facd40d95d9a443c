-- Grants shared locks: which modes exclude each other, and which waiters are admitted. Follows queue.lua.
--
-- Every script that can admit a waiter serves the queue from the front until the next entry has to wait: no later request with
-- a smaller demand passes an earlier one. The only requests that pass the queue are those for which it would wait.

-- The maximum number of further sessions for a waiter to watch, at a time.
local MAX_WATCHED = 16

-- The number of units in all: of a Semaphore as the record knows it, else as the mode says. Parties of a Barrier and users of a
-- Latch have agreed on it.
local function limit_of(lock, mode)
  local _, of = mode_numbers(mode)
  return lock.kind == 'semaphore' and lock.limit or of
end

-- Whether a number of permits is the one that the record knows, or the one for which the clients ask.
local function agrees(lock, of)
  return not lock.limit or of == lock.limit or of == lock.agreed or lock.agreed == 0
end

-- Has the record keep the number of a mode.
local function keep_limit(lock, mode)
  local number = limit_of(lock, mode)
  local _, of = mode_numbers(mode)
  local agreed = lock.agreed
  if agreed == 0 then agreed = of end
  if number then set_limit(lock, number, agreed ~= number and agreed or nil) end
end

-- How many holds the request's owner has: of a mode that is not a read, or of all.
local function owner_holds(lock, request, mode)
  if lock.kind ~= 'rwlock' then return 0 end
  return owner_counts(lock, request.own)[mode or 'all']
end

-- Whether the request's owner has a write, upgraded or not. It gets every further mode at once: no other owner has a hold then.
local function is_written_by(lock, request)
  return lock.writers > 0 and owner_holds(lock, request, 'w') + owner_holds(lock, request, 'x') > 0
end

-- The entries at the front of the queue, MAX_VISITED at most: pairs of an id and its entry or false.
local function front_entries(lock)
  local found, at, entries = {}, lock.head, lock.entries
  while at ~= '' and #found < MAX_VISITED do
    local n = 'n:' .. at
    local after = lock.fields[n]
    if entries[at] == nil then
      local texts = redis.call('HMGET', lock.record, 'w:' .. at, n)
      entries[at], after = parse_entry(texts[1]), after or texts[2]
    elseif not after and at ~= lock.tail then
      after = redis.call('HGET', lock.record, n)
    end
    found[#found + 1] = { at, entries[at] }
    at = at ~= lock.tail and after or ''
  end
  return found
end

-- The entries of a session, from the front of the queue, MAX_VISITED at most.
local function entries_of_session(lock, session)
  local found = {}
  for _, text in ipairs(redis.call('HVALS', lock.record)) do
    -- Only a queue entry begins like this.
    local hold = string.match(text, '^%-?%d+\n%x+\n%d+\n%d+\n%l%d*\n([^\n]*)\n')
    if hold and string.sub(hold, 1, SESSION_LENGTH) == session then
      local entry = parse_entry(text)
      lock.entries[hold], found[#found + 1] = entry, entry
    end
  end
  table.sort(found, function(a, b) return a.ticket < b.ticket end)
  return { unpack(found, 1, math.min(#found, MAX_VISITED)) }
end

-- Whether the lock has no holds and no live queue entries, as far as one script looks.
local function is_idle(lock)
  if lock.hold_count > 0 or lock.queued > MAX_VISITED then return false end
  for _, found in ipairs(front_entries(lock)) do
    if found[2] and found[2].expires_ms >= now() then return false end
  end
  return true
end

-- The reply to a request that can never be granted, or nil. It must not block the others.
local function rejection(lock, request)
  local kind, mode = lock.kind, request.mode
  local count, of = mode_numbers(mode)
  if kind == 'semaphore' then
    local agreed = agrees(lock, of)
    if count > 0 and not agreed and not is_idle(lock) then return { 'differ', of, lock.agreed or lock.limit, lock.limit } end
    local most = agreed and limit_of(lock, mode) or of
    return (count == 0 or count > most) and { 'range', count, most } or nil
  elseif kind == 'rwlock' then
    if mode == 'x' then return owner_holds(lock, request, 'u') == 0 and { 'upgradable' } or nil end
    if mode == 'r' or is_written_by(lock, request) then return end
    return owner_holds(lock, request) > 0 and { 'deadlock' } or nil
  end
  if kind == 'barrier' then
    if of == 0 or of > MAX_VISITED then return { 'range', of, MAX_VISITED } end
  elseif of == 0 or count == 0 and string.sub(mode, 1, 1) == 'a' then
    -- An arrival counts at least once; a wait for arrivals does not count.
    return { 'range', count, of }
  end
  local limit = lock.limit
  return limit and limit ~= of and not is_idle(lock) and { 'differ', of, limit, limit } or nil
end

-- When a request can be admitted: 'now', 'later' (after others release), or 'never' as it stands.
local function admission(lock, request)
  local mode = request.mode
  local letter, free = string.sub(mode, 1, 1), false
  if letter == 'p' then
    local count, most = mode_numbers(mode), limit_of(lock, mode)
    if count > most then return 'never' end
    free = lock.units + count <= most
  elseif letter == 'r' then
    free = lock.writers == 0
  elseif letter == 'u' then
    free = lock.writers == 0 and lock.upgradable == 0
  elseif letter == 'w' then
    free = lock.hold_count == 0 or is_written_by(lock, request) and owner_holds(lock, request) == lock.hold_count
  elseif letter == 'x' then
    if owner_holds(lock, request, 'u') == 0 then return 'never' end
    free = owner_holds(lock, request) == lock.hold_count
  elseif letter == 't' then
    -- Expired arrivals that still count do not open it.
    free = lock.units >= limit_of(lock, mode) and not has_expired(lock)
  elseif letter == 'a' then
    free = true
  end
  return free and 'now' or 'later'
end

-- Whether a request passes the queue: an arrival, a read of an owner that has a hold, a write of one that writes, and an upgrade,
-- which would be first in the queue also if it does not wait. A lock without holds can still have waiters.
local function passes_queue(lock, request)
  local letter = string.sub(request.mode, 1, 1)
  return letter == 'a' or (letter == 'r' or letter == 'u') and owner_holds(lock, request) > 0
    or (letter == 'x' or letter == 'w' and is_written_by(lock, request)) and admission(lock, request) == 'now'
end

local function admit(lock, request)
  keep_limit(lock, request.mode)
  add_hold(lock, request)
end

-- Admits a queue entry, with a message unless it belongs to `request`, which gets a reply.
local function grant_entry(lock, entry, request)
  admit(lock, entry)
  if not request or request.hold ~= entry.hold then
    lock.messages[#lock.messages + 1] = { entry.session, 'grant ' .. entry.nonce .. ' ' .. digits(lock.fence) }
  end
end

-- Admits the parties of a Barrier together if there are enough, else none. A `request` that does not queue comes after all of
-- them. The request `known` gets a reply.
local function admit_parties(lock, request, known)
  local present, extra = {}, request
  for _, found in ipairs(front_entries(lock)) do
    local entry = found[2]
    if entry and entry.expires_ms >= now() then
      present[#present + 1] = entry
      if request and entry.hold == request.hold then extra = nil end
    else
      dequeue(lock, found[1])
    end
  end
  if lock.queued ~= #present then extra = nil end
  local _, requested = mode_numbers(extra and extra.mode or '')
  local of = lock.limit or requested
  if not of or of == 0 or #present + (extra and 1 or 0) < of then return end
  for i = 1, math.min(of, #present) do
    dequeue(lock, present[i].entry_id)
    grant_entry(lock, present[i], known)
  end
  if extra and #present < of then admit(lock, extra) end
end

-- Admits the next entries of the queue; `request` gets a reply.
local function serve_queue(lock, request)
  if lock.kind == 'barrier' then return admit_parties(lock, nil, request) end
  for _ = 1, MAX_VISITED do
    local id = lock.head
    if id == '' then break end
    local entry = queue_entry(lock, id)
    local when = entry and entry.expires_ms >= now() and admission(lock, entry) or 'never'
    if when == 'later' then return end
    dequeue(lock, id)
    if when == 'now' then grant_entry(lock, entry, request) end
  end
end

-- The same; then admits the request if the queue is empty.
local function grant_next(lock, request)
  if lock.other_type then return end
  if lock.kind == 'barrier' then return admit_parties(lock, request, request) end
  serve_queue(lock, request)
  if request and lock.head == '' and not is_held_by(lock, request) and admission(lock, request) == 'now' then
    admit(lock, request)
  end
end

-- The reply to a request that has to wait. Its predecessor is the entry before it in the queue; or else the session `inspected`, if
-- one of the holds that end first and block it is its, or the first of their sessions. The others follow from there on and around:
-- so successive polls inspect each of them in turn.
local function taken_reply(lock, request, position, inspected, alive_ms)
  local blocking, before, id = {}, nil, request.entry_id
  if lock.kind == 'semaphore' or lock.kind == 'rwlock' then
    for _, held in ipairs(holders(lock)) do
      if held.owner == '' or held.owner ~= request.own then blocking[#blocking + 1] = held end
    end
  end
  if position ~= -1 and queue_entry(lock, id) and lock.head ~= id then
    local link = lock.fields['p:' .. id] or redis.call('HGET', lock.record, 'p:' .. id)
    before = link and queue_entry(lock, link)
  end
  local sessions, known = {}, { [request.session] = true }
  for _, of in ipairs(before and { before } or blocking) do
    if session_timeout_ms(of) and not known[of.session] then
      known[of.session], sessions[#sessions + 1] = true, of.session
    end
  end
  local start, others = 0, {}
  for at, session in ipairs(sessions) do
    if session == inspected then start = at - 1 end
  end
  local predecessor = sessions[start + 1] or ''
  for at = 1, math.min(MAX_WATCHED, #sessions) - 1 do others[at] = sessions[(start + at) % #sessions + 1] end
  local reply =
    { 'taken', position, predecessor, predecessor == inspected and alive_ms or -1, table.concat(others, ' ') }
  return blocking[1] and describe(blocking[1], reply) or reply
end

-- `inspected` is a session that is known to live for `alive_ms`, or nil.
local function acquire(lock, request, inspected, alive_ms)
  local reply, id = settled_reply(lock, request), request.entry_id
  if reply then return reply end
  -- First the entries that can be admitted: another hold of this owner may be among them, which changes what it can get.
  serve_queue(lock, request)
  if is_held_by(lock, request) then return granted_reply(lock, request) end
  reply = rejection(lock, request)
  -- A refusal is final: not on account of expired holds that still count.
  if reply and (reply[1] == 'deadlock' or reply[1] == 'differ') and has_expired(lock) then
    return taken_reply(lock, request, -1, inspected, alive_ms)
  end
  if reply then
    -- The client will not poll again, so its entry must not block the queue.
    if lock.head ~= '' and queue_entry(lock, id) then
      dequeue(lock, id)
      grant_next(lock)
    end
    return reply
  end
  if lock.kind == 'semaphore' then
    local _, of = mode_numbers(request.mode)
    -- A Semaphore that no client uses takes the number of the first client.
    if not agrees(lock, of) then lock.limit, lock.agreed = nil, nil end
  end
  -- With an empty queue and a free lock no entry is needed.
  if lock.head == '' and admission(lock, request) == 'now' or passes_queue(lock, request) then
    if lock.head ~= '' and queue_entry(lock, id) then dequeue(lock, id) end
    admit(lock, request)
    -- Others may have waited for this arrival.
    grant_next(lock)
  else
    if request.nonce ~= '' then
      keep_limit(lock, request.mode)
      enqueue(lock, request)
    end
    grant_next(lock, request)
  end
  if is_held_by(lock, request) then return granted_reply(lock, request) end
  -- Computed last: entries before this one may just have been admitted.
  local queued = request.nonce ~= '' and queue_entry(lock, id)
  local position = queued and position_of(lock, queued) or -1
  return taken_reply(lock, request, position, inspected, alive_ms)
end

