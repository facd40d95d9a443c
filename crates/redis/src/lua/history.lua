-- Part of a release that adds the hold to the history of its lock. Comes before the tail, and takes its own argument away.
--
-- KEYS[#]  the history: a STRING, a line per hold, newest first:
--            from_ms \t to_ms \t fencing token or '' \t label
-- ARGV[4]  as of the release, then ' history ' and the greatest number of lines

-- How long the history is kept after its newest line.
local HISTORY_KEPT_MS = '604800000'

local HISTORY = {}
ARGV[4], HISTORY.most = string.match(ARGV[4], '^(.*) history (%d+)$')

-- The line of a hold that ends now, or nil if its holder is not known.
local function history_line(lock, holder)
  if not holder then return end
  local fence = fence_of(lock, holder)
  return digits(holder.since_ms) .. '\t' .. digits(now()) .. '\t' .. (fence and digits(fence) or '') .. '\t' .. holder.label
end

-- Adds a line. No error is a reason to report that the hold was not released.
local function add_to_history(lock, line)
  lock.history = KEYS[#KEYS]
  local lines, before = { line }, redis.pcall('GET', lock.history)
  -- A key of another type is no history.
  for earlier in string.gmatch(type(before) == 'string' and before or '', '[^\n]+') do
    if #lines >= tonumber(HISTORY.most) then break end
    lines[#lines + 1] = earlier
  end
  redis.pcall('SET', lock.history, table.concat(lines, '\n'), 'PX', HISTORY_KEPT_MS)
end

HISTORY.line, HISTORY.add = history_line, add_to_history
