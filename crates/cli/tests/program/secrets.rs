//! Passwords get to the server, and nowhere else.

use super::scene::{Scene, expect, finish, start, status};
use leasehold_testkit::RedisServer;
use std::fs;
use std::process::Command;

const PASSWORD: &str = "s3cr3t/with@odd:chars";

fn guarded() -> (RedisServer, Scene) {
    let server = RedisServer::builder().password(PASSWORD).start().expect("there is a server");
    let scene = Scene::redis(&server);
    (server, scene)
}

/// The program as it gets the password in each of the ways there are.
fn ways(server: &RedisServer, scene: &Scene, script: &str) -> Vec<Command> {
    let run =
        |options: &[&str]| scene.command(&[&["run", "job"], options, &["--", "sh", "-c", script]].concat());
    let mut variable = run(&["-vvv"]);
    variable.env("LEASEHOLD_PASSWORD", PASSWORD).env("LEASEHOLD_USERNAME", "default");
    let mut url = run(&["-vvv"]);
    let encoded = PASSWORD.replace('/', "%2F").replace('@', "%40").replace(':', "%3A");
    url.env("LEASEHOLD_STORE", format!("redis://:{encoded}@127.0.0.1:{}/", server.port()));
    fs::write(scene.path("password"), format!("{PASSWORD}\n")).expect("the directory is ours");
    let file = run(&["-vvv", "--password-file", "password"]);
    vec![variable, url, file]
}

#[test]
fn a_password_is_in_no_argument_no_log_and_not_in_the_commands_environment() {
    let (server, scene) = guarded();
    for command in ways(&server, &scene, "env; cat /proc/$PPID/cmdline | tr '\\0' ' '; echo; echo done") {
        let outcome = finish(command, "");
        outcome.check(0, "");
        assert!(outcome.stdout.ends_with("done\n"), "{outcome:?}");
        for text in [&outcome.stdout, &outcome.stderr] {
            assert!(!text.contains("s3cr3t"), "{text}");
        }
    }
}

#[test]
fn a_store_without_a_password_stays_in_the_commands_environment() {
    let (server, scene) = guarded();
    let mut command = scene.command(&["run", "job", "--", "sh", "-c", "echo $LEASEHOLD_STORE"]);
    command.env("LEASEHOLD_PASSWORD", PASSWORD);
    assert_eq!(finish(command, "").stdout, server.url() + "\n");
}

#[test]
fn a_lock_within_a_lock_is_turned_away_rather_than_kept_elsewhere() {
    let (server, scene) = guarded();
    let inner = format!("{} run job --try -- echo both run; echo status $?", env!("CARGO_BIN_EXE_leasehold"));
    let mut command = scene.command(&["run", "job", "--", "sh", "-c", &inner]);
    let encoded = PASSWORD.replace('/', "%2F").replace('@', "%40").replace(':', "%3A");
    command.env("LEASEHOLD_STORE", format!("redis://:{encoded}@127.0.0.1:{}/?prefix=a", server.port()));
    let outcome = finish(command, "");
    outcome.check(0, "user or password are missing or wrong");
    assert_eq!(outcome.stdout, "status 69\n");
}

#[test]
fn a_store_that_ends_with_the_program_is_refused() {
    let scene = Scene::sqlite();
    for words in [
        &["run", "job", "--store", "memory:", "--", "echo", "never"][..],
        &["show", "job", "--store", "memory:x"],
    ] {
        let outcome = scene.run(words);
        outcome.check(2, "ends with this program");
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn of_standard_input_one_line_is_the_password_and_the_rest_the_commands() {
    let (_server, scene) = guarded();
    let command = scene.command(&["run", "job", "--password-file", "-", "--", "cat"]);
    let outcome = finish(command, &format!("{PASSWORD}\none\ntwo\n"));
    outcome.check(0, "");
    assert_eq!(outcome.stdout, "one\ntwo\n");
}

#[test]
fn a_wrong_password_or_none_ends_with_69_and_is_not_repeated() {
    let (_server, scene) = guarded();
    scene.script(&[], "echo never").check(69, "user or password are missing or wrong");
    let mut command = scene.command(&["show", "job", "-vvv"]);
    command.env("LEASEHOLD_PASSWORD", "wr0ng");
    let outcome = finish(command, "");
    outcome.check(69, "user or password are missing or wrong");
    assert!(!outcome.stderr.contains("wr0ng"), "{outcome:?}");
}

#[test]
fn a_password_as_an_argument_is_refused_and_not_repeated() {
    let (server, scene) = guarded();
    let url = format!("redis://:s3cr3t@127.0.0.1:{}/", server.port());
    let outcome = scene.run(&["run", "job", "--store", &url, "--", "echo", "never"]);
    outcome.check(2, "give it by --password-file, LEASEHOLD_PASSWORD or LEASEHOLD_STORE");
    assert!(!outcome.stderr.contains("s3cr3t") && outcome.stdout.is_empty(), "{outcome:?}");
    let mut broken = scene.command(&["show", "job"]);
    broken.env("LEASEHOLD_STORE", "redis://h:s3cr3t");
    let outcome = finish(broken, "");
    outcome.check(2, "the store's URL cannot be used");
    assert!(!outcome.stderr.contains("s3cr3t"), "{outcome:?}");
}

#[test]
fn the_token_of_a_hold_is_shown_to_nobody() {
    let server = RedisServer::start().expect("there is a server");
    let scene = Scene::redis(&server);
    let mut command =
        scene.command(&["run", "job", "-vvv", "--", "sh", "-c", "env; echo running; read line"]);
    let log = fs::File::create(scene.path("log")).expect("the directory is ours");
    command.stderr(log);
    let mut holder = start(command);
    let mut said = String::new();
    while !said.ends_with("running") {
        said = said + "\n" + &holder.line(super::scene::PATIENCE).expect("the command speaks");
    }
    let token = server.cli(&["GET", "job"]).expect("it answers");
    let token = token.text().expect("the lock is held");
    assert!(token.len() > 16, "{token}");
    let shown = scene.run(&["show", "job", "--json", "-vvv"]);
    let taken = scene.script(&["--try", "-vvv"], "true");
    taken.check(75, "held by");
    holder.tell("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    for text in [said, scene.read("log"), shown.stdout, shown.stderr, taken.stderr] {
        assert!(!text.contains(token), "{text}");
    }
}

#[test]
fn a_prefix_and_a_socket_are_heeded() {
    let server = RedisServer::builder().unix_socket().start().expect("there is a server");
    let scene = Scene::redis(&server);
    let url = server.unix_url().expect("it was built with one");
    let mut command = scene.command(&["run", "job", "--store", &url, "--prefix", "app:"]);
    command.args(["--", "sh", "-c", "echo running; read line"]);
    let mut holder = start(command);
    expect(&mut holder, "running");
    assert_eq!(server.cli(&["EXISTS", "app:job"]).expect("it answers").integer(), Some(1));
    assert_eq!(server.cli(&["EXISTS", "job"]).expect("it answers").integer(), Some(0));
    holder.tell("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
}
