//! Asks a running monitor whether it is healthy: a client of `page`, for a container without a shell.
//!
//! 1. The answer is bounded in size and time, since another program may listen at the address.

use crate::output::printable::printable;
use anyhow::{Context, Result, anyhow};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time for the answer (1). A monitor answers from what it knows already.
const LIMIT: Duration = Duration::from_secs(3);
/// The size of the answer, in bytes (1).
const MAX_ANSWER: usize = 4 * 1024;

/// An answer other than 200 is an error with its text.
pub(crate) async fn run(address: SocketAddr) -> Result<()> {
    let answered = timeout(LIMIT, ask(address)).await;
    let answered = answered.unwrap_or_else(|_| Err(anyhow!("no answer within {}s", LIMIT.as_secs())));
    let (status, text) = answered.with_context(|| format!("failed to ask http://{address}/healthz"))?;
    if status == StatusCode::OK {
        return Ok(());
    }
    Err(anyhow!("the monitor at {address} is not healthy: {} ({status})", printable(text.trim())))
}

async fn ask(address: SocketAddr) -> Result<(StatusCode, String)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/healthz").header(HOST, address.to_string()).header(CONNECTION, "close");
    let request = request.body(Empty::<Bytes>::new()).context("not a request")?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| anyhow!(error))?.to_bytes();
        anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // The connection may end as soon as it has passed on the answer.
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error.into()),
        },
    }
}
