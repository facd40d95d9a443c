//! The messages of one connection: on itself, as RESP3 has it, or on another one beside it, since RESP2 has a connection for
//! messages alone.
//!
//! Owns the subscriptions, and the second connection. To whom messages go is the mailboxes'; when connections are made, the
//! link's.
//!
//! 1. The two are one to everybody else: when either ends, or does not answer, that is the end of both.
//! 2. On the second one nobody waits for anything as a rule: so it is asked now and then whether it is there.

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSub, PubSubSink, PubSubStream};
use redis::{PushInfo, PushKind, RedisResult, ToRedisArgs, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// How often a connection for messages alone is asked whether it is there, and how long its answer may take.
pub(super) const LOOK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(2));

/// Where the messages of a connection come from. The last clone of a second connection ends it.
#[derive(Debug, Clone)]
pub(super) enum Messages {
    /// The same connection.
    Pushed(MultiplexedConnection),
    /// Another one, by whose end the first is given up.
    Apart(
        PubSubSink,
        #[allow(dead_code, reason = "ends the task when it is dropped")] Arc<AbortOnDropHandle<()>>,
    ),
}

impl Messages {
    /// Hands on what comes on a connection for messages, and says when it has ended as a connection of RESP3 would.
    pub(super) fn apart(connection: PubSub, on_push: Arc<impl Fn(PushInfo) + Send + Sync + 'static>) -> Self {
        let (sink, stream) = connection.split();
        let hears = tokio::spawn(hear(sink.clone(), stream, on_push));
        Self::Apart(sink, Arc::new(AbortOnDropHandle::new(hears)))
    }

    /// Whether they come on another connection than replies do.
    pub(super) const fn are_apart(&self) -> bool {
        matches!(self, Self::Apart(..))
    }

    pub(super) async fn subscribe(&mut self, channels: impl ToRedisArgs) -> RedisResult<()> {
        match self {
            Self::Pushed(connection) => connection.subscribe(channels).await,
            Self::Apart(sink, _) => sink.subscribe(channels).await,
        }
    }

    pub(super) async fn unsubscribe(&mut self, channels: impl ToRedisArgs) -> RedisResult<()> {
        match self {
            Self::Pushed(connection) => connection.unsubscribe(channels).await,
            Self::Apart(sink, _) => sink.unsubscribe(channels).await,
        }
    }
}

/// That a connection has ended.
pub(super) const fn ended() -> PushInfo {
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

/// Waits until a connection does not answer (2).
async fn until_silent(mut sink: PubSubSink) {
    let (pause, patience) = LOOK;
    loop {
        tokio::time::sleep(pause).await;
        // An error is an answer, too: the user may not ask.
        if tokio::time::timeout(patience, sink.ping::<Value>()).await.is_err() {
            return;
        }
    }
}
