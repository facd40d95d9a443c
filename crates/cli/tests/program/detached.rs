//! A lock that is left held, and its token in a file that no other user can read.

use super::fixture::{Fixture, LIMIT, Outcome, expect, finish, signal, start, status, until};
use leasehold_testkit::RedisServer;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use tempfile::TempDir;

const ACQUIRE: [&str; 6] = ["acquire", "job", "--lease", "60s", "--token-file", "token"];

fn acquire(fixture: &Fixture, options: &[&str]) -> Outcome {
    fixture.run(&[&ACQUIRE, options].concat())
}

fn extend(fixture: &Fixture, options: &[&str]) -> Outcome {
    fixture.run(&[&["extend", "--token-file", "token"], options].concat())
}

fn release(fixture: &Fixture, options: &[&str]) -> Outcome {
    fixture.run(&[&["release", "--token-file", "token"], options].concat())
}

fn json(outcome: &Outcome) -> Value {
    assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:?}");
    serde_json::from_str(&outcome.stdout).expect("it is JSON")
}

fn token(fixture: &Fixture) -> Value {
    serde_json::from_str(&fixture.read("token")).expect("it is JSON")
}

fn mode(fixture: &Fixture) -> u32 {
    fs::metadata(fixture.path("token")).expect("it is there").mode() & 0o7777
}

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().expect("it is an object").keys().map(String::as_str).collect()
}

#[test]
fn a_lock_stays_held_when_the_program_has_ended_until_it_is_released() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let acquired = acquire(&fixture, &["--label", "the deploy of today"]);
        acquired.check(0, "");
        assert_eq!(mode(&fixture), 0o600);
        let held = fixture.status();
        assert_eq!(held["holder"], "the deploy of today");
        assert_eq!(acquired.stdout, format!("{}\n", held["fence"]));
        let left = held["remaining_ms"].as_u64().expect("it has an expiry");
        assert!((45_000..=60_000).contains(&left), "{held}");
        fixture.script(&["--try"], "echo never").check(75, "held by the deploy of today");
        let extended = extend(&fixture, &["job"]);
        extended.check(0, "");
        assert_eq!(extended.stdout, "");
        release(&fixture, &["job"]).check(0, "");
        assert!(!fixture.path("token").exists());
        fixture.assert_free();
    }
}

#[test]
fn no_end_of_the_program_is_taken_for_the_holders_death() {
    let fixture = Fixture::sqlite();
    for _ in 0..10 {
        acquire(&fixture, &[]).check(0, "");
        fixture.script(&["--try"], "echo never").check(75, "held by");
        release(&fixture, &[]).check(0, "");
    }
}

