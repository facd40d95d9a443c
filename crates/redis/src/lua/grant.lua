-- Grants a lock that is not shared. Follows queue.lua.

-- Makes the claim the holder of the free lock.
local function grant_to(holder)
  record_holder(holder)
  set_holder(holder)
end

-- Grants the free lock to the first live queue entry, or to `request` if none is before it. Returns the new holder.
local function grant_next(request)
  for _ = 1, MAX_VISITED do
    if first_id == '' then break end
    local id = first_id
    local entry = queue_entry(id)
    dequeue(id)
    -- The entry of a session stands for all of its holds that wait. A hold that does not wait is a newcomer.
    if request and id == request.session and (request.nonce ~= '' or entry and entry.hold == request.hold) then
      grant_to(request)
      return request
    end
    if entry and entry.expires_ms >= now() then
      grant_to(entry)
      messages[#messages + 1] = { id, 'grant ' .. entry.nonce .. ' ' .. digits(last_fence) }
      return entry
    end
  end
  if first_id == '' and request then grant_to(request) return request end
end

-- The session whose death would bring the request closer to the lock: of the entry before its own, else of the holder, else ''.
local function predecessor_of(request, position)
  local entry
  if position ~= -1 and first_id ~= request.session then
    local before = new_fields['p:' .. request.session] or redis.call('HGET', KEYS[2], 'p:' .. request.session)
    entry = before and queue_entry(before)
  end
  local predecessor = entry or first_holder()
  return predecessor and session_timeout_ms(predecessor) and predecessor.session or ''
end

-- Sends the holder a message that another session requests the lock, if it wants one.
local function notify_holder(request)
  local upto = fields[7] and last_fence and string.match(fields[7], '^(%d+) tell$')
  local holder = upto and tonumber(upto) > last_fence and recorded_holder()
  if holder and holder.session ~= request.session and is_held_by(holder) then
    messages[#messages + 1] = { holder.session, 'wanted ' .. digits(last_fence) }
  end
end

-- Queues the request if it has a nonce, and describes the holder. `inspected` is a session that is known to live for `alive_ms`.
local function taken_reply(request, inspected, alive_ms)
  local position = request.nonce ~= '' and enqueue(request) or -1
  notify_holder(request)
  local predecessor = predecessor_of(request, position)
  return describe_holder({ 'taken', position, predecessor, predecessor == inspected and alive_ms or -1 })
end

-- The reply to a request whose owner holds the ReentrantMutex and now holds it once more, or nil.
local function reentered_reply(request)
  if not reenter or not reenter(request) then return end
  if is_queued(request) then dequeue(request.session) end
  return granted_reply(request)
end

local function acquire(request, inspected, alive_ms)
  local reply = settled_reply(request)
  if reply then return reply end
  if not value and grant_next(request) == request then return granted_reply(request) end
  -- Also after a grant to the first in the queue: it may have the same owner.
  local reentered = reentered_reply(request)
  if reentered then return reentered end
  -- Holds of a ReentrantMutex have ends of their own, and must not lose the key before.
  if value and request.adopt_ms ~= '' and not (hold_count and first_holder()) and lock_ttl() == -1 then
    new_lock_ttl, lock_ttl_ms = request.adopt_ms, tonumber(request.adopt_ms)
  end
  return taken_reply(request, inspected, alive_ms)
end

