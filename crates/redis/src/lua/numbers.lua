-- Numbers as texts, and the server's time.

-- Formats an integer. `..` would turn a fencing token into 1.762e+15.
local function digits(number)
  return string.format('%.0f', number)
end

-- The server's time in ms, read at most once per script. Sets now_us, too.
local now_us, now_ms
local function now()
  if not now_us then
    local time = redis.call('TIME')
    local s, us = tonumber(time[1]), tonumber(time[2])
    now_us, now_ms = s * 1000000 + us, s * 1000 + math.floor(us / 1000)
  end
  return now_ms
end