#[test]
fn the_token_is_in_its_file_and_nowhere_else() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let acquired = acquire(&fixture, &["-vvv", "--json"]);
    let text = token(&fixture);
    let key = server.cli(&["GET", "job"]).expect("it answers");
    assert_eq!(text["hold"].as_str(), key.text());
    let secret = text["hold"].as_str().expect("it is a text").split_once('.').expect("it has two parts").1;
    let extended = extend(&fixture, &["-vvv", "--json"]);
    let shown = fixture.run(&["show", "job", "-vvv", "--json"]);
    let released = release(&fixture, &["-vvv", "--json"]);
    for outcome in [acquired, extended, shown, released] {
        outcome.check(0, "");
        assert!(!outcome.stdout.contains(secret) && !outcome.stderr.contains(secret), "{outcome:?}");
    }
    // An unreadable file is not repeated either.
    fs::write(fixture.path("token"), format!(r#"{{"format":1,"hold":"{secret}"}}"#)).expect("it is ours");
    fs::set_permissions(fixture.path("token"), Permissions::from_mode(0o600)).expect("it is ours");
    let refused = release(&fixture, &["-vvv", "--json"]);
    refused.check(2, "it is not the text of a detached hold");
    assert!(!refused.stderr.contains(secret) && !refused.stdout.contains(secret), "{refused:?}");
}

#[test]
fn what_is_printed_for_programs() {
    let fixture = Fixture::sqlite();
    let acquired = json(&acquire(&fixture, &["--json"]));
    assert_eq!(
        keys(&acquired),
        ["acquired", "error", "fence", "lease_ms", "name", "token_file", "until"],
        "and no other"
    );
    assert_eq!((&acquired["name"], &acquired["acquired"]), (&"job".into(), &true.into()));
    assert_eq!((&acquired["lease_ms"], &acquired["token_file"]), (&60_000.into(), &"token".into()));
    assert!(acquired["error"].is_null() && acquired["until"].as_str().is_some_and(|at| at.ends_with('Z')));
    let extended = json(&extend(&fixture, &["--json", "--lease", "2m"]));
    assert_eq!(keys(&extended), ["error", "extended", "fence", "lease_ms", "name", "until"]);
    assert_eq!((&extended["extended"], &extended["lease_ms"]), (&true.into(), &120_000.into()));
    assert_eq!(extended["fence"], acquired["fence"]);
    let other = fixture.run(&["acquire", "job", "--lease", "1s", "--token-file", "other", "--try", "--json"]);
    other.check(75, "held by");
    let taken = json(&other);
    assert_eq!((&taken["acquired"], &taken["error"]["kind"]), (&false.into(), &"taken".into()));
    assert!(taken["fence"].is_null() && taken["error"]["reason"].is_null());
    assert!(taken["error"]["message"].as_str().is_some_and(|text| text.contains("held by")), "{taken}");
    let released = json(&release(&fixture, &["--json"]));
    assert_eq!(keys(&released), ["error", "fence", "name", "released"]);
    assert_eq!((&released["released"], &released["name"]), (&true.into(), &"job".into()));
    let again = release(&fixture, &["--json"]);
    again.check(2, "there is no such file");
    let again = json(&again);
    assert_eq!((&again["released"], &again["error"]["kind"]), (&false.into(), &"usage".into()));
    assert!(again["name"].is_null());
}

#[test]
fn a_file_that_is_there_is_left_alone_and_costs_no_lock() {
    let fixture = Fixture::sqlite();
    let path = fixture.path("token");
    let refused = |why: &str| {
        acquire(&fixture, &[]).check(2, why);
        assert_eq!(fixture.status()["fence"], Value::Null, "the lock was never taken");
    };
    fs::write(&path, "something else").expect("the directory is ours");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
    refused("it is not empty");
    assert_eq!(fixture.read("token"), "something else");
    fs::write(&path, "").expect("it is ours");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("it is ours");
    refused("run `chmod 600` on it");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
    fs::hard_link(&path, fixture.path("other name")).expect("it is ours");
    refused("it has other names");
    fs::remove_file(&path).expect("it is ours");
    symlink("other name", &path).expect("the directory is ours");
    refused("it is a symbolic link");
    fs::remove_file(&path).expect("it is ours");
    symlink("nothing", &path).expect("the directory is ours");
    refused("it is a symbolic link");
    assert!(!fixture.path("nothing").exists());
    fs::remove_file(&path).expect("it is ours");
    fs::create_dir(&path).expect("the directory is ours");
    refused("cannot be used");
    fs::remove_dir(&path).expect("it is ours");
    let fifo = Command::new("mkfifo").arg("-m").arg("600").arg(&path).status().expect("there is a `mkfifo`");
    assert!(fifo.success());
    refused("it is not a regular file");
    let nowhere = fixture.run(&["acquire", "job", "--lease", "1s", "--token-file", "no/such/dir/token"]);
    nowhere.check(2, "it cannot be created");
}

#[test]
fn an_empty_file_of_ours_is_written_to() {
    let fixture = Fixture::sqlite();
    let made =
        Command::new("mktemp").arg(fixture.path("token.XXXXXX")).output().expect("there is a `mktemp`");
    let made = String::from_utf8(made.stdout).expect("it is a text");
    fs::rename(made.trim(), fixture.path("token")).expect("the directory is ours");
    acquire(&fixture, &[]).check(0, "");
    let other = ["acquire", "job", "--lease", "1s", "--try", "--token-file"];
    fs::write(fixture.path("other"), "").expect("the directory is ours");
    fs::set_permissions(fixture.path("other"), Permissions::from_mode(0o600)).expect("it is ours");
    fixture.run(&[&other[..], &["other"]].concat()).check(75, "held by");
    assert!(fixture.path("other").exists(), "it was not ours to remove");
    fixture.run(&[&other[..], &["third"]].concat()).check(75, "held by");
    assert!(!fixture.path("third").exists(), "it was not needed");
    release(&fixture, &[]).check(0, "");
}

#[test]
fn a_token_that_others_can_read_is_refused_with_what_to_do() {
    let fixture = Fixture::sqlite();
    acquire(&fixture, &[]).check(0, "");
    for open in [0o604, 0o640, 0o660, 0o666] {
        fs::set_permissions(fixture.path("token"), Permissions::from_mode(open)).expect("it is ours");
        extend(&fixture, &[]).check(2, "run `chmod 600` on it");
        release(&fixture, &[]).check(2, &format!("(mode {open:03o})"));
    }
    fs::rename(fixture.path("token"), fixture.path("moved")).expect("it is ours");
    fs::set_permissions(fixture.path("moved"), Permissions::from_mode(0o600)).expect("it is ours");
    symlink("moved", fixture.path("token")).expect("the directory is ours");
    release(&fixture, &[]).check(2, "it is a symbolic link");
    fixture.run(&["release", "--token-file", "moved"]).check(0, "");
    fixture.assert_free();
}

#[test]
fn a_token_of_another_lock_ends_nothing() {
    let fixture = Fixture::sqlite();
    acquire(&fixture, &[]).check(0, "");
    extend(&fixture, &["other"]).check(2, "the token belongs to the lock `job`, not to `other`");
    release(&fixture, &["other"]).check(2, "the token belongs to the lock `job`, not to `other`");
    assert_eq!(fixture.status()["held"], true);
    release(&fixture, &["job"]).check(0, "");
}

#[test]
fn a_lost_lock_is_reported_and_its_token_deleted() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let short = ["acquire", "job", "--lease", "1s", "--token-file", "token"];
        fixture.run(&short).check(0, "");
        until("its lease ends", || fixture.status()["held"] == false);
        let lost = extend(&fixture, &["--json"]);
        lost.check(70, "its lease ended");
        assert_eq!(json(&lost)["error"]["reason"], "expired");
        assert!(fixture.path("token").exists(), "an extend removes nothing");
        release(&fixture, &[]).check(70, "the lock was lost before it was released: its lease ended");
        assert!(!fixture.path("token").exists());

        fixture.run(&short).check(0, "");
        let mut next = fixture.start(&[], "echo running; read line");
        expect(&mut next, "running");
        let lost = release(&fixture, &["--json"]);
        lost.check(70, "it was taken over by");
        let lost = json(&lost);
        assert_eq!(
            (&lost["error"]["kind"], &lost["error"]["reason"]),
            (&"lost".into(), &"taken_over".into())
        );
        assert_eq!(fixture.status()["held"], true, "the next holder was left alone");
        next.send("go").expect("it reads");
        assert_eq!(status(&mut next), Some(0));
    }
}

