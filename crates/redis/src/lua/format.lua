-- Constants of the data format. The first fragment of every script that reads or writes a record.

-- How long a record is kept after the last thing that needs it.
local RECORD_KEPT_MS = 3600000
-- How long the record of an idle lock is kept, for a release that is sent again.
local RELEASED_KEPT_MS = '5000'
-- The greatest integer that a Lua number holds exactly.
local GREATEST_FENCE = 9007199254740991

-- A hold id is a session id, a dot and a random part. `ended` stores the first characters of the random part.
local SESSION_LENGTH = 16
local ENDED_FROM, ENDED_TO = 18, 29
-- The length of seven endings: the eighth, which is the newest, is put before them.
local ENDED_KEPT = 91

-- The digits of a time in ms in the line of waiters, and the greatest number of entries.
local LINE_SINCE_DIGITS, LINE_ENTRIES = 13, 128
-- An entry: a session, a space, the time, and a newline.
local LINE_ENTRY_LENGTH = SESSION_LENGTH + LINE_SINCE_DIGITS + 2

-- The end of `reserved` if the holder wants a message when another session requests the lock, and the first letter of a
-- liveness that ends with the session.
local WANTS_NOTICE, LIVES_WITH_SESSION = ' notify', 's'

-- Whether an error is that of a command on a key of another type. Some servers pass errors to a script with their sign in the
-- protocol.
local function is_wrong_type(err)
  return string.find(err, '^%-?WRONGTYPE') ~= nil
end
-- The first byte of a queue without entries. No other count begins with a 0.
local BYTE_ZERO = 48

-- A fencing token of today has 16 digits. Its first 8 count periods of 100 seconds.
local FENCE_DIGITS, PERIOD_DIGITS = 16, 8
-- The first grant in each period of this length prolongs the record. A lease of at least SHORT_LEASE_MS always does.
local PERIOD_US, SHORT_LEASE_MS = 100000000, 1000000
-- A lease with at most this many digits is shorter than SHORT_LEASE_MS.
local SHORT_LEASE_DIGITS = 6
-- The first digits of such a token, which count milliseconds.
local FENCE_MS_DIGITS = 13
-- The number of digits in the microseconds of TIME, and how many of them count milliseconds. TIME returns texts, on some servers
-- numbers.
local US_DIGITS, MS_DIGITS = 6, 3

-- How much of a text that another client may have written is described, of an audit and of a history: more than this library
-- writes.
local MAX_SHOWN, MAX_AUDIT, MAX_HISTORY = 8192, 65536, 131072

-- What a fast path has read: a list with the string at each of KEYS, and `fields`, those of a record that is a hash, if it has
-- read them; or false. A fast path declares it anew.
local READ = false

-- Where a release adds to the history of its lock: see history.lua, which declares it anew.
local HISTORY = false

-- The text of a record without a queue: see check_record.lua.
local PACKED = '^1\n(%d*)\n([^\n]*)\n([^\n]*)\n(.*)$'
-- The same without the holder.
local PACKED_HEAD = '^1\n(%d*)\n([^\n]*)\n([^\n]*)\n'
