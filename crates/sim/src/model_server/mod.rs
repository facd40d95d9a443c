//! A server that is the model behind RESP: for a simulated network, where no process can listen.
//!
//! Owns what a Redis server does for this library's client, and no more: the handshake, the loading of scripts, their
//! calls, mailboxes and sessions. [`leasehold_core::model`] defines what a call means; the scripts' texts are only
//! recognised. It has no sockets and no clock: streams and `now` come from the caller, so runs are reproducible. It
//! models one single-threaded server: commands execute one at a time, in the order read.
//!
//! It can have one deliberate defect ([`Flaw`]), to prove that the checks of a simulation detect it.

mod call;
mod flaw;
mod reply;
mod script;
mod session;

pub use flaw::Flaw;

use call::{Call, OnLock};
use leasehold_core::model::{LockState, SessionStatus, Sessions, Value, all_alive};
use leasehold_core::{
    Acquire, Inspect, Inspection, Kind, Lock, MultiAcquired, Notification, Op, Reply, SessionOp, SessionReply,
};
use leasehold_testkit::conformance::leader_announcement;
use script::{For, Script};
use session::Session;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::UnboundedSender;

/// A simulated server. Clones are the same server.
///
/// ```
/// use leasehold_sim::ModelServer;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let server = ModelServer::new(|| 1_000_000);
/// let (mut ours, theirs) = tokio::io::duplex(1024);
/// tokio::spawn(async move { server.serve(theirs).await });
///
/// ours.write_all(b"PING\r\n").await?;
/// let mut answer = [0; 7];
/// ours.read_exact(&mut answer).await?;
/// assert_eq!(&answer, b"+PONG\r\n");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ModelServer {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    now_us: Box<dyn Fn() -> u64 + Send + Sync>,
    observer: Box<dyn Fn(ServerObservation<'_>) + Send + Sync>,
    flaw: Option<Flaw>,
}

#[derive(Default)]
struct State {
    /// The locks, by key and kind. They survive a restart with data. A key holds one kind at most.
    locks: BTreeMap<(String, Kind), LockState>,
    /// And the sessions, by the key of their index.
    sessions: BTreeMap<String, Sessions>,
    /// The scripts that were loaded since the start, by SHA-1.
    scripts: BTreeMap<String, (Script, For)>,
    /// The subscribers of each channel, by connection.
    channels: BTreeMap<String, BTreeMap<u64, UnboundedSender<Vec<u8>>>>,
    /// How many connections there were.
    connections: u64,
    /// Set while published messages are dropped.
    mute: bool,
    /// When the data was lost last.
    lost_us: u64,
}

/// What a restart does to locks and sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// They are there again.
    Kept,
    /// They are gone, and their fencing tokens with them.
    Lost,
}

/// What an observer receives.
#[derive(Debug)]
pub enum ServerObservation<'a> {
    /// A client has connected.
    Connected(u64),
    /// A connection is gone.
    Ended(u64),
    /// A command that concerns no lock was executed.
    Command {
        /// The connection.
        connection: u64,
        /// The command, and its first argument.
        command: &'a str,
    },
    /// The script of an operation was executed.
    Executed {
        /// The connection.
        connection: u64,
        /// The lock's key.
        key: &'a str,
        /// The operation, as it was sent.
        op: &'a Op,
        /// The reply.
        reply: &'a Reply,
        /// The published notifications.
        wakes: &'a [Notification],
    },
    /// Several locks were requested in one step.
    Together {
        /// The connection.
        connection: u64,
        /// The key and the request for each lock.
        asks: &'a [(String, Acquire)],
        /// The replies.
        shares: &'a [MultiAcquired],
    },
    /// An operation on sessions was executed.
    Attended {
        /// The connection.
        connection: u64,
        /// The operation.
        op: &'a SessionOp,
        /// The reply.
        reply: &'a SessionReply,
    },
}

impl ModelServer {
    /// Makes a server whose clock is `now_us`, in microseconds.
    pub fn new(now_us: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self::with(now_us, |_| {}, None)
    }

