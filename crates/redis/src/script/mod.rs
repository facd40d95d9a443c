//! The calls of the scripts: which script an operation needs, and its keys and arguments.
//!
//! Not here: the texts of the scripts ([`lua`]), and the meaning of the replies ([`reply`]).

pub(crate) mod batch;
pub(crate) mod reply;

use super::lua::{self, Texts};
use super::session_keys::SessionKeys;
use leasehold_core::model::SessionRecord;
use leasehold_core::{
    Acquire, Claim, Evict, Extend, ForceRelease, Heartbeat, Inspect, Kind, Liveness, Lock, LockKeys,
    LockName, MAX_CLASSES, MergeStatistics, OTHER_CLASS, ObservedHolder, Op, Proclaim, Release,
    ReleaseAction, Resize, STATISTICS_TTL, SessionId, whole_millis,
};
use redis::{Cmd, Pipeline, RedisWrite, ToRedisArgs, ToSingleRedisArg};
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::LazyLock;

/// A script, and its SHA-1, by which the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    sha: String,
}

impl Script {
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text, sha: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Adds a call of the script, which the server must know.
    pub(crate) fn add_call(&self, to: &mut Pipeline, keys: &[String], arguments: &[&str]) {
        to.cmd("EVALSHA").arg(&self.sha).arg(keys.len()).arg(keys).arg(arguments);
    }
}

/// The scripts on one kind of lock.
struct KindScripts {
    acquire: Script,
    extend: Script,
    release: Script,
    release_with_cooldown: Option<Script>,
    release_with_history: Script,
    inspect: Script,
    evict: Script,
    force_release: Script,
    raise_fence: Option<Script>,
}

impl KindScripts {
    fn new(texts: &Texts) -> Self {
        let Texts {
            acquire,
            extend,
            release,
            release_with_cooldown,
            release_with_history,
            inspect,
            evict,
            force_release,
            raise_fence,
        } = texts;
        Self {
            release_with_cooldown: release_with_cooldown.map(Script::new),
            release_with_history: Script::new(release_with_history),
            raise_fence: raise_fence.map(Script::new),
            acquire: Script::new(acquire),
            extend: Script::new(extend),
            release: Script::new(release),
            inspect: Script::new(inspect),
            evict: Script::new(evict),
            force_release: Script::new(force_release),
        }
    }

    fn of(kind: Kind) -> Option<&'static Self> {
        match kind {
            Kind::Mutex => Some(&SCRIPTS.mutex),
            Kind::Reentrant => Some(&SCRIPTS.reentrant),
            Kind::Election => Some(&SCRIPTS.election),
            shared if shared.is_shared() => Some(&SCRIPTS.shared),
            _ => None,
        }
    }
}

struct Scripts {
    mutex: KindScripts,
    reentrant: KindScripts,
    election: KindScripts,
    shared: KindScripts,
    resize: Script,
    proclaim: Script,
    extend: Script,
    acquire_all: Script,
    batch: Script,
    heartbeat: Script,
    session_list: Script,
    session_read: Script,
    statistics_merge: Script,
    statistics_list: Script,
    release_by_token: Script,
    reentrant_release_by_token: Script,
    shared_release_by_token: Script,
    join_line: Script,
    rewrite_expiry: Script,
}

static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    mutex: KindScripts::new(&lua::MUTEX),
    reentrant: KindScripts::new(&lua::REENTRANT),
    election: KindScripts::new(&lua::ELECTION),
    shared: KindScripts::new(&lua::SHARED),
    resize: Script::new(lua::RESIZE),
    proclaim: Script::new(lua::PROCLAIM),
    extend: Script::new(lua::EXTEND),
    acquire_all: Script::new(lua::ACQUIRE_ALL),
    batch: Script::new(lua::BATCH),
    heartbeat: Script::new(lua::HEARTBEAT),
    session_list: Script::new(lua::SESSION_LIST),
    session_read: Script::new(lua::SESSION_READ),
    statistics_merge: Script::new(lua::STATISTICS_MERGE),
    statistics_list: Script::new(lua::STATISTICS_LIST),
    release_by_token: Script::new(lua::RELEASE_BY_TOKEN),
    reentrant_release_by_token: Script::new(lua::REENTRANT_RELEASE_BY_TOKEN),
    shared_release_by_token: Script::new(lua::SHARED_RELEASE_BY_TOKEN),
    join_line: Script::new(lua::JOIN_LINE),
    rewrite_expiry: Script::new(lua::REWRITE_EXPIRY),
});

