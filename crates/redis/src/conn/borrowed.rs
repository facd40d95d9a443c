//! What the application lends: the store does not reconnect it, and receives messages only on a single connection.

use super::batches::{BatchReply, Batches, PendingReply};
use super::lent::{Carrier, CarrierRef, LentConnection, LentError};
use super::link::NoReply;
use super::mailbox::Mailboxes;
use super::open::unsubscribed;
use leasehold_core::SessionId;
use leasehold_store::{Fault, FaultKind, NotificationSink, Phase, Publisher, Subscription};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, PushInfo, RedisError, Value};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

/// Limit for an unsubscription, during which other subscriptions wait.
const UNSUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Name of the node in faults.
const NODE: &str = "the lent connection";

/// The application's connection, or its pool.
#[derive(Debug)]
pub(crate) struct BorrowedConnection {
    conn: Carrier,
    batches: Arc<Batches>,
    node: Arc<str>,
    mailboxes: Arc<Mailboxes>,
    /// Source of the push messages, and the task that forwards them once a mailbox is open.
    pushes: Mutex<Pushes>,
}

#[derive(Debug)]
enum Pushes {
    /// The user supplied no push messages, so waiters only poll.
    None,
    /// No subscription yet.
    Unused(Receiver<PushInfo>),
    /// The forwarding task, which may have ended with its runtime.
    Forwarding(JoinHandle<()>),
}

impl BorrowedConnection {
    pub(crate) fn new(
        conn: impl LentConnection,
        mailboxes: Mailboxes,
        pushes: Option<Receiver<PushInfo>>,
    ) -> Self {
        let conn = Carrier::lent(conn);
        let pushes = match pushes {
            Some(_) if conn.multiplexed().is_none() => {
                tracing::warn!("push messages are received only on a `MultiplexedConnection`: waiters poll");
                Pushes::None
            }
            pushes => pushes.map_or(Pushes::None, Pushes::Unused),
        };
        Self {
            conn,
            batches: Arc::default(),
            node: NODE.into(),
            mailboxes: Arc::new(mailboxes),
            pushes: Mutex::new(pushes),
        }
    }

    pub(crate) fn node(&self) -> &Arc<str> {
        &self.node
    }

    /// Whether the connection delivers push messages.
    pub(crate) fn has_messages(&self) -> bool {
        match &*self.pushes.lock().unwrap_or_else(PoisonError::into_inner) {
            Pushes::None => false,
            Pushes::Unused(_) => true,
            Pushes::Forwarding(task) => !task.is_finished(),
        }
    }

    /// The operations that are sent together, and what sends them.
    pub(crate) fn batches(&self) -> (&Arc<Batches>, CarrierRef<'_>) {
        (&self.batches, self.conn.by_ref())
    }

    /// Waits for the reply to an operation that is sent with others; `None` if it should be sent alone.
    pub(crate) async fn receive(
        &self,
        reply: PendingReply,
        deadline: Instant,
    ) -> Result<Option<Value>, NoReply> {
        match timeout_at(deadline, reply.receive()).await {
            Ok(BatchReply::Reply(reply)) => Ok(Some(reply)),
            Ok(BatchReply::GoAlone) => Ok(None),
            Ok(BatchReply::Lost(error)) => Err(self.lost(error)),
            Ok(BatchReply::TooLate) | Err(_) => Err(NoReply::TimedOut),
        }
    }

    pub(crate) async fn call(&self, cmd: &Cmd, deadline: Instant) -> Result<Value, NoReply> {
        let mut conn = self.conn.clone();
        self.within(deadline, pin!(conn.call(cmd))).await
    }

