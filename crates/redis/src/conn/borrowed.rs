//! A connection that the user supplies. The store does not reconnect it.

use super::batches::{BatchReply, Batches, PendingReply};
use super::link::NoReply;
use super::mailbox::Mailboxes;
use super::open::unsubscribed;
use leasehold_core::SessionId;
use leasehold_store::{Fault, FaultKind, NotificationSink, Phase, Publisher, Subscription};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, PushInfo, RedisResult, Value};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

/// Limit for an unsubscription, during which other subscriptions wait.
const UNSUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The user's connection.
#[derive(Debug)]
pub(crate) struct BorrowedConnection {
    conn: MultiplexedConnection,
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
        conn: MultiplexedConnection,
        mailboxes: Mailboxes,
        pushes: Option<Receiver<PushInfo>>,
    ) -> Self {
        let pushes = pushes.map_or(Pushes::None, Pushes::Unused);
        let node = "the given connection".into();
        Self {
            conn,
            batches: Arc::default(),
            node,
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
    pub(crate) fn batches(&self) -> (&Arc<Batches>, &MultiplexedConnection) {
        (&self.batches, &self.conn)
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
            Ok(BatchReply::Lost(error)) => Err(NoReply::Broken(error)),
            Ok(BatchReply::TooLate) | Err(_) => Err(NoReply::TimedOut),
        }
    }

    pub(crate) async fn call(&self, cmd: &Cmd, deadline: Instant) -> Result<Value, NoReply> {
        let mut conn = self.conn.clone();
        within(deadline, pin!(conn.send_packed_command(cmd))).await
    }

    pub(crate) async fn call_all(
        &self,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> Result<Vec<Value>, NoReply> {
        let mut conn = self.conn.clone();
        within(deadline, pin!(conn.send_packed_commands(pipeline, 0, pipeline.len()))).await
    }

    pub(crate) async fn open_mailbox(
        &self,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        if !self.start_forwarding() {
            return Ok(());
        }
        self.mailboxes.open(session, sink);
        let (order, channel) = (self.mailboxes.subscription_order(), self.mailboxes.channel(session));
        let subscribed = order.subscribe(self.subscribe(&channel, deadline), &self.node, deadline).await;
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
        if !self.start_forwarding() {
            return Ok(None);
        }
        let (publisher, name) = (Publisher::default(), channel.to_owned());
        let number = self.mailboxes.lock_channels().add(channel, publisher.clone());
        let (conn, mailboxes) = (self.conn.clone(), Arc::downgrade(&self.mailboxes));
        let listening = Subscription::new(&publisher, move || {
            let Some(mailboxes) = mailboxes.upgrade() else { return };
            if mailboxes.lock_channels().remove(&name, number) {
                unsubscribe_unused(conn, mailboxes, name);
            }
        });
        let order = self.mailboxes.lock_channels().subscription_order();
        order.subscribe(self.subscribe(channel, deadline), &self.node, deadline).await?;
        publisher.notify();
        Ok(Some(listening))
    }

    async fn subscribe(&self, channel: &str, deadline: Instant) -> Result<(), Fault> {
        let mut conn = self.conn.clone();
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
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (mut conn, mailboxes) = (self.conn.clone(), Arc::clone(&self.mailboxes));
        runtime.spawn(async move {
            let _ordered = mailboxes.subscription_order().lock().await;
            if !mailboxes.is_open(session) {
                // If this fails, the connection is gone, and the subscription with it.
                let _ = timeout(UNSUBSCRIBE_TIMEOUT, conn.unsubscribe(mailboxes.channel(session))).await;
            }
        });
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

/// Waits for a reply until the deadline. It is pinned by the caller, because it is large, and would otherwise be here twice.
async fn within<T>(
    deadline: Instant,
    reply: Pin<&mut impl Future<Output = RedisResult<T>>>,
) -> Result<T, NoReply> {
    match timeout_at(deadline, reply).await {
        Ok(Ok(reply)) => Ok(reply),
        // The user may have set a timeout on the connection.
        Ok(Err(error)) if error.is_timeout() => Err(NoReply::TimedOut),
        Ok(Err(error)) => Err(NoReply::Broken(error)),
        Err(_) => Err(NoReply::TimedOut),
    }
}