pub(crate) fn load(script: &Script) -> Cmd {
    let mut cmd = Cmd::with_capacity(3, script.text.len() + 16);
    cmd.arg("SCRIPT").arg("LOAD").arg(script.text);
    cmd
}

/// An argument in its `Display` form.
struct Shown<T>(T);

impl<T: fmt::Display> ToRedisArgs for Shown<T> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg_fmt(&self.0);
    }
}

impl<T: fmt::Display> ToSingleRedisArg for Shown<T> {}

/// The call of a script.
pub(crate) struct Call {
    script: &'static Script,
    cmd: Cmd,
    /// Set if it may acquire a lock for its caller.
    may_acquire: bool,
}

impl Call {
    /// The call for an operation on a lock of this kind with these keys. `None` if there is no script for the operation or
    /// for the kind.
    pub(crate) fn new(op: &Op, kind: Kind, session_keys: &SessionKeys<'_>, keys: &LockKeys) -> Option<Self> {
        let scripts = KindScripts::of(kind)?;
        let mut call = match op {
            Op::Acquire(request) => Self::acquire(scripts, request, kind, session_keys, keys),
            Op::Extend(extend) if extends_by_token(kind, extend) => Self::extends(&[(keys, kind, extend)]),
            Op::Extend(extend) => Self::extend(scripts, extend, kind, keys),
            Op::Release(release) => Self::release(scripts, release, kind, session_keys, keys)?,
            Op::Inspect(inspect) => Self::inspect(scripts, inspect, kind, keys),
            Op::Evict(evict) => Self::evict(scripts, evict, kind, session_keys, keys),
            Op::ForceRelease(request) => Self::force_release(scripts, request, kind, session_keys, keys),
            Op::Resize(resize) if kind == Kind::Semaphore => Self::resize(resize, session_keys, keys),
            Op::Proclaim(Proclaim { claim, fence, observed, value }) if kind == Kind::Election => {
                let mut call = Self::of(&SCRIPTS.proclaim, [keys.name(), keys.record()]);
                call.claim(claim).cmd.arg(fence.to_string()).arg(observed.as_str()).arg(value.as_str());
                call
            }
            Op::RaiseFence(raise) => {
                let mut call = Self::of(scripts.raise_fence.as_ref()?, [keys.name(), keys.record()]);
                call.claim(&raise.claim).cmd.arg(raise.fence.to_string()).arg(if raise.exact {
                    "1"
                } else {
                    ""
                });
                call
            }
            _ => return None,
        };
        if kind.is_shared() {
            call.cmd.arg(kind.as_str());
        }
        if let Some(channel) = announcement_channel(op, kind, session_keys, keys) {
            call.cmd.arg(session_keys.script_channel(channel));
        }
        call.may_acquire = matches!(op, Op::Acquire(_) | Op::Release(Release { next: Some(_), .. }));
        Some(call)
    }

    fn acquire(
        scripts: &'static KindScripts,
        request: &Acquire,
        kind: Kind,
        session_keys: &SessionKeys<'_>,
        keys: &LockKeys,
    ) -> Self {
        let inspected = request.predecessor.map(|session| (session_keys.session(session), keys.audit()));
        let inspected = inspected.as_ref().map(|(session, audit)| [&**session, audit]);
        let others = inspected.as_ref().map_or(&[][..], |keys| keys);
        let mut call = Self::changing(&scripts.acquire, kind, session_keys, keys, others);
        call.claim(&request.claim).cmd.arg(&*session_keys.mailbox_prefix());
        let mut call = call.terms(request);
        if let Some(predecessor) = request.predecessor {
            call.cmd.arg(predecessor.to_string());
        }
        call.mode(kind, request)
    }

