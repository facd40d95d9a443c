//! The link to one server: a connection for commands and messages, which is made again whenever it breaks.
//!
//! Owns the calls and what their silence means. [`reconnect`] makes the connections, and [`subscribe`] owns the
//! subscriptions.
//!
//! A link resends nothing. A command in flight when its connection breaks has an unknown outcome, and the call
//! returns that.
//!
//! 1. One task makes the connections. Calls wait for it until their own deadline, and share its attempts.
//! 2. A connection is used once every open mailbox and every channel with subscribers is subscribed on it.
//!    Subscribers from before the reconnection are notified, because they may have missed messages in between.
//! 3. A connection that stays silent while a call waits on it until its deadline is given up, and no later call waits
//!    on it. A command sent on it may still be executed.

mod health;
mod reconnect;
mod subscribe;

use super::batches::{BatchReply, Batches, PendingReply};
use super::connect::{ReadyConnection, VoteDelay};
use super::lent::CarrierRef;
use super::mailbox::Mailboxes;
use super::tracking::KeyTracking;
use crate::config::RedisConfig;
use crate::error_map::is_rejected_login;
use health::ConnectionHealth;
use leasehold_store::watched::Watched;
use leasehold_store::{Executed, Fault, FaultKind, Outcome, Phase};
use redis::{Cmd, Pipeline, RedisResult, Value};
use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

pub(crate) use reconnect::{Backoff, STABLE_AFTER};

/// Silence after which a call that runs out of time gives the connection up. It is short, because a lease of one
/// second leaves no time to wait longer; if the old connection works after all, a new one costs little.
const SILENCE: Duration = Duration::from_millis(100);

/// The link to one server. Dropping it ends its task and its connection.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    /// The task that makes connections; `None` before the first call.
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    config: RedisConfig,
    node: Arc<str>,
    mailboxes: Arc<Mailboxes>,
    state: Watched<State>,
}

#[derive(Debug)]
enum State {
    /// No connection; holds the fault of the last attempt, if there was one.
    Down(Option<Fault>),
    /// Connected.
    Up(LinkConnection),
}

impl State {
    fn connection(&self) -> Option<LinkConnection> {
        match self {
            Self::Up(connection) => Some(connection.clone()),
            Self::Down(_) => None,
        }
    }

    fn is_current(&self, health: &Arc<ConnectionHealth>) -> bool {
        matches!(self, Self::Up(connection) if Arc::ptr_eq(&connection.health, health))
    }
}

/// One connection of a link.
#[derive(Debug, Clone)]
pub(crate) struct LinkConnection {
    ready: ReadyConnection,
    health: Arc<ConnectionHealth>,
    /// The operations that are sent together on it.
    batches: Arc<Batches>,
}

impl LinkConnection {
    /// When the server grants locks, if it is a node of a quorum.
    pub(crate) fn vote_delay(&self) -> Option<VoteDelay> {
        self.ready.vote_delay
    }

    /// Whether the server reports changes of the keys that it reads for this connection.
    pub(crate) const fn is_tracking(&self) -> bool {
        self.ready.is_tracking
    }

    /// The operations that are sent together, and what sends them.
    pub(crate) fn batches(&self) -> (&Arc<Batches>, CarrierRef<'_>) {
        (&self.batches, CarrierRef::Multiplexed(&self.ready.conn))
    }
}

/// Why a call has no reply. Its command may have been sent, unless [it says otherwise](Self::executed).
#[derive(Debug)]
pub(crate) enum NoReply {
    /// The connection broke.
    Broken(redis::RedisError),
    /// The connection broke, and there will be no other.
    Ended(redis::RedisError),
    /// No connection was lent, so nothing was sent.
    NotSent(Box<dyn Error + Send + Sync>),
    /// No reply arrived before the deadline.
    TimedOut,
}

impl NoReply {
    /// Whether the operation was executed.
    pub(crate) const fn executed(&self) -> Executed {
        match self {
            Self::Broken(_) | Self::Ended(_) | Self::TimedOut => Executed::Unknown,
            Self::NotSent(_) => Executed::No,
        }
    }

