//! The scripts: their texts, and how an operation becomes the call of one.
//!
//! Each script is one text, put together when the crate is compiled. Nothing is glued at run time, and what users
//! give is an argument, never text of a script.

use super::home::Home;
use leasehold_core::model::SessionRecord;
use leasehold_core::{
    Acquire, Beat, Claim, Extend, Kind, Life, Lock, LockKeys, LockName, Op, Pass, Release, Seen,
};
use redis::{Cmd, Pipeline, RedisWrite, ToRedisArgs, ToSingleRedisArg};
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::LazyLock;

/// One text of several files.
macro_rules! lua {
    ($($part:literal)+) => { concat!($(include_str!(concat!("lua/", $part, ".lua"))),+) };
}

/// The texts of the scripts on one kind of lock. What the kinds share is one file.
#[derive(Debug)]
struct Texts {
    acquire: &'static str,
    /// Of one lock by itself, where more is to be looked at than a token.
    extend: &'static str,
    release: &'static str,
    /// A release that leaves the lock taken, where that can be.
    rest: Option<&'static str>,
    inspect: &'static str,
    evict: &'static str,
    free: &'static str,
    /// Of those that a quorum of servers can have.
    raise: Option<&'static str>,
}

const MUTEX: Texts = Texts {
    acquire: lua!(
        "acquire_quick" "string" "fetch" "read" "numbers" "record" "mutex" "one_string" "told" "say" "change" "install" "one_string_change"
        "queue" "grant" "commit" "take" "acquire"
    ),
    extend: lua!("extend_record"),
    release: lua!(
        "release_quick" "string" "fetch" "read" "numbers" "record" "mutex" "one_string" "told" "say" "change" "install" "one_string_change"
        "tell" "queue" "grant" "commit" "release"
    ),
    rest: Some(lua!(
        "string" "fetch" "read" "numbers" "record" "mutex" "one_string" "told" "say" "change" "install" "one_string_change" "queue" "grant" "commit" "release"
    )),
    inspect: lua!("string" "fetch" "read" "numbers" "record" "mutex" "one_string" "told" "inspect"),
    evict: lua!(
        "string" "fetch" "read" "numbers" "record" "mutex" "one_string" "told" "say" "change" "install" "one_string_change" "queue" "grant" "commit" "take"
        "evict"
    ),
    free: lua!(
        "string" "fetch" "read" "numbers" "record" "mutex" "one_string" "told" "say" "change" "install" "one_string_change" "queue" "grant" "commit" "take"
        "free"
    ),
    raise: Some(lua!("raise")),
};
/// As a Mutex, by a token of its own form, and whoever changes the leader says so. Nobody is elected so often that it
/// would have to be quick.
const ELECTION: Texts = Texts {
    acquire: lua!(
        "string" "fetch" "read" "numbers" "record" "election" "one_string" "told" "say" "change" "install" "one_string_change"
        "election_change" "queue" "grant" "commit" "take" "acquire"
    ),
    extend: lua!("extend_record"),
    release: ELECTION_RELEASE,
    rest: Some(ELECTION_RELEASE),
    inspect: lua!("string" "fetch" "read" "numbers" "record" "election" "one_string" "told" "inspect"),
    evict: lua!(
        "string" "fetch" "read" "numbers" "record" "election" "one_string" "told" "say" "change" "install" "one_string_change"
        "election_change" "queue" "grant" "commit" "take" "evict"
    ),
    free: lua!(
        "string" "fetch" "read" "numbers" "record" "election" "one_string" "told" "say" "change" "install" "one_string_change"
        "election_change" "queue" "grant" "commit" "take" "free"
    ),
    raise: None,
};
const ELECTION_RELEASE: &str = lua!(
    "string" "fetch" "read" "numbers" "record" "election" "one_string" "told" "say" "change" "install" "one_string_change"
    "election_change" "queue" "grant" "commit" "release"
);
const REENTRANT: Texts = Texts {
    acquire: lua!(
        "numbers" "hash" "fetch" "read" "record" "reentrant" "told" "say" "change" "install" "reentrant_change" "queue" "grant" "commit" "take" "acquire"
    ),
    extend: lua!("numbers" "hash" "extend_entry"),
    release: lua!(
        "numbers" "hash" "fetch" "read" "record" "reentrant" "told" "say" "change" "install" "reentrant_change" "queue" "grant" "commit" "release"
    ),
    rest: None,
    inspect: lua!("numbers" "hash" "fetch" "read" "record" "reentrant" "told" "inspect"),
    evict: lua!(
        "numbers" "hash" "fetch" "read" "record" "reentrant" "told" "say" "change" "install" "reentrant_change" "queue" "grant" "commit" "take" "evict"
    ),
    free: lua!(
        "numbers" "hash" "fetch" "read" "record" "reentrant" "told" "say" "change" "install" "reentrant_change" "queue" "grant" "commit" "take" "free"
    ),
    raise: Some(lua!("numbers" "hash" "raise_entry")),
};
/// Of all kinds that several have side by side: each call says which it means.
const SHARED: Texts = Texts {
    acquire: lua!(
        "numbers" "parts" "read" "record" "sharers" "say" "change" "parts_change" "queue" "share" "commit" "take" "acquire"
    ),
    extend: lua!("numbers" "extend_part"),
    release: lua!(
        "numbers" "parts" "read" "record" "sharers" "say" "change" "parts_change" "queue" "share" "commit" "release_part"
    ),
    rest: None,
    inspect: lua!("numbers" "parts" "read" "record" "sharers" "inspect_part"),
    evict: lua!(
        "numbers" "parts" "read" "record" "sharers" "say" "change" "parts_change" "queue" "share" "commit" "take" "evict"
    ),
    free: lua!(
        "numbers" "parts" "read" "record" "sharers" "say" "change" "parts_change" "queue" "share" "commit" "take" "free_part"
    ),
    raise: None,
};
const RESIZE: &str = lua!(
    "numbers" "parts" "read" "record" "sharers" "say" "change" "parts_change" "queue" "share" "commit" "resize"
);
const EXTEND: &str = lua!("extend");
const BEAT: &str = lua!("beat");
/// What ends a hold without its record.
const LET_GO: &str = lua!("say" "let_go");
const LET_GO_ENTRY: &str = lua!("numbers" "hash" "say" "let_go_entry");
const LET_GO_PART: &str = lua!("numbers" "let_go_part");
const ACQUIRE_ALL: &str = lua!("acquire_all");
/// What replicas are asked about afterwards.
const TOUCH: &str = lua!("touch");

