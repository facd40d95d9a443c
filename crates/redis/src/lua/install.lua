-- Part of acquire, release, evict and free of a Mutex or a ReentrantMutex, after change.lua: who was given the lock last.

-- Without a record nothing is remembered of who had the lock; and the record has the token of whoever has it.
local begin_record, keep_token

-- The expiry of a record is raised by the first who is given the lock within so long, by its tokens, and by those for whose
-- lease that may not be enough.
local RAISED_EVERY_US, SHORT_LEASE_MS = 100000000, 1000000

-- Enters a new holder and its fencing token, which is greater than what was given and what is reserved.
local function install(who)
  now()
  local reserved = fields[7] and tonumber(string.match(fields[7], '^%d+')) or 0
  local before = last
  last = math.min(last and math.max(last + 1, reserved + 1, now_us) or now_us, GREATEST_FENCE)
  the_tenant, who.since_ms = who, now_ms
  put('last', digits(last))
  put('tenant', who.hold .. '\n' .. digits(now_ms) .. '\n' .. who.life .. '\n' .. who.own .. '\n' .. who.label)
  local lease_ms = tonumber(who.lease_ms)
  local raised = before and math.floor(before / RAISED_EVERY_US) == math.floor(last / RAISED_EVERY_US)
  if not raised or lease_ms >= SHORT_LEASE_MS then new_record_ttl_ms = record_ttl(lease_ms) end
end