    /// Makes a server that reports each step to `observer`, in order, with an optional defect.
    pub fn with(
        now_us: impl Fn() -> u64 + Send + Sync + 'static,
        observer: impl Fn(ServerObservation<'_>) + Send + Sync + 'static,
        flaw: Option<Flaw>,
    ) -> Self {
        let shared =
            Shared { state: Mutex::default(), now_us: Box::new(now_us), observer: Box::new(observer), flaw };
        Self { shared: Arc::new(shared) }
    }

    /// Serves one connection until the client closes it.
    ///
    /// Cancel safety: dropping the future closes the connection. Commands that were read have been executed.
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite) -> io::Result<()> {
        session::serve(self, stream).await
    }

    /// Restarts the server: no script is loaded, and locks are kept or lost. The caller closes the connections.
    pub fn restart(&self, data: Data) {
        let now_us = (self.shared.now_us)();
        let mut state = self.state();
        state.scripts.clear();
        state.channels.clear();
        if data == Data::Lost {
            state.locks.clear();
            state.sessions.clear();
            state.lost_us = now_us;
        }
    }

    /// Executes `SCRIPT FLUSH`.
    pub fn flush_scripts(&self) {
        self.state().scripts.clear();
    }

    /// Sets whether published messages are dropped from now on.
    pub fn mute(&self, mute: bool) {
        self.state().mute = mute;
    }