    fn extend(scripts: &'static KindScripts, extend: &Extend, kind: Kind, keys: &LockKeys) -> Self {
        // A call with one key also works while a slot migrates, and these kinds need no record to extend.
        let record = (kind.is_plain_string() || extend.keep_record).then(|| keys.record());
        let ends = kind.is_shared().then(|| keys.ends());
        let mut call =
            Self::of(&scripts.extend, [keys.name()].into_iter().chain(ends.as_deref()).chain(record));
        call.extend_terms(extend, kind);
        call
    }

    fn extend_terms(&mut self, extend: &Extend, kind: Kind) {
        let call = self;
        let keep_record = if extend.keep_record { "1" } else { "" };
        call.claim(&extend.claim).cmd.arg(extend.lease_ms).arg(keep_record);
        match extend.fence {
            Some(fence) => call.cmd.arg(fence.as_u64()),
            None => call.cmd.arg(""),
        };
        if kind.is_plain_string() {
            call.cmd.arg(kind.token_prefix());
        }
        if let Some(reserve) = extend.reserve {
            call.cmd.arg(reserve.tokens).arg(if reserve.notify_wanted { "1" } else { "" });
        }
    }

    fn inspect(scripts: &'static KindScripts, inspect: &Inspect, kind: Kind, keys: &LockKeys) -> Self {
        let name = [keys.name(), keys.record()];
        let past = inspect.details.then(|| [keys.audit(), keys.history()]);
        // Of a node of a quorum, which has only these.
        let line = (inspect.details && kind == Kind::Mutex).then(|| keys.line());
        let details = past.iter().flatten().chain(&line).map(String::as_str);
        let mut call = Self::of(&scripts.inspect, name.into_iter().chain(details));
        match &inspect.claim {
            Some(claim) => call.claim(claim),
            None => call.empty(2),
        };
        call
    }

    /// The single call for the inspection of several locks of one kind ([`inspects_together`]), which have these keys.
    pub(crate) fn inspects(kind: Kind, locks: &[LockKeys]) -> Option<Self> {
        let script = &KindScripts::of(kind)?.inspect;
        let mut call = Self::of(script, locks.iter().flat_map(|keys| [keys.name(), keys.record()]));
        call.empty(2).cmd.arg("each");
        Some(call)
    }

    fn evict(
        scripts: &'static KindScripts,
        evict: &Evict,
        kind: Kind,
        session_keys: &SessionKeys<'_>,
        keys: &LockKeys,
    ) -> Self {
        let (session, audit) = (session_keys.session(evict.session), keys.audit());
        let mut call = Self::changing(&scripts.evict, kind, session_keys, keys, &[&session, &audit]);
        let mailboxes = &*session_keys.mailbox_prefix();
        call.cmd.arg(evict.session.to_string()).arg("").arg(mailboxes).arg(evict.actor.as_str());
        call
    }

    fn force_release(
        scripts: &'static KindScripts,
        request: &ForceRelease,
        kind: Kind,
        session_keys: &SessionKeys<'_>,
        keys: &LockKeys,
    ) -> Self {
        let audit = keys.audit();
        let mut call = Self::changing(&scripts.force_release, kind, session_keys, keys, &[&audit]);
        call.empty(2).cmd.arg(&*session_keys.mailbox_prefix()).arg(request.actor.as_str());
        match request.observed {
            ObservedHolder::Hold(fence) => call.cmd.arg("hold").arg(fence.to_string()),
            ObservedHolder::Foreign(fingerprint) => call.cmd.arg("foreign").arg(fingerprint.to_string()),
        };
        call
    }

