-- The state of a lock, which the functions of a script share. The head of a script creates one such table and passes it on: it
-- is the first parameter, `lock`, of each function that needs it. No fragment reads a variable of another one.
--
-- Scripts change the state first and `commit` writes it at the end, so no value is read twice.
--
-- The keys and arguments of the script
--   key, record, watermark, audit   KEYS[1] to KEYS[3], and the last of KEYS
--   mailboxes            prefix of all mailbox channels, as publish.lua takes them
--   channel              the last argument, which depends on the kind: a channel, or the kind of a shared lock
--   ends                 of a shared lock KEYS[4], its index
-- What a fast path, or the inspection, has read
--   read_value, read_record  the strings at the lock's key and at its record, if they are strings
--   read_fields          the fields of the record, as fetch_record.lua reads them
-- The lock's key, as `read_lock` of its kind finds it
--   value, other_type    see the file of the kind
--   ttl_ms               its remaining time, once it is known; -1 if it never expires
-- The record, as check_record.lua finds it
--   has_record           whether it exists
--   is_packed            its text if it is a STRING
--   fence                the newest fencing token
--   ended, holder_text   the fields `ended` and `holder`
--   reserved             this field; of a shared lock the field `limit`
--   recorded             the newest holder, once it has been parsed; false if there is none
--   kept_ms              its remaining time, once it is known
--   queue                this field
--   queued, next_ticket  the number of entries in the queue, and the next ticket
--   head, tail           the ids of the first and the last entry, or ''
--   entries              the entries that have been parsed, by id; false if there is none
--   entry_id, entry_text the entry that was read with the record
-- What `commit` writes: see change.lua
--   fields, stale        fields of the record to write, by name; and fields to delete
--   new_kept_ms          the new expiry of the record
--   is_settled           whether the record of the idle lock only lists endings from now on
--   freed                whether the lock becomes free
--   granted              the claim that is granted
--   new_ttl              a new expiry for a key that has none
--   messages             pairs of a session and a text
--   new_audit            the new audit
--
-- `line` and `history` are keys of a release: see release.lua and history.lua.
--
-- The kinds add what only they need: see announce_free.lua, string_change.lua, and the reentrant and shared fragments.

local function new_lock(key, record, watermark, audit, mailboxes, channel, ends)
  return {
    key = key, record = record, watermark = watermark, audit = audit, mailboxes = mailboxes, channel = channel,
    ends = ends,
    value = false, queued = 0, next_ticket = 0, head = '', tail = '', entries = {},
    fields = {}, stale = {}, messages = {}, freed = false, granted = false,
  }
end

