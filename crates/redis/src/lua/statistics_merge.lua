-- Adds what a client has counted to the statistics.
--
-- KEYS[1]  the statistics: a HASH
--            format      1. A script does not touch a hash of another format
--            c:<class>   since when it was counted, and when something was added last, in ms of the server's clock; and then pairs of
--                        a name and a number, as name=number, all of them separated by spaces
-- ARGV[1]  how long the hash lasts after its first merge, in ms
-- ARGV[2]  the greatest number of classes, without the one of the others
-- ARGV[3]  the class of all others
-- ARGV[4…] for each class: its name, since how many ms it was counted, and its pairs
--
-- Replies
--   1                   done
--   {'format', found}   the key has another format, or is no hash
--
-- Numbers are added, but the greater one is kept of a pair whose name begins with a capital. The expiry is that of the first merge:
-- what was counted weeks ago says nothing about today.
--
-- A script, because reading and writing are one step: clients count the same classes.

local CLASSES_FROM = 4
-- How many numbers a class can have: those of this library, and as many more.
local MAX_PAIRS = 1024
-- The greatest text that is read: more than this library writes. One that is larger begins anew.
local MAX_TEXT = 65536

local function add_pairs(numbers, text)
  for name, number in string.gmatch(text, '(%a+%d*)=(%d+)') do
    local known = numbers.by_name[name]
    if not known and #numbers < MAX_PAIRS then numbers[#numbers + 1], known = name, 0 end
    if known then
      local sum = tonumber(number)
      if string.find(name, '^%u') then sum = math.max(known, sum) else sum = known + sum end
      numbers.by_name[name] = math.min(sum, GREATEST_FENCE)
    end
  end
end

local wanted = { 'format', 'c:' .. ARGV[3] }
for at = CLASSES_FROM, #ARGV, 3 do wanted[#wanted + 1] = 'c:' .. ARGV[at] end
local found = redis.pcall('HMGET', KEYS[1], unpack(wanted))
if found.err then
  if not is_wrong_type(found.err) then return found end
  return { 'format', redis.call('TYPE', KEYS[1]).ok }
end
local exists = found[1]
if exists and exists ~= '1' then return { 'format', exists } end
-- A hash without a format is not ours, and is not overwritten.
if not exists and redis.call('HLEN', KEYS[1]) > 0 then return { 'format', '' } end

local at_ms = now()
local texts, count = {}, 0
for at, field in ipairs(wanted) do texts[field] = found[at] end
-- Without the format, and without the class of the others.
if exists then count = redis.call('HLEN', KEYS[1]) - (found[2] and 2 or 1) end
local changed, written = {}, { 'format', '1' }
for at = CLASSES_FROM, #ARGV, 3 do
  local field = 'c:' .. ARGV[at]
  if not texts[field] and field ~= wanted[2] then
    if count < tonumber(ARGV[2]) then count = count + 1 else field = wanted[2] end
  end
  local from_ms, to_ms = at_ms - tonumber(ARGV[at + 1]), at_ms
  local numbers = { by_name = {} }
  local before = texts[field] or ''
  if #before > MAX_TEXT then before = '' end
  local before_from, before_to, pairs_before = string.match(before, '^(%d+) (%d+)(.*)$')
  if before_from then
    from_ms, to_ms = math.min(from_ms, tonumber(before_from)), math.max(to_ms, tonumber(before_to))
    add_pairs(numbers, pairs_before)
  end
  add_pairs(numbers, ARGV[at + 2])
  local parts = { digits(math.max(from_ms, 0)), digits(to_ms) }
  for _, name in ipairs(numbers) do parts[#parts + 1] = name .. '=' .. digits(numbers.by_name[name]) end
  texts[field] = table.concat(parts, ' ')
  if not changed[field] then changed[#changed + 1], changed[field] = field, true end
end
for _, field in ipairs(changed) do written[#written + 1], written[#written + 2] = field, texts[field] end
if exists then
  -- Something else has removed the expiry.
  if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
  redis.call('HSET', KEYS[1], unpack(written))
else
  create_hash(KEYS[1], ARGV[1], unpack(written))
end
return 1