    /// How each lock stands at `now_us`, by key. Changes nothing.
    pub fn locks(&self, now_us: u64) -> Vec<(String, Inspection)> {
        let inspect = Op::Inspect(Inspect { claim: None, details: false });
        let look = |((key, _), lock): (&(String, Kind), &LockState)| match lock
            .clone()
            .apply(now_us, &inspect, &all_alive)
            .0
        {
            Reply::Inspect(seen) => Some((key.clone(), seen)),
            _ => None,
        };
        self.state().locks.iter().filter_map(look).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The model does not panic; an observer that does has failed its test already.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn observe(&self, seen: ServerObservation<'_>) {
        (self.shared.observer)(seen);
    }

    /// The server's time in microseconds.
    fn now_us(&self, state: &State) -> u64 {
        let now_us = (self.shared.now_us)();
        self.shared.flaw.map_or(now_us, |flaw| flaw.clock(now_us, state.lost_us))
    }

    /// Executes a call of a script.
    fn execute(&self, session: &Session<'_>, call: &Call) -> reply::Value {
        match call {
            Call::OnLock(call) => self.reply_on_lock(session, call),
            Call::Extends(calls) => match &calls[..] {
                [call] => self.reply_on_lock(session, call),
                calls => {
                    reply::Value::Array(calls.iter().map(|call| self.reply_on_lock(session, call)).collect())
                }
            },
            Call::AcquireAll(asks) => reply::of_shares(&self.take_all(session, asks)),
            Call::Heartbeat(beat, index) => {
                reply::of_sessions(&self.execute_session(session, index, &SessionOp::Heartbeat(beat.clone())))
            }
        }
    }

    /// Executes an operation on the sessions of an index.
    fn execute_session(&self, session: &Session<'_>, index: &str, op: &SessionOp) -> SessionReply {
        let mut state = self.state();
        let now_ms = self.now_us(&state) / 1000;
        let reply = state.sessions.entry(index.to_owned()).or_default().apply(now_ms, op);
        drop(state);
        self.observe(ServerObservation::Attended { connection: session.number(), op, reply: &reply });
        reply
    }

    fn reply_on_lock(&self, session: &Session<'_>, call: &OnLock) -> reply::Value {
        reply::of_script(call.kind, &call.op, &self.execute_on_lock(session, call))
    }

    /// Executes a script call on a lock, and publishes its notifications.
    fn execute_on_lock(&self, session: &Session<'_>, call: &OnLock) -> Reply {
        let mut guard = self.state();
        let state = &mut *guard;
        let now_us = self.now_us(state);
        let other = state.beside(&call.key, call.kind, now_us);
        let sessions = state.sessions.get(&call.sessions);
        let alive = |session| {
            sessions.map_or(SessionStatus::Unknown, |sessions| sessions.status(now_us / 1000, session))
        };
        let lock =
            state.locks.entry((call.key.clone(), call.kind)).or_insert_with(|| LockState::new(call.kind));
        let was_held = !lock.clone().holders_at(now_us).is_empty();
        let before = lock.clone();
        let (reply, wakes) = match (self.shared.flaw, other) {
            (_, Some(other)) => lock.apply_to_occupied_key(&other, now_us, &call.op, &alive),
            (Some(flaw), None) => flaw.apply(lock, now_us, &call.op, &alive),
            (None, None) => lock.apply(now_us, &call.op, &alive),
        };
        let said = match call.kind {
            Kind::Reentrant if was_held && lock.value.is_none() => Some("0".to_owned()),
            Kind::Election => leader_announcement(&before, lock, now_us),
            Kind::Mutex if was_held && lock.value.is_none() => Some("free".to_owned()),
            _ => None,
        };
        if !state.mute {
            for wake in &wakes {
                state.publish(&format!("{}{}", call.mailboxes, wake.to()), &wake.message());
            }
            if let Some(said) = said.filter(|_| !call.released.is_empty()) {
                state.publish(&call.released, &said);
            }
        }
        drop(guard);
        let (connection, key, op) = (session.number(), call.key.as_str(), &call.op);
        self.observe(ServerObservation::Executed { connection, key, op, reply: &reply, wakes: &wakes });
        reply
    }
}

impl ModelServer {
    /// Takes all of several Mutexes, or none.
    fn take_all(&self, session: &Session<'_>, asks: &[(String, Acquire)]) -> Vec<MultiAcquired> {
        let kind = Kind::Mutex;
        let mut guard = self.state();
        let state = &mut *guard;
        let now_us = self.now_us(state);
        let mut together = Vec::with_capacity(asks.len());
        for (key, _) in asks {
            let mut lock = state.locks.remove(&(key.clone(), kind)).unwrap_or_else(|| LockState::new(kind));
            let other = state.beside(key, kind, now_us);
            if let Some(other) = &other {
                lock.value = Some(other.type_only());
            }
            together.push((lock, other.is_some()));
        }
        let mut pairs: Vec<_> =
            together.iter_mut().zip(asks).map(|((lock, _), (_, ask))| (lock, ask)).collect();
        let shares = match self.shared.flaw {
            Some(flaw) => flaw.take_all(&mut pairs, now_us),
            None => LockState::acquire_all(&mut pairs, now_us),
        };
        for ((mut lock, beside_another), (key, _)) in together.into_iter().zip(asks) {
            lock.value.take_if(|_| beside_another);
            state.locks.insert((key.clone(), kind), lock);
        }
        drop(guard);
        self.observe(ServerObservation::Together { connection: session.number(), asks, shares: &shares });
        shares
    }

    /// Sets or deletes a lock's value as a foreign client would.
    pub fn put(&self, lock: &Lock, value: Option<&Value>) {
        let mut state = self.state();
        for kind in Kind::ALL {
            let there =
                state.locks.entry((lock.name.to_string(), kind)).or_insert_with(|| LockState::new(kind));
            there.value = value.filter(|_| kind == lock.kind).cloned();
        }
    }
}

impl State {
    /// The value at a key under another kind.
    fn beside(&mut self, key: &str, kind: Kind, now_us: u64) -> Option<Value> {
        let mut others = Kind::ALL.into_iter().filter(|other| *other != kind);
        others.find_map(|other| self.locks.get_mut(&(key.to_owned(), other))?.value_at(now_us).cloned())
    }

    fn publish(&self, channel: &str, message: &str) {
        for outbox in self.channels.get(channel).iter().flat_map(|listeners| listeners.values()) {
            // A closing connection receives nothing more.
            let _ = outbox.send(reply::message(channel, message));
        }
    }
}

impl fmt::Debug for ModelServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelServer").field("flaw", &self.shared.flaw).finish_non_exhaustive()
    }
}