    fn resize(resize: &Resize, session_keys: &SessionKeys<'_>, keys: &LockKeys) -> Self {
        let mut call = Self::changing(&SCRIPTS.resize, Kind::Semaphore, session_keys, keys, &[]);
        let observed = resize.observed.map_or_else(String::new, |observed| observed.to_string());
        call.empty(2).cmd.arg(&*session_keys.mailbox_prefix()).arg(observed).arg(resize.limit);
        call.cmd.arg(if resize.agreed { "1" } else { "" });
        call
    }

    fn release(
        scripts: &'static KindScripts,
        release: &Release,
        kind: Kind,
        session_keys: &SessionKeys<'_>,
        keys: &LockKeys,
    ) -> Option<Self> {
        let (script, action) = match release.action {
            ReleaseAction::Free if !kind.is_shared() => (&scripts.release, Cow::from("free")),
            ReleaseAction::FreeAndPublish if kind == Kind::Mutex => (&scripts.release, "publish".into()),
            // A ReentrantMutex that becomes free is always published on Redisson's channel.
            ReleaseAction::FreeAndPublish => (&scripts.release, "free".into()),
            ReleaseAction::Grant | ReleaseAction::Free => (&scripts.release, "grant".into()),
            ReleaseAction::KeepPermits { count } => (&scripts.release, format!("keep {count}").into()),
            ReleaseAction::Cooldown { for_ms } => {
                (scripts.release_with_cooldown.as_ref()?, for_ms.to_string().into())
            }
        };
        let line =
            (release.action == ReleaseAction::FreeAndPublish && kind == Kind::Mutex).then(|| keys.line());
        let history = release.history_entries().map(|most| (keys.history(), most));
        let (script, action) = match &history {
            Some((_, most)) => (&scripts.release_with_history, format!("{action} history {most}").into()),
            None => (script, action),
        };
        let others: Vec<_> =
            line.iter().chain(history.iter().map(|(key, _)| key)).map(String::as_str).collect();
        let mut call = Self::changing(script, kind, session_keys, keys, &others);
        call.claim(&release.claim).cmd.arg(&*session_keys.mailbox_prefix()).arg(&*action);
        Some(match &release.next {
            Some(next) => {
                call.claim(&next.claim);
                call.terms(next).mode(kind, next)
            }
            None => call,
        })
    }

    /// The call that adds a session to the line of the waiters of a Mutex: it has waited for so long, and the line lasts for
    /// so long.
    pub(crate) fn join_line(keys: &LockKeys, session: SessionId, waited_ms: u64, kept_ms: u64) -> Self {
        let mut call = Self::of(&SCRIPTS.join_line, [&*keys.line()]);
        call.cmd.arg(session.to_string()).arg(waited_ms).arg(kept_ms);
        call
    }

