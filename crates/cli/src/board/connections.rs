//! The connections of browsers.
//!
//! 1. There are at most [`MAX_CONNECTIONS`]; further ones wait until one ends. One without a request ends after
//!    [`IDLE`], and one whose reader takes nothing after [`STALLED`].

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(super) const MAX_CONNECTIONS: usize = 128;
/// How long a connection waits for the head of a request.
const IDLE: Duration = Duration::from_secs(15);
/// How long what was sent may stay unread.
const STALLED: Duration = Duration::from_secs(30);
/// How much of a request or a response is buffered for a connection.
const BUFFER: usize = 64 * 1024;
/// The pause after a failure to accept a connection, as without descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// Serves the connections to this address, until the future is dropped: then they end, too.
pub(super) async fn accept(listener: TcpListener, router: Router) {
    let limit = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    // The semaphore is never closed.
    while let Ok(permit) = Arc::clone(&limit).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        // Neither is needed for an answer.
        let _ = stream.set_nodelay(true);
        // A client that has gone without a word is noticed after two hours, where nothing is sent to it.
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        #[cfg(target_os = "linux")]
        let _ = rustix::net::sockopt::set_tcp_user_timeout(
            &stream,
            u32::try_from(STALLED.as_millis()).unwrap_or(0),
        );
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(BUFFER);
            // A connection that breaks concerns its browser alone.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
}
