//! One lock on a real server, and some sessions. Operations go through the store; the keys are read back into the model's
//! state of a lock and of sessions.
//!
//! Reading back is strict. A record that no sequence of whole scripts could have written is an error: an entry that no link
//! leads to, a link to no entry, a wrong count, an unknown field.

use crate::Violation;
use crate::coverage::Cuts;
use crate::keyspace::{Content, Entry, Keyspace};
use crate::server::Server;
use crate::tap::{How, WHOLE};
use leasehold_core::model::{
    Audit, Content as Lies, EndedHolds, History, LockState, QueueEntry, QueueEntryId, Record, RecordedHolder,
    Reserved, SessionRecord, Sessions, Value as Stands, Watermark,
};
use leasehold_core::{
    Acquire, AuditEntry, Claim, Ended, FencingToken, Heartbeat, HeartbeatReply, HistoryEntry, HoldId,
    KeySpace, Kind, Label, Liveness, LockKeys, LockMode, LockName, MultiAcquired, Op, OwnValue, Partition,
    Release, ReleaseAction, Reply, SessionId, SessionOp, SessionReply,
};
use leasehold_redis::RedisStore;
use leasehold_store::{Executed, Fault, Lock, Notification, Outcome, Store};
use leasehold_testkit::conformance::{
    ForeignWrite, Workload, execute_with_others, is_sent_with_others, leader_announcement, parse_rlock,
    parse_shared_holders,
};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// Prefix of all mailbox channels.
pub(crate) const MAILBOXES: &str = "leasehold:mailbox:";

const WITHIN: Duration = Duration::from_secs(60);

/// A change to the texts of the scripts: a text and its replacement.
pub(crate) type Edit = (&'static str, &'static str);

/// A server with one lock, and a store.
pub(crate) struct Fixture {
    pub(crate) kind: Kind,
    lock: Lock,
    pub(crate) keys: LockKeys,
    pub(crate) space: KeySpace,
    /// The holds that were requested or released, by their text in `ended`.
    holds: BTreeMap<String, HoldId>,
    /// The lines of each script at which it was cut off.
    pub(crate) cuts: Cuts,
    /// Whether an operation that can shares its script with others.
    pub(crate) together: bool,
    /// Whether the line of waiters had a session behind the next waiter last.
    is_line_long: bool,
    store: RedisStore,
    runtime: tokio::runtime::Runtime,
    /// Last, so that it outlives the store.
    pub(crate) redis: Server,
}

impl Fixture {
    /// A fixture with a lock of that kind.
    pub(crate) fn new(kind: Kind) -> Self {
        Self::edited(kind, &[])
    }

    /// A fixture whose scripts are changed by `edits`.
    pub(crate) fn edited(kind: Kind, edits: &[Edit]) -> Self {
        let lock = Lock { kind, name: "job".parse().expect("a good name") };
        let space = KeySpace::default();
        let keys = space.lock(&lock).expect("a good name");
        let redis = Server::start(edits).expect("a server starts");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let config = format!("redis://127.0.0.1:{}", redis.port()).parse().expect("a good URL");
        let store = runtime.block_on(RedisStore::connect(config)).expect("the server answers");
        let (holds, cuts) = (BTreeMap::new(), BTreeMap::new());
        let (together, is_line_long) = (false, false);
        let fixture =
            Self { kind, lock, keys, space, holds, cuts, together, is_line_long, store, runtime, redis };
        fixture.redis.watch(fixture.all_keys());
        fixture
    }

    /// Deletes all keys, and forgets the holds: chance may create the same holds for other sessions.
    pub(crate) fn begin_anew(&mut self) {
        self.redis.load(Keyspace::default());
        self.holds.clear();
    }

