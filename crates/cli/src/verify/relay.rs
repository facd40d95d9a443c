//! The relay between a worker and the servers: passes bytes on, and injects the faults of a network.
//!
//! Owns the streams, and what happens to their bytes. It does not know the protocol: with TLS, it cannot read it.
//!
//! 1. A stream begins with a line of the worker that names its target (`RedisConfig::through_relay`).
//! 2. Bytes that are held back arrive later, as TCP has it, unless the connection is cut meanwhile.
//! 3. A connection on which replies were swallowed is cut: TCP loses nothing in the middle of a stream.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// The longest line that names a target (1).
const MAX_LINE: usize = 1024;

const CHUNK: usize = 16 * 1024;

/// The relay of one worker, which the next worker in its place uses as well. Dropping it cuts all connections.
#[derive(Debug)]
pub(crate) struct Relay {
    port: u16,
    link: watch::Sender<Link>,
    _accepting: AbortOnDropHandle<()>,
}

/// The state of the network of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Link {
    /// How many faults want that nothing passes.
    partitions: u32,
    /// By how much each piece is delayed.
    delay: Duration,
    /// Set while replies are swallowed.
    swallows: bool,
    /// How often all connections were cut.
    cuts: u64,
}

impl Relay {
    /// Begins to listen on a free port of this machine.
    pub(crate) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let link = watch::Sender::new(Link::default());
        let accepting = AbortOnDropHandle::new(tokio::spawn(accept(listener, link.clone())));
        Ok(Self { port, link, _accepting: accepting })
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        self.link.send_modify(|link| link.cuts += 1);
    }

    /// Delays all bytes, each piece by so much. Zero ends it.
    pub(crate) fn delay(&self, delay: Duration) {
        self.link.send_modify(|link| link.delay = delay);
    }

    /// Begins or ends to swallow what servers send. At the end, the connections are cut (3).
    pub(crate) fn swallow(&self, swallows: bool) {
        self.link.send_modify(|link| {
            link.swallows = swallows;
            link.cuts += u64::from(!swallows);
        });
    }

    /// Lets nothing pass, until the result is dropped.
    pub(crate) fn partition(&self) -> Partition {
        self.link.send_modify(|link| link.partitions += 1);
        Partition { link: self.link.clone() }
    }
}

/// A partition, until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Partition {
    link: watch::Sender<Link>,
}

impl Drop for Partition {
    fn drop(&mut self) {
        self.link.send_modify(|link| link.partitions -= 1);
    }
}

