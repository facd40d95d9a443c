//! The messages of one connection: on the connection itself with RESP3; on a second connection with RESP2, which
//! needs one for messages alone.
//!
//! Owns the subscriptions and the second connection. The mailboxes deliver the messages; the link decides when
//! connections are made.
//!
//! 1. When one of the two connections ends or does not respond, both end.
//! 2. Calls rarely wait on the second connection, so their timeouts do not detect its loss. It is probed at
//!    intervals.

use super::bounded::{Change, Confirmations};
use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSub, PubSubSink, PubSubStream};
use redis::{PushInfo, PushKind, RedisError, RedisResult, ToRedisArgs, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// Interval of the probes of a connection on which calls rarely wait.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Limit for the response to a probe.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Source of a connection's messages. Dropping the last clone ends a second connection.
#[derive(Debug, Clone)]
pub(crate) enum Messages {
    /// The same connection, and what confirms its subscriptions.
    Shared(MultiplexedConnection, Arc<Confirmations>),
    /// A second connection, whose end also ends the first.
    Separate(
        PubSubSink,
        #[allow(dead_code, reason = "ends the task when it is dropped")] Arc<AbortOnDropHandle<()>>,
    ),
}

impl Messages {
    /// Forwards the messages of a second connection, and reports its end as a RESP3 connection would.
    pub(crate) fn separate(
        connection: PubSub,
        on_push: Arc<impl Fn(PushInfo) + Send + Sync + 'static>,
    ) -> Self {
        let (sink, stream) = connection.split();
        let forwarding = tokio::spawn(forward(sink.clone(), stream, on_push));
        Self::Separate(sink, Arc::new(AbortOnDropHandle::new(forwarding)))
    }

    /// Whether messages and replies use different connections.
    pub(crate) const fn are_separate(&self) -> bool {
        matches!(self, Self::Separate(..))
    }

    pub(crate) async fn subscribe(&mut self, channels: impl ToRedisArgs) -> RedisResult<()> {
        match self {
            Self::Shared(connection, confirmations) => {
                let count = channels.num_of_args();
                confirmations.expect(Change::Subscribe, count);
                connection.subscribe(channels).await.inspect_err(|error| {
                    give_up(confirmations, Change::Subscribe, count, error);
                })
            }
            Self::Separate(sink, _) => sink.subscribe(channels).await,
        }
    }

    pub(crate) async fn unsubscribe(&mut self, channels: impl ToRedisArgs) -> RedisResult<()> {
        match self {
            Self::Shared(connection, confirmations) => {
                let count = channels.num_of_args();
                confirmations.expect(Change::Unsubscribe, count);
                connection.unsubscribe(channels).await.inspect_err(|error| {
                    give_up(confirmations, Change::Unsubscribe, count, error);
                })
            }
            Self::Separate(sink, _) => sink.unsubscribe(channels).await,
        }
    }
}

/// Expects no confirmation of a change that the server has refused.
fn give_up(confirmations: &Confirmations, change: Change, count: usize, error: &RedisError) {
    if error.clone().into_server_errors().is_some() {
        confirmations.refused(change, count);
    }
}

/// The message that reports the end of a connection.
pub(crate) const fn ended() -> PushInfo {
    PushInfo { kind: PushKind::Disconnection, data: Vec::new() }
}

async fn forward(sink: PubSubSink, mut stream: PubSubStream, on_push: Arc<impl Fn(PushInfo)>) {
    let forwarded = async {
        while let Some(message) = stream.next().await {
            let channel = Value::BulkString(message.get_channel_name().as_bytes().to_vec());
            let text = Value::BulkString(message.get_payload_bytes().to_vec());
            on_push(PushInfo { kind: PushKind::Message, data: vec![channel, text] });
        }
    };
    tokio::select! {
        () = forwarded => {}
        () = until_silent(sink) => {}
    }
    on_push(ended());
}

/// Waits until the connection does not respond (2).
async fn until_silent(mut sink: PubSubSink) {
    loop {
        tokio::time::sleep(PROBE_INTERVAL).await;
        // An error is a response, too: the user may lack permission for PING.
        if tokio::time::timeout(PROBE_TIMEOUT, sink.ping::<Value>()).await.is_err() {
            return;
        }
    }
}