    /// The reduced form of an operation, for a slot that migrates when some of the keys have moved already: it uses the
    /// lock's own key alone, but for an extend of one grant of a Mutex or an Election, whose token is in the record. `None` if
    /// that would be another operation.
    /// [`reply::release_by_token`] parses the reply to a [release](Op::Release); other
    /// replies are the usual ones.
    pub(crate) fn reduced(
        op: &Op,
        kind: Kind,
        session_keys: &SessionKeys<'_>,
        keys: &LockKeys,
    ) -> Option<Self> {
        match op {
            // Another client may hold the lock with the same value, which the user chose: only the record identifies the hold.
            Op::Extend(Extend { claim, .. }) | Op::Release(Release { claim, .. })
                if kind.is_plain_string() && claim.value.is_some() =>
            {
                None
            }
            Op::Extend(extend) => {
                let extend = Extend { keep_record: false, reserve: None, ..extend.clone() };
                if !kind.is_shared() {
                    return Self::new(&Op::Extend(extend), kind, session_keys, keys);
                }
                let mut call = Self::of(&SCRIPTS.shared.extend, [keys.name()]);
                call.extend_terms(&extend, kind);
                call.cmd.arg(kind.as_str());
                Some(call)
            }
            Op::Release(Release { claim, action: ReleaseAction::Grant | ReleaseAction::Free, .. }) => {
                let name = [keys.name()];
                let mut call = match kind {
                    Kind::Mutex | Kind::Election => {
                        let mut call = Self::of(&SCRIPTS.release_by_token, name);
                        call.cmd.arg(kind.token(claim));
                        call
                    }
                    Kind::Reentrant => {
                        let mut call = Self::of(&SCRIPTS.reentrant_release_by_token, name);
                        call.claim(claim);
                        call
                    }
                    Kind::Semaphore | Kind::RwLock => {
                        let mut call = Self::of(&SCRIPTS.shared_release_by_token, name);
                        call.cmd.arg(claim.hold.token()).arg(kind.as_str());
                        call
                    }
                    // Such a hold blocks no other client, and late requests for it must find it in the record.
                    _ => return None,
                };
                if let Some(channel) = session_keys.announcement_channel(kind, keys) {
                    call.cmd.arg(session_keys.script_channel(channel));
                }
                Some(call)
            }
            _ => None,
        }
    }

    /// The form of an operation for a slot that migrates, which leaves out keys that seldom exist: the watermark, which its
    /// script does without if the record knows a token, and the session, the audit and the history. `None` for other operations.
    pub(crate) fn without_rare_keys(
        op: &Op,
        kind: Kind,
        session_keys: &SessionKeys<'_>,
        keys: &LockKeys,
    ) -> Option<Self> {
        let session_keys = SessionKeys { without_watermark: true, ..*session_keys };
        match op {
            Op::Acquire(request) => {
                let request = Acquire { predecessor: None, ..request.clone() };
                Self::new(&Op::Acquire(request), kind, &session_keys, keys)
            }
            Op::Release(release) => {
                Self::new(&Op::Release(release.without_history()), kind, &session_keys, keys)
            }
            _ => None,
        }
    }

    /// The single call for several extends by token, of locks with these keys.
    pub(crate) fn extends<K: Borrow<LockKeys>>(extends: &[(K, Kind, &Extend)]) -> Self {
        let keys = extends.iter().map(|(keys, ..)| keys.borrow().name());
        let mut call = Self::of(&SCRIPTS.extend, keys);
        for (_, kind, extend) in extends {
            call.cmd.arg(kind.token(&extend.claim)).arg(extend.lease_ms);
        }
        call
    }

    /// The call that acquires all of several Mutexes, or none. Label and liveness are those of the first request.
    pub(crate) fn acquire_all(requests: &[(LockKeys, &Acquire)], session_keys: &SessionKeys<'_>) -> Self {
        let watermark = requests.first().map(|(keys, _)| session_keys.watermark(keys)).unwrap_or_default();
        let locks = requests.iter().flat_map(|(keys, _)| [keys.name(), keys.record()]);
        let mut call = Self::of(&SCRIPTS.acquire_all, locks.chain([&*watermark]));
        if let Some((_, request)) = requests.first() {
            call.cmd.arg(request.label.as_str()).arg(Shown(LivenessText(request.liveness)));
        }
        for (_, request) in requests {
            call.claim(&request.claim).cmd.arg(request.lease_ms);
        }
        call
    }

    /// The call that begins a session, or keeps it alive.
    pub(crate) fn heartbeat(heartbeat: &Heartbeat, session_keys: &SessionKeys<'_>) -> Self {
        if heartbeat.begin.is_none() && !heartbeat.renew_listing {
            return Self::reduced_heartbeat(heartbeat, session_keys);
        }
        Self::heartbeat_with_keys(
            heartbeat,
            &[&session_keys.session(heartbeat.session), &session_keys.sessions()],
        )
    }

