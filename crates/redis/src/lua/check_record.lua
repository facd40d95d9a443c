-- Checks the format of the record, and copies its fields to `lock`.
--
-- `lock.record`  a STRING as long as no request has queued since the lock was idle: then one command writes it with its expiry.
--          The format, `last`, `reserved` (of a shared lock `limit`), `ended` and `holder` of the hash, each on a line; empty
--          what there is none of. From the first queue entry on, until the lock is idle, a HASH
--            format           1. A script does not touch a record of another format
--            last             the newest fencing token. Missing in the record of an idle lock, which only lists endings: then it
--                             is not greater than the watermark
--            reserved         of a Mutex: the greatest fencing token reserved for the hold in `holder`, then ' notify' if its
--                             process wants a message when another session requests the lock. Valid only if greater
--                             than `last`: otherwise it belongs to an earlier hold
--            holder           the newest holder: hold \n since_ms \n liveness \n own value \n label
--            ended            the last eight holds that ended otherwise than by lease expiry, newest first. Of each the first
--                             12 characters of its random part, and a mark: . released, ! evicted, ~ force-released. Random
--                             parts contain none of the marks, so a search finds whole holds only
--            queue            number of entries, next ticket, first and last session, separated by spaces
--            w:<session>      its queue entry: ticket \n nonce \n expires_ms \n lease_ms \n liveness \n hold \n own value \n label.
--                             An empty text is no entry
--            n:<session>      the next session in the queue. Not valid for the last one
--            p:<session>      the previous session in the queue. Not valid for the first one
--          liveness is `s` and the session's timeout in ms if the death of the session ends the hold and the entry early, else
--          `l`. The own value of a ReentrantMutex is the owner
--
--          Shared locks (Semaphore, RwLock, Latch, Barrier) have a queue entry per hold: queue, w:, n: and p: name holds in
--          place of sessions. An entry has its mode after the label. There is no `holder`, but
--            limit            the number of permits, arrivals or parties. If a resize has set another number of permits than that
--                             for which the clients ask: then a space and that, 0 if no client has asked yet
--          The own value of an RwLock is the owner; other shared locks ignore it
--
-- Replies, before anything is written
--   {'kind', type}      the lock's key has another type (returned by the scripts that can meet it)
--   {'format', found}   the record has another format, or another type
--
-- The \n between the parts is the only control character in these texts.

-- Checks the text of a record without a queue, which may be false. Returns an error reply, or nil.
local function check_packed(lock, id, text)
  lock.entry_id, lock.queued = id, lock.queued or 0
  local last, reserved, ended, holder = string.match(text or '', PACKED)
  if not last then return { 'format', redis.call('TYPE', lock.record).ok } end
  lock.has_record, lock.is_packed, lock.fence = true, text, tonumber(last)
  if reserved ~= '' then lock.reserved = reserved end
  if ended ~= '' then lock.ended = ended end
  if holder ~= '' then lock.holder_text = holder end
end

-- `fields` is the reply to HMGET: format, last, holder, ended, queue, the entry with this id, reserved. Returns an error reply, or
-- nil.
local function check_record(lock, id, fields)
  lock.entry_id, lock.queued = id, lock.queued or 0
  if fields.err then
    if not is_wrong_type(fields.err) then return fields end
    local text = redis.pcall('GET', lock.record)
    return check_packed(lock, id, type(text) == 'string' and text)
  end
  local format, last, queue = fields[1], fields[2], fields[5]
  if format and format ~= '1' then return { 'format', format } end
  lock.has_record, lock.fence, lock.holder_text, lock.ended = format, last and tonumber(last), fields[3], fields[4]
  lock.queue, lock.entry_text, lock.reserved = queue, fields[6], fields[7]
  if queue then
    local size, ticket, head, tail = string.match(queue, '^(%d+) (%d+) (%S*) (%S*)$')
    lock.queued, lock.next_ticket, lock.head, lock.tail = tonumber(size), tonumber(ticket), head, tail
  end
end

-- The text of a record without a queue.
local function packed_text(fence, reserved, ended, holder_text)
  local last = fence and digits(fence) or ''
  return '1\n' .. last .. '\n' .. (reserved or '') .. '\n' .. (ended or '') .. '\n' .. (holder_text or '')
end
