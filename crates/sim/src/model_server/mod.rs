//! A server that is the model behind RESP: for a simulated network, where no process can listen.
//!
//! Owns the parts of a Redis server that this library's client uses: the handshake, loading and calling scripts, mailboxes
//! and sessions. [`leasehold_core::model`] defines what a call means; the scripts' texts are only recognised. It has no sockets and no clock: streams and `now` come from the caller, so runs are reproducible. It
//! models one single-threaded server: commands execute one at a time, in the order read.
//!
//! It can have one deliberate defect ([`ServerMutant`]), to prove that the checks of a simulation detect it.

mod call;
mod connection;
mod mutant;
mod reply;
mod script;

pub use mutant::ServerMutant;

use call::{Call, LockCall};
use connection::Connection;
use leasehold_core::model::{LockState, SessionStatus, Sessions, Value, all_alive};
use leasehold_core::{
    Acquire, Inspect, Inspection, Kind, Lock, MultiAcquired, Notification, Op, Reply, SessionOp, SessionReply,
};
use leasehold_testkit::conformance::leader_announcement;
use script::{KindSource, Script};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::UnboundedSender;

/// A simulated server. Clones share its state.
///
/// ```
/// use leasehold_sim::ModelServer;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let server = ModelServer::new(|| 1_000_000);
/// let (mut client, stream) = tokio::io::duplex(1024);
/// tokio::spawn(async move { server.serve(stream).await });
///
/// client.write_all(b"PING\r\n").await?;
/// let mut reply = [0; 7];
/// client.read_exact(&mut reply).await?;
/// assert_eq!(&reply, b"+PONG\r\n");
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
    mutant: Option<ServerMutant>,
}

#[derive(Default)]
struct State {
    /// The locks, by key and kind. They survive a restart with data. A key has at most one kind.
    locks: BTreeMap<(String, Kind), LockState>,
    /// The sessions, by the key of their index.
    sessions: BTreeMap<String, Sessions>,
    /// The scripts that were loaded since the start, by SHA-1.
    scripts: BTreeMap<String, (Script, KindSource)>,
    /// The subscribers of each channel, by connection.
    channels: BTreeMap<String, BTreeMap<u64, UnboundedSender<Vec<u8>>>>,
    /// The number of connections so far.
    connections: u64,
    /// Set while published messages are dropped.
    drops_messages: bool,
    /// When the data was lost last.
    data_lost_us: u64,
}

/// What a restart does to locks and sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// They are kept.
    Kept,
    /// They are lost, with their fencing tokens.
    Lost,
}