    /// The same without the index, as in [`reduced`](Self::reduced).
    pub(crate) fn reduced_heartbeat(heartbeat: &Heartbeat, session_keys: &SessionKeys<'_>) -> Self {
        Self::heartbeat_with_keys(heartbeat, &[&session_keys.session(heartbeat.session)])
    }

    fn heartbeat_with_keys(heartbeat: &Heartbeat, keys: &[&str]) -> Self {
        let Heartbeat { session, alive_ms, begin, acquired, released, renew_listing: _, activity } =
            heartbeat;
        let mut call = Self::of(&SCRIPTS.heartbeat, keys.iter().copied());
        let begins = if begin.is_some() { "1" } else { "" };
        let cmd = call.cmd.arg(session.to_string()).arg(*alive_ms).arg(SessionRecord::ttl_ms(*alive_ms));
        cmd.arg(begins).arg(begin.as_deref().unwrap_or_default());
        cmd.arg(activity.as_ref().map(|activity| format!("={activity}")).unwrap_or_default())
            .arg(acquired.len());
        for lock in acquired.iter().chain(released) {
            cmd.arg(field_of(lock));
        }
        call
    }

    /// The call that lists the sessions of an index.
    pub(crate) fn session_list(index: &str) -> Self {
        Self::of(&SCRIPTS.session_list, [index])
    }

    /// The call that reads the records of sessions, or the first of them.
    pub(crate) fn session_read<'k>(records: impl IntoIterator<Item = &'k str, IntoIter: Clone>) -> Self {
        Self::of(&SCRIPTS.session_read, records)
    }

    /// The call that adds what a client has counted to the statistics.
    pub(crate) fn merge_statistics(merge: &MergeStatistics, key: &str) -> Self {
        let mut call = Self::of(&SCRIPTS.statistics_merge, [key]);
        call.cmd.arg(whole_millis(STATISTICS_TTL)).arg(MAX_CLASSES).arg(OTHER_CLASS);
        for (class, age_ms, counted) in &merge.classes {
            call.cmd.arg(class).arg(*age_ms).arg(counted.to_text());
        }
        call
    }

    /// The call that lists the statistics.
    pub(crate) fn list_statistics(key: &str) -> Self {
        Self::of(&SCRIPTS.statistics_list, [key])
    }

    /// The call that writes the expiry of a key again, unchanged.
    pub(crate) fn rewrite_expiry(key: &str) -> Self {
        Self::of(&SCRIPTS.rewrite_expiry, [key])
    }

    /// Whether it may acquire a lock for its caller, and not only for a waiter.
    pub(crate) fn may_acquire(&self) -> bool {
        self.may_acquire
    }

    /// The command.
    pub(crate) fn cmd(&self) -> &Cmd {
        &self.cmd
    }

    pub(crate) fn into_cmd(self) -> Cmd {
        self.cmd
    }

    /// The command, after the loading of its script.
    pub(crate) fn with_load(&self) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(self.load()).add_command(self.cmd.clone());
        pipeline
    }

    /// The loading of its script.
    pub(crate) fn load(&self) -> Cmd {
        load(self.script)
    }

    /// The call of a script that may change a lock: on the keys of the lock, and on others.
    fn changing(
        script: &'static Script,
        kind: Kind,
        session_keys: &SessionKeys<'_>,
        keys: &LockKeys,
        others: &[&str],
    ) -> Self {
        let watermark = session_keys.watermark(keys);
        let ends = kind.is_shared().then(|| keys.ends());
        let own = [keys.name(), keys.record(), &watermark].into_iter().chain(ends.as_deref());
        Self::of(script, own.chain(others.iter().copied()))
    }

    fn of<'k>(script: &'static Script, keys: impl IntoIterator<Item = &'k str, IntoIter: Clone>) -> Self {
        let keys = keys.into_iter();
        let (count, text) = keys.clone().fold((0, 0), |(count, text), key| (count + 1, text + key.len()));
        // A release with an acquire has 20 arguments; claims, numbers and a short label fit beside the keys. Extends
        // have two for each key.
        let (arguments, bytes) = (20.max(3 + 3 * count), 256.max(64 + 48 * count));
        let mut cmd = Cmd::with_capacity(arguments, bytes + text);
        cmd.arg("EVALSHA").arg(&script.sha).arg(count);
        for key in keys {
            cmd.arg(key);
        }
        Self { script, cmd, may_acquire: false }
    }

    fn claim(&mut self, claim: &Claim) -> &mut Self {
        let own = claim.value.as_ref().map_or("", |value| value.as_str());
        self.cmd.arg(&claim.hold.token_bytes()[..]).arg(own);
        self
    }

    fn terms(mut self, request: &Acquire) -> Self {
        self.cmd.arg(request.lease_ms).arg(request.label.as_str());
        match &request.queue {
            Some(queue) => {
                self.cmd.arg(Shown(queue.nonce)).arg(queue.ttl_ms);
            }
            None => {
                self.empty(2);
            }
        }
        match request.expire_foreign_ms {
            Some(expire_foreign_ms) => self.cmd.arg(expire_foreign_ms),
            None => self.cmd.arg(""),
        };
        self.cmd.arg(Shown(LivenessText(request.liveness)));
        self
    }

    /// The mode, of a shared lock.
    fn mode(mut self, kind: Kind, request: &Acquire) -> Self {
        if kind.is_shared() {
            self.cmd.arg(request.mode.encode());
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

/// The channel on which the script of an operation announces a free lock or a change of the leader.
fn announcement_channel(
    op: &Op,
    kind: Kind,
    session_keys: &SessionKeys<'_>,
    keys: &LockKeys,
) -> Option<String> {
    match kind {
        _ if matches!(op, Op::Extend(_) | Op::Inspect(_) | Op::RaiseFence(_)) => None,
        Kind::Mutex if matches!(op, Op::Release(Release { action: ReleaseAction::FreeAndPublish, .. })) => {
            Some(session_keys.keys.release_channel(keys))
        }
        Kind::Reentrant | Kind::Election => session_keys.announcement_channel(kind, keys),
        _ => None,
    }
}

/// What ends a hold besides its lease, as scripts write it.
struct LivenessText(Liveness);

impl fmt::Display for LivenessText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Liveness::Session { alive_ms } => write!(f, "s{alive_ms}"),
            Liveness::Lease => f.write_str("l"),
        }
    }
}

