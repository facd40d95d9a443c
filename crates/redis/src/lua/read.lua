-- Part of all scripts on a lock but extend, after the record's fields were fetched: what it says.
--
-- KEYS[2]  the record: a HASH
--            format           1; a record of another format is not touched
--            last             the fencing token that was given last
--            reserved         the greatest fencing token that is reserved for the hold that was given last, of a Mutex, and
--                             ' tell' where its process is to be told that another asks. If it is not greater than last,
--                             it was for an earlier hold, and means nothing
--            tenant           who was given the lock last: hold \n since_ms \n life \n own value \n label
--            ended            the eight holds that were ended last other than by their leases, the last one first: of each
--                             the first 12 random characters, and how: . released, ! evicted, ~ freed. No random part has
--                             one of these marks in it, so that what is found is one hold
--            queue            how many places there are, the next ticket, the first and the last session: with spaces
--            w:<session>      its place: ticket \n nonce \n expires_ms \n lease_ms \n life \n hold \n own value \n label; if
--                             it is empty there is none
--            n:<session>      the session behind it; means nothing of the last one
--            p:<session>      the session before it; means nothing of the first one
--          life is s and how long the session lives without a beat, in ms, where its death ends the hold and the place
--          before their time; l where nothing does. A ReentrantMutex's own values are owners
--
--          Of a lock that several have side by side each hold has a place of its own, so that the queue, w:, n: and p: have
--          holds for sessions. A place has its portion behind the label, and there is no tenant, but
--            limit            how many permits, arrivals or parties there are in all
--          An RwLock's own values are owners; those of the others mean nothing
--
-- Reading comes first, so that a key of the wrong type is found before anything is written:
--   {'kind', type}      something else stands at the lock's key (who may meet it says so himself)
--   {'format', found}   the record has another format, or is no hash
--
-- None of these texts contains a control character but the \n between them.

local RECORD_KEPT_MS = 3600000
local GREATEST_FENCE = 9007199254740991

if fields.err then
  if string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then return fields end
  return { 'format', redis.call('TYPE', KEYS[2]).ok }
end
local record_there = fields[1]
if record_there and record_there ~= '1' then return { 'format', record_there } end
local last = fields[2] and tonumber(fields[2])
local ended = fields[4]
-- Whether anybody is in the queue: no other number of places begins with a 0.
local awaited = fields[5] and string.byte(fields[5]) ~= 48

