-- Records a new holder of a lock that is not shared, and how holds are lost. Follows change.lua.

-- Records the claim as the newest holder, with a fencing token greater than every token issued or reserved before.
local function record_holder(lock, holder)
  local now_ms, now_us = now()
  local before, greatest = lock.fence, greatest_fence(lock)
  local fence = math.min(greatest and math.max(greatest + 1, now_us) or now_us, GREATEST_FENCE)
  lock.fence, lock.recorded, holder.since_ms = fence, holder, now_ms
  set_field(lock, 'last', digits(fence))
  set_field(lock, 'holder',
    holder.hold .. '\n' .. digits(now_ms) .. '\n' .. holder.liveness .. '\n' .. holder.own .. '\n' .. holder.label)
  local lease_ms = tonumber(holder.lease_ms)
  local same_period = before and math.floor(before / PERIOD_US) == math.floor(fence / PERIOD_US)
  if not same_period or lease_ms >= SHORT_LEASE_MS then lock.new_kept_ms = record_ttl(lock, lease_ms) end
end

-- Lists a hold that ends against the will of its holder. Without a record nothing is remembered.
local function record_lost(lock, holder, how)
  if lock.has_record then record_ending(lock, holder.hold, how) end
end

