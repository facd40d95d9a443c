//! The messages of one connection: on the connection itself with RESP3; on a second connection with RESP2, which
//! needs one for messages alone.
//!
//! Owns the subscriptions and the second connection. The mailboxes deliver the messages; the link decides when
//! connections are made.
//!
//! 1. Both connections count as one: when either ends or does not respond, both end.
//! 2. Calls rarely wait on the second connection, so their timeouts do not detect its loss. It is probed at
//!    intervals.

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSub, PubSubSink, PubSubStream};
use redis::{PushInfo, PushKind, RedisResult, ToRedisArgs, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// Interval of the probes of a second connection, and the limit for its response.
pub(crate) const LOOK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(2));

/// Source of a connection's messages. Dropping the last clone ends a second connection.
#[derive(Debug, Clone)]
pub(crate) enum Messages {
    /// The same connection.
    Pushed(MultiplexedConnection),
    /// A second connection, whose end also ends the first.
    Apart(
        PubSubSink,
        #[allow(dead_code, reason = "ends the task when it is dropped")] Arc<AbortOnDropHandle<()>>,
    ),
}

impl Messages {
    /// Forwards the messages of a second connection, and reports its end as a RESP3 connection would.
    pub(crate) fn apart(connection: PubSub, on_push: Arc<impl Fn(PushInfo) + Send + Sync + 'static>) -> Self {
        let (sink, stream) = connection.split();
        let hears = tokio::spawn(hear(sink.clone(), stream, on_push));
        Self::Apart(sink, Arc::new(AbortOnDropHandle::new(hears)))
    }

    /// Whether messages and replies use different connections.
    pub(crate) const fn are_apart(&self) -> bool {
        matches!(self, Self::Apart(..))
    }

    pub(crate) async fn subscribe(&mut self, channels: impl ToRedisArgs) -> RedisResult<()> {
        match self {
            Self::Pushed(connection) => connection.subscribe(channels).await,
            Self::Apart(sink, _) => sink.subscribe(channels).await,
        }
    }

    pub(crate) async fn unsubscribe(&mut self, channels: impl ToRedisArgs) -> RedisResult<()> {
        match self {
            Self::Pushed(connection) => connection.unsubscribe(channels).await,
            Self::Apart(sink, _) => sink.unsubscribe(channels).await,
        }
    }
}

/// The message that reports the end of a connection.
pub(crate) const fn ended() -> PushInfo {
    PushInfo { kind: PushKind::Disconnection, data: Vec::new() }
}

async fn hear(sink: PubSubSink, mut stream: PubSubStream, on_push: Arc<impl Fn(PushInfo)>) {
    let heard = async {
        while let Some(message) = stream.next().await {
            let channel = Value::BulkString(message.get_channel_name().as_bytes().to_vec());
            let text = Value::BulkString(message.get_payload_bytes().to_vec());
            on_push(PushInfo { kind: PushKind::Message, data: vec![channel, text] });
        }
    };
    tokio::select! {
        () = heard => {}
        () = until_silent(sink) => {}
    }
    on_push(ended());
}

/// Waits until the connection does not respond (2).
async fn until_silent(mut sink: PubSubSink) {
    let (pause, patience) = LOOK;
    loop {
        tokio::time::sleep(pause).await;
        // An error is a response, too: the user may lack permission for PING.
        if tokio::time::timeout(patience, sink.ping::<Value>()).await.is_err() {
            return;
        }
    }
}