    /// Runs an operation for so many commands at most; returns its reply if it was not cut off.
    pub(crate) fn run(&mut self, op: &Op, commands: usize) -> Result<Option<Reply>, Violation> {
        let claims = match op {
            Op::Acquire(ask) => [Some(&ask.claim), None],
            Op::Release(release) => [Some(&release.claim), release.next.as_ref().map(|next| &next.claim)],
            _ => [None, None],
        };
        for claim in claims.into_iter().flatten() {
            let other = self.holds.insert(short(&claim.hold), claim.hold);
            assert!(other.is_none_or(|other| other == claim.hold), "two holds have the same text in `ended`");
        }
        let has_line = self.put_line(op)?;
        self.redis.begin(commands)?;
        let outcome = if self.together && is_sent_with_others(self.kind, op) {
            self.runtime.block_on(execute_with_others(&self.store, &self.lock, op, WITHIN)).0
        } else {
            self.runtime.block_on(self.store.execute(&self.lock, op, WITHIN))
        };
        let reply = self.reply(outcome)?;
        if has_line {
            self.take_line()?;
        }
        Ok(reply)
    }

    /// Lets the session that releases a Mutex at a node of a quorum, and another one, stand in the line of waiters. The
    /// line is a hint beside the lock, which the model does not have.
    fn put_line(&mut self, op: &Op) -> Result<bool, Violation> {
        let Some(own) = self.notifier(op) else { return Ok(false) };
        self.is_line_long = !self.is_line_long;
        let further = self.is_line_long.then(|| SessionId::from_random([0xDD; 12]));
        let sessions = [own, next_waiter()].into_iter().chain(further);
        let entries: Vec<_> = sessions.map(|session| format!("{session} {:013}\n", 0)).collect();
        let key = self.keys.line();
        self.command(&["SET", &key, &entries.concat(), "PX", "2000"])?;
        Ok(true)
    }

    /// Wherever the script was cut off, the line has an expiry.
    fn take_line(&mut self) -> Result<(), Violation> {
        let key = self.keys.line();
        if let Some(Entry { expires_ms: None, .. }) = self.redis.keys().entry(&key) {
            return Err(Violation("the line of waiters never expires".to_owned()));
        }
        self.command(&["DEL", &key])
    }

    /// The session whose release notifies waiters, if the operation is such a release.
    fn notifier(&self, op: &Op) -> Option<SessionId> {
        match op {
            Op::Release(Release { claim, action: ReleaseAction::FreeAndPublish, .. })
                if self.kind == Kind::Mutex =>
            {
                Some(claim.hold.session())
            }
            _ => None,
        }
    }

    /// Runs a heartbeat for so many commands at most; returns its reply if it was not cut off.
    pub(crate) fn run_heartbeat(
        &mut self,
        heartbeat: &Heartbeat,
        commands: usize,
    ) -> Result<Option<Result<HeartbeatReply, Fault>>, Violation> {
        self.redis.begin(commands)?;
        let op = SessionOp::Heartbeat(heartbeat.clone());
        match self.runtime.block_on(self.store.execute_session(Partition::ONLY, &op, WITHIN)) {
            // A whole script replies without an error of the server.
            Outcome::Failed(Executed::No, fault) => Ok(self.ended()?.then_some(Err(fault))),
            outcome => match self.reply(outcome)? {
                Some(SessionReply::Heartbeat(reply)) => Ok(Some(Ok(reply))),
                None => Ok(None),
                other => Err(Violation(format!("a heartbeat is answered {other:?}"))),
            },
        }
    }

    /// Runs an acquire of several Mutexes for so many commands at most; returns its reply if it was not cut off.
    pub(crate) fn run_all(
        &mut self,
        asks: &[(Lock, Acquire)],
        commands: usize,
    ) -> Result<Option<Vec<MultiAcquired>>, Violation> {
        self.redis.begin(commands)?;
        let outcome = self.runtime.block_on(self.store.acquire_all(asks, WITHIN));
        self.reply(outcome.expect("a server has a script for it"))
    }

    fn reply<T: std::fmt::Debug>(&mut self, outcome: Outcome<T>) -> Result<Option<T>, Violation> {
        match (self.ended()?, outcome) {
            (false, _) => Ok(None),
            (true, Outcome::Done(reply)) => Ok(Some(reply)),
            (true, other) => Err(Violation(format!("the script is answered {other:?}"))),
        }
    }