/// A step that the server reports to its observer.
#[derive(Debug)]
pub enum ServerObservation<'a> {
    /// A client has connected.
    Connected(u64),
    /// A connection has ended.
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
        notifications: &'a [Notification],
    },
    /// Several locks were requested in one step.
    MultiExecuted {
        /// The connection.
        connection: u64,
        /// The key and the request for each lock.
        requests: &'a [(String, Acquire)],
        /// The replies.
        replies: &'a [MultiAcquired],
    },
    /// An operation on sessions was executed.
    SessionExecuted {
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
        mutant: Option<ServerMutant>,
    ) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            now_us: Box::new(now_us),
            observer: Box::new(observer),
            mutant,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Serves one connection until the client closes it.
    ///
    /// Cancel safety: dropping the future closes the connection. Commands that were read have been executed.
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite) -> io::Result<()> {
        connection::serve(self, stream).await
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
            state.data_lost_us = now_us;
        }
    }

    /// Executes `SCRIPT FLUSH`.
    pub fn flush_scripts(&self) {
        self.state().scripts.clear();
    }

    /// Sets whether published messages are dropped from now on.
    pub fn set_drops_messages(&self, drops_messages: bool) {
        self.state().drops_messages = drops_messages;
    }

    /// The state of each lock at `now_us`, by key. Changes nothing.
    pub fn locks(&self, now_us: u64) -> Vec<(String, Inspection)> {
        let inspect = Op::Inspect(Inspect { claim: None, details: false });
        let inspected = |((key, _), lock): (&(String, Kind), &LockState)| match lock
            .clone()
            .apply(now_us, &inspect, &all_alive)
            .0
        {
            Reply::Inspect(seen) => Some((key.clone(), seen)),
            _ => None,
        };
        self.state().locks.iter().filter_map(inspected).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The model does not panic; an observer that does has failed its test already.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_observer(&self, observation: ServerObservation<'_>) {
        (self.shared.observer)(observation);
    }

    /// The server's time in microseconds.
    fn now_us(&self, state: &State) -> u64 {
        let now_us = (self.shared.now_us)();
        self.shared.mutant.map_or(now_us, |mutant| mutant.clock(now_us, state.data_lost_us))
    }

    /// Executes a call of a script.
    fn execute(&self, connection: &Connection<'_>, call: &Call) -> reply::Value {
        match call {
            Call::Lock(call) => self.reply_to_lock_call(connection, call),
            Call::Extends(calls) => match &calls[..] {
                [call] => self.reply_to_lock_call(connection, call),
                calls => reply::Value::Array(
                    calls.iter().map(|call| self.reply_to_lock_call(connection, call)).collect(),
                ),
            },
            Call::Inspections(calls) | Call::Batch(calls) => reply::Value::Array(
                calls.iter().map(|call| self.reply_to_lock_call(connection, call)).collect(),
            ),
            Call::AcquireAll(requests) => reply::of_multi_replies(&self.acquire_all(connection, requests)),
            Call::Heartbeat(beat, index) => reply::of_sessions(&self.execute_session(
                connection,
                index,
                &SessionOp::Heartbeat(beat.clone()),
            )),
            Call::Trials => {
                let names = ["time", "set_nx", "expiry", "hashes", "errors", "kinds"];
                reply::Value::Array(
                    names.into_iter().flat_map(|name| [name, ""].map(reply::Value::bulk)).collect(),
                )
            }
            Call::SessionList(index) => {
                reply::of_sessions(&self.execute_session(connection, index, &SessionOp::List))
            }
            Call::SessionRead(keys) => self.read_sessions(keys),
        }
    }

    /// Executes an operation on the sessions of an index.
    fn execute_session(&self, connection: &Connection<'_>, index: &str, op: &SessionOp) -> SessionReply {
        let mut state = self.state();
        let now_ms = self.now_us(&state) / 1000;
        let reply = state.sessions.entry(index.to_owned()).or_default().apply(now_ms, op);
        drop(state);
        self.notify_observer(ServerObservation::SessionExecuted {
            connection: connection.number(),
            op,
            reply: &reply,
        });
        reply
    }

    /// The records of sessions.
    fn read_sessions(&self, keys: &[String]) -> reply::Value {
        let state = self.state();
        let now_ms = self.now_us(&state) / 1000;
        let record = |key: &String| {
            let (index, session) = key.rsplit_once(':')?;
            state.sessions.get(index)?.records.get(&session.parse().ok()?)
        };
        let records = keys.iter().map(|key| reply::of_session(record(key)));
        reply::Value::Array([reply::Value::number(now_ms)].into_iter().chain(records).collect())
    }

    fn reply_to_lock_call(&self, connection: &Connection<'_>, call: &LockCall) -> reply::Value {
        reply::of_script(call.kind, &call.op, &self.execute_lock_call(connection, call))
    }

    /// Executes a script call on a lock, and publishes its notifications.
    fn execute_lock_call(&self, connection: &Connection<'_>, call: &LockCall) -> Reply {
        let mut guard = self.state();
        let state = &mut *guard;
        let now_us = self.now_us(state);
        let other = state.value_of_other_kind(&call.key, call.kind, now_us);
        let sessions = state.sessions.get(&call.sessions);
        let alive = |session| {
            sessions.map_or(SessionStatus::Unknown, |sessions| sessions.status(now_us / 1000, session))
        };
        let lock =
            state.locks.entry((call.key.clone(), call.kind)).or_insert_with(|| LockState::new(call.kind));
        let was_held = !lock.clone().holders_at(now_us).is_empty();
        let before = lock.clone();
        let (reply, notifications) = match (self.shared.mutant, other) {
            (_, Some(other)) => lock.apply_to_occupied_key(&other, now_us, &call.op, &alive),
            (Some(mutant), None) => mutant.apply(lock, now_us, &call.op, &alive),
            (None, None) => lock.apply(now_us, &call.op, &alive),
        };
        let announcement = match call.kind {
            Kind::Reentrant if was_held && lock.value.is_none() => Some("0".to_owned()),
            Kind::Election => leader_announcement(&before, lock, now_us),
            Kind::Mutex if was_held && lock.value.is_none() => Some("free".to_owned()),
            _ => None,
        };
        if !state.drops_messages {
            for notification in &notifications {
                state.publish(&format!("{}{}", call.mailboxes, notification.to()), &notification.message());
            }
            if let Some(announcement) = announcement.filter(|_| !call.released.is_empty()) {
                state.publish(&call.released, &announcement);
            }
        }
        drop(guard);
        let (connection, key, op) = (connection.number(), call.key.as_str(), &call.op);
        self.notify_observer(ServerObservation::Executed {
            connection,
            key,
            op,
            reply: &reply,
            notifications: &notifications,
        });
        reply
    }
}

