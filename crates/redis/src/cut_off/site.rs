//! One lock at an embedded Redis, and some sessions: operations go in, and the keys are read back into what the model
//! knows of a lock, and of sessions.
//!
//! Reading back is strict. A record that no sequence of whole scripts could have written is an error: a place that no
//! link leads to, a link to no place, a wrong count, a field that nobody knows.

use super::Broken;
use super::seen::Cuts;
use crate::embedded::{Content, EmbeddedRedis, Entry, Keyspace, Ran, WHOLE};
use crate::home::Home;
use crate::reply;
use crate::script::{Call, lock_of};
use leasehold_core::model::{
    Audit, Content as Lies, Endings, LockState, Place, PlaceId, Record, Reserved, SessionRecord, Sessions,
    Tenant, Value as Stands,
};
use leasehold_core::{
    Beat, Beaten, Claim, Ended, FencingToken, HoldId, KeySpace, Kind, Label, Life, Lock, LockKeys, Op,
    OwnValue, Pass, Portion, Refused, Release, Reply, SessionId, Wake,
};
use leasehold_testkit::Value;
use leasehold_testkit::conformance::{Stranger, Workload, parts, rlock, said_of_leaders};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::rc::Rc;

/// What the channels of all mailboxes begin with.
pub(super) const MAILBOXES: &str = "leasehold:mailbox:";

/// A change to the texts of the scripts: what is replaced, and by what.
pub(super) type Edit = (&'static str, &'static str);

/// A script as it is called.
pub(super) struct Spoken {
    /// Its text before the edits.
    pub(super) original: &'static str,
    pub(super) text: Rc<str>,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) args: Vec<Vec<u8>>,
}

/// An embedded Redis with one lock.
pub(super) struct Site {
    pub(super) kind: Kind,
    pub(super) redis: EmbeddedRedis,
    pub(super) keys: LockKeys,
    pub(super) space: KeySpace,
    edits: Vec<Edit>,
    /// The texts of the scripts, after the edits.
    texts: BTreeMap<&'static str, Rc<str>>,
    /// The holds that were asked for or given up, by what a record says of them when they have ended.
    holds: BTreeMap<String, HoldId>,
    /// The lines of each script at which it was cut off.
    pub(super) cuts: Cuts,
}

impl Site {
    /// With a lock of that kind.
    pub(super) fn new(kind: Kind) -> Self {
        Self::edited(kind, &[])
    }

    /// With scripts that were changed so.
    pub(super) fn edited(kind: Kind, edits: &[Edit]) -> Self {
        let lock = Lock { kind, name: "job".parse().expect("a good name") };
        let space = KeySpace::default();
        let keys = space.lock(&lock).expect("a good name");
        Self {
            kind,
            redis: EmbeddedRedis::new(),
            keys,
            space,
            edits: edits.to_vec(),
            texts: BTreeMap::new(),
            holds: BTreeMap::new(),
            cuts: BTreeMap::new(),
        }
    }

    /// Forgets all keys, and who asked for them: chance may make the same holds for other sessions.
    pub(super) fn begin_anew(&mut self) {
        self.redis.load(Keyspace::default());
        self.holds.clear();
    }

