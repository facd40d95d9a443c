-- Checks the format of the record in `fields`. Provides `record_exists`, `last_fence`, `ended` and `has_waiters`.
--
-- KEYS[2]  the record: a HASH
--            format           1. A script does not touch a record of another format
--            last             the newest fencing token
--            reserved         of a Mutex: the greatest fencing token reserved for the hold in `tenant`, then ' tell' if its
--                             process wants a message when another session requests the lock. Void unless greater than
--                             `last`: then it belongs to an earlier hold
--            tenant           the newest holder: hold \n since_ms \n life \n own value \n label
--            ended            the last eight holds that ended otherwise than by lease expiry, newest first. Of each the first
--                             12 characters of its random part, and a mark: . released, ! evicted, ~ force-released. Random
--                             parts contain none of the marks, so a search finds whole holds only
--            queue            number of entries, next ticket, first and last session, separated by spaces
--            w:<session>      its queue entry: ticket \n nonce \n expires_ms \n lease_ms \n life \n hold \n own value \n label.
--                             An empty text is no entry
--            n:<session>      the next session in the queue. Void for the last one
--            p:<session>      the previous session in the queue. Void for the first one
--          life is `s` and the session's timeout in ms if the death of the session ends the hold and the entry early, else
--          `l`. The own value of a ReentrantMutex is the owner
--
--          Shared locks (Semaphore, RwLock, Latch, Barrier) have a queue entry per hold: queue, w:, n: and p: name holds in
--          place of sessions. An entry has its mode after the label. There is no `tenant`, but
--            limit            the number of permits, arrivals or parties
--          The own value of an RwLock is the owner; other shared locks ignore it
--
-- Replies, before anything is written
--   {'kind', type}      the lock's key has another type (returned by the scripts that can meet it)
--   {'format', found}   the record has another format, or is no hash
--
-- The \n between the parts is the only control character in these texts.

if fields.err then
  if string.sub(fields.err, 1, #WRONG_TYPE) ~= WRONG_TYPE then return fields end
  return { 'format', redis.call('TYPE', KEYS[2]).ok }
end
local record_exists = fields[1]
if record_exists and record_exists ~= '1' then return { 'format', record_exists } end
local last_fence = fields[2] and tonumber(fields[2])
local ended = fields[4]
local has_waiters = fields[5] and string.byte(fields[5]) ~= BYTE_ZERO

