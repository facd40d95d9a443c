//! A path to the server on which bytes can be late: later than those of a newer connection.
//!
//! Owns one connection's bytes between the client and the network. TCP keeps the order within a connection and
//! promises nothing between two: bytes written to a connection that the client then abandoned may arrive after the
//! next connection has been in use for long. So a clogged connection keeps the bytes written to it, even after its
//! client has gone.

use crate::host::Chance;
use crate::tapped::{OnSent, Tapped};
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
const ROOM: usize = 1 << 16;
/// How long bytes are late at most.
pub(crate) const LATE_AT_MOST: Duration = Duration::from_secs(4);
/// The trace text for bytes that are let through when there is a newer connection.
pub(crate) const OVERTAKEN: &str = "not clogged any more, and overtaken";
/// One in how many writes clogs its connection.
const CLOGS_ONE_IN: u64 = 60;

/// The connections from one host to the server.
#[derive(Clone)]
pub(crate) struct Ways {
    pub(crate) chance: Arc<Chance>,
    /// Set once no new fault is to begin.
    pub(crate) calm: Arc<AtomicBool>,
    /// How many were opened.
    pub(crate) opened: Arc<AtomicU64>,
    /// Called for all late bytes.
    pub(crate) on_late: Arc<dyn Fn(&str) + Send + Sync>,
    /// Called for the holds that the client's requests concern, as it sends them.
    pub(crate) on_sent: OnSent,
    /// Where the connections are driven.
    pub(crate) carrier: UnboundedSender<BoxFuture<'static, ()>>,
}

/// Moves the bytes of all connections of a host.
///
/// Connections are not separate tasks: when a host crashes, its runtime drops tasks in an order that differs from
/// run to run, and with them the streams, whose closing goes over the network.
pub(crate) struct Carrier(UnboundedReceiver<BoxFuture<'static, ()>>);

impl Carrier {
    pub(crate) fn new() -> (UnboundedSender<BoxFuture<'static, ()>>, Self) {
        let (sender, receiver) = unbounded_channel();
        (sender, Self(receiver))
    }

    /// Runs until no more connections can be opened and all written bytes have arrived.
    pub(crate) async fn run(mut self) {
        let mut ways = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(way) = self.0.recv() => ways.push(way),
                Some(()) = ways.next(), if !ways.is_empty() => {}
                else => return,
            }
        }
    }
}

impl Ways {
    /// Opens a connection.
    pub(crate) async fn open(self, address: String) -> io::Result<Tapped> {
        let (from_server, to_server) = TcpStream::connect(address).await?.into_split();
        self.opened.fetch_add(1, Ordering::Relaxed);
        let (near, far) = duplex(ROOM);
        let near = Tapped::new(near, Arc::clone(&self.on_sent));
        let (from_client, to_client) = tokio::io::split(far);
        let carrier = self.carrier.clone();
        let way = async move {
            join(self.there(from_client, to_server), back(from_server, to_client)).await;
        };
        // If the carrier is gone, its host has crashed, and this code with it.
        let _ = carrier.send(Box::pin(way));
        Ok(near)
    }

    async fn there(self, mut from_client: ReadHalf<DuplexStream>, mut to_server: OwnedWriteHalf) {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = from_client.read(&mut chunk).await {
            if !self.calm.load(Ordering::Relaxed) && self.chance.one_in(CLOGS_ONE_IN) {
                let late = self.chance.millis(50, u64::try_from(LATE_AT_MOST.as_millis()).unwrap_or(50));
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

async fn back(mut from_server: OwnedReadHalf, mut to_client: WriteHalf<DuplexStream>) {
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = from_server.read(&mut chunk).await {
        // Read even after the client has gone: unread bytes would reset the connection and lose the late ones.
        let _ = to_client.write_all(&chunk[..length]).await;
    }
    let _ = to_client.shutdown().await;
}
