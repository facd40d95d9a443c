//! The proxy injects the requested faults, and no others.

use std::io;
use std::time::{Duration, Instant};

use leasehold_testkit::{AfterDrop, Proxy, RedisServer, RespConnection, any_command, command};

const LIMIT: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(50);

struct Setup {
    server: RedisServer,
    proxy: Proxy,
}

impl Setup {
    fn new() -> io::Result<Self> {
        let server = RedisServer::start()?;
        let proxy = Proxy::to_server(&server)?;
        Ok(Self { server, proxy })
    }

    fn client(&self) -> io::Result<RespConnection> {
        RespConnection::open(self.proxy.port(), LIMIT)
    }

    /// A client with a short timeout, for replies that must not arrive.
    fn hasty_client(&self) -> io::Result<RespConnection> {
        RespConnection::open(self.proxy.port(), SOON)
    }

    /// The server's own value of a key.
    fn stored(&self, key: &str) -> io::Result<Option<String>> {
        Ok(self.server.cli(&["GET", key])?.text().map(str::to_owned))
    }
}

fn kind<T>(result: io::Result<T>) -> Option<io::ErrorKind> {
    result.err().map(|error| error.kind())
}

fn is_broken<T>(result: io::Result<T>) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind(result), Some(BrokenPipe | ConnectionReset | UnexpectedEof))
}

#[test]
fn without_faults_everything_passes_and_is_counted() -> io::Result<()> {
    let net = Setup::new()?;
    let mut client = net.client()?;
    let blob = vec![b'\n'; 1 << 20];
    assert_eq!(client.call(&[b"SET", &b"k"[..], &blob])?.text(), Some("OK"));
    assert_eq!(client.call(&["GET", "k"])?.bytes(), Some(&blob[..]));
    for number in 0..100 {
        client.send(&["ECHO", &number.to_string()])?;
    }
    for number in 0..100 {
        assert_eq!(client.receive()?.integer(), Some(number));
    }
    assert_eq!((net.proxy.count("set"), net.proxy.count("ECHO"), net.proxy.total()), (1, 100, 102));
    assert_eq!(net.proxy.requests()[1], [b"GET", &b"k"[..]]);
    net.proxy.reset_counts();
    assert_eq!(net.proxy.total(), 0);
    Ok(())
}

#[test]
fn messages_come_through_and_disturb_no_reply() -> io::Result<()> {
    let net = Setup::new()?;
    let mut client = net.client()?;
    client.call(&["SUBSCRIBE", "a"])?;
    net.server.cli(&["PUBLISH", "a", "one"])?;
    assert_eq!(client.receive()?.elements()[2].text(), Some("one"));
    net.proxy.drop_replies(1, AfterDrop::Disconnect, command("PING"));
    net.server.cli(&["PUBLISH", "a", "two"])?;
    client.send(&["PING"])?;
    assert_eq!(client.receive()?.elements()[2].text(), Some("two"));
    assert!(is_broken(client.receive()));
    Ok(())
}