    fn home(&self) -> Home<'_> {
        Home { keys: &self.space, slot: None }
    }

    /// The call of an operation's script.
    pub(super) fn spoken(&mut self, op: &Op) -> Spoken {
        let call = Call::new(op, self.kind, &self.home(), &self.keys);
        let call = call.expect("each of these has a script");
        let claims = match op {
            Op::Acquire(ask) => [Some(&ask.claim), None],
            Op::Release(release) => [Some(&release.claim), release.next.as_ref().map(|next| &next.claim)],
            _ => [None, None],
        };
        for claim in claims.into_iter().flatten() {
            let other = self.holds.insert(short(&claim.hold), claim.hold);
            assert!(
                other.is_none_or(|other| other == claim.hold),
                "two holds are told by the same characters"
            );
        }
        self.speak(&call)
    }

    /// The call of a beat's script.
    pub(super) fn spoken_beat(&mut self, beat: &Beat) -> Spoken {
        let call = Call::beat(beat, &self.home());
        self.speak(&call)
    }

    pub(super) fn speak(&mut self, call: &Call) -> Spoken {
        let edits = &self.edits;
        let text = self.texts.entry(call.text()).or_insert_with_key(|text| {
            edits.iter().fold((*text).to_owned(), |text, (from, to)| text.replace(from, to)).into()
        });
        let arguments = call.cmd().args_iter().filter_map(|argument| match argument {
            redis::Arg::Simple(bytes) => Some(bytes.to_vec()),
            _ => None,
        });
        // Behind EVALSHA and the script's name.
        let mut arguments = arguments.skip(2);
        let number = arguments.next().and_then(|number| String::from_utf8(number).ok()?.parse().ok());
        let keys = arguments.by_ref().take(number.expect("each says how many keys it has")).collect();
        Spoken { original: call.text(), text: Rc::clone(text), keys, args: arguments.collect() }
    }

    /// Runs an operation for so many commands at most; gives what it answers if it came to its end.
    pub(super) fn run(&mut self, op: &Op, commands: usize) -> Result<Option<Reply>, Broken> {
        let spoken = self.spoken(op);
        self.eval(&spoken, commands, |value| reply::read(op, value))
    }

    /// Runs a beat for so many commands at most; gives what it answers if it came to its end.
    pub(super) fn run_beat(
        &mut self,
        beat: &Beat,
        commands: usize,
    ) -> Result<Option<Result<Beaten, Refused>>, Broken> {
        let spoken = self.spoken_beat(beat);
        self.eval(&spoken, commands, reply::beaten)
    }

    fn eval<T>(
        &mut self,
        spoken: &Spoken,
        commands: usize,
        read: impl Fn(&redis::Value) -> Result<T, reply::Malformed>,
    ) -> Result<Option<T>, Broken> {
        match self.redis.eval(&spoken.text, &spoken.keys, &spoken.args, commands) {
            Ran::CutOff => {
                self.cuts.entry(spoken.original).or_default().extend(self.redis.stopped_at());
                Ok(None)
            }
            Ran::Whole(Value::Error(error)) => Err(Broken(format!("the script says {error}"))),
            Ran::Whole(value) => match read(&as_of_the_client(&value)) {
                Ok(reply) => Ok(Some(reply)),
                Err(_) => Err(Broken(format!("{value:?} is no reply"))),
            },
        }
    }

    /// Ends a session, as the store does.
    pub(super) fn end_session(&self, session: SessionId) {
        self.command(&["DEL", &self.space.session(session)]);
        self.command(&["ZREM", &self.space.sessions(), &session.to_string()]);
    }

    /// Runs an operation, compares what it does with what the model does, and gives the reply.
    pub(super) fn agree(
        &mut self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
    ) -> Result<Option<Reply>, Broken> {
        let sessions = self.sessions()?;
        let found = self.run(op, WHOLE)?;
        let before = state.clone();
        let (expected, wakes) = state.apply(now_us, op, &|session| sessions.vital(now_us / 1000, session));
        if found.as_ref() != Some(&expected) {
            return Err(Broken(format!("{op:?}\n  is answered {found:?},\n  by the model {expected:?}")));
        }
        let told = self.redis.with(|keyspace| std::mem::take(&mut keyspace.messages));
        let expected = self.said(now_us, op, (&before, state), &wakes);
        if told != expected {
            return Err(Broken(format!("{op:?}\n  tells {told:?},\n  in the model {expected:?}")));
        }
        Ok(found)
    }

    /// The messages that go out, channel and text: those that the model knows, what clients of Redisson's hear of a
    /// lock that is free now and was not before, what is said of a Mutex to those who have no place in a queue, and of who leads.
    pub(super) fn said(
        &self,
        now_us: u64,
        op: &Op,
        (before, after): (&LockState, &LockState),
        wakes: &[Wake],
    ) -> Vec<(String, String)> {
        let wake = |wake: &Wake| (format!("{MAILBOXES}{}", wake.to()), wake.message());
        let freed = live(before, now_us).value.is_some() && live(after, now_us).value.is_none();
        let tells = matches!(op, Op::Release(Release { pass: Pass::Tell, .. }));
        let free = match self.kind {
            Kind::Reentrant if freed => Some((self.keys.released_channel(), "0".to_owned())),
            Kind::Mutex if freed && tells => Some((self.space.told_channel(&self.keys), "free".to_owned())),
            _ => None,
        };
        let leads = said_of_leaders(before, after, now_us);
        let leads = leads.map(|said| (self.space.leader_channel(&self.keys), said));
        wakes.iter().map(wake).chain(free).chain(leads).collect()
    }

    /// Does to the keys, at which a lock stands like this, what a stranger does.
    pub(super) fn meddle(&self, stranger: Stranger, state: &LockState) {
        for command in stranger.commands(&self.keys, state) {
            self.command(&command.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    /// Executes a command that no script sends.
    pub(super) fn command(&self, words: &[&str]) {
        let command: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.redis.with(|keyspace| keyspace.execute(&command));
    }

    /// All keys of which something may stand.
    pub(super) fn all_keys(&self) -> Vec<String> {
        let lock = [self.keys.name().to_owned(), self.keys.record().to_owned(), self.keys.audit()];
        let sessions = Workload::sessions().map(|session| self.space.session(session));
        lock.into_iter().chain([self.space.sessions()]).chain(sessions).collect()
    }

    /// What the model would know of the sessions at this state of the keys. A record that was cut off before its session
    /// had begun is none.
    pub(super) fn sessions(&self) -> Result<Sessions, Broken> {
        let mut records = BTreeMap::new();
        for session in Workload::sessions() {
            let key = self.space.session(session);
            let record = self.redis.with(|keyspace| match keyspace.entry(&key) {
                None => Ok(None),
                Some(Entry { content: Content::Hash(hash), expires_ms: Some(expires_ms) }) => {
                    Fields::of(hash).session(*expires_ms)
                }
                Some(entry) => Err(Broken(format!("a session of another type, or for ever: {entry:?}"))),
            });
            records.extend(record?.map(|record| (session, record)));
        }
        Ok(Sessions { records })
    }

    /// What the model would have at this state of the keys.
    pub(super) fn state(&self) -> Result<LockState, Broken> {
        self.redis.with(|keyspace| read_back(keyspace, self.kind, &self.keys, &self.holds))
    }
}

/// A state without entries that are over, which may lie there for a while.
pub(super) fn live(state: &LockState, now_us: u64) -> LockState {
    let mut state = state.clone();
    state.held_by(now_us);
    state
}

/// A reply as the client library has it.
fn as_of_the_client(value: &Value) -> redis::Value {
    match value {
        Value::Status(text) => redis::Value::SimpleString(text.clone()),
        Value::Integer(number) => redis::Value::Int(*number),
        Value::Bulk(bytes) => redis::Value::BulkString(bytes.clone()),
        Value::Array(items) => redis::Value::Array(items.iter().map(as_of_the_client).collect()),
        // An error is none of a script's replies, and is handled before.
        Value::Nil | Value::Error(_) => redis::Value::Nil,
    }
}

/// What a record says of a hold that has ended.
fn short(hold: &HoldId) -> String {
    hold.token()[17..29].to_owned()
}

fn read_back(
    keyspace: &Keyspace,
    kind: Kind,
    keys: &LockKeys,
    holds: &BTreeMap<String, HoldId>,
) -> Result<LockState, Broken> {
    let value = match keyspace.entry(keys.name()) {
        Some(Entry { content, expires_ms }) => {
            let content = match (content, kind) {
                (Content::Text(text), _) => Some(Lies::Token(String::from_utf8_lossy(text).into_owned())),
                (Content::Hash(hash), kind) if kind.is_shared() => {
                    parts(kind, &Fields::of(hash).0).map_err(Broken)?
                }
                (Content::Hash(hash), Kind::Reentrant) => rlock(&Fields::of(hash).0).map_err(Broken)?,
                (other, _) => Some(Lies::Other(other.kind().to_owned())),
            };
            content.map(|content| Stands { content, expires_ms: *expires_ms })
        }
        None => None,
    };
    let record = keyspace.entry(keys.record()).map(|entry| match (&entry.content, entry.expires_ms) {
        (Content::Hash(hash), Some(expires_ms)) => Fields::of(hash).record(kind, expires_ms, holds),
        (_, expires_ms) => Err(Broken(format!("a record of another type, or that expires {expires_ms:?}"))),
    });
    let audit = keyspace.entry(&keys.audit()).map(|entry| match (&entry.content, entry.expires_ms) {
        (Content::Text(text), Some(expires_ms)) => audit(text, expires_ms),
        (_, expires_ms) => Err(Broken(format!("an audit of another type, or that expires {expires_ms:?}"))),
    });
    Ok(LockState { kind, value, record: record.transpose()?, audit: audit.transpose()? })
}

fn audit(text: &[u8], expires_ms: u64) -> Result<Audit, Broken> {
    let text = String::from_utf8_lossy(text);
    let entries = reply::entries(&text);
    if entries.is_empty() || entries.len() != text.split('\n').count() {
        return Err(Broken(format!("an audit `{text}`")));
    }
    Ok(Audit { expires_ms, entries })
}

/// What is reserved for those to whom a hold is handed on.
fn reserved(text: &str) -> Result<Reserved, Broken> {
    let (upto, tells) = text.strip_suffix(" tell").map_or((text, false), |upto| (upto, true));
    Ok(Reserved { upto: FencingToken::new(parsed(upto)?), tells })
}

/// The fields of a record.
struct Fields(BTreeMap<String, String>);

impl Fields {
    fn of(hash: &BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Self(hash.iter().map(|(field, value)| (text(field), text(value))).collect())
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn record(
        &self,
        kind: Kind,
        expires_ms: u64,
        holds: &BTreeMap<String, HoldId>,
    ) -> Result<Record, Broken> {
        if self.field("format") != Some("1") {
            return Err(Broken(format!("a record of format {:?}", self.field("format"))));
        }
        let last = self.field("last").map(|last| parsed::<u64>(last).map(FencingToken::new)).transpose()?;
        let tenant = self.field("tenant").map(tenant).transpose()?;
        let ended = self.field("ended").map(|ended| endings(ended, holds)).transpose()?.unwrap_or_default();
        let reserved = self.field("reserved").map(reserved).transpose()?;
        let mut record = Record {
            expires_ms,
            last,
            reserved,
            tenant,
            ended,
            tail: 0,
            tickets: BTreeMap::new(),
            places: BTreeMap::new(),
            limit: self.field("limit").map(parsed).transpose()?,
        };
        self.queue(kind, &mut record)?;
        let known = |field: &&str| match field.split_once(':') {
            Some((link, of)) => matches!(link, "w" | "n" | "p") && place_id(kind, of).is_ok(),
            None if kind.is_shared() => matches!(*field, "format" | "last" | "limit" | "ended" | "queue"),
            None => matches!(*field, "format" | "last" | "reserved" | "tenant" | "ended" | "queue"),
        };
        match self.0.keys().map(String::as_str).find(|field| !known(field)) {
            Some(field) => Err(Broken(format!("a field `{field}`"))),
            None => Ok(record),
        }
    }

    /// A session's record; none if it has not begun.
    fn session(&self, expires_ms: u64) -> Result<Option<SessionRecord>, Broken> {
        let mut held = std::collections::BTreeSet::new();
        for field in self.0.keys().filter(|field| !matches!(field.as_str(), "format" | "until" | "about")) {
            held.insert(lock_of(field).ok_or_else(|| Broken(format!("a session's field `{field}`")))?);
        }
        if self.field("format") != Some("1") {
            return Err(Broken(format!("a session of format {:?}", self.field("format"))));
        }
        match (self.field("until"), self.field("about")) {
            (Some(until), Some(about)) => Ok(Some(SessionRecord {
                alive_until_ms: parsed(until)?,
                expires_ms,
                about: about.to_owned(),
                held,
            })),
            (None, None) if held.is_empty() => Ok(None),
            (until, _) => Err(Broken(format!("a session that is alive until {until:?}, half made"))),
        }
    }

    /// Follows the links from the first place to the last. What they do not lead to is an error, but for places that are
    /// empty, which are none.
    fn queue(&self, kind: Kind, record: &mut Record) -> Result<(), Broken> {
        let queue = self.field("queue").unwrap_or("0 0  ");
        let words: Vec<_> = queue.split(' ').collect();
        let [size, tail, first, last] = words[..] else { return Err(Broken(format!("a queue `{queue}`"))) };
        record.tail = parsed(tail)?;
        let (mut before, mut at) = ("", first);
        while !at.is_empty() {
            let text = self.field(&format!("w:{at}")).unwrap_or_default();
            let (id, place) = (place_id(kind, at)?, place(text, kind)?);
            if !before.is_empty() && self.field(&format!("p:{at}")) != Some(before) {
                return Err(Broken(format!("the link back from {at} does not lead to {before}")));
            }
            let in_order = record.tickets.last_key_value().is_none_or(|(ticket, _)| *ticket < place.ticket);
            if !in_order || place.ticket >= record.tail || PlaceId::of(kind, &place.claim.hold) != id {
                return Err(Broken(format!("place {} of {at} is out of order", place.ticket)));
            }
            record.tickets.insert(place.ticket, id);
            record.places.insert(id, place);
            before = at;
            at = if at == last { "" } else { self.field(&format!("n:{at}")).unwrap_or_default() };
        }
        let places =
            self.0.iter().filter(|(field, text)| field.starts_with("w:") && !text.is_empty()).count();
        if before != last || places != record.places.len() || parsed::<usize>(size)? != places {
            return Err(Broken(format!("{places} places, but a queue `{queue}` that ends at {before}")));
        }
        Ok(())
    }
}

/// Whose place a field is about.
fn place_id(kind: Kind, text: &str) -> Result<PlaceId, Broken> {
    if kind.is_shared() {
        HoldId::from_token(text).map(PlaceId::Hold).map_err(broken)
    } else {
        parsed(text).map(PlaceId::Session)
    }
}

fn place(text: &str, kind: Kind) -> Result<Place, Broken> {
    let (text, portion) = match text.rsplit_once('\n') {
        Some((text, word)) if kind.is_shared() => {
            let portion = Portion::of_word(word).filter(|portion| portion.suits(kind));
            (text, portion.ok_or_else(|| Broken(format!("a place of a portion `{word}`")))?)
        }
        _ => (text, Portion::Whole),
    };
    let words: Vec<_> = text.splitn(8, '\n').collect();
    let [ticket, nonce, expires_ms, lease_ms, life, hold, own, label] = words[..] else {
        return Err(Broken(format!("a place with {} of 8 parts", words.len())));
    };
    Ok(Place {
        ticket: parsed(ticket)?,
        nonce: parsed(nonce)?,
        expires_ms: parsed(expires_ms)?,
        lease_ms: parsed(lease_ms)?,
        life: self::life(life)?,
        claim: claim(hold, own)?,
        label: Label::new(label).map_err(broken)?,
        portion,
    })
}

fn tenant(text: &str) -> Result<Tenant, Broken> {
    let words: Vec<_> = text.splitn(5, '\n').collect();
    let [hold, since_ms, life, own, label] = words[..] else {
        return Err(Broken(format!("a holder with {} of 5 parts", words.len())));
    };
    let (life, label) = (self::life(life)?, Label::new(label).map_err(broken)?);
    Ok(Tenant { claim: claim(hold, own)?, since_ms: parsed(since_ms)?, life, label })
}

fn life(text: &str) -> Result<Life, Broken> {
    match text {
        life if life.starts_with('s') => Ok(Life::Session { alive_ms: parsed(&life[1..])? }),
        "l" => Ok(Life::Lease),
        other => Err(Broken(format!("a life `{other}`"))),
    }
}

fn endings(text: &str, holds: &BTreeMap<String, HoldId>) -> Result<Endings, Broken> {
    let ended = |at: usize| {
        let (hold, mark) = (text.get(at..at + 12).unwrap_or_default(), text.get(at + 12..at + 13));
        let how = match mark {
            Some(".") => Ended::Released,
            Some("!") => Ended::Evicted,
            Some("~") => Ended::Freed,
            _ => return Err(Broken("a hold that ended in an unknown way".to_owned())),
        };
        let hold = holds.get(hold).ok_or_else(|| Broken("an unknown hold that ended".to_owned()))?;
        Ok((*hold, how))
    };
    Ok(Endings { kept: (0..text.len()).step_by(13).map(ended).collect::<Result<_, _>>()? })
}

fn claim(hold: &str, own: &str) -> Result<Claim, Broken> {
    let hold = HoldId::from_token(hold).map_err(broken)?;
    let value = (!own.is_empty()).then(|| OwnValue::new(own).map_err(broken)).transpose()?;
    Ok(Claim { hold, value })
}

fn parsed<T: std::str::FromStr<Err: Display>>(text: &str) -> Result<T, Broken> {
    text.parse().map_err(broken)
}

#[allow(clippy::needless_pass_by_value, reason = "it stands behind `map_err`")]
fn broken(error: impl Display) -> Broken {
    Broken(error.to_string())
}
