-- Part of all scripts that have functions: numbers as texts, and the server's time.

-- Never `..`, which makes 1.762e+15 of a fencing token.
local function digits(number)
  return string.format('%.0f', number)
end

-- The server's time is read once, and only by those who need it.
local now_us, now_ms
local function now()
  if not now_us then
    local time = redis.call('TIME')
    local s, us = tonumber(time[1]), tonumber(time[2])
    now_us, now_ms = s * 1000000 + us, s * 1000 + math.floor(us / 1000)
  end
  return now_ms
end