    /// Whether the last script was not cut off.
    fn ended(&mut self) -> Result<bool, Violation> {
        let Some(ran) = self.redis.end() else { return Ok(true) };
        match ran.how {
            How::Whole => Ok(true),
            How::CutOff(line) => {
                self.cuts.entry(ran.original).or_default().insert(line);
                Ok(false)
            }
            How::Failed(error) => Err(Violation(format!("the script says {error}"))),
        }
    }

    /// Ends a session, as the store does.
    pub(crate) fn end_session(&mut self, session: SessionId) -> Result<(), Violation> {
        let (record, index) = (self.space.session(session), self.space.session_index());
        self.command(&["DEL", &record])?;
        self.command(&["ZREM", &index, &session.to_string()])
    }

    /// Runs an operation, compares its effect with the model's, and returns the reply.
    pub(crate) fn agree(
        &mut self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
    ) -> Result<Option<Reply>, Violation> {
        let sessions = self.sessions()?;
        self.together = !self.together;
        let found = self.run(op, WHOLE)?;
        let before = state.clone();
        let (mut expected, notifications) =
            state.apply(now_us, op, &|session| sessions.status(now_us / 1000, session));
        if let Reply::Release(released) = &mut expected
            && self.notifier(op).is_some()
            // The reply to an acquire stands in its place, which no quorum sends.
            && released.next.is_none()
            && became_free(&before, state, now_us)
        {
            released.next_waiter = Some(next_waiter());
        }
        if found.as_ref() != Some(&expected) {
            return Err(Violation(format!("{op:?}\n  is answered {found:?},\n  by the model {expected:?}")));
        }
        let published = self.redis.take_messages();
        let expected = self.messages(now_us, op, (&before, state), &notifications);
        if published != expected {
            return Err(Violation(format!(
                "{op:?}\n  publishes {published:?},\n  in the model {expected:?}"
            )));
        }
        Ok(found)
    }

    /// The published messages, as channel and text: those of the model, the announcement to clients of Redisson that a
    /// lock became free, the announcement of a free Mutex to clients without a queue entry, and those about the leader.
    pub(crate) fn messages(
        &self,
        now_us: u64,
        op: &Op,
        (before, after): (&LockState, &LockState),
        notifications: &[Notification],
    ) -> Vec<(String, String)> {
        let message = |notification: &Notification| {
            (format!("{MAILBOXES}{}", notification.to()), notification.message())
        };
        let free = match self.kind {
            _ if !became_free(before, after, now_us) => None,
            Kind::Reentrant => Some((self.keys.redisson_channel(), "0".to_owned())),
            Kind::Mutex if self.notifier(op).is_some() => {
                Some((self.space.release_channel(&self.keys), format!("free {}", next_waiter())))
            }
            _ => None,
        };
        let leads = leader_announcement(before, after, now_us);
        let leads = leads.map(|text| (self.space.leader_channel(&self.keys), text));
        notifications.iter().map(message).chain(free).chain(leads).collect()
    }

