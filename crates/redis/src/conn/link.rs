//! The link to one server: a connection for commands and messages, which is made again whenever it breaks.
//!
//! A link resends nothing. A command in flight when its connection breaks has an unknown outcome, and the call
//! returns that.
//!
//! 1. One task makes the connections. Calls wait for it until their own deadline, and share its attempts.
//! 2. A connection is handed out once every open mailbox, and every subscribed channel of another library, is
//!    subscribed on it. Subscribers from before the reconnection are notified, because they may have missed messages
//!    in between.
//! 3. Attempts are paced. The first starts at once, if the last connection has lasted long enough; the next follows
//!    after 50 ms, doubling up to 2 s, half of it jitter.
//! 4. A connection that stays silent while a call waits on it until its deadline is given up, and no later call waits
//!    on it. A command sent on it may still be executed.
//! 5. Behind Sentinels, the link is subscribed to all of them all the time. When the primary moves, the link gives up
//!    the connection to the old one and connects to the new one at once.

use super::connect::{ReadyConnection, VoteDelay, open_connection};
use super::mailbox::Mailboxes;
use super::open::unsubscribed;
use super::sentinel::{PrimaryReport, SentinelWatch};
use crate::config::RedisConfig;
use crate::config::address::Protocol;
use leasehold_core::SessionId;
use leasehold_store::Environment;
use leasehold_store::jitter;
use leasehold_store::watched::Watched;
use leasehold_store::{Fault, FaultKind, NotificationSink, Phase, Publisher, Subscription};
use redis::{Cmd, Pipeline, PushKind, RedisResult, Value};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

/// Pauses between attempts: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long a connection must last for the next attempt to start without a pause.
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(1);
/// Time over which clients spread their connections to a new primary, since all learn of it at the same moment.
const SPREAD: Duration = Duration::from_millis(50);
/// Silence after which a call that runs out of time gives the connection up. It is short, because a lease of one
/// second leaves no time to wait longer; if the old connection was alive after all, a new one costs little.
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

    fn is_up_by(&self, health: &Arc<ConnectionHealth>) -> bool {
        matches!(self, Self::Up(connection) if Arc::ptr_eq(&connection.health, health))
    }
}

/// One connection of a link.
#[derive(Debug, Clone)]
pub(crate) struct LinkConnection {
    ready: ReadyConnection,
    health: Arc<ConnectionHealth>,
}

impl LinkConnection {
    /// When the server grants locks, if it is a node of a quorum.
    pub(crate) fn vote_delay(&self) -> Option<VoteDelay> {
        self.ready.vote_delay
    }
}

/// Tracks whether a connection responds.
#[derive(Debug)]
struct ConnectionHealth {
    environment: Arc<dyn Environment>,
    /// Start of the current silence, in microseconds of our clock; 0 if no call waits.
    waiting_since: AtomicU64,
    /// Number of calls that wait for a reply.
    waiting: AtomicU32,
    /// Set when the connection has ended.
    ended: AtomicBool,
}

