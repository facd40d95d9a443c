//! One of two processes that hand over a lock, or a bare message.

use super::protocol::{LOCK, Requests, reply};
use crate::critical_section::{CriticalSection, now_ns};
use anyhow::{Context, Result, bail};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use std::time::Duration;
use tokio::sync::mpsc;

/// Answers requests until `stop`.
///
/// `acquire` replies with the section when the acquire has returned. `release` pauses, and replies with the time of its
/// call. `listen` and `publish` do the same with a bare message.
pub(super) async fn run(url: &str, process: u32) -> Result<()> {
    let client = crate::client::connect(url).await?;
    let mutex = client.mutex(LOCK)?;
    let (sender, mut messages) = mpsc::unbounded_channel();
    let mut bare = subscribing_connection(url, sender).await?;
    bare.subscribe(format!("bare:{process}")).await?;
    let mut requests = Requests::new();
    let mut guard = None;
    reply("ready")?;
    loop {
        let request = requests.next().await?;
        let (verb, rest) = request.split_once(' ').unwrap_or((&request, ""));
        match verb {
            "acquire" => {
                let called_ns = now_ns();
                let held = mutex.acquire().await?;
                let acquired_ns = now_ns();
                let fence = held.fencing_token().as_u64();
                guard = Some(held);
                reply(
                    &CriticalSection {
                        process,
                        task: 0,
                        exclusive: true,
                        fence,
                        called_ns,
                        acquired_ns,
                        released_ns: 0,
                    }
                    .to_string(),
                )?;
            }
            "release" => {
                tokio::time::sleep(Duration::from_micros(rest.parse()?)).await;
                let held = guard.take().context("nothing is held")?;
                let released_ns = now_ns();
                held.release().await?;
                reply(&released_ns.to_string())?;
            }
            "listen" => {
                let received_ns: u64 =
                    messages.recv().await.map(|()| now_ns()).context("the connection broke")?;
                reply(&received_ns.to_string())?;
            }
            "publish" => {
                let (pause_us, to) = rest.split_once(' ').context("publish PAUSE PROCESS")?;
                tokio::time::sleep(Duration::from_micros(pause_us.parse()?)).await;
                let sent_ns = now_ns();
                let message = "grant 00000000feedfacecafebeef 1762000000123456";
                let publish = redis::cmd("PUBLISH").arg(format!("bare:{to}")).arg(message).to_owned();
                publish.query_async::<i64>(&mut bare).await?;
                reply(&sent_ns.to_string())?;
            }
            "stop" => return Ok(()),
            other => bail!("no such request: {other}"),
        }
    }
}

/// A connection like Leasehold's, without the library.
pub(super) async fn subscribing_connection(
    url: &str,
    messages: mpsc::UnboundedSender<()>,
) -> Result<MultiplexedConnection> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let client = redis::Client::open(format!("{url}{separator}protocol=resp3"))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(
        move |push: redis::PushInfo| {
            if push.kind == redis::PushKind::Message { messages.send(()) } else { Ok(()) }
        },
    );
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}
