//! Subscriptions of a link: the mailboxes of sessions, and the channels of locks.

use super::{Link, LinkConnection, Shared, State};
use crate::conn::connect::ReadyConnection;
use crate::conn::open::unsubscribed;
use leasehold_core::SessionId;
use leasehold_store::{Fault, FaultKind, NotificationSink, Phase, Publisher, Subscription};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Limit for an unsubscription, during which other subscriptions wait.
const UNSUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

impl Link {
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

    /// Subscribes to the channel of a lock, on the current connection and all later ones.
    ///
    /// Cancel safety: dropping the future ends the subscription.
    pub(crate) async fn listen(&self, channel: &str, deadline: Instant) -> Result<Subscription, Fault> {
        // Registers the subscription before waiting for a connection, as for a mailbox.
        let (publisher, name, link) =
            (Publisher::default(), channel.to_owned(), Arc::downgrade(&self.shared));
        let number = self.shared.mailboxes.lock_channels().add(channel, publisher.clone());
        let subscription = Subscription::new(&publisher, move || {
            let Some(link) = link.upgrade() else { return };
            if link.mailboxes.lock_channels().remove(&name, number) {
                unsubscribe_unused(link, name);
            }
        });
        let order = self.shared.mailboxes.lock_channels().subscription_order();
        order.subscribe(self.subscribe(channel, deadline), self.node(), deadline).await?;
        publisher.notify();
        Ok(subscription)
    }

    /// Subscribes to a channel, and repeats it on the next connection if the current one breaks.
    async fn subscribe(&self, channel: &str, deadline: Instant) -> Result<(), Fault> {
        loop {
            let mut connection = self.connection(deadline).await?;
            let LinkConnection { ready: ReadyConnection { messages, .. }, health, .. } = &mut connection;
            let are_separate = messages.are_separate();
            let subscribed = {
                let subscribed = pin!(messages.subscribe(channel));
                if are_separate {
                    timeout_at(deadline, subscribed).await
                } else {
                    timeout_at(deadline, self.shared.tracked(health, subscribed)).await
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
                let _ = timeout(UNSUBSCRIBE_TIMEOUT, connection.ready.messages.unsubscribe(channel)).await;
            }
        });
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
            let _ = timeout(UNSUBSCRIBE_TIMEOUT, connection.ready.messages.unsubscribe(channel)).await;
        }
    });
}