async fn accept(listener: TcpListener, link: watch::Sender<Link>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    connections.spawn(serve(client, link.subscribe()));
                }
                // Too many descriptors are open: later there may be fewer.
                Err(_) => sleep(Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// Serves a connection until it ends or is cut. What fails on one side ends the other one.
async fn serve(client: TcpStream, link: watch::Receiver<Link>) {
    let cuts = link.borrow().cuts;
    let mut until_cut = link.clone();
    tokio::select! {
        _ = pass(client, &link) => {}
        _ = until_cut.wait_for(|link| link.cuts != cuts) => {}
    }
}

async fn pass(mut client: TcpStream, link: &watch::Receiver<Link>) -> io::Result<()> {
    let target = first_line(&mut client).await?;
    until_whole(link).await;
    let words: Vec<_> = target.splitn(3, ' ').collect();
    match words[..] {
        ["tcp", host, port] => {
            let port = port.parse().map_err(io::Error::other)?;
            let server = TcpStream::connect((host, port)).await?;
            server.set_nodelay(true)?;
            client.set_nodelay(true)?;
            pass_both_ways(client, server, link).await
        }
        ["unix", ..] => {
            let path = target.split_once(' ').map(|(_, path)| path).unwrap_or_default();
            pass_both_ways(client, UnixStream::connect(path).await?, link).await
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn first_line(client: &mut TcpStream) -> io::Result<String> {
    let mut line = Vec::new();
    loop {
        match client.read_u8().await? {
            b'\n' => return String::from_utf8(line).map_err(io::Error::other),
            _ if line.len() == MAX_LINE => return Err(io::ErrorKind::InvalidData.into()),
            byte => line.push(byte),
        }
    }
}

async fn pass_both_ways<S: AsyncRead + AsyncWrite>(
    client: TcpStream,
    server: S,
    link: &watch::Receiver<Link>,
) -> io::Result<()> {
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), tokio::io::split(server));
    // Requests that were sent arrive also if the client is gone, but no reply goes to a client that is gone.
    let requests = pump(from_client, to_server, link, false);
    let replies = pump(from_server, to_client, link, true);
    tokio::try_join!(requests, replies).map(drop)
}

/// Passes bytes on in one direction.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    link: &watch::Receiver<Link>,
    is_reply: bool,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut has_swallowed = false;
    loop {
        let bytes = from.read(&mut buffer).await?;
        if bytes == 0 {
            to.shutdown().await?;
            return Ok(());
        }
        until_whole(link).await;
        let Link { delay, swallows, .. } = *link.borrow();
        if !delay.is_zero() {
            sleep(delay).await;
        }
        // Nothing passes after what was swallowed, also if it arrives together with the cut (3): the client would take it for
        // the reply to an earlier request.
        has_swallowed |= is_reply && swallows;
        if !has_swallowed {
            to.write_all(&buffer[..bytes]).await?;
        }
    }
}

/// Waits until there is no partition (2).
async fn until_whole(link: &watch::Receiver<Link>) {
    // The sender lives as long as the relay, whose connections are cut with it.
    let _ = link.clone().wait_for(|link| link.partitions == 0).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends each byte back, and a connection to it through a relay.
    async fn echo() -> (Relay, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("it listens").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte).await.expect("it reads");
                    }
                });
            }
        });
        let relay = Relay::start().await.expect("a port");
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, relay.port())).await.expect("it listens");
        client.write_all(format!("tcp 127.0.0.1 {port}\n").as_bytes()).await.expect("it reads");
        (relay, client)
    }

    async fn answer(client: &mut TcpStream, byte: u8) -> io::Result<u8> {
        client.write_u8(byte).await?;
        client.read_u8().await
    }

    #[tokio::test]
    async fn a_cut_ends_a_connection_and_no_later_one() {
        let (relay, mut client) = echo().await;
        assert_eq!(answer(&mut client, 7).await.expect("an answer"), 7);
        relay.cut();
        assert!(client.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn a_partition_holds_bytes_back_and_loses_none() {
        let (relay, mut client) = echo().await;
        assert_eq!(answer(&mut client, 1).await.expect("an answer"), 1);
        let partition = relay.partition();
        client.write_u8(2).await.expect("sent");
        assert!(tokio::time::timeout(Duration::from_millis(50), client.read_u8()).await.is_err());
        drop(partition);
        assert_eq!(client.read_u8().await.expect("an answer"), 2);
    }

    #[tokio::test]
    async fn a_swallowed_reply_ends_the_connection() {
        let (relay, mut client) = echo().await;
        assert_eq!(answer(&mut client, 1).await.expect("an answer"), 1);
        relay.swallow(true);
        client.write_u8(2).await.expect("sent");
        assert!(tokio::time::timeout(Duration::from_millis(50), client.read_u8()).await.is_err());
        relay.swallow(false);
        assert!(client.read_u8().await.is_err());
    }

    /// A later reply that arrived together with the cut was passed on about every other time, and answered an earlier request.
    #[tokio::test]
    async fn no_reply_passes_after_a_swallowed_one() {
        for _ in 0..20 {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let port = listener.local_addr().expect("it listens").port();
            // A server on a thread, which replies while the relay is not driven.
            let (replied, replies) = std::sync::mpsc::channel();
            let server = std::thread::spawn(move || {
                use std::io::{Read, Write};
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {
                    let _ = replied.send(byte[0]);
                }
            });
            let relay = Relay::start().await.expect("a port");
            let mut client =
                TcpStream::connect((Ipv4Addr::LOCALHOST, relay.port())).await.expect("it listens");
            client.write_all(format!("tcp 127.0.0.1 {port}\n").as_bytes()).await.expect("it reads");
            assert_eq!(answer(&mut client, 1).await.expect("an answer"), 1);
            relay.swallow(true);
            client.write_u8(2).await.expect("sent");
            assert!(tokio::time::timeout(Duration::from_millis(20), client.read_u8()).await.is_err());
            client.write_u8(3).await.expect("sent");
            // Lets the relay pass the request, and does not drive it from here until the reply is on its way.
            loop {
                match replies.try_recv() {
                    Ok(3) => break,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => panic!("the server has ended"),
                    _ => tokio::task::yield_now().await,
                }
            }
            relay.swallow(false);
            let after = client.read_u8().await;
            assert!(after.is_err(), "after a swallowed reply came {after:?}");
            drop(client);
            server.join().expect("the server ends");
        }
    }
}
