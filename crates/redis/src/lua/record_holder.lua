-- Records a new holder of a lock that is not shared. Follows change.lua.

-- Hooks of shared locks. Here a record exists whenever something is remembered, and it knows the holder's token.
local begin_record, keep_token

-- Records the claim as the newest holder, with a fencing token greater than every token issued or reserved before.
local function record_holder(holder)
  now()
  local reserved = fields[7] and tonumber(string.match(fields[7], '^%d+')) or 0
  local before = last_fence
  last_fence = math.min(last_fence and math.max(last_fence + 1, reserved + 1, now_us) or now_us, GREATEST_FENCE)
  recorded, holder.since_ms = holder, now_ms
  set_field('last', digits(last_fence))
  set_field('tenant', holder.hold .. '\n' .. digits(now_ms) .. '\n' .. holder.life .. '\n' .. holder.own .. '\n' .. holder.label)
  local lease_ms = tonumber(holder.lease_ms)
  local same_period = before and math.floor(before / PERIOD_US) == math.floor(last_fence / PERIOD_US)
  if not same_period or lease_ms >= SHORT_LEASE_MS then new_record_ttl_ms = record_ttl(lease_ms) end
end