impl ModelServer {
    /// Acquires all of several Mutexes, or none.
    fn acquire_all(&self, connection: &Connection<'_>, requests: &[(String, Acquire)]) -> Vec<MultiAcquired> {
        let kind = Kind::Mutex;
        let mut guard = self.state();
        let state = &mut *guard;
        let now_us = self.now_us(state);
        let mut locks = Vec::with_capacity(requests.len());
        for (key, _) in requests {
            let mut lock = state.locks.remove(&(key.clone(), kind)).unwrap_or_else(|| LockState::new(kind));
            let other = state.value_of_other_kind(key, kind, now_us);
            if let Some(other) = &other {
                lock.value = Some(other.type_only());
            }
            locks.push((lock, other.is_some()));
        }
        let mut pairs: Vec<_> =
            locks.iter_mut().zip(requests).map(|((lock, _), (_, request))| (lock, request)).collect();
        let replies = match self.shared.mutant {
            Some(mutant) => mutant.acquire_all(&mut pairs, now_us),
            None => LockState::acquire_all(&mut pairs, now_us),
        };
        for ((mut lock, is_of_other_kind), (key, _)) in locks.into_iter().zip(requests) {
            lock.value.take_if(|_| is_of_other_kind);
            state.locks.insert((key.clone(), kind), lock);
        }
        drop(guard);
        self.notify_observer(ServerObservation::MultiExecuted {
            connection: connection.number(),
            requests,
            replies: &replies,
        });
        replies
    }

    /// Sets or deletes a lock's value as a foreign client would.
    pub fn put(&self, lock: &Lock, value: Option<&Value>) {
        let mut state = self.state();
        for kind in Kind::ALL {
            let state =
                state.locks.entry((lock.name.to_string(), kind)).or_insert_with(|| LockState::new(kind));
            state.value = value.filter(|_| kind == lock.kind).cloned();
        }
    }
}

impl State {
    /// The value at a key under another kind.
    fn value_of_other_kind(&mut self, key: &str, kind: Kind, now_us: u64) -> Option<Value> {
        let mut others = Kind::ALL.into_iter().filter(|other| *other != kind);
        others.find_map(|other| self.locks.get_mut(&(key.to_owned(), other))?.value_at(now_us).cloned())
    }

    fn publish(&self, channel: &str, message: &str) {
        for outbox in self.channels.get(channel).iter().flat_map(|subscribers| subscribers.values()) {
            // A closing connection receives nothing more.
            let _ = outbox.send(reply::message(channel, message));
        }
    }
}

impl fmt::Debug for ModelServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelServer").field("mutant", &self.shared.mutant).finish_non_exhaustive()
    }
}