/// Whether the token alone identifies the hold, and only its end changes: such extends share a call.
pub(crate) fn extends_by_token(kind: Kind, extend: &Extend) -> bool {
    let is_plain = !extend.keep_record && extend.reserve.is_none() && extend.fence.is_none();
    kind.is_plain_string() && extend.claim.value.is_none() && is_plain
}

/// Whether only the state of the lock is asked for, which has one holder at most: such inspections share a call.
pub(crate) fn inspects_together(kind: Kind, inspect: &Inspect) -> bool {
    !kind.is_shared() && inspect.claim.is_none() && !inspect.details
}

/// The field of a held lock in a session's record.
fn field_of(lock: &Lock) -> String {
    format!("l:{}:{}", lock.kind.as_str(), lock.name)
}

/// The lock of such a field.
pub(crate) fn lock_of(field: &str) -> Option<Lock> {
    let (kind, name) = field.strip_prefix("l:")?.split_once(':')?;
    Some(Lock { kind: Kind::parse(kind)?, name: LockName::new(name).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_parsed_from_its_field_in_a_session_record() {
        for name in ["job", "a:b", "l:mutex:job", "{orders}/42", "two words"] {
            let lock = Lock::mutex(name.parse().expect("a good name"));
            assert_eq!(lock_of(&field_of(&lock)), Some(lock), "{name}");
        }
        for field in ["until", "metadata", "l:", "l:mutex:", "l:other:job", "mutex:job"] {
            assert_eq!(lock_of(field), None, "{field}");
        }
    }
}