/// A script, and the name that the server has for it.
#[derive(Debug)]
struct Script {
    text: &'static str,
    sha: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, sha: redis::Script::new(text).get_hash().to_owned() }
    }
}

/// The scripts on one kind of lock.
struct OfKind {
    acquire: Script,
    extend: Script,
    release: Script,
    rest: Option<Script>,
    inspect: Script,
    evict: Script,
    free: Script,
    raise: Option<Script>,
}

impl OfKind {
    fn new(texts: &Texts) -> Self {
        let Texts { acquire, extend, release, rest, inspect, evict, free, raise } = texts;
        Self {
            rest: rest.map(Script::new),
            raise: raise.map(Script::new),
            acquire: Script::new(acquire),
            extend: Script::new(extend),
            release: Script::new(release),
            inspect: Script::new(inspect),
            evict: Script::new(evict),
            free: Script::new(free),
        }
    }

    /// Those that whoever uses such a lock calls, again and again.
    fn usual(&self) -> [&Script; 3] {
        [&self.acquire, &self.extend, &self.release]
    }
}

struct Scripts {
    mutex: OfKind,
    reentrant: OfKind,
    election: OfKind,
    shared: OfKind,
    resize: Script,
    extend: Script,
    acquire_all: Script,
    beat: Script,
    let_go: Script,
    let_go_entry: Script,
    let_go_part: Script,
    touch: Script,
}

