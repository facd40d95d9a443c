//! A small HTTP server for pages that are ready: GET and HEAD only, one request a connection.
//!
//! 1. A client cannot make it hold much: a few connections at a time, each with one request of bounded size and time.
//! 2. A request makes no request to the store: pages are made from what is known already.

use crate::output::failure::Failure;
use anyhow::Context;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How many connections are served at a time. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 32;
/// The size of the line and the headers of a request, in bytes.
const MAX_REQUEST: usize = 8 * 1024;
/// The number of headers of a request.
const MAX_HEADERS: usize = 64;
/// The time for a request to arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for a connection as a whole, with a client that reads slowly.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for answers under way when the program ends.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a connection that could not be accepted: too many open files, for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// What is sent for a path.
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

/// Parses `ADDR:PORT`; a number alone is a port of the loopback interface.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| "it must be ADDRESS:PORT, or a port of 127.0.0.1".to_owned())
}

/// A socket that accepts connections.
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    pub(crate) async fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let bind = async {
            let socket = TcpListener::bind(address).await?;
            let address = socket.local_addr()?;
            io::Result::Ok(Self { socket, address })
        };
        let bound = bind.await.with_context(|| format!("failed to listen on {address}"));
        bound.map_err(Failure::unavailable)
    }

    /// Its address, with the port that was found if none was given.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends pages until the token is cancelled; answers under way then get a moment. A page of a path that there is not is
    /// `None`.
    pub(crate) async fn serve(
        self,
        pages: impl Fn(&str) -> Option<Page> + Send + Sync + 'static,
        end: CancellationToken,
    ) {
        let (pages, slots) = (Arc::new(pages), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
        let mut connections = JoinSet::new();
        let accept_all = async {
            loop {
                let slot = slots.clone().acquire_owned().await;
                match self.socket.accept().await {
                    Ok((stream, _)) => {
                        let pages = pages.clone();
                        connections.spawn(async move {
                            let _slot = slot;
                            // A client that goes away, sends no HTTP, or is too slow, concerns it alone.
                            let _ = timeout(CONNECTION_TIMEOUT, serve_connection(stream, &*pages)).await;
                        });
                    }
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                }
                while connections.try_join_next().is_some() {}
            }
        };
        end.run_until_cancelled(accept_all).await;
        drop(self.socket);
        // What is left is aborted when the set is dropped.
        let _ = timeout(END_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
    }
}

async fn serve_connection(
    stream: TcpStream,
    pages: &(impl Fn(&str) -> Option<Page> + Send + Sync),
) -> hyper::Result<()> {
    let answer = |request: Request<Incoming>| {
        let response = response(&request, pages);
        async { Ok::<_, Infallible>(response) }
    };
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .max_buf_size(MAX_REQUEST)
        .max_headers(MAX_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await
}

fn response<B>(request: &Request<B>, pages: &impl Fn(&str) -> Option<Page>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let Some(page) = pages(request.uri().path()) else {
        return text(StatusCode::NOT_FOUND, "no such page: there are /metrics and /healthz\n");
    };
    let mut response = Response::new(Full::new(page.body));
    *response.status_mut() = page.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn text(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    response
}

/// The type of a text for people.
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_the_loopback_interface() {
        for (given, address) in [
            ("9464", "127.0.0.1:9464"),
            ("127.0.0.2:80", "127.0.0.2:80"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:9464", "[::1]:9464"),
        ] {
            assert_eq!(parse_address(given).map(|address| address.to_string()), Ok(address.to_owned()));
        }
        for wrong in ["", "localhost", ":9464", "99999", "127.0.0.1"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