    pub(crate) async fn call_all(
        &self,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> Result<Vec<Value>, NoReply> {
        let mut conn = self.conn.clone();
        self.within(deadline, pin!(conn.call_all(pipeline))).await
    }

    /// Waits for a reply until the deadline. It is pinned by the caller, because it is large, and would otherwise be here
    /// twice.
    async fn within<T>(
        &self,
        deadline: Instant,
        reply: Pin<&mut impl Future<Output = Result<T, LentError>>>,
    ) -> Result<T, NoReply> {
        match timeout_at(deadline, reply).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(LentError::NotSent(error))) => Err(NoReply::NotSent(error)),
            // The application may have set a timeout on the connection.
            Ok(Err(LentError::NoReply(error))) if error.is_timeout() => Err(NoReply::TimedOut),
            Ok(Err(LentError::NoReply(error))) => Err(self.lost(error)),
            Err(_) => Err(NoReply::TimedOut),
        }
    }

    /// What a call without a reply means: a single connection that broke stays so.
    fn lost(&self, error: RedisError) -> NoReply {
        let is_broken = error.is_connection_dropped() || error.is_unrecoverable_error();
        match self.conn {
            Carrier::Multiplexed(_) if is_broken => NoReply::Ended(error),
            Carrier::Multiplexed(_) | Carrier::Lent(_) => NoReply::Broken(error),
        }
    }

    pub(crate) async fn open_mailbox(
        &self,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let Some(conn) = self.subscriber() else { return Ok(()) };
        self.mailboxes.open(session, sink);
        let (order, channel) = (self.mailboxes.subscription_order(), self.mailboxes.channel(session));
        let subscribed =
            order.subscribe(self.subscribe(conn, &channel, deadline), &self.node, deadline).await;
        if subscribed.is_err() {
            self.mailboxes.close(session);
        }
        subscribed
    }

    /// Subscribes to the channel of a lock; `None` without push messages.
    pub(crate) async fn listen(
        &self,
        channel: &str,
        deadline: Instant,
    ) -> Result<Option<Subscription>, Fault> {
        let Some(subscriber) = self.subscriber() else { return Ok(None) };
        let (publisher, name) = (Publisher::default(), channel.to_owned());
        let number = self.mailboxes.lock_channels().add(channel, publisher.clone());
        let (conn, mailboxes) = (subscriber.clone(), Arc::downgrade(&self.mailboxes));
        let listening = Subscription::new(&publisher, move || {
            let Some(mailboxes) = mailboxes.upgrade() else { return };
            if mailboxes.lock_channels().remove(&name, number) {
                unsubscribe_unused(conn, mailboxes, name);
            }
        });
        let order = self.mailboxes.lock_channels().subscription_order();
        order.subscribe(self.subscribe(subscriber, channel, deadline), &self.node, deadline).await?;
        publisher.notify();
        Ok(Some(listening))
    }

    async fn subscribe(
        &self,
        mut conn: MultiplexedConnection,
        channel: &str,
        deadline: Instant,
    ) -> Result<(), Fault> {
        match timeout_at(deadline, conn.subscribe(channel)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(unsubscribed(error, &self.node)),
            Err(_) => Err(Fault::new(FaultKind::TimedOut, Phase::Reply, Arc::clone(&self.node))),
        }
    }

    pub(crate) fn close_mailbox(&self, session: SessionId) {
        if !self.mailboxes.close(session) {
            return;
        }
        // Without a subscriber no mailbox is open.
        let Some(mut conn) = self.conn.multiplexed().cloned() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mailboxes = Arc::clone(&self.mailboxes);
        runtime.spawn(async move {
            let _ordered = mailboxes.subscription_order().lock().await;
            if !mailboxes.is_open(session) {
                // If this fails, the connection is gone, and the subscription with it.
                let _ = timeout(UNSUBSCRIBE_TIMEOUT, conn.unsubscribe(mailboxes.channel(session))).await;
            }
        });
    }

    /// The connection to subscribe on, once its messages are forwarded; `None` without push messages.
    fn subscriber(&self) -> Option<MultiplexedConnection> {
        self.conn.multiplexed().filter(|_| self.start_forwarding()).cloned()
    }

    /// Starts the forwarding task at the first use. Returns false without push messages.
    fn start_forwarding(&self) -> bool {
        let mut pushes = self.pushes.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *pushes, Pushes::None) {
            Pushes::None => false,
            Pushes::Unused(receiver) => {
                *pushes = Pushes::Forwarding(tokio::spawn(forward(receiver, Arc::clone(&self.mailboxes))));
                true
            }
            forwarding @ Pushes::Forwarding(_) => {
                *pushes = forwarding;
                true
            }
        }
    }
}

impl Drop for BorrowedConnection {
    fn drop(&mut self) {
        if let Pushes::Forwarding(task) = self.pushes.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// Unsubscribes in the background from a channel without subscribers.
fn unsubscribe_unused(mut conn: MultiplexedConnection, mailboxes: Arc<Mailboxes>, channel: String) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let _ordered = mailboxes.lock_channels().subscription_order().lock().await;
        if !mailboxes.lock_channels().has_subscribers(&channel) {
            // If this fails, the connection is gone, and the subscription with it.
            let _ = timeout(UNSUBSCRIBE_TIMEOUT, conn.unsubscribe(channel)).await;
        }
    });
}

/// Forwards messages while the connection can deliver any.
async fn forward(mut pushes: Receiver<PushInfo>, mailboxes: Arc<Mailboxes>) {
    loop {
        match pushes.recv().await {
            Ok(push) => mailboxes.deliver(&push),
            Err(RecvError::Lagged(_)) => mailboxes.resubscribed(),
            Err(RecvError::Closed) => return,
        }
    }
}
