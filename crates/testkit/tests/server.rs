//! Servers: booting, faults and restarts.

use std::io;
use std::time::Duration;

use leasehold_testkit::{RedisServer, RespConnection, Value};

const SOON: Duration = Duration::from_millis(50);

#[test]
fn a_server_boots_and_runs_raw_commands() -> io::Result<()> {
    let server = RedisServer::start()?;
    let blob: Vec<u8> = (0..=255).collect();
    assert_eq!(server.cli(&[b"SET", &b"k\r\n\0"[..], &blob])?, Value::Status("OK".into()));
    assert_eq!(server.cli(&[b"GET", &b"k\r\n\0"[..]])?.bytes(), Some(&blob[..]));
    assert_eq!(server.cli(&["INCR", "k\r\n\0"])?.text().map(|text| &text[..3]), Some("ERR"));
    assert_eq!(server.cli(&["INCRBY", "n", "-3"])?.integer(), Some(-3));
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    Ok(())
}

#[test]
fn many_servers_at_once_each_have_their_own_port() -> io::Result<()> {
    let boot = || std::thread::spawn(RedisServer::start);
    let threads: Vec<_> = (0..8).map(|_| boot()).collect();
    let servers: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().expect("booting does not panic"))
        .collect::<io::Result<_>>()?;
    for (index, server) in servers.iter().enumerate() {
        server.cli(&["SET", "index", &index.to_string()])?.ok()?;
    }
    for (index, server) in servers.iter().enumerate() {
        assert_eq!(server.cli(&["GET", "index"])?.integer(), i64::try_from(index).ok());
    }
    Ok(())
}

#[test]
fn commands_are_counted() -> io::Result<()> {
    let server = RedisServer::start()?;
    server.reset_counts()?;
    for _ in 0..3 {
        server.cli(&["SET", "k", "v"])?.ok()?;
    }
    server.cli(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "k"])?.ok()?;
    let counts = server.command_counts()?;
    assert_eq!((counts["set"], counts["get"], counts["eval"]), (3, 1, 1));
    server.reset_counts()?;
    assert_eq!(server.command_counts()?.get("set"), None);
    Ok(())
}

#[test]
fn a_password_is_asked_for_and_given() -> io::Result<()> {
    let password = "p\"w \\ #1";
    let server = RedisServer::builder().password(password).start()?;
    assert_eq!(server.cli(&["PING"])?.text(), Some("PONG"));
    let mut unauthenticated = RespConnection::open(server.port(), Duration::from_secs(5))?;
    assert!(unauthenticated.call(&["PING"])?.text().is_some_and(|text| text.starts_with("NOAUTH")));
    let arguments = std::fs::read(format!("/proc/{}/cmdline", server.pid().expect("the server runs")))?;
    assert!(!String::from_utf8_lossy(&arguments).contains(password), "the password is in the process list");
    Ok(())
}

#[test]
fn settings_reach_the_server() -> io::Result<()> {
    let server = RedisServer::builder().config("maxmemory", "64mb").unix_socket().start()?;
    assert_eq!(server.cli(&["CONFIG", "GET", "maxmemory"])?.elements()[1].integer(), Some(64 << 20));
    let path = server.unix_path().expect("a socket was asked for");
    std::os::unix::net::UnixStream::connect(&path)?;
    assert_eq!(server.unix_url(), Some(format!("redis+unix://{}", path.display())));
    assert_eq!(RedisServer::start()?.unix_url(), None);
    Ok(())
}

#[test]
fn a_bad_setting_is_an_error_that_shows_the_log_or_the_end() {
    let error = RedisServer::builder().config("maxmemory", "lots").start().expect_err("the setting is bad");
    assert!(error.to_string().contains("ended while booting"), "{error}");
}

#[test]
fn a_missing_program_is_named() {
    let error =
        RedisServer::builder().binary("/nowhere/valkey-server").start().expect_err("there is no such file");
    assert!(error.to_string().contains("/nowhere/valkey-server"), "{error}");
}

#[test]
fn a_stopped_server_is_silent_and_then_continues() -> io::Result<()> {
    let server = RedisServer::start()?;
    let mut connection = RespConnection::open(server.port(), SOON)?;
    server.stop()?;
    let error = connection.call(&["SET", "k", "v"]).expect_err("a stopped server does not answer");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    server.resume()?;
    assert_eq!(server.cli(&["PING"])?.text(), Some("PONG"));
    // The bytes had arrived: a command that timed out at the client was executed.
    assert_eq!(server.cli(&["GET", "k"])?.text(), Some("v"));
    Ok(())
}

#[test]
fn dropping_a_stopped_server_ends_it() -> io::Result<()> {
    let server = RedisServer::start()?;
    let pid = server.pid().expect("the server runs");
    server.stop()?;
    drop(server);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}

#[test]
fn a_restart_loses_all_unless_it_is_append_only() -> io::Result<()> {
    for (builder, kept) in [(RedisServer::builder(), None), (RedisServer::builder().appendonly(), Some("v"))]
    {
        let mut server = builder.start()?;
        let (port, pid) = (server.port(), server.pid());
        server.cli(&["SET", "k", "v"])?.ok()?;
        server.kill()?;
        assert_eq!(server.pid(), None);
        assert_eq!(
            server.cli(&["PING"]).map_err(|error| error.kind()),
            Err(io::ErrorKind::ConnectionRefused)
        );
        server.restart()?;
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
        assert_eq!(server.cli(&["GET", "k"])?.text(), kept);
    }
    Ok(())
}

#[test]
fn a_pinned_server_runs_on_its_core_under_its_own_pid() -> io::Result<()> {
    let server = RedisServer::builder().pinned(0).start()?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid().expect("the server runs")))?;
    assert!(status.lines().any(|line| line == "Cpus_allowed_list:\t0"), "{status}");
    Ok(())
}
