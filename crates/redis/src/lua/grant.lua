-- Grants a lock that is not shared. Follows queue.lua.

-- Makes the claim the holder of the free lock.
local function grant_to(lock, holder)
  record_holder(lock, holder)
  set_holder(lock, holder)
end

-- Grants the free lock to the first live queue entry, or to `request` if none is before it. Returns the new holder.
local function grant_next(lock, request)
  for _ = 1, MAX_VISITED do
    local id = lock.head
    if id == '' then break end
    local entry = queue_entry(lock, id)
    dequeue(lock, id)
    -- The entry of a session stands for all of its holds that wait. A hold that does not wait is a newcomer.
    if request and id == request.session and (request.nonce ~= '' or entry and entry.hold == request.hold) then
      grant_to(lock, request)
      return request
    end
    if entry and entry.expires_ms >= now() then
      grant_to(lock, entry)
      lock.messages[#lock.messages + 1] = { id, 'grant ' .. entry.nonce .. ' ' .. digits(lock.fence) }
      return entry
    end
  end
  if lock.head == '' and request then grant_to(lock, request) return request end
end

-- The queue entries of a session.
local function entries_of_session(lock, session)
  return { queue_entry(lock, session) or nil }
end

-- The session whose death would bring the request closer to the lock: of the entry before its own, else of the holder, else ''.
local function predecessor_of(lock, request, position)
  local entry
  if position ~= -1 and lock.head ~= request.session then
    local before = lock.fields['p:' .. request.session] or redis.call('HGET', lock.record, 'p:' .. request.session)
    entry = before and queue_entry(lock, before)
  end
  local predecessor = entry or first_holder(lock)
  return predecessor and session_timeout_ms(predecessor) and predecessor.session or ''
end

-- Sends the holder a message that another session requests the lock, if the holder has requested that.
local function notify_holder(lock, request)
  local fence = lock.fence
  local upto = lock.reserved and fence and string.match(lock.reserved, '^(%d+) notify$')
  local holder = upto and tonumber(upto) > fence and recorded_holder(lock)
  if holder and holder.session ~= request.session and is_held_by(lock, holder) then
    lock.messages[#lock.messages + 1] = { holder.session, 'wanted ' .. digits(fence) }
  end
end

-- Queues the request if it has a nonce, and describes the holder. `inspected` is a session that is known to live for `alive_ms`.
local function taken_reply(lock, request, inspected, alive_ms)
  local position = request.nonce ~= '' and enqueue(lock, request) or -1
  notify_holder(lock, request)
  local predecessor = predecessor_of(lock, request, position)
  return describe_holder(lock, { 'taken', position, predecessor, predecessor == inspected and alive_ms or -1 })
end

-- The reply to a request whose owner holds the ReentrantMutex and now holds it once more, or nil.
local function reentered_reply(lock, request)
  if not reenter(lock, request) then return end
  if is_queued(lock, request) then dequeue(lock, request.session) end
  return granted_reply(lock, request)
end

local function acquire(lock, request, inspected, alive_ms)
  local reply = settled_reply(lock, request)
  if reply then return reply end
  if not lock.value and grant_next(lock, request) == request then return granted_reply(lock, request) end
  -- Also after a grant to the first in the queue: it may have the same owner.
  local reentered = reentered_reply(lock, request)
  if reentered then return reentered end
  -- Holds of a ReentrantMutex have ends of their own, and must not lose the key before.
  local adopt_ms = request.adopt_ms
  if lock.value and adopt_ms ~= '' and not (lock.count and first_holder(lock)) and lock_ttl(lock) == -1 then
    lock.new_ttl, lock.ttl_ms = adopt_ms, tonumber(adopt_ms)
  end
  return taken_reply(lock, request, inspected, alive_ms)
end