#[test]
fn replies_and_pushes_of_resp3_come_through_whole() -> io::Result<()> {
    use std::io::{Read, Write};
    let net = Setup::new()?;
    net.proxy.drop_replies(1, AfterDrop::Disconnect, command("INCR"));
    let mut raw = std::net::TcpStream::connect(("127.0.0.1", net.proxy.port()))?;
    raw.set_read_timeout(Some(LIMIT))?;
    raw.write_all(
        b"HELLO 3\r\nSUBSCRIBE a\r\nGET missing\r\nPUBLISH a x\r\nCONFIG GET port\r\nINCR n\r\nPING\r\n",
    )?;
    let mut received = Vec::new();
    raw.read_to_end(&mut received)?;
    let text = String::from_utf8_lossy(&received);
    assert!(text.starts_with('%'), "{text}");
    let port = net.server.port();
    let wanted = [
        ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n_\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n",
        &format!("%1\r\n$4\r\nport\r\n$5\r\n{port}\r\n"),
    ];
    for part in wanted {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert!(!text.contains("PONG"), "nothing comes after the lost reply: {text:?}");
    assert_eq!(net.stored("n")?.as_deref(), Some("1"));
    Ok(())
}

#[tokio::test]
async fn a_disconnect_closes_all_connections_and_new_ones_work() -> io::Result<()> {
    let net = Setup::new()?;
    let (mut one, mut two) = (net.client()?, net.client()?);
    one.call(&["PING"])?;
    two.call(&["PING"])?;
    net.proxy.disconnect();
    assert!(is_broken(one.call(&["PING"])));
    assert!(is_broken(two.call(&["PING"])));
    net.proxy.until_connections(0, LIMIT).await?;
    net.client()?.call(&["PING"])?;
    assert_eq!(net.proxy.accepted(), 3);
    Ok(())
}

#[test]
fn refused_clients_are_closed_and_present_ones_stay() -> io::Result<()> {
    let net = Setup::new()?;
    let mut present = net.client()?;
    present.call(&["PING"])?;
    net.proxy.refuse_connections(true);
    assert!(is_broken(net.client().and_then(|mut client| client.call(&["PING"]))));
    present.call(&["PING"])?;
    net.proxy.refuse_connections(false);
    net.client()?.call(&["PING"])?;
    Ok(())
}

#[test]
fn delays_add_up_and_overlap() -> io::Result<()> {
    let net = Setup::new()?;
    let mut client = net.client()?;
    net.proxy.delay_requests(Duration::from_millis(40));
    net.proxy.delay_replies(Duration::from_millis(30));
    let start = Instant::now();
    client.call(&["PING"])?;
    assert!(start.elapsed() >= Duration::from_millis(70), "{:?}", start.elapsed());
    let start = Instant::now();
    for _ in 0..200 {
        client.send(&["PING"])?;
    }
    for _ in 0..200 {
        client.receive()?;
    }
    // Sequentially they would take 14 s.
    assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
    Ok(())
}

#[test]
fn a_dropped_reply_disconnects_after_the_command_was_applied() -> io::Result<()> {
    let net = Setup::new()?;
    net.proxy.drop_replies(1, AfterDrop::Disconnect, command("INCR"));
    let mut client = net.client()?;
    client.send(&["PING"])?;
    client.send(&["INCR", "n"])?;
    assert_eq!(client.receive()?.text(), Some("PONG"), "what came before the lost reply is delivered");
    assert!(is_broken(client.receive()));
    assert_eq!(net.stored("n")?.as_deref(), Some("1"));
    assert_eq!(net.client()?.call(&["INCR", "n"])?.integer(), Some(2), "only one reply was to be lost");
    Ok(())
}

#[test]
fn a_dropped_reply_can_leave_the_client_waiting() -> io::Result<()> {
    let net = Setup::new()?;
    net.proxy.drop_replies(1, AfterDrop::Stall, command("INCR"));
    let mut client = net.hasty_client()?;
    assert_eq!(kind(client.call(&["INCR", "n"])), Some(io::ErrorKind::TimedOut));
    assert_eq!(
        kind(client.call(&["INCR", "n"])),
        Some(io::ErrorKind::TimedOut),
        "a later reply must not stand in"
    );
    // The client gave up, and the proxy may still be about to pass the second request on.
    let start = Instant::now();
    while net.stored("n")?.as_deref() != Some("2") {
        assert!(start.elapsed() < LIMIT, "the second request was not passed on");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[test]
fn a_dropped_request_is_never_applied() -> io::Result<()> {
    for then in [AfterDrop::Disconnect, AfterDrop::Stall] {
        let net = Setup::new()?;
        net.proxy.drop_requests(1, then, command("INCR"));
        match then {
            AfterDrop::Disconnect => assert!(is_broken(net.client()?.call(&["INCR", "n"]))),
            AfterDrop::Stall => {
                let result = net.hasty_client()?.call(&["INCR", "n"]);
                assert_eq!(kind(result), Some(io::ErrorKind::TimedOut));
            }
        }
        assert_eq!(net.client()?.call(&["INCR", "n"])?.integer(), Some(1));
        assert_eq!(net.proxy.count("INCR"), 1);
    }
    Ok(())
}

#[test]
fn a_duplicated_request_runs_twice_and_is_answered_once() -> io::Result<()> {
    let net = Setup::new()?;
    net.proxy.duplicate_requests(command("INCR"));
    let mut client = net.client()?;
    assert_eq!(client.call(&["INCR", "n"])?.integer(), Some(2));
    assert_eq!(client.call(&["GET", "n"])?.integer(), Some(2), "replies and commands still pair");
    assert_eq!(client.call(&["INCR", "n"])?.integer(), Some(4));
    assert_eq!(net.proxy.count("INCR"), 2);
    net.proxy.clear_faults();
    assert_eq!(client.call(&["INCR", "n"])?.integer(), Some(5));
    Ok(())
}

#[tokio::test]
async fn paused_commands_wait_with_all_behind_them() -> io::Result<()> {
    let net = Setup::new()?;
    net.proxy.pause_requests(1, command("SET"));
    let mut client = net.client()?;
    client.send(&["SET", "k", "v"])?;
    client.send(&["GET", "k"])?;
    net.proxy.until_paused(2, LIMIT).await?;
    assert_eq!(net.proxy.total(), 0);
    let late = net.proxy.resume_requests();
    assert_eq!(late.count(), 2);
    late.answered(LIMIT).await?;
    assert_eq!(net.proxy.paused_requests(), 0);
    assert_eq!(client.receive()?.text(), Some("OK"));
    assert_eq!(client.receive()?.text(), Some("v"));
    assert_eq!(client.call(&["PING"])?.text(), Some("PONG"));
    Ok(())
}

#[tokio::test]
async fn old_bytes_run_after_newer_ones_of_a_new_connection() -> io::Result<()> {
    // Whether the client closes or the proxy cuts its side: data in flight still arrives.
    for by_proxy in [false, true] {
        let net = Setup::new()?;
        net.proxy.pause_requests(1, command("SET"));
        let mut client = net.client()?;
        client.send(&["SET", "k", "old"])?;
        net.proxy.until_paused(1, LIMIT).await?;
        if by_proxy {
            net.proxy.disconnect_clients();
            assert!(is_broken(client.receive()));
        }
        drop(client);
        assert_eq!(net.client()?.call(&["SET", "k", "new"])?.text(), Some("OK"));
        assert_eq!(net.stored("k")?.as_deref(), Some("new"));
        net.proxy.resume_requests().answered(LIMIT).await?;
        assert_eq!(net.stored("k")?.as_deref(), Some("old"));
        net.proxy.until_connections(0, LIMIT).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_disconnect_discards_paused_commands() -> io::Result<()> {
    let net = Setup::new()?;
    net.proxy.pause_requests(usize::MAX, any_command());
    let mut client = net.client()?;
    client.send(&["SET", "k", "v"])?;
    net.proxy.until_paused(1, LIMIT).await?;
    net.proxy.disconnect();
    net.proxy.until_connections(0, LIMIT).await?;
    let late = net.proxy.resume_requests();
    assert_eq!(late.count(), 0);
    late.answered(LIMIT).await?;
    assert_eq!(net.stored("k")?, None);
    Ok(())
}

#[test]
fn a_server_that_is_down_breaks_connections_until_it_is_back() -> io::Result<()> {
    let mut net = Setup::new()?;
    let mut client = net.client()?;
    client.call(&["PING"])?;
    net.server.kill()?;
    assert!(is_broken(client.call(&["PING"])));
    assert!(is_broken(net.client().and_then(|mut client| client.call(&["PING"]))));
    net.server.restart()?;
    assert_eq!(net.client()?.call(&["PING"])?.text(), Some("PONG"));
    Ok(())
}

#[test]
fn what_is_no_command_breaks_its_connection_only() -> io::Result<()> {
    use std::io::{Read, Write};
    let net = Setup::new()?;
    let mut client = net.client()?;
    client.call(&["PING"])?;
    let mut raw = std::net::TcpStream::connect(("127.0.0.1", net.proxy.port()))?;
    raw.set_read_timeout(Some(LIMIT))?;
    raw.write_all(b"PING\r\n")?;
    let mut pong = [0; 7];
    raw.read_exact(&mut pong)?;
    assert_eq!(&pong, b"+PONG\r\n", "plain lines are commands too");
    raw.write_all(b"*1\r\nnonsense\r\n")?;
    assert_eq!(raw.read(&mut pong)?, 0);
    client.call(&["PING"])?;
    Ok(())
}

#[tokio::test]
async fn a_wait_that_is_over_says_what_it_waited_for() -> io::Result<()> {
    let net = Setup::new()?;
    let error = net.proxy.until_counted("EVALSHA", 3, SOON).await.expect_err("no client sends anything");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(error.to_string().contains("3 times EVALSHA"), "{error}");
    Ok(())
}