static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    mutex: OfKind::new(&MUTEX),
    reentrant: OfKind::new(&REENTRANT),
    election: OfKind::new(&ELECTION),
    shared: OfKind::new(&SHARED),
    resize: Script::new(RESIZE),
    extend: Script::new(EXTEND),
    acquire_all: Script::new(ACQUIRE_ALL),
    beat: Script::new(BEAT),
    let_go: Script::new(LET_GO),
    let_go_entry: Script::new(LET_GO_ENTRY),
    let_go_part: Script::new(LET_GO_PART),
    touch: Script::new(TOUCH),
});

/// Adds the loading of the scripts that most clients call. The others go with their first call: all of them together are
/// long, and where many clients come back at once, the server reads each text anew.
pub(super) fn load_usual(pipeline: &mut Pipeline) {
    let Scripts { mutex, reentrant, extend, acquire_all, beat, .. } = &*SCRIPTS;
    let of_kinds = [mutex, reentrant].into_iter().flat_map(OfKind::usual);
    for script in of_kinds.chain([extend, acquire_all, beat]) {
        pipeline.add_command(load(script));
    }
}

fn load(script: &Script) -> Cmd {
    let mut cmd = Cmd::with_capacity(3, script.text.len() + 16);
    cmd.arg("SCRIPT").arg("LOAD").arg(script.text);
    cmd
}

/// An argument that is written as it is shown.
struct Shown<T>(T);

impl<T: fmt::Display> ToRedisArgs for Shown<T> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg_fmt(&self.0);
    }
}

impl<T: fmt::Display> ToSingleRedisArg for Shown<T> {}

/// An operation as a call of a script.
pub(super) struct Call {
    script: &'static Script,
    cmd: Cmd,
    /// Set if it may take a lock.
    takes: bool,
}

