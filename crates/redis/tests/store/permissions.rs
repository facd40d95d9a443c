//! The permissions of each purpose: with all of them everything of the purpose works, and each is needed.
//!
//! Each right is taken away by itself, on one server, and the purpose's operations run again. The server's ACL LOG names the
//! command that was denied.

use crate::fixture::{LONG, Mailbox, Received, alive, ask, claim, execute_session, label, nonce, session};
use leasehold_core::{
    Acquire, Acquired, Claim, Evict, Evicted, Extend, FencingToken, ForceRelease, Heartbeat, Inspect, Kind,
    Liveness, LockMode, ObservedHolder, OwnValue, Partition, Proclaim, RaiseFence, Refused, Release,
    ReleaseAction, Reserve, Resize, TokenBlock,
};
use leasehold_redis::{Permissions, Purpose, RedisConfig, RedisStore, ServerVersion};
use leasehold_store::{FaultKind, FindingKind, Lock, Op, Outcome, Reply, SessionOp, Store};
use leasehold_testkit::{RedisServer, Value};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

const USER: &str = "restricted";

/// Rights without which everything works, and something is missing: the names of connections, subscriptions that are no
/// longer needed, entries of a listing.
const OPTIONAL: [&str; 4] = ["client|setinfo", "client|setname", "unsubscribe", "zremrangebyscore"];

/// How long a session lives that is not to die.
const ALIVE_MS: u64 = 60_000;

/// What did not work.
type Failures = Vec<String>;

struct Server {
    redis: RedisServer,
    admin: RedisStore,
    config: RedisConfig,
    version: ServerVersion,
}

impl Server {
    async fn start() -> Self {
        let redis = RedisServer::start().unwrap();
        let config = RedisConfig::from_url(&redis.url()).unwrap();
        let admin = RedisStore::connect(config.clone()).await.unwrap();
        let version = ServerVersion::query(&config).await.unwrap();
        Self { redis, admin, config, version }
    }

    fn rules(&self, purpose: Purpose) -> Vec<String> {
        Permissions::of(&self.config).unwrap().purpose(purpose).on(self.version).rules()
    }