    /// The fault at a node.
    pub(crate) fn fault(self, node: &Arc<str>) -> Fault {
        let fault = |kind, phase| Fault::new(kind, phase, Arc::clone(node));
        match self {
            // What was lent has made its connection anew, with a password that is no longer valid.
            Self::Broken(error) if is_rejected_login(&error) => {
                fault(FaultKind::Unauthenticated, Phase::Handshake).with_source(error)
            }
            Self::NotSent(error) if is_rejected_login(&*error) => {
                fault(FaultKind::Unauthenticated, Phase::Handshake).with_source(error)
            }
            Self::Broken(error) => fault(FaultKind::Disconnected, Phase::Reply).with_source(error),
            Self::Ended(error) => fault(FaultKind::LentConnectionLost, Phase::Reply).with_source(error),
            Self::NotSent(error) => fault(FaultKind::Unreachable, Phase::Connect).with_source(error),
            Self::TimedOut => fault(FaultKind::TimedOut, Phase::Reply),
        }
    }

    /// The outcome of the operation that has no reply.
    pub(crate) fn outcome<T>(self, node: &Arc<str>) -> Outcome<T> {
        Outcome::Failed(self.executed(), self.fault(node))
    }
}

impl Link {
    /// Creates a link that connects at the first call.
    pub(crate) fn new(config: RedisConfig, mailboxes: Mailboxes) -> Self {
        let shared = Shared {
            node: config.node(),
            config,
            mailboxes: Arc::new(mailboxes),
            state: Watched::new(State::Down(None)),
        };
        Self { shared: Arc::new(shared), task: Mutex::new(None) }
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        &self.shared.config
    }

    pub(crate) fn node(&self) -> &Arc<str> {
        &self.shared.node
    }

    /// The receiver of reports about keys.
    pub(crate) fn tracking(&self) -> Option<&Arc<KeyTracking>> {
        self.shared.mailboxes.tracking()
    }

    /// Waits until the first attempt ends.
    ///
    /// Cancel safety: the attempt continues.
    pub(crate) async fn connect(&self) -> Result<(), Fault> {
        self.start();
        let reached = |state: &State| match state {
            State::Up(_) => Some(Ok(())),
            State::Down(Some(fault)) => Some(Err(fault.clone())),
            State::Down(None) => None,
        };
        self.shared.state.wait_for(reached).await
    }

    /// Waits for a connection. Fails at the deadline, or at once if waiting cannot help. A node of a quorum whose
    /// last attempt failed is not waited for: with split votes the quorum waits for every node, so this one would delay
    /// the attempt by the whole node timeout.
    ///
    /// Cancel safety: the connection attempt continues for other calls.
    pub(crate) async fn connection(&self, deadline: Instant) -> Result<LinkConnection, Fault> {
        if let Some(connection) = self.ready() {
            return Ok(connection);
        }
        self.start();
        let votes = self.shared.config.min_uptime().is_some();
        let settled = |state: &State| match state {
            State::Up(connection) => Some(Ok(connection.clone())),
            State::Down(Some(fault)) if votes || !fault.is_transient() => Some(Err(fault.clone())),
            State::Down(_) => None,
        };
        match timeout_at(deadline, self.shared.state.wait_for(settled)).await {
            Ok(reached) => reached,
            Err(_) => Err(self.shared.last_fault()),
        }
    }

    /// The current connection, if there is one.
    pub(crate) fn ready(&self) -> Option<LinkConnection> {
        self.shared.state.read(State::connection)
    }