#[test]
fn an_extend_lengthens_the_lock_and_updates_its_file() {
    let fixture = Fixture::sqlite();
    acquire(&fixture, &[]).check(0, "");
    let before = token(&fixture)["ends_by_ms"].as_u64().expect("it is a number");
    extend(&fixture, &["--lease", "10m"]).check(0, "");
    assert!(fixture.status()["remaining_ms"].as_u64().is_some_and(|left| left > 580_000));
    let after = token(&fixture);
    assert!(after["ends_by_ms"].as_u64().is_some_and(|after| after > before + 500_000), "{before}");
    assert_eq!((mode(&fixture), &after["lease_ms"]), (0o600, &60_000.into()));
    extend(&fixture, &[]).check(0, "");
    assert!(fixture.status()["remaining_ms"].as_u64().is_some_and(|left| left > 560_000), "never shorter");
    release(&fixture, &[]).check(0, "");
}

#[test]
fn in_another_store_the_lock_is_not_found_and_the_token_kept() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    acquire(&fixture, &[]).check(0, "");
    let elsewhere = ["release", "--token-file", "token", "--json", "--store", "sqlite:elsewhere.db"];
    let lost = fixture.run(&elsewhere);
    lost.check(70, "was the lock acquired in another store, or with another prefix?");
    assert_eq!(json(&lost)["error"]["reason"], "store_lost_data");
    release(&fixture, &["--prefix", "app:"]).check(70, "was the lock acquired in another store");
    release(&fixture, &[]).check(0, "");
    fixture.assert_free();
}