    /// Makes the user anew, with these rules, and deletes what earlier operations have left.
    fn set_user(&self, rules: &[String]) {
        let user = ["ACL", "SETUSER", USER, "reset", "on", ">password"].map(str::to_owned);
        self.command(&[&user[..], rules].concat());
        for command in [&["FLUSHALL"][..], &["SCRIPT", "FLUSH"], &["ACL", "LOG", "RESET"]] {
            self.command(&command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        }
    }

    fn command(&self, command: &[String]) -> Value {
        self.redis.cli(command).unwrap().ok().unwrap()
    }

    /// The commands and keys that the server has denied to the user.
    fn denied(&self) -> BTreeSet<String> {
        let log = self.redis.cli(&["ACL", "LOG"]).unwrap();
        let object = |entry: &Value| {
            let fields = entry.elements();
            let at = fields.iter().position(|field| field.text() == Some("object"))?;
            fields.get(at + 1)?.text().map(str::to_ascii_lowercase)
        };
        log.elements().iter().filter_map(object).collect()
    }

    /// A store of the user, made anew.
    async fn connect(&self) -> Result<RedisStore, String> {
        let config = self.config.clone().username(USER).password("password").skip_trials();
        RedisStore::connect(config).await.map_err(|fault| fault.to_string())
    }

    /// Runs what a purpose does, as the user. Sets each lock up as another user first.
    async fn work(&self, purpose: Purpose) -> Failures {
        let user = match self.connect().await {
            Ok(user) => user,
            Err(fault) => return vec![fault],
        };
        let mut failures = Failures::new();
        // Each client of the library has one.
        let (_inbox, mailbox) = Mailbox::open();
        if let Err(fault) = user.open_mailbox(Partition::ONLY, session(9), mailbox, LONG).await {
            failures.push(fault.to_string());
        }
        if user.findings().is_empty() {
            failures.push("nothing is known of the server".to_owned());
        }
        match purpose {
            Purpose::Locks => self.lock_all(&user, &mut failures).await,
            Purpose::Operator => self.look_at_all(&user, &mut failures).await,
            Purpose::FreeingOperator => {
                self.look_at_all(&user, &mut failures).await;
                // The claims of these tests are used once for each lock.
                self.command(&["FLUSHALL".to_owned()]);
                self.free_all(&user, &mut failures).await;
            }
            Purpose::Monitor => {
                self.evict_all(&user, &mut failures).await;
                // For its metrics.
                look(&user, &[false], &mut failures).await;
            }
            other => panic!("{other:?}"),
        }
        failures
    }

    /// A lock of each kind with a holder, the first session, which lives for so long, and a waiter, the second, which lives
    /// on.
    async fn hold_all(&self, alive_ms: u64) -> Vec<(Lock, LockMode)> {
        for (n, alive_ms) in [(1, alive_ms), (2, ALIVE_MS)] {
            let (begin, acquired) = (Some("{}".to_owned()), kinds().map(|(lock, _)| lock).to_vec());
            let beat = Heartbeat { begin, alive_ms, acquired, ..alive(n) };
            execute_session(&self.admin, &SessionOp::Heartbeat(beat)).await;
        }
        for (lock, mode) in kinds() {
            for n in [1, 2] {
                acquire(&self.admin, &lock, n, mode, &mut Failures::new()).await;
            }
        }
        // A short life is over by then.
        tokio::time::sleep(Duration::from_millis(5)).await;
        kinds().to_vec()
    }

    /// Opens the mailbox of the waiters.
    async fn waiting(&self) -> UnboundedReceiver<Received> {
        let (inbox, mailbox) = Mailbox::open();
        self.admin.open_mailbox(Partition::ONLY, session(2), mailbox, LONG).await.unwrap();
        inbox
    }

    /// An operation on a key that is something else reports that.
    async fn something_else(&self, user: &RedisStore, lock: &Lock, op: Op, failures: &mut Failures) {
        let key = lock.name.as_str();
        self.command(&["DEL", key].map(str::to_owned));
        self.command(&["LPUSH", key, "x"].map(str::to_owned));
        let reply = done(user, lock, op, failures).await;
        if !matches!(&reply, Some(Reply::Refused(Refused::WrongKind { found })) if found == "list") {
            failures.push(format!("{lock:?} is a list: {reply:?}"));
        }
        self.command(&["DEL", key].map(str::to_owned));
    }

    /// What clients of locks do, with each kind.
    async fn lock_all(&self, user: &RedisStore, failures: &mut Failures) {
        let (mut inbox, mailbox) = Mailbox::open();
        if let Err(fault) = user.open_mailbox(Partition::ONLY, session(2), mailbox, LONG).await {
            failures.push(fault.to_string());
        }
        let locks = kinds().map(|(lock, _)| lock).to_vec();
        for (begin, acquired, released) in
            [(Some("{}"), vec![], vec![]), (None, locks.clone(), vec![]), (None, vec![], locks)]
        {
            let begin = begin.map(str::to_owned);
            let beat = Heartbeat { begin, acquired, released, ..alive(1) };
            session_done(user, &SessionOp::Heartbeat(beat), failures).await;
        }
        for (lock, mode) in kinds() {
            lock_one(user, &lock, mode, failures).await;
        }
        notified(&mut inbox, failures).await;
        let mutex = kinds()[0].0.clone();
        several(user, &mutex, failures).await;
        for op in [SessionOp::List, SessionOp::Find(vec![session(1)]), SessionOp::End(session(1))] {
            session_done(user, &op, failures).await;
        }
        user.close_mailbox(Partition::ONLY, session(2));
        self.something_else(user, &mutex, Op::Acquire(ask(&claim(8), None)), failures).await;
        match user.diagnose(LONG).await {
            Ok(found) if found[0].clock.is_none() => failures.push("no clock".to_owned()),
            Ok(_) => {}
            Err(fault) => failures.push(fault.to_string()),
        }
    }

    async fn look_at_all(&self, user: &RedisStore, failures: &mut Failures) {
        look(user, &[false, true], failures).await;
        self.hold_all(ALIVE_MS).await;
        look(user, &[false, true], failures).await;
        for op in [SessionOp::List, SessionOp::Find(vec![session(1), session(2)]), SessionOp::ListStatistics]
        {
            session_done(user, &op, failures).await;
        }
        // An audit, and keys of other libraries.
        self.free_all(&self.admin, &mut Failures::new()).await;
        look(user, &[false, true], failures).await;
        for (lock, _) in kinds() {
            let key = lock.name.as_str();
            self.command(&["SET", key, "foreign"].map(str::to_owned));
            let inspect = Op::Inspect(Inspect { claim: None, details: true });
            done(user, &lock, inspect.clone(), failures).await;
            self.something_else(user, &lock, inspect, failures).await;
        }
        match user.diagnose(LONG).await {
            Ok(found) => {
                let missing = [
                    ("no version", found[0].version.is_none()),
                    ("no user", found[0].user.is_none()),
                    ("no clock", found[0].clock.is_none()),
                ];
                failures
                    .extend(missing.iter().filter(|(_, is_so)| *is_so).map(|(what, _)| (*what).to_owned()));
            }
            Err(fault) => failures.push(fault.to_string()),
        }
    }

    async fn free_all(&self, user: &RedisStore, failures: &mut Failures) {
        let mut inbox = self.waiting().await;
        for (lock, _) in self.hold_all(ALIVE_MS).await {
            // The holder, then the waiter that was granted the lock.
            for n in [1, 2] {
                if free(user, &lock, failures).await > 0 {
                    self.audited(&lock, n, failures).await;
                }
            }
        }
        notified(&mut inbox, failures).await;
        self.admin.close_mailbox(Partition::ONLY, session(2));
        let lock = Lock::mutex("foreign".parse().unwrap());
        self.command(&["SET", "foreign", "x"].map(str::to_owned));
        free(user, &lock, failures).await;
    }

    async fn evict_all(&self, user: &RedisStore, failures: &mut Failures) {
        let mut inbox = self.waiting().await;
        let held = self.hold_all(1).await;
        session_done(user, &SessionOp::List, failures).await;
        for (lock, _) in &held {
            let evict = Op::Evict(Evict { session: session(1), actor: label() });
            let evicted = done(user, lock, evict.clone(), failures).await;
            if matches!(evicted, Some(Reply::Evict(Evicted::Removed { fence: Some(_), .. }))) {
                self.audited(lock, 1, failures).await;
            }
            let seen =
                done(&self.admin, lock, Op::Inspect(Inspect { claim: None, details: true }), failures).await;
            if let Some(Reply::Inspect(seen)) = seen
                && seen.holder.iter().any(|holder| holder.session == Some(session(1)))
            {
                failures.push(format!("{lock:?} still has its dead holder"));
            }
            self.something_else(user, lock, evict, failures).await;
        }
        notified(&mut inbox, failures).await;
        self.admin.close_mailbox(Partition::ONLY, session(2));
        session_done(user, &SessionOp::End(session(1)), failures).await;
    }

    /// The audit has so many entries.
    async fn audited(&self, lock: &Lock, entries: usize, failures: &mut Failures) {
        let seen =
            done(&self.admin, lock, Op::Inspect(Inspect { claim: None, details: true }), failures).await;
        if !matches!(&seen, Some(Reply::Inspect(seen)) if seen.audit.len() >= entries) {
            failures.push(format!("{lock:?} has no audit: {seen:?}"));
        }
    }
}

/// The waiters receive a notification.
async fn notified(inbox: &mut UnboundedReceiver<Received>, failures: &mut Failures) {
    loop {
        match tokio::time::timeout(Duration::from_millis(300), inbox.recv()).await {
            Ok(Some(Received::Notification(_))) => return,
            Ok(Some(Received::Resubscribed)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    failures.push("no notification".to_owned());
}

/// A lock of each kind, and how each is acquired so that a second client waits.
fn kinds() -> [(Lock, LockMode); 8] {
    let permits = LockMode::Permits { count: 1, total: 1 };
    [
        (Kind::Mutex, LockMode::Exclusive),
        (Kind::Reentrant, LockMode::Exclusive),
        (Kind::Election, LockMode::Exclusive),
        (Kind::Semaphore, permits),
        (Kind::RwLock, LockMode::Write),
        (Kind::RwLock, LockMode::Read),
        (Kind::Latch, LockMode::CountDown { count: 1, total: 3 }),
        (Kind::Barrier, LockMode::BarrierWait { total: 3 }),
    ]
    .map(|(kind, mode)| {
        let name =
            if mode == LockMode::Read { "of-readers".to_owned() } else { format!("of-{}", kind.as_str()) };
        (Lock { kind, name: name.parse().unwrap() }, mode)
    })
}

/// A claim of a session, with an owner if the kind has owners.
fn claim_of(kind: Kind, n: u8) -> Claim {
    let value = if kind.has_owners() { OwnValue::new(format!("owner {n}")).ok() } else { None };
    Claim { value, ..claim(n) }
}

/// Executes an operation. What is refused for the state of the lock is no failure.
async fn done(user: &RedisStore, lock: &Lock, op: Op, failures: &mut Failures) -> Option<Reply> {
    match user.execute(lock, &op, LONG).await {
        Outcome::Done(reply) => Some(reply),
        Outcome::Failed(_, fault) => {
            failures.push(format!("{lock:?}: {op:?}: {fault}"));
            None
        }
    }
}

async fn session_done(user: &RedisStore, op: &SessionOp, failures: &mut Failures) {
    if let Outcome::Failed(_, fault) = user.execute_session(Partition::ONLY, op, LONG).await {
        failures.push(format!("{op:?}: {fault}"));
    }
}

async fn acquire(
    user: &RedisStore,
    lock: &Lock,
    n: u8,
    mode: LockMode,
    failures: &mut Failures,
) -> Option<Reply> {
    // The waiters of these tests live.
    let liveness = Liveness::Session { alive_ms: if n == 2 { ALIVE_MS } else { 0 } };
    let request = ask(&claim(n), Some(nonce(n.into())));
    let request = Acquire { claim: claim_of(lock.kind, n), mode, liveness, ..request };
    done(user, lock, Op::Acquire(request), failures).await
}

async fn release(user: &RedisStore, lock: &Lock, n: u8, action: ReleaseAction, failures: &mut Failures) {
    let release = Release { claim: claim_of(lock.kind, n), action, next: None, history: 0 };
    done(user, lock, Op::Release(release), failures).await;
}

/// Ends what an inspection shows. Returns how many holds that are.
async fn free(user: &RedisStore, lock: &Lock, failures: &mut Failures) -> usize {
    let seen = done(user, lock, Op::Inspect(Inspect { claim: None, details: true }), failures).await;
    let Some(Reply::Inspect(seen)) = seen else { return 0 };
    let holds = seen.holder.iter().chain(&seen.shared_holders).filter_map(|holder| holder.fence);
    let foreign = seen.foreign_fingerprint.map(ObservedHolder::Foreign);
    let mut count = 0;
    for observed in holds.map(ObservedHolder::Hold).chain(foreign) {
        done(user, lock, Op::ForceRelease(ForceRelease { observed, actor: label() }), failures).await;
        count += 1;
    }
    count
}

async fn lock_one(user: &RedisStore, lock: &Lock, mode: LockMode, failures: &mut Failures) {
    match user.subscribe(lock, LONG).await {
        Ok(subscription) => drop(subscription),
        Err(fault) => failures.push(fault.to_string()),
    }
    let granted = acquire(user, lock, 1, mode, failures).await;
    let fence = match granted {
        Some(Reply::Acquire(Acquired::Granted { fence, .. })) => Some(fence),
        // Its parties wait for each other.
        _ if lock.kind == Kind::Barrier => None,
        other => {
            failures.push(format!("{lock:?} is not granted: {other:?}"));
            return;
        }
    };
    acquire(user, lock, 2, mode, failures).await;
    let own = || claim_of(lock.kind, 1);
    for (keep_record, reserves) in [(false, false), (true, false), (true, lock.kind == Kind::Mutex)] {
        let reserve = reserves.then_some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: true });
        let extend = Extend { claim: own(), lease_ms: 40_000, keep_record, reserve, fence: None };
        done(user, lock, Op::Extend(extend), failures).await;
    }
    let special = match lock.kind {
        Kind::Mutex | Kind::Reentrant => Some(Op::RaiseFence(RaiseFence {
            claim: own(),
            fence: FencingToken::after(fence, 0),
            exact: false,
        })),
        Kind::Election => fence
            .map(|fence| Op::Proclaim(Proclaim { claim: own(), fence, observed: label(), value: label() })),
        Kind::Semaphore => Some(Op::Resize(Resize { observed: Some(1), limit: 2, agreed: false })),
        _ => None,
    };
    if let Some(op) = special {
        done(user, lock, op, failures).await;
    }
    done(user, lock, Op::Inspect(Inspect { claim: Some(own()), details: true }), failures).await;
    // The waiter gets the lock, and a third session waits behind it. The session of the holder is dead.
    release(user, lock, 1, ReleaseAction::Grant, failures).await;
    let third = ask(&claim(3), Some(nonce(3)));
    let third = Acquire { claim: claim_of(lock.kind, 3), mode, predecessor: Some(session(2)), ..third };
    done(user, lock, Op::Acquire(third), failures).await;
    free(user, lock, failures).await;
    done(user, lock, Op::Evict(Evict { session: session(3), actor: label() }), failures).await;
    if lock.kind == Kind::Mutex {
        for action in [ReleaseAction::FreeAndPublish, ReleaseAction::Cooldown { for_ms: 1 }] {
            acquire(user, lock, 4, mode, failures).await;
            release(user, lock, 4, action, failures).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    if lock.kind == Kind::RwLock {
        for n in 10..40 {
            acquire(user, lock, n, LockMode::Read, failures).await;
        }
        for n in 10..40 {
            release(user, lock, n, ReleaseAction::Grant, failures).await;
        }
    }
}

/// Inspects each lock, with or without details.
async fn look(user: &RedisStore, details: &[bool], failures: &mut Failures) {
    for (lock, _) in kinds() {
        for details in details {
            done(user, &lock, Op::Inspect(Inspect { claim: None, details: *details }), failures).await;
        }
    }
}

/// Several locks in one call, calls that are sent together, and the line of a node of a quorum.
async fn several(user: &RedisStore, mutex: &Lock, failures: &mut Failures) {
    let requests = ["one", "two"].map(|name| (Lock::mutex(name.parse().unwrap()), ask(&claim(5), None)));
    if let Some(Outcome::Failed(_, fault)) = user.acquire_all(&requests, LONG).await {
        failures.push(fault.to_string());
    }
    let extends = requests.map(|(lock, _)| {
        let extend =
            Extend { claim: claim(5), lease_ms: 30_000, keep_record: false, reserve: None, fence: None };
        (lock, Op::Extend(extend))
    });
    for outcome in user.execute_all(&extends, LONG).await {
        if let Outcome::Failed(_, fault) = outcome {
            failures.push(fault.to_string());
        }
    }
    user.join_line(mutex, session(6), Duration::from_secs(1), LONG).await;
}

/// The proof for one purpose: nothing is denied to a user with the whole line, and each right is needed. Rights whose lack
/// the server does not notice are listed at once.
async fn each_right_is_needed(purpose: Purpose) {
    let server = Server::start().await;
    let rules = server.rules(purpose);
    server.set_user(&rules);
    let failures = server.work(purpose).await;
    assert!(failures.is_empty(), "{purpose:?}: {failures:#?}");
    let is_trial = |denied: &&String| !rules.contains(&format!("+{denied}"));
    let mut superfluous = Vec::new();
    for right in rules.iter().filter_map(|rule| rule.strip_prefix('+')) {
        let without: Vec<_> =
            rules.iter().filter(|rule| rule.strip_prefix('+') != Some(right)).cloned().collect();
        server.set_user(&without);
        let failures = server.work(purpose).await;
        let denied = server.denied();
        let is_named = denied.contains(right) || right == "hello" && !failures.is_empty();
        if !is_named {
            superfluous.push(format!("{right}: {failures:?}"));
        } else if failures.is_empty() && !OPTIONAL.contains(&right) {
            superfluous.push(format!("{right} is denied, and everything works"));
        }
        let others: Vec<_> =
            denied.iter().filter(|denied| *denied != right).filter(|denied| !is_trial(denied)).collect();
        assert!(others.is_empty(), "without {right}, {others:?} are denied");
    }
    assert!(superfluous.is_empty(), "{purpose:?}: {superfluous:#?}");
}

#[tokio::test]
async fn each_right_of_a_user_of_locks_is_needed() {
    each_right_is_needed(Purpose::Locks).await;
}

#[tokio::test]
async fn each_right_of_an_operator_is_needed() {
    each_right_is_needed(Purpose::Operator).await;
}

#[tokio::test]
async fn each_right_of_an_operator_who_frees_is_needed() {
    each_right_is_needed(Purpose::FreeingOperator).await;
}

#[tokio::test]
async fn each_right_of_a_monitor_is_needed() {
    each_right_is_needed(Purpose::Monitor).await;
}

/// With the settings of a URL that need more: `?replicas=`.
#[tokio::test]
async fn wait_is_needed_for_replicas_alone() {
    let server = Server::start().await;
    let at = format!("127.0.0.1 {}", server.redis.port());
    let _replica = RedisServer::builder().config("replicaof", &at).start().unwrap();
    let config = server.config.clone().replicas(1).username(USER).password("password");
    let rules = Permissions::of(&config).unwrap().on(server.version).rules();
    assert!(rules.contains(&"+wait".to_owned()));
    let lock = kinds()[0].0.clone();
    let tries = async || {
        let user = RedisStore::connect(config.clone()).await.unwrap();
        let granted = user.execute(&lock, &Op::Acquire(ask(&claim(1), None)), LONG).await;
        let Outcome::Done(Reply::Acquire(Acquired::Granted { fence, .. })) = granted else {
            return Err(format!("{granted:?}"));
        };
        let confirmed = user.confirm(&lock, &claim(1), fence, LONG).await;
        confirmed.map_err(|fault| fault.to_string())
    };
    server.set_user(&rules);
    let start = std::time::Instant::now();
    while let Err(fault) = tries().await {
        assert!(start.elapsed() < LONG, "{fault}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        server.set_user(&rules);
    }
    let without: Vec<_> = rules.into_iter().filter(|rule| rule != "+wait").collect();
    server.set_user(&without);
    tries().await.unwrap_err();
    assert!(server.denied().contains("wait"), "{:?}", server.denied());
}

#[tokio::test]
async fn an_operator_sees_how_a_hold_ended() {
    let server = Server::start().await;
    server.set_user(&server.rules(Purpose::Operator));
    let user = server.connect().await.unwrap();
    server.hold_all(1).await;
    for (lock, _) in kinds() {
        let mut failures = Failures::new();
        let freed = free(&server.admin, &lock, &mut failures).await;
        assert!(failures.is_empty(), "{failures:?}");
        let seen = user.execute(&lock, &Op::Inspect(Inspect { claim: None, details: true }), LONG).await;
        let Outcome::Done(Reply::Inspect(seen)) = seen else { panic!("{seen:?}") };
        assert_eq!(seen.audit.is_empty(), freed == 0, "{lock:?}: {seen:?}");
    }
}

/// Neither by a command nor by a script.
#[tokio::test]
async fn an_operator_cannot_write() {
    let server = Server::start().await;
    server.set_user(&server.rules(Purpose::Operator));
    let user = server.connect().await.unwrap();
    server.hold_all(1).await;
    let before = server.redis.cli(&["DBSIZE"]).unwrap();
    for (lock, mode) in kinds() {
        let evict = Op::Evict(Evict { session: session(1), actor: label() });
        let acquire =
            Op::Acquire(Acquire { claim: claim_of(lock.kind, 7), mode, ..ask(&claim(7), Some(nonce(7))) });
        for op in [acquire, evict] {
            let outcome = user.execute(&lock, &op, LONG).await;
            // The arrivals at a latch stay when their session dies.
            if lock.kind == Kind::Latch && matches!(op, Op::Evict(_)) {
                continue;
            }
            let Outcome::Failed(_, fault) = outcome else { panic!("{op:?}: {outcome:?}") };
            assert_eq!(fault.kind, FaultKind::Forbidden, "{op:?}");
        }
        let mut failures = Failures::new();
        let holds = free(&user, &lock, &mut failures).await;
        assert_eq!(failures.len(), holds, "{lock:?}: {failures:?}");
        assert!(failures.iter().all(|text| text.contains("permission denied")), "{failures:?}");
        assert!(holds > 0 || lock.kind == Kind::Barrier, "{lock:?}");
        let seen =
            server.admin.execute(&lock, &Op::Inspect(Inspect { claim: None, details: true }), LONG).await;
        let Outcome::Done(Reply::Inspect(seen)) = seen else { panic!("{seen:?}") };
        let mut holders = seen.holder.iter().chain(&seen.shared_holders);
        let is_held = holders.any(|holder| holder.session == Some(session(1)));
        assert_eq!(is_held, holds > 0, "{lock:?}: {seen:?}");
        assert!(seen.audit.is_empty(), "{seen:?}");
    }
    assert_eq!(server.redis.cli(&["DBSIZE"]).unwrap(), before);
    let beat = SessionOp::Heartbeat(Heartbeat { begin: Some("{}".to_owned()), ..alive(7) });
    let mut failures = Failures::new();
    for op in [beat, SessionOp::End(session(1))] {
        session_done(&user, &op, &mut failures).await;
    }
    assert_eq!(failures.len(), 2, "{failures:?}");
    for command in [
        &["SET", "job", "x"][..],
        &["DEL", "of-mutex"],
        &["EXPIRE", "of-mutex", "1"],
        &["HSET", "job", "a", "b"],
        &["FLUSHALL"],
        &["RESTORE", "job", "0", "x"],
        &["PUBLISH", "leasehold:mailbox:x", "x"],
        &["SUBSCRIBE", "news"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["SCRIPT", "FLUSH"],
        &["ACL", "SETUSER", USER, "+@all"],
        &["EVAL", "return 1", "0"],
    ] {
        let asked = [&["ACL", "DRYRUN", USER][..], command].concat();
        // Only newer servers can be asked.
        if let Ok(answer) = server.redis.cli(&asked).unwrap().ok() {
            assert_ne!(answer.text(), Some("OK"), "{command:?}");
        }
    }
    // The server's settings are known.
    let found = user.diagnose(LONG).await.unwrap().pop().unwrap();
    assert!(found.findings.iter().all(|finding| finding.kind != FindingKind::InfoDenied), "{found:?}");
}
