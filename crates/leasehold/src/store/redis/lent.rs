//! A connection that the user lends: he made it, and he makes it anew.

use super::dial::unsubscribed;
use super::link::Lost;
use super::mailbox::Mailboxes;
use crate::store::{Fault, FaultKind, Phase, Postbox};
use leasehold_core::SessionId;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, PushInfo, RedisResult, Value};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// The user's connection.
#[derive(Debug)]
pub(super) struct Lent {
    conn: MultiplexedConnection,
    node: Arc<str>,
    mailboxes: Arc<Mailboxes>,
    /// Where the connection's messages come from, and the task that hands them on once a mailbox is open.
    pushes: Mutex<Pushes>,
}

#[derive(Debug)]
enum Pushes {
    /// The user hands none on: waiting goes by looks alone.
    None,
    /// Nobody listens yet.
    Unheard(Receiver<PushInfo>),
    /// This task listens, or did so while its runtime lived.
    Heard(JoinHandle<()>),
}

impl Lent {
    pub(super) fn new(
        conn: MultiplexedConnection,
        mailboxes: Mailboxes,
        pushes: Option<Receiver<PushInfo>>,
    ) -> Self {
        let pushes = pushes.map_or(Pushes::None, Pushes::Unheard);
        let node = "the given connection".into();
        Self { conn, node, mailboxes: Arc::new(mailboxes), pushes: Mutex::new(pushes) }
    }

    pub(super) fn node(&self) -> &Arc<str> {
        &self.node
    }

    pub(super) fn mailboxes(&self) -> &Arc<Mailboxes> {
        &self.mailboxes
    }

    /// Whether the user hands the connection's messages on.
    pub(super) fn has_messages(&self) -> bool {
        match &*self.pushes.lock().unwrap_or_else(PoisonError::into_inner) {
            Pushes::None => false,
            Pushes::Unheard(_) => true,
            Pushes::Heard(task) => !task.is_finished(),
        }
    }

    pub(super) async fn call(&self, cmd: &Cmd, deadline: Instant) -> Result<Value, Lost> {
        let mut conn = self.conn.clone();
        within(deadline, conn.send_packed_command(cmd)).await
    }

    pub(super) async fn call_all(&self, pipeline: &Pipeline, deadline: Instant) -> Result<Vec<Value>, Lost> {
        let mut conn = self.conn.clone();
        within(deadline, conn.send_packed_commands(pipeline, 0, pipeline.len())).await
    }

    pub(super) async fn open_mailbox(
        &self,
        session: SessionId,
        post: Arc<dyn Postbox>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        if !self.listen() {
            return Ok(());
        }
        self.mailboxes.open(session, post);
        let mut conn = self.conn.clone();
        let subscribed = timeout_at(deadline, conn.subscribe(self.mailboxes.channel(session))).await;
        let fault = match subscribed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => unsubscribed(error, &self.node),
            Err(_) => Fault::new(FaultKind::TimedOut, Phase::Reply, Arc::clone(&self.node)),
        };
        self.mailboxes.close(session);
        Err(fault)
    }

    pub(super) fn close_mailbox(&self, session: SessionId) {
        if !self.mailboxes.close(session) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (mut conn, channel) = (self.conn.clone(), self.mailboxes.channel(session));
        runtime.spawn(async move {
            // If it fails the connection is gone, and the subscription with it.
            let _ = conn.unsubscribe(channel).await;
        });
    }

    /// Sees to it that somebody listens for messages; false if there are none.
    fn listen(&self) -> bool {
        let mut pushes = self.pushes.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *pushes, Pushes::None) {
            Pushes::None => false,
            Pushes::Unheard(receiver) => {
                *pushes = Pushes::Heard(tokio::spawn(hand_on(receiver, Arc::clone(&self.mailboxes))));
                true
            }
            heard @ Pushes::Heard(_) => {
                *pushes = heard;
                true
            }
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Pushes::Heard(task) = self.pushes.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// Hands messages on for as long as there is a connection that can bring some.
async fn hand_on(mut pushes: Receiver<PushInfo>, mailboxes: Arc<Mailboxes>) {
    loop {
        match pushes.recv().await {
            Ok(push) => mailboxes.deliver(&push),
            Err(RecvError::Lagged(_)) => mailboxes.all().iter().for_each(|(_, post)| post.renewed()),
            Err(RecvError::Closed) => return,
        }
    }
}

async fn within<T>(deadline: Instant, reply: impl Future<Output = RedisResult<T>>) -> Result<T, Lost> {
    match timeout_at(deadline, reply).await {
        Ok(Ok(reply)) => Ok(reply),
        // The user may have set a time limit of his own on the connection.
        Ok(Err(error)) if error.is_timeout() => Err(Lost::TimedOut),
        Ok(Err(error)) => Err(Lost::Broken(error)),
        Err(_) => Err(Lost::TimedOut),
    }
}
