-- Part of all scripts on a Mutex but extend, before their own text: reads what stands at its key.
--
-- KEYS[1]  the lock: a STRING, its value the token, as clients of other libraries keep it

-- `value` is false and `kind` nil where nothing stands there; `kind` is the type of what is no string.
local value, kind = redis.pcall('GET', KEYS[1]), nil
if type(value) == 'table' then
  if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then return value end
  value, kind = false, redis.call('TYPE', KEYS[1]).ok
end