impl Call {
    /// The call of an operation on a lock of that kind with these keys, whose sessions are at home there. `None` for an
    /// operation, or a kind, that has no script.
    pub(super) fn new(op: &Op, kind: Kind, home: &Home<'_>, keys: &LockKeys) -> Option<Self> {
        let mailboxes = &*home.mailboxes();
        let scripts = match kind {
            Kind::Mutex => &SCRIPTS.mutex,
            Kind::Reentrant => &SCRIPTS.reentrant,
            Kind::Election => &SCRIPTS.election,
            shared if shared.is_shared() => &SCRIPTS.shared,
            _ => return None,
        };
        let (name, record) = (keys.name(), keys.record());
        let mut call = match op {
            Op::Acquire(ask) => {
                let mut call = match ask.ahead {
                    None => Self::of(&scripts.acquire, &[name, record]),
                    Some(ahead) => {
                        Self::of(&scripts.acquire, &[name, record, &home.session(ahead), &keys.audit()])
                    }
                };
                call.claim(&ask.claim).cmd.arg(mailboxes);
                let mut call = call.terms(ask);
                if let Some(ahead) = ask.ahead {
                    call.cmd.arg(ahead.to_string());
                }
                call.portion(kind, ask)
            }
            Op::Extend(extend) if goes_by_token(kind, extend) => Self::extends(&[(keys, kind, extend)]),
            Op::Extend(extend) => {
                // One key alone can be had while a slot of a cluster moves, and shared kinds need no record to extend.
                let alone = !kind.is_one_string() && !extend.keep_record;
                let keys: &[&str] = if alone { &[name] } else { &[name, record] };
                let mut call = Self::of(&scripts.extend, keys);
                let keep = if extend.keep_record { "1" } else { "" };
                call.claim(&extend.claim).cmd.arg(extend.lease_ms).arg(keep);
                if kind.is_one_string() {
                    call.cmd.arg(kind.mark());
                }
                if let Some(reserve) = extend.reserve {
                    call.cmd.arg(reserve.tokens).arg(if reserve.tell { "1" } else { "" });
                }
                call
            }
            Op::Release(release) => Self::release(scripts, release, kind, mailboxes, keys)?,
            Op::Inspect(inspect) => {
                let mut call = if inspect.in_full {
                    Self::of(&scripts.inspect, &[name, record, &keys.audit()])
                } else {
                    Self::of(&scripts.inspect, &[name, record])
                };
                match &inspect.claim {
                    Some(claim) => call.claim(claim),
                    None => call.empty(2),
                };
                call
            }
            Op::Evict(evict) => {
                let mut call =
                    Self::of(&scripts.evict, &[name, record, &home.session(evict.dead), &keys.audit()]);
                call.cmd.arg(evict.dead.to_string()).arg("").arg(mailboxes).arg(evict.by.as_str());
                call
            }
            Op::Free(free) => {
                let mut call = Self::of(&scripts.free, &[name, record, &keys.audit()]);
                call.empty(2).cmd.arg(mailboxes).arg(free.by.as_str());
                match free.seen {
                    Seen::Hold(fence) => call.cmd.arg("hold").arg(fence.to_string()),
                    Seen::Stranger(fingerprint) => call.cmd.arg("stranger").arg(fingerprint.to_string()),
                };
                call
            }
            Op::Resize(resize) if kind == Kind::Semaphore => {
                let mut call = Self::of(&SCRIPTS.resize, &[name, record]);
                let seen = resize.seen.map_or_else(String::new, |seen| seen.to_string());
                call.empty(2).cmd.arg(mailboxes).arg(seen).arg(resize.limit);
                call
            }
            Op::Raise(raise) => {
                let mut call = Self::of(scripts.raise.as_ref()?, &[name, record]);
                call.claim(&raise.claim).cmd.arg(raise.fence.to_string());
                call
            }
            _ => return None,
        };
        if kind.is_shared() {
            call.cmd.arg(kind.word());
        }
        // Those that may leave the lock free say so to clients of Redisson's; or that may change the leader, to who observes.
        let said = match kind {
            _ if matches!(op, Op::Extend(_) | Op::Inspect(_) | Op::Raise(_)) => None,
            Kind::Mutex if matches!(op, Op::Release(Release { pass: Pass::Tell, .. })) => {
                Some(home.keys.told_channel(keys))
            }
            Kind::Reentrant | Kind::Election => home.said(kind, keys),
            _ => None,
        };
        if let Some(channel) = said {
            call.cmd.arg(home.channel(channel));
        }
        call.takes = matches!(op, Op::Acquire(_) | Op::Release(Release { next: Some(_), .. }));
        Some(call)
    }

    fn release(
        scripts: &'static OfKind,
        release: &Release,
        kind: Kind,
        mailboxes: &str,
        keys: &LockKeys,
    ) -> Option<Self> {
        let (script, pass) = match release.pass {
            Pass::Free if !kind.is_shared() => (&scripts.release, Cow::from("free")),
            Pass::Tell if kind == Kind::Mutex => (&scripts.release, "tell".into()),
            // Of a ReentrantMutex all hear it that listen to Redisson's channel.
            Pass::Tell => (&scripts.release, "free".into()),
            Pass::Grant | Pass::Free => (&scripts.release, "grant".into()),
            Pass::Rest { for_ms } => (scripts.rest.as_ref()?, for_ms.to_string().into()),
        };
        let mut call = Self::of(script, &[keys.name(), keys.record()]);
        call.claim(&release.claim).cmd.arg(mailboxes).arg(&*pass);
        Some(match &release.next {
            Some(next) => {
                call.claim(&next.claim);
                call.terms(next).portion(kind, next)
            }
            None => call,
        })
    }