    /// Waits until `connection` is no longer the current connection.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub(crate) async fn until_replaced(&self, connection: &LinkConnection) {
        self.shared.until_replaced(&connection.health).await;
    }

    /// Sends one command.
    pub(crate) async fn call(
        &self,
        connection: &mut LinkConnection,
        cmd: &Cmd,
        deadline: Instant,
    ) -> Result<Value, NoReply> {
        let LinkConnection { ready, health, .. } = connection;
        let reply = pin!(ready.conn.send_packed_command(cmd));
        self.shared.call_within(health, deadline, reply).await
    }

    /// Sends several commands in one write. Each reply may be an error of its own.
    pub(crate) async fn call_all(
        &self,
        connection: &mut LinkConnection,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> Result<Vec<Value>, NoReply> {
        let LinkConnection { ready, health, .. } = connection;
        let replies = pin!(ready.conn.send_packed_commands(pipeline, 0, pipeline.len()));
        self.shared.call_within(health, deadline, replies).await
    }

    /// Waits for the reply to an operation that is sent with others; `None` if it should be sent alone.
    pub(crate) async fn receive(
        &self,
        connection: &LinkConnection,
        reply: PendingReply,
        deadline: Instant,
    ) -> Result<Option<Value>, NoReply> {
        let health = &connection.health;
        let waiting = health.wait();
        let reply = timeout_at(deadline, reply.receive()).await;
        drop(waiting);
        match reply {
            Ok(BatchReply::Reply(reply)) => {
                health.received();
                Ok(Some(reply))
            }
            // The server has sent nothing for it.
            Ok(BatchReply::GoAlone) => Ok(None),
            Ok(BatchReply::Lost(error)) => {
                self.shared.give_up(health);
                Err(NoReply::Broken(error))
            }
            Ok(BatchReply::TooLate) | Err(_) => {
                self.shared.give_up_if_silent(health);
                Err(NoReply::TimedOut)
            }
        }
    }

    /// Gives a connection up, if it is still the current one.
    pub(crate) fn replace(&self, connection: &LinkConnection) {
        self.shared.give_up(&connection.health);
    }

    /// Starts the connecting task, or restarts it if the runtime it ran in has ended (1).
    fn start(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(reconnect::run(Arc::clone(&self.shared))));
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task {
            task.abort();
        }
    }
}

impl Shared {
    /// Waits for a reply until the deadline, and gives the connection up if it does not respond. The reply future
    /// is pinned by the caller, because it is large, and would otherwise be copied into every future on the way.
    async fn call_within<T>(
        &self,
        health: &Arc<ConnectionHealth>,
        deadline: Instant,
        reply: Pin<&mut impl Future<Output = RedisResult<T>>>,
    ) -> Result<T, NoReply> {
        match timeout_at(deadline, self.tracked(health, reply)).await {
            Ok(Ok(reply)) => Ok(reply),
            // Errors of the server arrive as values, so this is an error of the connection.
            Ok(Err(error)) => {
                self.give_up(health);
                Err(NoReply::Broken(error))
            }
            Err(_) => {
                self.give_up_if_silent(health);
                Err(NoReply::TimedOut)
            }
        }
    }

    async fn tracked<T>(
        &self,
        health: &ConnectionHealth,
        reply: Pin<&mut impl Future<Output = RedisResult<T>>>,
    ) -> RedisResult<T> {
        let waiting = health.wait();
        let reply = reply.await;
        drop(waiting);
        health.received();
        reply
    }

    fn give_up_if_silent(&self, health: &Arc<ConnectionHealth>) {
        if health.silence() >= SILENCE {
            self.give_up(health);
        }
    }

    fn give_up(&self, health: &Arc<ConnectionHealth>) {
        let mut given_up = None;
        self.state.modify(|state| {
            let State::Up(connection) = &*state else { return false };
            if !Arc::ptr_eq(&connection.health, health) {
                return false;
            }
            given_up = Some(Arc::clone(&connection.batches));
            *state = State::Down(None);
            true
        });
        if let Some(batches) = given_up {
            batches.close();
        }
    }

    async fn until_replaced(&self, health: &Arc<ConnectionHealth>) {
        self.state.wait_for(|state| (!state.is_current(health)).then_some(())).await;
    }

    fn last_fault(&self) -> Fault {
        self.state.read(|state| match state {
            State::Down(Some(fault)) => fault.clone(),
            _ => self.config.unconnected_in_time(&self.node),
        })
    }
}
