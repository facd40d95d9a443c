-- The greatest fencing token of the locks of this partition whose records are gone.
--
-- `lock.watermark`  a STRING: a token of `last` or `reserved` of a record that was dropped. It lasts for an hour after the instant
--                   that the token stands for: from then on every time is later, also on a clock that is set back by less

-- While a slot of a cluster moves, a script may have to do without it: `lock.watermark` is then the lock's own key. Such a script
-- does not settle a lock, and grants one only if its record knows a token.

-- The reply if this script needs the watermark and does not have it, or nil.
local function missing_watermark(lock)
  if lock.watermark ~= lock.key or lock.fence or lock.other_type then return end
  return redis.error_reply('TRYAGAIN no fencing token is known while the slot moves')
end

-- The token, or nil.
local function watermark(lock)
  local found = redis.pcall('GET', lock.watermark)
  return type(found) == 'string' and tonumber(found) or nil
end

-- The greatest token that this lock has issued or reserved, or that idle locks have, or nil if there is none.
local function greatest_fence(lock)
  if not lock.fence then return watermark(lock) end
  -- Shared locks reserve none.
  local reserved = not ENTRY_PER_HOLD and lock.reserved and tonumber(string.match(lock.reserved, '^%d+')) or 0
  return math.max(lock.fence, reserved)
end

-- Raises the watermark to the greatest token of a lock whose record is dropped.
local function raise_watermark(lock)
  local fence = lock.fence and greatest_fence(lock)
  if fence and fence > (watermark(lock) or -1) then
    redis.call('SET', lock.watermark, digits(fence), 'PXAT', digits(math.floor(fence / 1000) + RECORD_KEPT_MS))
  end
end