/// Why a call has no reply, though its command may have been sent.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The connection broke.
    Broken(redis::RedisError),
    /// No reply arrived before the deadline.
    TimedOut,
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
    /// last attempt failed is not waited for: the quorum cannot decide until each node has answered or failed, so an
    /// attempt with split votes would take as long as a node may take.
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
    ) -> Result<Value, Lost> {
        let LinkConnection { ready, health } = connection;
        let reply = pin!(ready.conn.send_packed_command(cmd));
        self.shared.watched(health, deadline, reply).await
    }

    /// Sends several commands in one write. Each reply may be an error of its own.
    pub(crate) async fn call_all(
        &self,
        connection: &mut LinkConnection,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> Result<Vec<Value>, Lost> {
        let LinkConnection { ready, health } = connection;
        let replies = pin!(ready.conn.send_packed_commands(pipeline, 0, pipeline.len()));
        self.shared.watched(health, deadline, replies).await
    }

    /// Gives a connection up, if it is still the current one.
    pub(crate) fn replace(&self, connection: &LinkConnection) {
        self.shared.give_up(&connection.health);
    }

    /// Opens a mailbox on the current connection and all later ones.
    pub(crate) async fn open_mailbox(
        &self,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let mailboxes = &self.shared.mailboxes;
        // Registers the mailbox before waiting for a connection, so that a connection being made at this moment
        // subscribes it, or this call does.
        mailboxes.open(session, sink);
        let channel = mailboxes.channel(session);
        let result = mailboxes
            .subscription_order()
            .subscribe(self.subscribe(&channel, deadline), self.node(), deadline)
            .await;
        if result.is_err() {
            mailboxes.close(session);
        }
        result
    }

    /// Subscribes to a channel of another library, on the current connection and all later ones.
    ///
    /// Cancel safety: dropping the future ends the subscription.
    pub(crate) async fn listen(&self, channel: &str, deadline: Instant) -> Result<Subscription, Fault> {
        // Registers the subscription before waiting for a connection, as for a mailbox.
        let (publisher, name, link) =
            (Publisher::default(), channel.to_owned(), Arc::downgrade(&self.shared));
        let number = self.shared.mailboxes.lock_channels().add(channel, publisher.clone());
        let listening = Subscription::new(&publisher, move || {
            let Some(link) = link.upgrade() else { return };
            if link.mailboxes.lock_channels().remove(&name, number) {
                unsubscribe_unused(link, name);
            }
        });
        let order = self.shared.mailboxes.lock_channels().subscription_order();
        order.subscribe(self.subscribe(channel, deadline), self.node(), deadline).await?;
        publisher.notify();
        Ok(listening)
    }

    /// Subscribes to a channel, and repeats it on the next connection if the current one breaks.
    async fn subscribe(&self, channel: &str, deadline: Instant) -> Result<(), Fault> {
        loop {
            let mut connection = self.connection(deadline).await?;
            let LinkConnection { ready: ReadyConnection { messages, .. }, health } = &mut connection;
            let are_separate = messages.are_separate();
            let subscribed = {
                let subscribed = pin!(messages.subscribe(channel));
                if are_separate {
                    timeout_at(deadline, subscribed).await
                } else {
                    timeout_at(deadline, self.shared.observed(health, subscribed)).await
                }
            };
            match subscribed {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if error.clone().into_server_errors().is_some() => {
                    return Err(unsubscribed(error, self.node()));
                }
                Ok(Err(_)) => self.shared.give_up(&connection.health),
                Err(_) => {
                    // A separate message connection reports its own end, so silence is judged on a shared connection
                    // only.
                    if !are_separate {
                        self.shared.give_up_if_silent(&connection.health);
                    }
                    return Err(Fault::new(FaultKind::TimedOut, Phase::Reply, Arc::clone(self.node())));
                }
            }
        }
    }

    /// Closes a mailbox, and unsubscribes in the background.
    pub(crate) fn close_mailbox(&self, session: SessionId) {
        if !self.shared.mailboxes.close(session) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let link = Arc::clone(&self.shared);
        runtime.spawn(async move {
            let _ordered = link.mailboxes.subscription_order().lock().await;
            let Some(mut connection) = link.state.read(State::connection) else { return };
            if !link.mailboxes.is_open(session) {
                // If this fails, the connection is gone, and the subscription with it.
                let channel = link.mailboxes.channel(session);
                let _ = tokio::time::timeout(PAUSE.1, connection.ready.messages.unsubscribe(channel)).await;
            }
        });
    }

    /// Starts the connecting task, or restarts it if the runtime it ran in has ended (1).
    fn start(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(run_connector(Arc::clone(&self.shared))));
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
    /// stays where the caller pinned it: it is large, and every future that contained it would be moved with it.
    async fn watched<T>(
        &self,
        health: &Arc<ConnectionHealth>,
        deadline: Instant,
        reply: Pin<&mut impl Future<Output = RedisResult<T>>>,
    ) -> Result<T, Lost> {
        match timeout_at(deadline, self.observed(health, reply)).await {
            Ok(Ok(reply)) => Ok(reply),
            // Errors of the server arrive as values, so this is an error of the connection.
            Ok(Err(error)) => {
                self.give_up(health);
                Err(Lost::Broken(error))
            }
            Err(_) => {
                self.give_up_if_silent(health);
                Err(Lost::TimedOut)
            }
        }
    }

    async fn observed<T>(
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
        self.state.modify(|state| {
            let current = state.is_up_by(health);
            if current {
                *state = State::Down(None);
            }
            current
        });
    }

    fn last_fault(&self) -> Fault {
        self.state.read(|state| match state {
            State::Down(Some(fault)) => fault.clone(),
            _ => Fault::new(FaultKind::TimedOut, Phase::Connect, Arc::clone(&self.node)),
        })
    }
}

