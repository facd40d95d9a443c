-- Tries what the other scripts rely on, on keys that no lock has.
--
-- KEYS[1]  a string
-- KEYS[2]  a hash
-- KEYS[3]  a key that does not exist
-- ARGV[1]  the value of the string, unlike that of any other trial
-- ARGV[2]  ms until the keys expire, if this is cut off
--
-- Replies
--   a name and a text for each trial: '' if all is as it should be, 'err' and the text of an error, 'seen' and what was seen
--   otherwise

local value, ttl_ms = ARGV[1], tonumber(ARGV[2])
local report = {}

-- What a command returned, as a text.
local function shown(seen)
  if type(seen) ~= 'table' then return type(seen) .. ' ' .. tostring(seen) end
  if seen.err or seen.ok then return 'status ' .. tostring(seen.err or seen.ok) end
  local parts = {}
  for at = 1, #seen do parts[at] = shown(seen[at]) end
  return '{' .. table.concat(parts, ', ') .. '}'
end

-- Adds to the report of a trial, which has its first flaw only.
local function expect(name, is_right, seen)
  if report[#report - 1] ~= name then
    report[#report + 1] = name
    report[#report + 1] = ''
  end
  if is_right or report[#report] ~= '' then return end
  if type(seen) == 'table' and seen.err then
    report[#report] = 'err' .. seen.err
  else
    report[#report] = 'seen' .. shown(seen)
  end
end

local function between(number, least, most)
  return type(number) == 'number' and number >= least and number <= most
end

local function is_status(seen, status)
  return type(seen) == 'table' and seen.ok == status
end

local time = redis.pcall('TIME')
local s, us = tonumber(time[1]), tonumber(time[2])
expect('time', s and us and s > 0 and between(us, 0, 999999), time)

local first = redis.pcall('SET', KEYS[1], value, 'NX', 'PX', ttl_ms)
expect('set_nx', is_status(first, 'OK'), first)
-- Nothing else can be tried without it.
if type(first) == 'table' and first.err then return report end
local second = redis.pcall('SET', KEYS[1], 'other', 'NX', 'PX', ttl_ms)
expect('set_nx', not second, second)
local both = redis.pcall('MGET', KEYS[1], KEYS[3])
expect('set_nx', both[1] == value and both[2] == false, both)
local absent = redis.pcall('SET', KEYS[3], value, 'XX', 'PX', ttl_ms)
expect('set_nx', not absent, absent)

-- Wide bounds: a machine may stand still for seconds, and a clock may be set. Seconds in place of ms are far outside.
local left_ms = redis.pcall('PTTL', KEYS[1])
expect('expiry', between(left_ms, ttl_ms / 4, ttl_ms * 2), left_ms)
local shortened = redis.pcall('PEXPIRE', KEYS[1], string.format('%.0f', ttl_ms / 2))
expect('expiry', shortened == 1, shortened)
left_ms = redis.pcall('PTTL', KEYS[1])
expect('expiry', between(left_ms, ttl_ms / 8, ttl_ms / 4 * 3), left_ms)
local none = redis.pcall('PEXPIRE', KEYS[3], ttl_ms)
expect('expiry', none == 0, none)
left_ms = redis.pcall('PTTL', KEYS[3])
expect('expiry', left_ms == -2, left_ms)
if s and us then
  local at_ms = string.format('%.0f', s * 1000 + math.floor(us / 1000) + ttl_ms)
  local set = redis.pcall('SET', KEYS[1], value, 'PXAT', at_ms)
  expect('expiry', is_status(set, 'OK'), set)
  left_ms = redis.pcall('PTTL', KEYS[1])
  expect('expiry', between(left_ms, ttl_ms / 4, ttl_ms * 2), left_ms)
end

local created, refusal = pcall(create_hash, KEYS[2], ttl_ms, 'a', '1', 'b', '2')
expect('hashes', created, { err = type(refusal) == 'table' and refusal.err or tostring(refusal) })
local fields = redis.pcall('HMGET', KEYS[2], 'a', 'c')
expect('hashes', fields[1] == '1' and fields[2] == false, fields)
local count = redis.pcall('HLEN', KEYS[2])
expect('hashes', count == 2, count)
local deleted = redis.pcall('HDEL', KEYS[2], 'b', 'c')
expect('hashes', deleted == 1, deleted)
local all = redis.pcall('HGETALL', KEYS[2])
expect('hashes', #all == 2 and all[1] == 'a' and all[2] == '1', all)

local wrong = redis.pcall('HGET', KEYS[1], 'a')
expect('errors', type(wrong) == 'table' and wrong.err and is_wrong_type(wrong.err), wrong)

local kind = redis.pcall('TYPE', KEYS[1])
expect('kinds', is_status(kind, 'string'), kind)
kind = redis.pcall('TYPE', KEYS[2])
expect('kinds', is_status(kind, 'hash') or not created, kind)
kind = redis.pcall('TYPE', KEYS[3])
expect('kinds', is_status(kind, 'none'), kind)

local gone = redis.pcall('DEL', KEYS[1], KEYS[2])
expect('kinds', gone == 2 or not created, gone)
return report