    /// The call of as much of an operation as can be done with the lock's own key alone, or without the keys that are
    /// seldom there: for as long as a slot of a cluster moves, and some of the keys have gone ahead. `None` where that
    /// would be another operation. To a [release](Op::Release) it is answered by [`reply::let_go`](super::reply::let_go),
    /// to all else as ever.
    pub(super) fn lesser(op: &Op, kind: Kind, home: &Home<'_>, keys: &LockKeys) -> Option<Self> {
        match op {
            // By a value of the user's own a stranger may have the lock: only the record knows.
            Op::Extend(Extend { claim, .. }) | Op::Release(Release { claim, .. })
                if kind.is_one_string() && claim.value.is_some() =>
            {
                None
            }
            Op::Extend(extend) => {
                let extend = Extend { keep_record: false, reserve: None, ..extend.clone() };
                Self::new(&Op::Extend(extend), kind, home, keys)
            }
            Op::Acquire(ask) => {
                ask.ahead?;
                Self::new(&Op::Acquire(Acquire { ahead: None, ..ask.clone() }), kind, home, keys)
            }
            Op::Release(Release { claim, pass: Pass::Grant | Pass::Free, .. }) => {
                let name = [keys.name()];
                let mut call = match kind {
                    Kind::Mutex | Kind::Election => {
                        let mut call = Self::of(&SCRIPTS.let_go, &name);
                        call.cmd.arg(kind.token(claim));
                        call
                    }
                    Kind::Reentrant => {
                        let mut call = Self::of(&SCRIPTS.let_go_entry, &name);
                        call.claim(claim);
                        call
                    }
                    Kind::Semaphore | Kind::RwLock => {
                        let mut call = Self::of(&SCRIPTS.let_go_part, &name);
                        call.cmd.arg(claim.hold.token()).arg(kind.word());
                        call
                    }
                    // Nobody is kept out by such a hold, and what comes late of it must be known as that.
                    _ => return None,
                };
                if let Some(channel) = home.said(kind, keys) {
                    call.cmd.arg(home.channel(channel));
                }
                Some(call)
            }
            _ => None,
        }
    }

    /// The one call of several extends, each of which goes by its token, of locks at these keys.
    pub(super) fn extends<K: Borrow<LockKeys>>(extends: &[(K, Kind, &Extend)]) -> Self {
        let keys: Vec<_> = extends.iter().map(|(keys, ..)| keys.borrow().name()).collect();
        let mut call = Self::of(&SCRIPTS.extend, &keys);
        for (_, kind, extend) in extends {
            call.cmd.arg(kind.token(&extend.claim)).arg(extend.lease_ms);
        }
        call
    }

    /// The call that takes all of several Mutexes at these keys, or none. What they are asked for with is the first one's
    /// but for claim and lease.
    pub(super) fn acquire_all(asks: &[(LockKeys, &Acquire)]) -> Self {
        let keys: Vec<_> = asks.iter().flat_map(|(keys, _)| [keys.name(), keys.record()]).collect();
        let mut call = Self::of(&SCRIPTS.acquire_all, &keys);
        if let Some((_, ask)) = asks.first() {
            call.cmd.arg(ask.label.as_str()).arg(life(ask.life));
        }
        for (_, ask) in asks {
            call.claim(&ask.claim).cmd.arg(ask.lease_ms);
        }
        call
    }

    /// The call that begins a session, or keeps it alive.
    pub(super) fn beat(beat: &Beat, home: &Home<'_>) -> Self {
        Self::beat_at(beat, &[&home.session(beat.session), &home.sessions()])
    }

    /// The same without the index: as [`lesser`](Self::lesser).
    pub(super) fn lesser_beat(beat: &Beat, home: &Home<'_>) -> Self {
        Self::beat_at(beat, &[&home.session(beat.session)])
    }

    fn beat_at(beat: &Beat, keys: &[&str]) -> Self {
        let Beat { session, alive_ms, begin, held, left } = beat;
        let mut call = Self::of(&SCRIPTS.beat, keys);
        let begins = if begin.is_some() { "1" } else { "" };
        let cmd = call.cmd.arg(session.to_string()).arg(*alive_ms).arg(SessionRecord::kept_ms(*alive_ms));
        cmd.arg(begins).arg(begin.as_deref().unwrap_or_default()).arg(held.len());
        for lock in held.iter().chain(left) {
            cmd.arg(field_of(lock));
        }
        call
    }

    /// The call that writes at a lock's key what stands there already.
    pub(super) fn touch(keys: &LockKeys) -> Self {
        Self::of(&SCRIPTS.touch, &[keys.name()])
    }