/// A call that waits for a reply.
struct Waiting<'a>(&'a ConnectionHealth);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionHealth {
    fn new(environment: Arc<dyn Environment>) -> Self {
        Self {
            environment,
            waiting_since: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Current time of a clock that runs during a suspend; never 0.
    fn now_us(&self) -> u64 {
        self.environment.now().as_micros().max(1)
    }

    /// Counts a waiting call until the returned value is dropped.
    fn wait(&self) -> Waiting<'_> {
        // Usually another call waits already, and the clock need not be read.
        if self.waiting_since.load(Ordering::Relaxed) == 0 {
            let _ =
                self.waiting_since.compare_exchange(0, self.now_us(), Ordering::Relaxed, Ordering::Relaxed);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Records that something was received. The silence of calls still waiting starts again now.
    fn received(&self) {
        let others = self.waiting.load(Ordering::Relaxed) != 0;
        let since = if others { self.now_us() } else { 0 };
        self.waiting_since.store(since, Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        match self.waiting_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_micros(self.now_us().saturating_sub(since)),
        }
    }
}

/// Unsubscribes in the background from a channel without subscribers.
fn unsubscribe_unused(link: Arc<Shared>, channel: String) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let _ordered = link.mailboxes.lock_channels().subscription_order().lock().await;
        let Some(mut connection) = link.state.read(State::connection) else { return };
        if !link.mailboxes.lock_channels().has_subscribers(&channel) {
            // If this fails, the connection is gone, and the subscription with it.
            let _ = tokio::time::timeout(PAUSE.1, connection.ready.messages.unsubscribe(channel)).await;
        }
    });
}

/// Runs the connecting task, and reports a fault if it panics, as it does on a runtime without IO or timers.
async fn run_connector(shared: Arc<Shared>) {
    let mut task = JoinSet::new();
    task.spawn(maintain(Arc::clone(&shared)));
    if let Some(Err(_)) = task.join_next().await {
        let text = "the tokio runtime lacks IO or timers: build it with `enable_all`";
        let fault =
            Fault::new(FaultKind::Unusable(text.to_owned()), Phase::Connect, Arc::clone(&shared.node));
        shared.state.set(State::Down(Some(fault)));
    }
}

