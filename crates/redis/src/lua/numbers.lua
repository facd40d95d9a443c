-- Numbers as texts, and the server's time.

-- Formats an integer. `..` would turn a fencing token into 1.762e+15.
local function digits(number)
  return string.format('%.0f', number)
end

-- The server's time in ms and in microseconds, read at most once per script.
local now_ms, now_us
local function now()
  if not now_ms then
    local time = redis.call('TIME')
    local s, us = tonumber(time[1]), tonumber(time[2])
    now_ms, now_us = s * 1000 + math.floor(us / 1000), s * 1000000 + us
  end
  return now_ms, now_us
end

