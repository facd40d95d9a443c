//! A store that cannot be reached at the start, or not any more.

use super::fixture::{Fixture, expect, start, start_with_errors, status, until};
use leasehold_testkit::{Proxy, RedisServer, Stopwatch, Worker, any_command};
use std::time::{Duration, Instant};

/// Waits until the program has failed to connect, and tries again.
fn expect_retry(program: &mut Worker) {
    let warning = expect(program, "leasehold: ");
    assert!(warning.contains("failed to open the store") && warning.contains("trying again"), "{warning}");
}

#[test]
fn a_store_that_is_down_is_tried_again_within_the_wait() {
    let mut server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let token = fixture.path("token");
    let token = token.to_str().expect("a plain path");
    let commands: [&[&str]; 4] = [
        &["run", "job", "--wait", "20s", "--", "true"],
        &["acquire", "other", "--wait", "20s", "--lease", "1m", "--token-file", token],
        &["wait", "job", "--wait", "20s"],
        &["lead", "leader", "--", "true"],
    ];
    server.kill().expect("killed");
    let mut programs = commands.map(|arguments| start_with_errors(&fixture, arguments));
    programs.iter_mut().for_each(expect_retry);
    server.restart().expect("restarted");
    for (mut program, arguments) in programs.into_iter().zip(commands) {
        assert_eq!(status(&mut program), Some(0), "{arguments:?}");
    }
}

#[test]
fn a_store_that_is_silent_is_tried_again_within_the_wait() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    server.stop().expect("stopped");
    let mut run = start_with_errors(&fixture, &["run", "job", "--wait", "20s", "--", "echo", "running"]);
    expect_retry(&mut run);
    server.resume().expect("it goes on");
    expect(&mut run, "running");
    assert_eq!(status(&mut run), Some(0));
}

#[test]
fn a_store_that_stays_down_ends_the_program_with_the_wait() {
    let mut server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    server.kill().expect("killed");
    let began = Instant::now();
    fixture.script(&["--wait", "700ms"], "echo never").check(69, "failed to open the store");
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    for options in [&["--try"][..], &["--wait", "0s"], &[]] {
        let failed = fixture.script(options, "echo never");
        failed.check(69, "failed to open the store");
        assert!(!failed.stderr.contains("trying again"), "{failed:?}");
    }
}

#[test]
fn a_signal_ends_a_program_that_tries_to_connect() {
    let mut server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let token = fixture.path("token");
    let token = token.to_str().expect("a plain path");
    server.kill().expect("killed");
    let commands: [&[&str]; 3] = [
        &["run", "job", "--wait", "20s", "--", "true"],
        &["lead", "job", "--", "true"],
        &["acquire", "job", "--wait", "20s", "--lease", "1m", "--token-file", token],
    ];
    for arguments in commands {
        let mut program = start_with_errors(&fixture, arguments);
        expect_retry(&mut program);
        assert_eq!(fixture.path("token").exists(), arguments[0] == "acquire", "it is created before");
        program.terminate().expect("it runs");
        assert_eq!(status(&mut program), Some(143), "{arguments:?}");
        assert!(!fixture.path("token").exists(), "{arguments:?}");
    }
}

/// Starts a command with `--wait 3s` that finds the lock taken, cuts its connection off, and checks that it ends less than
/// a call's time after the limit.
fn check_end_when_cut_off(arguments: &[&str]) {
    let server = RedisServer::start().expect("there is a server");
    let proxy = Proxy::to_server(&server).expect("there is a port");
    let (near, far) = (Fixture::redis(&server), Fixture::at(proxy.url()));
    near.run(&["acquire", "job", "--lease", "60s", "--token-file", "held"]).check(0, "");
    let watch = Stopwatch::start();
    let mut program = start(far.command(arguments));
    until("it waits", || near.status()["waiting"] == 1);
    proxy.pause_requests(usize::MAX, any_command());
    assert_eq!(status(&mut program), Some(69), "{arguments:?}");
    assert!(watch.elapsed() >= Duration::from_secs(3), "{arguments:?}: {:?}", watch.elapsed());
    watch.assert_below(Duration::from_secs(5), &format!("{arguments:?}"));
}

#[test]
fn a_run_whose_store_is_cut_off_ends_with_the_wait() {
    check_end_when_cut_off(&["run", "job", "--wait", "3s", "--", "true"]);
}

#[test]
fn a_run_for_several_locks_whose_store_is_cut_off_ends_with_the_wait() {
    check_end_when_cut_off(&["run", "free", "job", "--wait", "3s", "--", "true"]);
}

#[test]
fn an_acquire_whose_store_is_cut_off_ends_with_the_wait() {
    let acquire = ["acquire", "job", "--wait", "3s", "--lease", "1m", "--token-file", "token"];
    check_end_when_cut_off(&acquire);
}

#[test]
fn a_failed_release_is_reported_also_if_the_command_cannot_be_started() {
    let server = RedisServer::start().expect("there is a server");
    let proxy = Proxy::to_server(&server).expect("there is a port");
    let fixture = Fixture::at(proxy.url());
    // Only a release asks the server to grant the lock to the next waiter.
    proxy.pause_requests(usize::MAX, |command| command.iter().any(|part| part == b"grant"));
    let failed = fixture.run(&["run", "job", "--", "/no/such/program"]);
    failed.check(127, "leasehold: failed to release `job`: ");
    assert!(failed.stderr.contains("failed to start the command `/no/such/program`"), "{failed:?}");
}
