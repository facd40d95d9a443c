//! Servers run by the clock that a test gives them.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_testkit::{FrozenClock, RedisServer, ShiftedClock, Value};

const START_US: i64 = 1_762_000_000_123_456;

fn time_us(time: &Value) -> i64 {
    let part = |at: usize| time.elements()[at].integer().expect("TIME gives two integers");
    part(0) * 1_000_000 + part(1)
}

fn server_time_us(server: &RedisServer) -> io::Result<i64> {
    Ok(time_us(&server.cli(&["TIME"])?.ok()?))
}

fn real_time_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the machine's clock is after 1970");
    i64::try_from(now.as_micros()).expect("the present fits into 64 bits")
}

#[test]
fn an_expiry_comes_exactly_when_the_clock_is_moved_past_it() -> io::Result<()> {
    let clock = FrozenClock::new(START_US)?;
    let server = RedisServer::builder().clock(&clock).start()?;
    server.cli(&["SET", "k", "v", "PX", "100"])?.ok()?;
    clock.advance(Duration::from_millis(100))?;
    assert_eq!(server.cli(&["GET", "k"])?.text(), Some("v"));
    assert_eq!(server.cli(&["PTTL", "k"])?.integer(), Some(0));
    clock.advance(Duration::from_millis(1))?;
    assert!(server.cli(&["GET", "k"])?.is_nil());
    Ok(())
}

#[test]
fn time_is_the_frozen_time_also_inside_a_script() -> io::Result<()> {
    let clock = FrozenClock::new(START_US)?;
    let server = RedisServer::builder().clock(&clock).start()?;
    let mut connection = server.connect()?;
    for step in [0, 1, 999_999, 86_400_000_000] {
        clock.advance(Duration::from_micros(step))?;
        assert_eq!(time_us(&connection.call(&["TIME"])?), clock.now_us());
        let script = connection.call(&["EVAL", "return redis.call('TIME')", "0"])?;
        assert_eq!(time_us(&script), clock.now_us());
    }
    clock.set_us(START_US - 1)?;
    assert_eq!(time_us(&connection.call(&["TIME"])?), START_US - 1);
    Ok(())
}

#[test]
fn two_servers_share_a_clock_and_keep_it_over_a_restart() -> io::Result<()> {
    let clock = FrozenClock::new(START_US)?;
    let first = RedisServer::builder().clock(&clock).start()?;
    let mut second = RedisServer::builder().clock(&clock).start()?;
    clock.advance(Duration::from_secs(5))?;
    assert_eq!(server_time_us(&first)?, START_US + 5_000_000);
    drop(clock);
    second.restart()?;
    assert_eq!(server_time_us(&second)?, START_US + 5_000_000);
    Ok(())
}

#[test]
fn a_frozen_server_still_serves_blocking_commands_by_real_time() -> io::Result<()> {
    let clock = FrozenClock::new(START_US)?;
    let server = RedisServer::builder().clock(&clock).start()?;
    // The event loop sleeps by the monotonic clock; a shim that froze that too would hang it.
    let mut connection = server.connect()?;
    connection.send(&["CLIENT", "UNBLOCK", "0"])?;
    connection.receive()?;
    let mut waiting = server.connect()?;
    let id = waiting.call(&["CLIENT", "ID"])?.integer().expect("an id is an integer");
    waiting.send(&["BLPOP", "list", "0"])?;
    while connection.call(&["CLIENT", "UNBLOCK", &id.to_string()])?.integer() != Some(1) {}
    assert!(waiting.receive()?.is_nil());
    Ok(())
}

#[test]
fn a_shifted_clock_runs_and_jumps() -> io::Result<()> {
    const HOUR_US: i64 = 3_600_000_000;
    let clock = ShiftedClock::new(HOUR_US)?;
    let server = RedisServer::builder().clock(&clock).start()?;
    for offset_us in [HOUR_US, 35_000_000, 0, -HOUR_US] {
        clock.set_offset_us(offset_us)?;
        let before = real_time_us();
        let shown = server_time_us(&server)? - offset_us;
        let after = real_time_us();
        // The shim rounds down to microseconds before it adds, hence the one to spare.
        assert!((before - 1..=after).contains(&shown), "{before} <= {shown} <= {after}");
    }
    Ok(())
}

#[test]
fn a_jump_forwards_ends_a_lease_early() -> io::Result<()> {
    let clock = ShiftedClock::new(0)?;
    let server = RedisServer::builder().clock(&clock).start()?;
    server.cli(&["SET", "k", "v", "PX", "30000"])?.ok()?;
    clock.set_offset_us(35_000_000)?;
    assert!(server.cli(&["GET", "k"])?.is_nil());
    Ok(())
}

#[test]
fn a_server_never_sees_half_a_setting() -> io::Result<()> {
    // No two bytes of these are alike, so any mixture of them is a third time.
    const TIMES_US: [i64; 2] = [0x0001_0203_0405_0607, 0x0002_1314_1516_1718];
    let clock = FrozenClock::new(TIMES_US[0])?;
    let server = RedisServer::builder().clock(&clock).start()?;
    let mut connection = server.connect()?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let setter = scope.spawn(|| -> io::Result<()> {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                TIMES_US.iter().try_for_each(|&time_us| clock.set_us(time_us))?;
            }
            Ok(())
        });
        let mut read_all = || -> io::Result<()> {
            for _ in 0..50 {
                (0..100).try_for_each(|_| connection.send(&["TIME"]))?;
                for _ in 0..100 {
                    let seen = time_us(&connection.receive()?);
                    // No panic here: the setter would never be stopped, and the scope waits for it.
                    if !TIMES_US.contains(&seen) {
                        return Err(io::Error::other(format!("the server saw {seen:#018x}")));
                    }
                }
            }
            Ok(())
        };
        let read = read_all();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        setter.join().expect("setting a clock does not panic")?;
        read
    })
}
