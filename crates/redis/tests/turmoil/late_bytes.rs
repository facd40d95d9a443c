//! A path to the server on which bytes can be late: later than those of a newer connection.
//!
//! Owns one connection's bytes between the client and the network. TCP keeps the order within a connection and
//! promises nothing between two: bytes written to a connection that the client then abandoned may arrive after the
//! next connection has been in use for long. So a clogged connection keeps the bytes written to it, even after its
//! client has gone.

use crate::environment::SeededRng;
use crate::tap::{OnSent, TappedStream};
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, join};
use futures_util::stream::FuturesUnordered;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use turmoil::net::TcpStream;
use turmoil::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The capacity of a connection in bytes.
const CAPACITY: usize = 1 << 16;
/// How long bytes are late at most.
pub(crate) const LATE_AT_MOST: Duration = Duration::from_secs(4);
/// The trace text for bytes that are let through when there is a newer connection.
pub(crate) const OVERTAKEN: &str = "not clogged any more, and overtaken";
/// One in how many writes clogs its connection.
const CLOGS_ONE_IN: u64 = 60;

/// The connections from one host to the server.
#[derive(Clone)]
pub(crate) struct Connections {
    pub(crate) rng: Arc<SeededRng>,
    /// Set once no new fault is to begin.
    pub(crate) faults_ended: Arc<AtomicBool>,
    /// How many were opened.
    pub(crate) opened: Arc<AtomicU64>,
    /// Called for all late bytes.
    pub(crate) on_late: Arc<dyn Fn(&str) + Send + Sync>,
    /// Called for the holds that the client's requests concern, as it sends them.
    pub(crate) on_sent: OnSent,
    /// Where the connections are driven.
    pub(crate) driver: UnboundedSender<BoxFuture<'static, ()>>,
}

/// Moves the bytes of all connections of a host.
///
/// Connections are not separate tasks: when a host crashes, its runtime drops tasks in an order that differs from
/// run to run, and with them the streams, whose closing goes over the network.
pub(crate) struct ConnectionDriver(UnboundedReceiver<BoxFuture<'static, ()>>);

impl ConnectionDriver {
    pub(crate) fn new() -> (UnboundedSender<BoxFuture<'static, ()>>, Self) {
        let (sender, receiver) = unbounded_channel();
        (sender, Self(receiver))
    }

    /// Runs until no more connections can be opened and all written bytes have arrived.
    pub(crate) async fn run(mut self) {
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(connection) = self.0.recv() => connections.push(connection),
                Some(()) = connections.next(), if !connections.is_empty() => {}
                else => return,
            }
        }
    }
}

impl Connections {
    /// Opens a connection.
    pub(crate) async fn open(self, address: String) -> io::Result<TappedStream> {
        let (from_server, to_server) = TcpStream::connect(address).await?.into_split();
        self.opened.fetch_add(1, Ordering::Relaxed);
        let (near, far) = duplex(CAPACITY);
        let near = TappedStream::new(near, Arc::clone(&self.on_sent));
        let (from_client, to_client) = tokio::io::split(far);
        let driver = self.driver.clone();
        let connection = async move {
            join(self.forward_requests(from_client, to_server), forward_replies(from_server, to_client))
                .await;
        };
        // If the driver is gone, its host has crashed, and this code with it.
        let _ = driver.send(Box::pin(connection));
        Ok(near)
    }

    async fn forward_requests(self, mut from_client: ReadHalf<DuplexStream>, mut to_server: OwnedWriteHalf) {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = from_client.read(&mut chunk).await {
            if !self.faults_ended.load(Ordering::Relaxed) && self.rng.one_in(CLOGS_ONE_IN) {
                let late = self.rng.millis(50, u64::try_from(LATE_AT_MOST.as_millis()).unwrap_or(50));
                (self.on_late)(&format!("clogged for {late:?}"));
                let opened = self.opened.load(Ordering::Relaxed);
                tokio::time::sleep(late).await;
                let newer = self.opened.load(Ordering::Relaxed) - opened;
                (self.on_late)(if newer == 0 { "not clogged any more" } else { OVERTAKEN });
            }
            if to_server.write_all(&chunk[..length]).await.is_err() {
                return;
            }
        }
        let _ = to_server.shutdown().await;
    }
}

async fn forward_replies(mut from_server: OwnedReadHalf, mut to_client: WriteHalf<DuplexStream>) {
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = from_server.read(&mut chunk).await {
        // Read even after the client has gone: unread bytes would reset the connection and lose the late ones.
        let _ = to_client.write_all(&chunk[..length]).await;
    }
    let _ = to_client.shutdown().await;
}
