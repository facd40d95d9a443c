-- Reads the key of a Mutex or an Election. Provides `value` and `other_type`.
--
-- KEYS[1]  the lock: a STRING whose value is the holder's token, the format that clients of other libraries use

-- `value` is false if the key does not exist. `other_type` is the type of the key if it is no lock of this kind.
local value, other_type = redis.pcall('GET', KEYS[1]), nil
if type(value) == 'table' then
  if string.sub(value.err, 1, #WRONG_TYPE) ~= WRONG_TYPE then return value end
  value, other_type = false, redis.call('TYPE', KEYS[1]).ok
end