    /// Whether it may take a lock, by itself and not for somebody who waits.
    pub(super) fn takes(&self) -> bool {
        self.takes
    }

    /// The command.
    pub(super) fn cmd(&self) -> &Cmd {
        &self.cmd
    }

    /// The text of the script.
    #[cfg(test)]
    pub(super) fn text(&self) -> &'static str {
        self.script.text
    }

    /// The command, after the loading of its script.
    pub(super) fn with_load(&self) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(self.load()).add_command(self.cmd.clone());
        pipeline
    }

    /// The loading of its script.
    pub(super) fn load(&self) -> Cmd {
        load(self.script)
    }

    fn of(script: &'static Script, keys: &[&str]) -> Self {
        // A release with an acquire has 20 arguments; claims, numbers and a short label fit beside the keys. Extends
        // have two for each key.
        let (arguments, bytes) = (20.max(3 + 3 * keys.len()), 256.max(64 + 48 * keys.len()));
        let mut cmd = Cmd::with_capacity(arguments, bytes + keys.iter().map(|key| key.len()).sum::<usize>());
        cmd.arg("EVALSHA").arg(&script.sha).arg(keys.len());
        for key in keys {
            cmd.arg(*key);
        }
        Self { script, cmd, takes: false }
    }

    fn claim(&mut self, claim: &Claim) -> &mut Self {
        let own = claim.value.as_ref().map_or("", |value| value.as_str());
        self.cmd.arg(&claim.hold.token_bytes()[..]).arg(own);
        self
    }

    fn terms(mut self, ask: &Acquire) -> Self {
        self.cmd.arg(ask.lease_ms).arg(ask.label.as_str());
        match &ask.queue {
            Some(queue) => {
                self.cmd.arg(Shown(queue.nonce)).arg(queue.kept_ms);
            }
            None => {
                self.empty(2);
            }
        }
        match ask.adopt_ms {
            Some(adopt_ms) => self.cmd.arg(adopt_ms),
            None => self.cmd.arg(""),
        };
        self.cmd.arg(life(ask.life));
        self
    }

    /// What part is asked for, of a lock that has parts.
    fn portion(mut self, kind: Kind, ask: &Acquire) -> Self {
        if kind.is_shared() {
            self.cmd.arg(ask.portion.word());
        }
        self
    }

    fn empty(&mut self, count: usize) -> &mut Self {
        for _ in 0..count {
            self.cmd.arg("");
        }
        self
    }
}

/// What ends a hold, as the scripts know it.
fn life(life: Life) -> Shown<fmt::FromFn<impl Fn(&mut fmt::Formatter<'_>) -> fmt::Result>> {
    Shown(fmt::from_fn(move |f| match life {
        Life::Session { alive_ms } => write!(f, "s{alive_ms}"),
        Life::Lease => f.write_str("l"),
    }))
}

/// Whether a hold is told by its token alone, and no more than its end is to change: such extends go together.
pub(super) fn goes_by_token(kind: Kind, extend: &Extend) -> bool {
    kind.is_one_string() && extend.claim.value.is_none() && !extend.keep_record && extend.reserve.is_none()
}

/// What the records of sessions call a lock that they hold.
fn field_of(lock: &Lock) -> String {
    format!("l:{}:{}", lock.kind.word(), lock.name)
}

/// The lock of such a field.
pub(super) fn lock_of(field: &str) -> Option<Lock> {
    let (kind, name) = field.strip_prefix("l:")?.split_once(':')?;
    Some(Lock { kind: Kind::of_word(kind)?, name: LockName::new(name).ok()? })
}

/// The texts of all scripts.
#[cfg(test)]
pub(super) fn all_texts() -> Vec<&'static str> {
    let texts = [MUTEX, REENTRANT, ELECTION, SHARED];
    let texts = texts.map(|Texts { acquire, extend, release, rest, inspect, evict, free, raise }| {
        [acquire, extend, release, rest.unwrap_or(release), inspect, evict, free, raise.unwrap_or(extend)]
    });
    [texts.concat(), vec![RESIZE, EXTEND, ACQUIRE_ALL, BEAT, LET_GO, LET_GO_ENTRY, LET_GO_PART, TOUCH]]
        .concat()
}