/// Makes connections while the link exists (1), and leaves a server that is no longer the primary (5).
async fn maintain(shared: Arc<Shared>) {
    let environment = shared.config.shared_environment();
    let mut sentinels = SentinelWatch::new(&shared.config);
    // Last address reported by Sentinels.
    let mut known: Option<PrimaryReport> = None;
    let mut failures = 0;
    let mut spread = Duration::ZERO;
    loop {
        let attempted = async {
            tokio::time::sleep(pause(failures, environment.random()) + spread).await;
            (shared.mailboxes.all(), attempt(&shared, known.clone()).await)
        };
        let attempted = tokio::select! {
            biased;
            seen = sentinels.moved(known.as_ref()) => Err(seen),
            attempted = attempted => Ok(attempted),
        };
        spread = Duration::ZERO;
        match attempted {
            Ok((mailboxes, Ok(connection))) => {
                let health = Arc::clone(&connection.health);
                let since = Instant::now();
                tracing::debug!(node = %shared.node, "connected");
                known.clone_from(&connection.ready.report);
                shared.state.set(State::Up(connection));
                if health.ended.load(Ordering::SeqCst) {
                    // The connection ended before it was published.
                    shared.give_up(&health);
                }
                for (_, sink) in mailboxes {
                    sink.resubscribed();
                }
                shared.mailboxes.lock_channels().notify_all();
                tokio::select! {
                    biased;
                    () = shared.until_replaced(&health) => {}
                    seen = sentinels.moved(known.as_ref()) => {
                        shared.give_up(&health);
                        (known, spread) = (Some(seen), jitter(&**environment, SPREAD));
                    }
                }
                tracing::debug!(node = %shared.node, "the connection is lost");
                failures = if since.elapsed() >= STABLE_AFTER { 0 } else { failures + 1 };
            }
            Ok((_, Err(fault))) => {
                tracing::debug!(node = %shared.node, %fault, "no connection");
                shared.state.set(State::Down(Some(fault)));
                failures += 1;
            }
            Err(seen) => {
                // Happens once for each fail-over, because the epoch grows. The fault of the old primary says nothing
                // about the new one.
                shared.state.set(State::Down(None));
                (known, spread) = (Some(seen), jitter(&**environment, SPREAD));
                failures = 0;
            }
        }
    }
}

impl Shared {
    async fn until_replaced(&self, health: &Arc<ConnectionHealth>) {
        self.state.wait_for(|state| (!state.is_up_by(health)).then_some(())).await;
    }
}

/// Makes one attempt.
async fn attempt(shared: &Arc<Shared>, hint: Option<PrimaryReport>) -> Result<LinkConnection, Fault> {
    let health = Arc::new(ConnectionHealth::new(Arc::clone(shared.config.shared_environment())));
    let on_push = {
        let (mailboxes, health) = (Arc::clone(&shared.mailboxes), Arc::clone(&health));
        // With RESP2, messages arrive on another connection, and say nothing about this one.
        let is_same = shared.config.protocol() == Protocol::Resp3;
        // A strong reference would keep the link alive through its own connection.
        let link: Weak<Shared> = Arc::downgrade(shared);
        move |push: redis::PushInfo| {
            if push.kind == PushKind::Disconnection {
                health.ended.store(true, Ordering::SeqCst);
                if let Some(link) = link.upgrade() {
                    link.give_up(&health);
                }
            } else {
                if is_same {
                    health.received();
                }
                mailboxes.deliver(&push);
            }
        }
    };
    let ready = open_connection(&shared.config, &shared.node, &shared.mailboxes, hint, on_push).await?;
    Ok(LinkConnection { ready, health })
}

/// Pause after this many failures in a row (3). `random` is 64 random bits.
fn pause(failures: u32, random: u64) -> Duration {
    backoff(PAUSE, failures, random)
}

/// Same as `pause`, with other bounds: the first pause, and the longest.
pub(crate) fn backoff((first, most): (Duration, Duration), failures: u32, random: u64) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
    let pause = first.saturating_mul(1 << doublings.min(10)).min(most);
    #[allow(clippy::cast_precision_loss, reason = "a jitter needs no more than the leading bits")]
    let share = random as f64 / u64::MAX as f64;
    pause / 2 + (pause / 2).mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_and_capped() {
        assert_eq!(pause(0, u64::MAX), Duration::ZERO);
        assert_eq!(pause(1, 0), Duration::from_millis(25));
        assert_eq!(pause(2, u64::MAX), Duration::from_millis(100));
        assert_eq!(pause(u32::MAX, u64::MAX), Duration::from_secs(2));
        assert!(pause(40, u64::MAX / 4) < pause(40, u64::MAX / 4 * 3));
    }
}
