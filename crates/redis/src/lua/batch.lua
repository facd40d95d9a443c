-- Several operations on different Mutexes in one call: acquires and releases, each as in acquire.lua and release.lua, with a reply
-- of its own. Comes before every fragment but format.lua.
--
-- KEYS[1]  the watermark of the partition
-- KEYS[2…] for each operation the lock and its record. The acquires come first
-- ARGV[1]  prefix of all mailbox channels, as publish.lua takes them
-- ARGV[2]  the number of acquires
-- ARGV[3…] for each acquire: hold, lease_ms, liveness \n\n label, and nonce \n kept_ms \n expire_foreign_ms, all three as in
--          acquire.lua; then for each release: hold
--
-- Reply: a list with a reply to each operation; nil if the caller should send it alone.
--
-- These holds have no own value, the acquires name no predecessor, and a released lock is granted to the next waiter.
--
-- What acquire_quick.lua and release_quick.lua can do is done first, and all locks share its reads: no lock occurs twice, and
-- quick paths change nothing that those of other locks read, but the watermark, which the releases raise after the acquires
-- have used it. The released locks share one DEL and one new watermark. A script that is cut off leaves of each lock what a
-- script of its own could have left. The operations that remain are handled one by one by the fragments below, in batch_rest.lua.

local sub, match = string.sub, string.match
local acquires, READ = tonumber(ARGV[2]), redis.call('MGET', unpack(KEYS))
local watermark, done = READ[1], 0
-- The replies so far, or false; and the operations that the server has refused a command, which are left to the caller: full memory
-- refuses nothing more once a command of the script was executed.
local REPLIES, REFUSED = {}, {}
local argument, known_lease_ms, kept_ms = 3

if acquires > 0 then
  local time = redis.call('TIME')
  local s, us = time[1] .. '', time[2] .. ''
  if #us < US_DIGITS then us = sub('00000' .. us, -US_DIGITS) end
  local fence, before_idle = s .. us, watermark or ''
  local period, since = sub(fence, 1, PERIOD_DIGITS), '\n' .. s .. sub(us, 1, MS_DIGITS) .. '\n'
  local is_usual = #fence == FENCE_DIGITS and fence < '9'
  for at = 1, acquires do
    local hold, lease_ms, value, record = ARGV[argument], ARGV[argument + 1], READ[2 * at], READ[2 * at + 1]
    local last, reserved, ended, reply = '', '', '', false
    if record then last, reserved, ended = match(record, PACKED_HEAD) end
    if not value and is_usual and last and (ended == '' or not string.find(ended, sub(hold, ENDED_FROM, ENDED_TO), 1, true)) then
      local before = last == '' and before_idle or last
      if (before == '' or #before == FENCE_DIGITS and before < fence) and (reserved == '' or reserved < fence) then
        local text = '1\n' .. fence .. '\n' .. reserved .. '\n' .. ended .. '\n' .. hold .. since .. ARGV[argument + 2]
        if lease_ms ~= known_lease_ms then
          known_lease_ms, kept_ms = lease_ms, string.format('%.0f', lease_ms + RECORD_KEPT_MS)
        end
        if not record then
          local recorded = redis.pcall('SET', KEYS[2 * at + 1], text, 'NX', 'PX', kept_ms)
          if recorded and recorded.err then REFUSED[at] = true end
          if recorded and recorded.ok then
            local set = redis.pcall('SET', KEYS[2 * at], hold, 'NX', 'PX', lease_ms)
            reply = set and set.ok and fence
            -- The key has another type.
            if not reply then redis.pcall('DEL', KEYS[2 * at + 1]) end
          end
        else
          local set = redis.pcall('SET', KEYS[2 * at], hold, 'NX', 'PX', lease_ms)
          if set and set.err then REFUSED[at] = true end
          if set and set.ok then
            local recorded
            if sub(last, 1, PERIOD_DIGITS) == period and #lease_ms <= SHORT_LEASE_DIGITS then
              recorded = redis.pcall('SET', KEYS[2 * at + 1], text, 'KEEPTTL')
            else
              recorded = redis.pcall('SET', KEYS[2 * at + 1], text, 'PX', kept_ms)
            end
            reply = recorded.ok and fence
          end
        end
      end
    end
    REPLIES[at] = reply or false
    if reply then done = done + 1 end
    argument = argument + 4
  end
end

local count, freed, idle = (#KEYS - 1) / 2, {}, {}
local greatest = watermark or ''
local is_usual = greatest == '' or #greatest == FENCE_DIGITS and greatest < '9'
for at = acquires + 1, count do
  local hold, record, last, reserved, ended = ARGV[argument], READ[2 * at + 1]
  if record and READ[2 * at] == hold and is_usual then last, reserved, ended = match(record, PACKED_HEAD) end
  REPLIES[at] = false
  if last and #last == FENCE_DIGITS then
    local upto = match(reserved, '^%d*')
    if upto < last then upto = last end
    if #upto == FENCE_DIGITS then
      if upto > greatest then greatest = upto end
      freed[#freed + 1] = KEYS[2 * at]
      idle[at] = '1\n\n\n' .. sub(hold, ENDED_FROM, ENDED_TO) .. '.' .. sub(ended, 1, ENDED_KEPT) .. '\n'
    end
  end
  argument = argument + 1
end

if freed[1] and type(redis.pcall('DEL', unpack(freed))) == 'number' then
  -- As write_settled in commit.lua. From the DEL on, no error is a reason to report that a lock is still held.
  local settles = true
  if greatest ~= watermark then
    local expires_ms = string.format('%.0f', sub(greatest, 1, FENCE_MS_DIGITS) + RECORD_KEPT_MS)
    settles = redis.pcall('SET', KEYS[1], greatest, 'PXAT', expires_ms).ok
  end
  for at, text in pairs(idle) do
    if settles then redis.pcall('SET', KEYS[2 * at + 1], text, 'PX', RELEASED_KEPT_MS) end
    REPLIES[at] = 'held'
  end
  done = done + #freed
end

if done == count then return REPLIES end