#[cfg(test)]
mod tests {
    use super::super::embedded::crc64;
    use super::*;
    use leasehold_core::model::{Audit, Endings};
    use leasehold_core::{HoldId, SessionId};

    #[test]
    fn the_payload_of_an_empty_record_is_what_dump_would_give() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca, "the check value in Redis's crc64.c");
        let mut payload = b"\x04\x01\x06format\x011\x09\x00".to_vec();
        payload.extend_from_slice(&crc64(&payload).to_le_bytes());
        let escaped: Vec<_> = payload.iter().map(|byte| format!("\\{byte:03}")).collect();
        let escaped = escaped.concat();
        assert!(MUTEX.acquire.contains(&format!("EMPTY_RECORD = '{escaped}'")), "{escaped}");
        assert!(BEAT.contains(&format!("EMPTY_RECORD = '{escaped}'")), "{escaped}");
        assert!(ACQUIRE_ALL.contains(&format!("EMPTY_RECORD = '{escaped}'")), "{escaped}");
        assert_eq!(leasehold_core::FORMAT, 1, "the payload and record.lua name the format");
        let mut payload = b"\x04\x01\x09leasehold\x04none\x09\x00".to_vec();
        payload.extend_from_slice(&crc64(&payload).to_le_bytes());
        let escaped: Vec<_> = payload.iter().map(|byte| format!("\\{byte:03}")).collect();
        let escaped = escaped.concat();
        assert!(REENTRANT.acquire.contains(&format!("OPENED = '{escaped}'")), "{escaped}");
        for kind in Kind::ALL.into_iter().filter(|kind| kind.is_shared()) {
            let word = kind.word();
            let mut payload = b"\x04\x01\x09leasehold".to_vec();
            payload.push(u8::try_from(word.len()).expect("a word is short"));
            payload.extend_from_slice(word.as_bytes());
            payload.extend_from_slice(b"\x09\x00");
            payload.extend_from_slice(&crc64(&payload).to_le_bytes());
            let escaped: Vec<_> = payload.iter().map(|byte| format!("\\{byte:03}")).collect();
            let escaped = escaped.concat();
            assert!(SHARED.acquire.contains(&format!("{word} = '{escaped}'")), "{escaped}");
        }
        let mut payload = b"\x05\x01\x01-\0\0\0\0\0\0\0\0\x09\x00".to_vec();
        payload.extend_from_slice(&crc64(&payload).to_le_bytes());
        let escaped: Vec<_> = payload.iter().map(|byte| format!("\\{byte:03}")).collect();
        let escaped = escaped.concat();
        assert!(BEAT.contains(&format!("EMPTY_INDEX = '{escaped}'")), "{escaped}");
    }

    #[test]
    fn the_scripts_know_the_marks_of_the_model() {
        let mark = Kind::Election.mark().replace('\n', "\\n");
        let (refused, length) =
            (format!("== '{mark}'"), format!("string.sub(value, 1, {}) ", mark.len() - 1));
        let mutex = [MUTEX.acquire, MUTEX.inspect, ACQUIRE_ALL].map(|text| (text, refused.clone()));
        let election = [ELECTION.acquire, ELECTION.inspect].map(|text| (text, format!("MARK = '{mark}'\n")));
        for (text, marked) in mutex.into_iter().chain(election) {
            assert!(text.contains(&marked) && text.contains(&length), "{text}");
        }
        assert_eq!(Kind::Mutex.rest(None), "rest\n0", "as in one_string.lua and acquire_all.lua");
    }

    #[test]
    fn a_lock_is_found_again_by_what_a_session_calls_it() {
        for name in ["job", "a:b", "l:mutex:job", "{orders}/42", "two words"] {
            let lock = Lock::mutex(name.parse().expect("a good name"));
            assert_eq!(lock_of(&field_of(&lock)), Some(lock), "{name}");
        }
        for field in ["until", "about", "l:", "l:mutex:", "l:other:job", "mutex:job"] {
            assert_eq!(lock_of(field), None, "{field}");
        }
    }

    #[test]
    fn the_scripts_know_the_numbers_of_the_model() {
        let kept_ms = leasehold_core::RECORD_KEPT.as_millis();
        for Texts { acquire, extend, release, rest, inspect: _, evict, free, raise: _ } in
            [MUTEX, REENTRANT, ELECTION, SHARED]
        {
            for script in [acquire, extend, release, rest.unwrap_or(release), evict, free] {
                assert!(script.contains(&format!("RECORD_KEPT_MS = {kept_ms}\n")));
            }
            let kept_ms = leasehold_core::AUDIT_KEPT.as_millis();
            for script in [acquire, evict, free] {
                assert!(script.contains(&format!("AUDIT_KEPT_MS = '{kept_ms}'\n")));
                assert!(script.contains(&format!("ENTRIES_AT_MOST = {}\n", Audit::MOST)));
            }
            let greatest = leasehold_core::FencingToken::MAX;
            assert!(acquire.contains(&format!("GREATEST_FENCE = {greatest}\n")));
        }
        for script in [Some(ACQUIRE_ALL), MUTEX.raise, REENTRANT.raise].into_iter().flatten() {
            assert!(script.contains(&format!("RECORD_KEPT_MS = {kept_ms}\n")));
        }
        // Of each hold the first characters behind the session's, and a mark.
        let session = SessionId::from_random([0; 12]);
        let random = HoldId::from_random(session, [0; 16]).token().find('.').expect("a dot") + 1;
        let short = format!("18, {}", random + 12);
        assert_eq!(random + 1, 18);
        let kept = format!("string.sub(ended or '', 1, {})", (Endings::MOST - 1) * (12 + 1));
        for script in [MUTEX, REENTRANT, ELECTION, SHARED]
            .iter()
            .flat_map(|texts| [texts.release, texts.evict, texts.free])
        {
            let ended = script.split("'.'").skip(1).filter(|rest| rest.contains(&kept)).count();
            assert!(ended > 0 && script.contains(&format!("string.sub(hold, {short})")));
        }
        let greatest = leasehold_core::FencingToken::MAX;
        assert!(ACQUIRE_ALL.contains(&format!("GREATEST_FENCE = {greatest}\n")));
        for script in [MUTEX.acquire, REENTRANT.acquire, ELECTION.acquire, ACQUIRE_ALL] {
            let numbers = "RAISED_EVERY_US, SHORT_LEASE_MS = 100000000, 1000000\n";
            assert!(script.contains(numbers), "as in core/model/record.rs");
        }
        assert!(SHARED.inspect.contains(&format!("SHARERS_TOLD = {}\n", leasehold_core::SHARERS_TOLD)));
    }

    #[test]
    fn every_key_of_a_command_is_a_declared_one() {
        for script in all_texts() {
            assert!(!script.starts_with("#!"), "Redis 6.2 knows no headers");
            let loops = script.split(" key in ").skip(1).all(|rest| rest.starts_with("ipairs(KEYS) do"));
            assert!(loops && !script.contains("local key"), "`key` is one that is declared");
            let calls = script.split("redis.call(").skip(1);
            for call in calls.chain(script.split("redis.pcall(").skip(1)) {
                let (command, rest) = call.trim_start().split_once([',', ')']).unwrap_or_default();
                let rest = rest.trim_start();
                // `key` is one of KEYS, in a loop over them.
                let declared =
                    ["KEYS[", "unpack(KEYS)", "key,", "key)"].iter().any(|key| rest.starts_with(key));
                assert!(
                    declared || matches!(command, "'TIME'" | "'PUBLISH'" | "'SPUBLISH'"),
                    "{command} {rest}"
                );
            }
        }
    }
}