#[test]
fn a_store_that_is_not_there_costs_no_token() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    acquire(&fixture, &[]).check(0, "");
    let before = fixture.read("token");
    server.stop().expect("it runs");
    let lost = release(&fixture, &["--json"]);
    lost.check(69, "no answer in time");
    assert_eq!(json(&lost)["error"]["kind"], "unavailable");
    extend(&fixture, &[]).check(69, "no answer in time");
    let other = fixture.run(&["acquire", "other", "--lease", "1s", "--token-file", "other"]);
    other.check(69, "no answer in time");
    assert!(!fixture.path("other").exists());
    assert_eq!(fixture.read("token"), before);
    server.resume().expect("it is stopped");
    release(&fixture, &[]).check(0, "");
    fixture.assert_free();
}

#[test]
fn a_token_that_cannot_be_written_gives_the_lock_back() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    // A file system in memory observes the limit already when space is reserved, before the lock is requested.
    let on_disk = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    // No file may grow, as on a full disk whose file system cannot reserve space.
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    let program = fixture.command(&ACQUIRE);
    let mut limited = Command::new("sh");
    limited.args(["-c", script, "sh"]).arg(program.get_program()).args(program.get_args());
    limited.current_dir(on_disk.path());
    limited.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    finish(limited, "").check(2, "it cannot be written");
    assert!(!on_disk.path().join("token").exists());
    assert_eq!(fixture.status()["held"], false, "it was released");
    fixture.assert_free();
}

#[test]
fn an_acquire_that_is_interrupted_while_it_waits_leaves_nothing() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let mut holder = fixture.start(&[], "echo running; read line");
        expect(&mut holder, "running");
        let mut waiter = start(fixture.command(&[&ACQUIRE[..], &["--json"]].concat()));
        until("it waits", || fixture.status()["waiting"] == 1);
        assert_eq!(mode(&fixture), 0o600, "the file is there before the lock");
        // Processes use a file one at a time.
        acquire(&fixture, &[]).check(2, "another leasehold is using it");
        signal(waiter.pid(), "TERM");
        let output = waiter.line(LIMIT).expect("it reports");
        assert!(output.contains(r#""kind":"interrupted""#), "{output}");
        assert_eq!(status(&mut waiter), Some(143));
        assert!(!fixture.path("token").exists());
        until("its queue entry is removed", || fixture.status()["waiting"] == 0);
        holder.send("go").expect("it reads");
        assert_eq!(status(&mut holder), Some(0));
        fixture.assert_free();
    }
}

#[test]
fn a_file_that_a_killed_program_left_empty_can_be_used_again() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut holder = fixture.start(&[], "echo running; read line");
    expect(&mut holder, "running");
    let waiter = start(fixture.command(&ACQUIRE));
    until("it waits", || fixture.status()["waiting"] == 1);
    signal(waiter.pid(), "KILL");
    drop(waiter);
    assert_eq!(fixture.read("token"), "");
    release(&fixture, &[]).check(2, "it is empty: no lock was acquired with it");
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    // The dead process may be granted the lock, for the first lease.
    acquire(&fixture, &["--wait", "15s"]).check(0, "");
    release(&fixture, &[]).check(0, "");
}

#[test]
fn a_release_waits_for_an_extend_that_is_under_way() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    acquire(&fixture, &[]).check(0, "");
    server.stop().expect("it runs");
    let extending = start(fixture.command(&["extend", "--token-file", "token", "-vvv"]));
    let locked = || {
        let file = fs::File::open(fixture.path("token")).expect("it is there");
        file.try_lock().is_err()
    };
    until("it works with the file", locked);
    let releasing = start(fixture.command(&["release", "--token-file", "token"]));
    server.resume().expect("it is stopped");
    let (mut extending, mut releasing) = (extending, releasing);
    assert_eq!((status(&mut extending), status(&mut releasing)), (Some(0), Some(0)));
    assert!(!fixture.path("token").exists());
    fixture.assert_free();
}

#[test]
fn a_script_that_holds_a_lock_over_several_steps() {
    let fixture = Fixture::sqlite();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        "set -e
        fence=$({program} acquire job --lease 1m --try --token-file token)
        trap '{program} release job --token-file token' EXIT
        echo step one with $fence
        {program} extend job --token-file token
        echo step two
        exit 3"
    );
    fs::write(fixture.path("script"), script).expect("the directory is ours");
    let run = ["run", "outer", "--", "sh", "script"];
    let outcome = fixture.run(&run);
    outcome.check(3, "");
    assert!(outcome.stdout.contains("step two"), "{outcome:?}");
    assert!(!fixture.path("token").exists());
    fixture.assert_free();
}