    /// Writes to the keys of a lock in this state, as a client of another library does.
    pub(crate) fn write_as_foreigner(
        &mut self,
        write: ForeignWrite,
        state: &LockState,
    ) -> Result<(), Violation> {
        for command in write.commands(&self.keys, state) {
            self.command(&command.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Executes a command that no script sends.
    pub(crate) fn command(&mut self, words: &[&str]) -> Result<(), Violation> {
        Ok(self.redis.command(words)?)
    }

    /// All keys that may exist.
    pub(crate) fn all_keys(&self) -> Vec<String> {
        let (name, record) = (self.keys.name().to_owned(), self.keys.record().to_owned());
        let beside = [self.keys.audit(), self.keys.history(), self.keys.ends(), self.keys.line()];
        let lock = [name, record, self.space.watermark().to_owned()].into_iter().chain(beside);
        let sessions = Workload::sessions().map(|session| self.space.session(session));
        lock.chain([self.space.session_index()]).chain(sessions).collect()
    }

    /// The model's sessions for this state of the keys.
    pub(crate) fn sessions(&self) -> Result<Sessions, Violation> {
        let mut records = BTreeMap::new();
        for session in Workload::sessions() {
            let key = self.space.session(session);
            let record = match self.redis.keys().entry(&key) {
                None => continue,
                Some(Entry { content: Content::Hash(hash), expires_ms: Some(expires_ms) }) => {
                    Fields::of(hash).session(*expires_ms)
                }
                Some(entry) => Err(Violation(format!("a session of another type, or for ever: {entry:?}"))),
            };
            records.insert(session, record?);
        }
        Ok(Sessions { records, ..Sessions::default() })
    }

    /// The model's state of the lock for this state of the keys.
    pub(crate) fn state(&self) -> Result<LockState, Violation> {
        read_back(self.redis.keys(), self.kind, &self.keys, &self.holds, self.space.watermark())
    }
}

/// A state without expired queue entries, which may remain for a while.
pub(crate) fn live(state: &LockState, now_us: u64) -> LockState {
    let mut state = state.clone();
    state.holders_at(now_us);
    state
}

fn became_free(before: &LockState, after: &LockState, now_us: u64) -> bool {
    live(before, now_us).value.is_some() && live(after, now_us).value.is_none()
}

/// The session in the line of waiters.
fn next_waiter() -> SessionId {
    SessionId::from_random([0xEE; 12])
}

/// A hold that has ended, as a record names it.
fn short(hold: &HoldId) -> String {
    hold.token()[17..29].to_owned()
}

fn read_back(
    keyspace: &Keyspace,
    kind: Kind,
    keys: &LockKeys,
    holds: &BTreeMap<String, HoldId>,
    watermark_key: &str,
) -> Result<LockState, Violation> {
    let value = match keyspace.entry(keys.name()) {
        Some(Entry { content, expires_ms }) => {
            let content = match (content, kind) {
                (Content::Text(text), _) => Some(Lies::Token(String::from_utf8_lossy(text).into_owned())),
                (Content::Hash(hash), kind) if kind.is_shared() => {
                    let index = index(keyspace, &keys.ends())?;
                    parse_shared_holders(kind, &Fields::of(hash).0, &index, false).map_err(Violation)?
                }
                (Content::Hash(hash), Kind::Reentrant) => {
                    parse_rlock(&Fields::of(hash).0).map_err(Violation)?
                }
                (other, _) => Some(Lies::Other(other.kind().to_owned())),
            };
            content.map(|content| Stands { content, expires_ms: *expires_ms })
        }
        None => None,
    };
    let record = keyspace.entry(keys.record()).map(|entry| match (&entry.content, entry.expires_ms) {
        (Content::Hash(hash), Some(expires_ms)) => Fields::of(hash).record(kind, expires_ms, holds),
        (Content::Text(text), Some(expires_ms)) => Fields::packed(kind, text).record(kind, expires_ms, holds),
        (_, expires_ms) => {
            Err(Violation(format!("a record of another type, or that expires {expires_ms:?}")))
        }
    });
    let audit = keyspace.entry(&keys.audit()).map(|entry| match (&entry.content, entry.expires_ms) {
        (Content::Text(text), Some(expires_ms)) => audit(text, expires_ms),
        (_, expires_ms) => {
            Err(Violation(format!("an audit of another type, or that expires {expires_ms:?}")))
        }
    });
    let history = keyspace.entry(&keys.history()).map(|entry| match (&entry.content, entry.expires_ms) {
        (Content::Text(text), Some(expires_ms)) => history(text, expires_ms),
        (_, expires_ms) => {
            Err(Violation(format!("a history of another type, or that expires {expires_ms:?}")))
        }
    });
    let watermark = watermark(keyspace, watermark_key)?;
    let (record, audit, history) = (record.transpose()?, audit.transpose()?, history.transpose()?);
    Ok(LockState { kind, value, record, audit, history, watermark })
}

/// The index of a shared lock.
fn index(keyspace: &Keyspace, key: &str) -> Result<BTreeMap<String, u64>, Violation> {
    match keyspace.entry(key).map(|entry| &entry.content) {
        None => Ok(BTreeMap::new()),
        Some(Content::Sorted(members)) => {
            let text = |member: &Vec<u8>| String::from_utf8_lossy(member).into_owned();
            Ok(members.iter().map(|(member, at_ms)| (text(member), *at_ms)).collect())
        }
        Some(other) => Err(Violation(format!("an index of another type: {other:?}"))),
    }
}

fn watermark(keyspace: &Keyspace, key: &str) -> Result<Watermark, Violation> {
    match keyspace.entry(key).map(|entry| (&entry.content, entry.expires_ms)) {
        None => Ok(Watermark::default()),
        Some((Content::Text(text), Some(expires_ms))) => {
            let fence = parsed(&String::from_utf8_lossy(text)).map(FencingToken::new)?;
            Ok(Watermark { fence: Some(fence), expires_ms })
        }
        Some(other) => Err(Violation(format!("a watermark of another type, or for ever: {other:?}"))),
    }
}

fn audit(text: &[u8], expires_ms: u64) -> Result<Audit, Violation> {
    let text = String::from_utf8_lossy(text);
    let entries = text.split('\n').map(audit_entry).collect::<Result<_, _>>()?;
    Ok(Audit { expires_ms, entries })
}

fn history(text: &[u8], expires_ms: u64) -> Result<History, Violation> {
    let text = String::from_utf8_lossy(text);
    let entries = text.split('\n').map(history_entry).collect::<Result<_, _>>()?;
    Ok(History { expires_ms, entries })
}

fn history_entry(line: &str) -> Result<HistoryEntry, Violation> {
    let words: Vec<_> = line.split('\t').collect();
    let [from_ms, to_ms, fence, label] = words[..] else {
        return Err(Violation(format!("a history entry `{line}`")));
    };
    Ok(HistoryEntry {
        from_ms: parsed(from_ms)?,
        to_ms: parsed(to_ms)?,
        fence: (!fence.is_empty()).then(|| parsed(fence).map(FencingToken::new)).transpose()?,
        label: Label::new(label).map_err(violation)?,
    })
}

fn audit_entry(line: &str) -> Result<AuditEntry, Violation> {
    let words: Vec<_> = line.split('\t').collect();
    let [at_ms, ended, fence, known, whose, by] = words[..] else {
        return Err(Violation(format!("an audit entry `{line}`")));
    };
    let ended = match ended {
        "released" => Ended::Released,
        "evicted" => Ended::Evicted,
        "force_released" => Ended::ForceReleased,
        other => return Err(Violation(format!("an audit entry of `{other}`"))),
    };
    Ok(AuditEntry {
        at_ms: parsed(at_ms)?,
        ended,
        fence: (!fence.is_empty()).then(|| parsed(fence).map(FencingToken::new)).transpose()?,
        holder: (known == "1").then(|| Label::new(whose).map_err(violation)).transpose()?,
        actor: Label::new(by).map_err(violation)?,
    })
}

/// The lock of a field in a session's record.
fn lock_of(field: &str) -> Option<Lock> {
    let (kind, name) = field.strip_prefix("l:")?.split_once(':')?;
    Some(Lock { kind: Kind::parse(kind)?, name: LockName::new(name).ok()? })
}

/// The tokens reserved for local hand-offs.
fn reserved(text: &str) -> Result<Reserved, Violation> {
    let (upto, notifies) = text.strip_suffix(" notify").map_or((text, false), |upto| (upto, true));
    Ok(Reserved { last_fence: FencingToken::new(parsed(upto)?), notify_wanted: notifies })
}

/// The fields of a record.
struct Fields(BTreeMap<String, String>);

impl Fields {
    fn of(hash: &BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Self(hash.iter().map(|(field, value)| (text(field), text(value))).collect())
    }

    /// The fields of a record without a queue.
    fn packed(kind: Kind, text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let reserved = if kind.is_shared() { "limit" } else { "reserved" };
        let names = ["format", "last", reserved, "ended", "holder"];
        let parts =
            names.into_iter().zip(text.splitn(names.len(), '\n')).filter(|(_, part)| !part.is_empty());
        Self(parts.map(|(name, part)| (name.to_owned(), part.to_owned())).collect())
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn record(
        &self,
        kind: Kind,
        expires_ms: u64,
        holds: &BTreeMap<String, HoldId>,
    ) -> Result<Record, Violation> {
        if self.field("format") != Some("1") {
            return Err(Violation(format!("a record of format {:?}", self.field("format"))));
        }
        let last_fence = self
            .field("last")
            .map(|last_fence| parsed::<u64>(last_fence).map(FencingToken::new))
            .transpose()?;
        let last_holder = self.field("holder").map(recorded_holder).transpose()?;
        let ended = self.field("ended").map(|ended| endings(ended, holds)).transpose()?.unwrap_or_default();
        let reserved = self.field("reserved").map(reserved).transpose()?;
        let (limit, agreed) =
            self.field("limit").map(|limit| limit.split_once(' ').unwrap_or((limit, ""))).unzip();
        let agreed = agreed.filter(|agreed| !agreed.is_empty());
        let mut record = Record {
            expires_ms,
            last_fence,
            reserved,
            last_holder,
            ended,
            next_ticket: 0,
            tickets: BTreeMap::new(),
            entries: BTreeMap::new(),
            limit: limit.map(parsed).transpose()?,
            agreed: agreed.map(parsed).transpose()?,
        };
        self.queue(kind, &mut record)?;
        let known = |field: &&str| match field.split_once(':') {
            Some((link, of)) => matches!(link, "w" | "n" | "p") && queue_entry_id(kind, of).is_ok(),
            None if kind.is_shared() => matches!(*field, "format" | "last" | "limit" | "ended" | "queue"),
            None => matches!(*field, "format" | "last" | "reserved" | "holder" | "ended" | "queue"),
        };
        match self.0.keys().map(String::as_str).find(|field| !known(field)) {
            Some(field) => Err(Violation(format!("a field `{field}`"))),
            None => Ok(record),
        }
    }

    fn session(&self, expires_ms: u64) -> Result<SessionRecord, Violation> {
        let mut held = std::collections::BTreeSet::new();
        let texts = ["format", "until", "metadata", "activity"];
        for field in self.0.keys().filter(|field| !texts.contains(&field.as_str())) {
            held.insert(lock_of(field).ok_or_else(|| Violation(format!("a session's field `{field}`")))?);
        }
        if self.field("format") != Some("1") {
            return Err(Violation(format!("a session of format {:?}", self.field("format"))));
        }
        match (self.field("until"), self.field("metadata")) {
            (Some(until), Some(about)) => Ok(SessionRecord {
                alive_until_ms: parsed(until)?,
                expires_ms,
                metadata: about.to_owned(),
                held,
                activity: self.field("activity").unwrap_or_default().to_owned(),
            }),
            (until, _) => Err(Violation(format!("a session that is alive until {until:?}, half made"))),
        }
    }

    /// Follows the links from the first queue entry to the last. An entry that they do not lead to is an error, unless it is
    /// empty.
    fn queue(&self, kind: Kind, record: &mut Record) -> Result<(), Violation> {
        let queue = self.field("queue").unwrap_or("0 0  ");
        let words: Vec<_> = queue.split(' ').collect();
        let [size, tail, first, last] = words[..] else {
            return Err(Violation(format!("a queue `{queue}`")));
        };
        record.next_ticket = parsed(tail)?;
        let (mut before, mut at) = ("", first);
        while !at.is_empty() {
            let text = self.field(&format!("w:{at}")).unwrap_or_default();
            let (id, entry) = (queue_entry_id(kind, at)?, queue_entry(text, kind)?);
            if !before.is_empty() && self.field(&format!("p:{at}")) != Some(before) {
                return Err(Violation(format!("the link back from {at} does not lead to {before}")));
            }
            let in_order = record.tickets.last_key_value().is_none_or(|(ticket, _)| *ticket < entry.ticket);
            if !in_order
                || entry.ticket >= record.next_ticket
                || QueueEntryId::of(kind, &entry.claim.hold) != id
            {
                return Err(Violation(format!("entry {} of {at} is out of order", entry.ticket)));
            }
            record.tickets.insert(entry.ticket, id);
            record.entries.insert(id, entry);
            before = at;
            at = if at == last { "" } else { self.field(&format!("n:{at}")).unwrap_or_default() };
        }
        let entries =
            self.0.iter().filter(|(field, text)| field.starts_with("w:") && !text.is_empty()).count();
        if before != last || entries != record.entries.len() || parsed::<usize>(size)? != entries {
            return Err(Violation(format!("{entries} entries, but a queue `{queue}` that ends at {before}")));
        }
        Ok(())
    }
}

/// The queue entry that a field is about.
fn queue_entry_id(kind: Kind, text: &str) -> Result<QueueEntryId, Violation> {
    if kind.is_shared() {
        HoldId::from_token(text).map(QueueEntryId::Hold).map_err(violation)
    } else {
        parsed(text).map(QueueEntryId::Session)
    }
}

fn queue_entry(text: &str, kind: Kind) -> Result<QueueEntry, Violation> {
    let (text, mode) = match text.rsplit_once('\n') {
        Some((text, word)) if kind.is_shared() => {
            let mode = LockMode::parse(word).filter(|mode| mode.applies_to(kind));
            (text, mode.ok_or_else(|| Violation(format!("an entry of mode `{word}`")))?)
        }
        _ => (text, LockMode::Exclusive),
    };
    let words: Vec<_> = text.splitn(8, '\n').collect();
    let [ticket, nonce, expires_ms, lease_ms, liveness, hold, own, label] = words[..] else {
        return Err(Violation(format!("an entry with {} of 8 fields", words.len())));
    };
    Ok(QueueEntry {
        ticket: parsed(ticket)?,
        nonce: parsed(nonce)?,
        expires_ms: parsed(expires_ms)?,
        lease_ms: parsed(lease_ms)?,
        liveness: self::liveness(liveness)?,
        claim: claim(hold, own)?,
        label: Label::new(label).map_err(violation)?,
        mode,
    })
}

fn recorded_holder(text: &str) -> Result<RecordedHolder, Violation> {
    let words: Vec<_> = text.splitn(5, '\n').collect();
    let [hold, since_ms, liveness, own, label] = words[..] else {
        return Err(Violation(format!("a holder with {} of 5 fields", words.len())));
    };
    let (liveness, label) = (self::liveness(liveness)?, Label::new(label).map_err(violation)?);
    Ok(RecordedHolder { claim: claim(hold, own)?, since_ms: parsed(since_ms)?, liveness, label })
}

fn liveness(text: &str) -> Result<Liveness, Violation> {
    match text {
        liveness if liveness.starts_with('s') => Ok(Liveness::Session { alive_ms: parsed(&liveness[1..])? }),
        "l" => Ok(Liveness::Lease),
        other => Err(Violation(format!("a liveness `{other}`"))),
    }
}

fn endings(text: &str, holds: &BTreeMap<String, HoldId>) -> Result<EndedHolds, Violation> {
    let ended = |at: usize| {
        let (hold, mark) = (text.get(at..at + 12).unwrap_or_default(), text.get(at + 12..at + 13));
        let how = match mark {
            Some(".") => Ended::Released,
            Some("!") => Ended::Evicted,
            Some("~") => Ended::ForceReleased,
            _ => return Err(Violation("a hold that ended in an unknown way".to_owned())),
        };
        let hold = holds.get(hold).ok_or_else(|| Violation("an unknown hold that ended".to_owned()))?;
        Ok((*hold, how))
    };
    Ok(EndedHolds { holds: (0..text.len()).step_by(13).map(ended).collect::<Result<_, _>>()? })
}

fn claim(hold: &str, own: &str) -> Result<Claim, Violation> {
    let hold = HoldId::from_token(hold).map_err(violation)?;
    let value = (!own.is_empty()).then(|| OwnValue::new(own).map_err(violation)).transpose()?;
    Ok(Claim { hold, value })
}

fn parsed<T: std::str::FromStr<Err: Display>>(text: &str) -> Result<T, Violation> {
    text.parse().map_err(violation)
}

#[allow(clippy::needless_pass_by_value, reason = "it stands behind `map_err`")]
fn violation(error: impl Display) -> Violation {
    Violation(error.to_string())
}
