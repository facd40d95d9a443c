//! A lock that is left held, and its token in a file that no other user can read.

use super::scene::{Outcome, PATIENCE, Scene, expect, finish, signal, start, status, until};
use leasehold_testkit::RedisServer;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

const ACQUIRE: [&str; 6] = ["acquire", "job", "--lease", "60s", "--token-file", "token"];

fn acquire(scene: &Scene, options: &[&str]) -> Outcome {
    scene.run(&[&ACQUIRE, options].concat())
}

fn extend(scene: &Scene, options: &[&str]) -> Outcome {
    scene.run(&[&["extend", "--token-file", "token"], options].concat())
}

fn release(scene: &Scene, options: &[&str]) -> Outcome {
    scene.run(&[&["release", "--token-file", "token"], options].concat())
}

fn json(outcome: &Outcome) -> Value {
    assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:?}");
    serde_json::from_str(&outcome.stdout).expect("it is JSON")
}

fn token(scene: &Scene) -> Value {
    serde_json::from_str(&scene.read("token")).expect("it is JSON")
}

fn mode(scene: &Scene) -> u32 {
    fs::metadata(scene.path("token")).expect("it is there").mode() & 0o7777
}

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().expect("it is an object").keys().map(String::as_str).collect()
}

#[test]
fn a_lock_stays_held_when_the_program_has_ended_until_it_is_released() {
    let server = RedisServer::start().expect("there is a server");
    for scene in [Scene::sqlite(), Scene::redis(&server)] {
        let acquired = acquire(&scene, &["--label", "the deploy of today"]);
        acquired.check(0, "");
        assert_eq!(mode(&scene), 0o600);
        let held = scene.status();
        assert_eq!(held["holder"], "the deploy of today");
        assert_eq!(acquired.stdout, format!("{}\n", held["fence"]));
        let left = held["remaining_ms"].as_u64().expect("it has an expiry");
        assert!((45_000..=60_000).contains(&left), "{held}");
        scene.script(&["--try"], "echo never").check(75, "held by the deploy of today");
        let extended = extend(&scene, &["job"]);
        extended.check(0, "");
        assert_eq!(extended.stdout, "");
        release(&scene, &["job"]).check(0, "");
        assert!(!scene.path("token").exists());
        scene.assert_free();
    }
}

#[test]
fn no_end_of_the_program_is_taken_for_the_holders_death() {
    let scene = Scene::sqlite();
    for _ in 0..10 {
        acquire(&scene, &[]).check(0, "");
        scene.script(&["--try"], "echo never").check(75, "held by");
        release(&scene, &[]).check(0, "");
    }
}

#[test]
fn the_token_is_in_its_file_and_nowhere_else() {
    let server = RedisServer::start().expect("there is a server");
    let scene = Scene::redis(&server);
    let acquired = acquire(&scene, &["-vvv", "--json"]);
    let text = token(&scene);
    let key = server.cli(&["GET", "job"]).expect("it answers");
    assert_eq!(text["hold"].as_str(), key.text());
    let secret = text["hold"].as_str().expect("it is a text").split_once('.').expect("it has two parts").1;
    let extended = extend(&scene, &["-vvv", "--json"]);
    let shown = scene.run(&["show", "job", "-vvv", "--json"]);
    let released = release(&scene, &["-vvv", "--json"]);
    for outcome in [acquired, extended, shown, released] {
        outcome.check(0, "");
        assert!(!outcome.stdout.contains(secret) && !outcome.stderr.contains(secret), "{outcome:?}");
    }
    // An unreadable file is not repeated either.
    fs::write(scene.path("token"), format!(r#"{{"format":1,"hold":"{secret}"}}"#)).expect("it is ours");
    fs::set_permissions(scene.path("token"), Permissions::from_mode(0o600)).expect("it is ours");
    let refused = release(&scene, &["-vvv", "--json"]);
    refused.check(2, "it is not the text of a detached hold");
    assert!(!refused.stderr.contains(secret) && !refused.stdout.contains(secret), "{refused:?}");
}

#[test]
fn what_is_printed_for_programs() {
    let scene = Scene::sqlite();
    let acquired = json(&acquire(&scene, &["--json"]));
    assert_eq!(
        keys(&acquired),
        ["acquired", "error", "fence", "lease_ms", "name", "token_file", "until"],
        "and no other"
    );
    assert_eq!((&acquired["name"], &acquired["acquired"]), (&"job".into(), &true.into()));
    assert_eq!((&acquired["lease_ms"], &acquired["token_file"]), (&60_000.into(), &"token".into()));
    assert!(acquired["error"].is_null() && acquired["until"].as_str().is_some_and(|at| at.ends_with('Z')));
    let extended = json(&extend(&scene, &["--json", "--lease", "2m"]));
    assert_eq!(keys(&extended), ["error", "extended", "fence", "lease_ms", "name", "until"]);
    assert_eq!((&extended["extended"], &extended["lease_ms"]), (&true.into(), &120_000.into()));
    assert_eq!(extended["fence"], acquired["fence"]);
    let other = scene.run(&["acquire", "job", "--lease", "1s", "--token-file", "other", "--try", "--json"]);
    other.check(75, "held by");
    let taken = json(&other);
    assert_eq!((&taken["acquired"], &taken["error"]["kind"]), (&false.into(), &"taken".into()));
    assert!(taken["fence"].is_null() && taken["error"]["reason"].is_null());
    assert!(taken["error"]["message"].as_str().is_some_and(|text| text.contains("held by")), "{taken}");
    let released = json(&release(&scene, &["--json"]));
    assert_eq!(keys(&released), ["error", "fence", "name", "released"]);
    assert_eq!((&released["released"], &released["name"]), (&true.into(), &"job".into()));
    let again = release(&scene, &["--json"]);
    again.check(2, "there is no such file");
    let again = json(&again);
    assert_eq!((&again["released"], &again["error"]["kind"]), (&false.into(), &"usage".into()));
    assert!(again["name"].is_null());
}

#[test]
fn a_file_that_is_there_is_left_alone_and_costs_no_lock() {
    let scene = Scene::sqlite();
    let path = scene.path("token");
    let refused = |why: &str| {
        acquire(&scene, &[]).check(2, why);
        assert_eq!(scene.status()["fence"], Value::Null, "the lock was never taken");
    };
    fs::write(&path, "something else").expect("the directory is ours");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
    refused("it is not empty");
    assert_eq!(scene.read("token"), "something else");
    fs::write(&path, "").expect("it is ours");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("it is ours");
    refused("run `chmod 600` on it");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
    fs::hard_link(&path, scene.path("other name")).expect("it is ours");
    refused("it has other names");
    fs::remove_file(&path).expect("it is ours");
    symlink("other name", &path).expect("the directory is ours");
    refused("it is a symbolic link");
    fs::remove_file(&path).expect("it is ours");
    symlink("nothing", &path).expect("the directory is ours");
    refused("it is a symbolic link");
    assert!(!scene.path("nothing").exists());
    fs::remove_file(&path).expect("it is ours");
    fs::create_dir(&path).expect("the directory is ours");
    refused("cannot be used");
    fs::remove_dir(&path).expect("it is ours");
    let fifo = Command::new("mkfifo").arg("-m").arg("600").arg(&path).status().expect("there is a `mkfifo`");
    assert!(fifo.success());
    refused("it is not a regular file");
    let nowhere = scene.run(&["acquire", "job", "--lease", "1s", "--token-file", "no/such/dir/token"]);
    nowhere.check(2, "it cannot be created");
}

#[test]
fn an_empty_file_of_ours_is_written_to() {
    let scene = Scene::sqlite();
    let made = Command::new("mktemp").arg(scene.path("token.XXXXXX")).output().expect("there is a `mktemp`");
    let made = String::from_utf8(made.stdout).expect("it is a text");
    fs::rename(made.trim(), scene.path("token")).expect("the directory is ours");
    acquire(&scene, &[]).check(0, "");
    let other = ["acquire", "job", "--lease", "1s", "--try", "--token-file"];
    fs::write(scene.path("other"), "").expect("the directory is ours");
    fs::set_permissions(scene.path("other"), Permissions::from_mode(0o600)).expect("it is ours");
    scene.run(&[&other[..], &["other"]].concat()).check(75, "held by");
    assert!(scene.path("other").exists(), "it was not ours to remove");
    scene.run(&[&other[..], &["third"]].concat()).check(75, "held by");
    assert!(!scene.path("third").exists(), "it was not needed");
    release(&scene, &[]).check(0, "");
}

#[test]
fn a_token_that_others_can_read_is_refused_with_what_to_do() {
    let scene = Scene::sqlite();
    acquire(&scene, &[]).check(0, "");
    for open in [0o604, 0o640, 0o660, 0o666] {
        fs::set_permissions(scene.path("token"), Permissions::from_mode(open)).expect("it is ours");
        extend(&scene, &[]).check(2, "run `chmod 600` on it");
        release(&scene, &[]).check(2, &format!("(mode {open:03o})"));
    }
    fs::rename(scene.path("token"), scene.path("moved")).expect("it is ours");
    fs::set_permissions(scene.path("moved"), Permissions::from_mode(0o600)).expect("it is ours");
    symlink("moved", scene.path("token")).expect("the directory is ours");
    release(&scene, &[]).check(2, "it is a symbolic link");
    scene.run(&["release", "--token-file", "moved"]).check(0, "");
    scene.assert_free();
}

#[test]
fn a_token_of_another_lock_ends_nothing() {
    let scene = Scene::sqlite();
    acquire(&scene, &[]).check(0, "");
    extend(&scene, &["other"]).check(2, "the token belongs to the lock `job`, not to `other`");
    release(&scene, &["other"]).check(2, "the token belongs to the lock `job`, not to `other`");
    assert_eq!(scene.status()["held"], true);
    release(&scene, &["job"]).check(0, "");
}

#[test]
fn a_lost_lock_is_reported_and_its_token_deleted() {
    let server = RedisServer::start().expect("there is a server");
    for scene in [Scene::sqlite(), Scene::redis(&server)] {
        let short = ["acquire", "job", "--lease", "200ms", "--token-file", "token"];
        scene.run(&short).check(0, "");
        until("its lease ends", || scene.status()["held"] == false);
        let lost = extend(&scene, &["--json"]);
        lost.check(70, "its lease ended");
        assert_eq!(json(&lost)["error"]["reason"], "expired");
        assert!(scene.path("token").exists(), "an extend removes nothing");
        release(&scene, &[]).check(70, "the lock was lost before it was released: its lease ended");
        assert!(!scene.path("token").exists());

        scene.run(&short).check(0, "");
        let mut next = scene.start(&[], "echo running; read line");
        expect(&mut next, "running");
        let lost = release(&scene, &["--json"]);
        lost.check(70, "it was taken over by");
        let lost = json(&lost);
        assert_eq!(
            (&lost["error"]["kind"], &lost["error"]["reason"]),
            (&"lost".into(), &"taken_over".into())
        );
        assert_eq!(scene.status()["held"], true, "the next holder was left alone");
        next.tell("go").expect("it reads");
        assert_eq!(status(&mut next), Some(0));
    }
}

#[test]
fn an_extend_lengthens_the_lock_and_updates_its_file() {
    let scene = Scene::sqlite();
    acquire(&scene, &[]).check(0, "");
    let before = token(&scene)["ends_by_ms"].as_u64().expect("it is a number");
    extend(&scene, &["--lease", "10m"]).check(0, "");
    assert!(scene.status()["remaining_ms"].as_u64().is_some_and(|left| left > 580_000));
    let after = token(&scene);
    assert!(after["ends_by_ms"].as_u64().is_some_and(|after| after > before + 500_000), "{before}");
    assert_eq!((mode(&scene), &after["lease_ms"]), (0o600, &60_000.into()));
    extend(&scene, &[]).check(0, "");
    assert!(scene.status()["remaining_ms"].as_u64().is_some_and(|left| left > 560_000), "never shorter");
    release(&scene, &[]).check(0, "");
}

#[test]
fn in_another_store_the_lock_is_not_found_and_the_token_kept() {
    let server = RedisServer::start().expect("there is a server");
    let scene = Scene::redis(&server);
    acquire(&scene, &[]).check(0, "");
    let elsewhere = ["release", "--token-file", "token", "--json", "--store", "sqlite:elsewhere.db"];
    let lost = scene.run(&elsewhere);
    lost.check(70, "is this another store, or prefix, than the lock was acquired in?");
    assert_eq!(json(&lost)["error"]["reason"], "store_lost_data");
    release(&scene, &["--prefix", "app:"]).check(70, "is this another store, or prefix");
    release(&scene, &[]).check(0, "");
    scene.assert_free();
}

#[test]
fn a_store_that_is_not_there_costs_no_token() {
    let server = RedisServer::start().expect("there is a server");
    let scene = Scene::redis(&server);
    acquire(&scene, &[]).check(0, "");
    let before = scene.read("token");
    server.stop().expect("it runs");
    let lost = release(&scene, &["--json"]);
    lost.check(69, "no answer in time");
    assert_eq!(json(&lost)["error"]["kind"], "unavailable");
    extend(&scene, &[]).check(69, "no answer in time");
    let other = scene.run(&["acquire", "other", "--lease", "1s", "--token-file", "other"]);
    other.check(69, "no answer in time");
    assert!(!scene.path("other").exists());
    assert_eq!(scene.read("token"), before);
    server.cont().expect("it is stopped");
    release(&scene, &[]).check(0, "");
    scene.assert_free();
}

#[test]
fn a_token_that_cannot_be_written_gives_the_lock_back() {
    let server = RedisServer::start().expect("there is a server");
    let scene = Scene::redis(&server);
    // No file may grow, as on a full disk whose file system cannot reserve space.
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    let program = scene.command(&ACQUIRE);
    let mut limited = Command::new("sh");
    limited.args(["-c", script, "sh"]).arg(program.get_program()).args(program.get_args());
    limited.current_dir(scene.path(""));
    limited.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    finish(limited, "").check(2, "it cannot be written");
    assert!(!scene.path("token").exists());
    assert_eq!(scene.status()["held"], false, "it was released");
    scene.assert_free();
}

#[test]
fn an_acquire_that_is_interrupted_while_it_waits_leaves_nothing() {
    let server = RedisServer::start().expect("there is a server");
    for scene in [Scene::sqlite(), Scene::redis(&server)] {
        let mut holder = scene.start(&[], "echo running; read line");
        expect(&mut holder, "running");
        let mut waiter = start(scene.command(&[&ACQUIRE[..], &["--json"]].concat()));
        until("it waits", || scene.status()["waiting"] == 1);
        assert_eq!(mode(&scene), 0o600, "the file is there before the lock");
        // Processes use a file one at a time.
        acquire(&scene, &[]).check(2, "another leasehold is using it");
        signal(waiter.pid(), "TERM");
        let said = waiter.line(PATIENCE).expect("it reports");
        assert!(said.contains(r#""kind":"interrupted""#), "{said}");
        assert_eq!(status(&mut waiter), Some(143));
        assert!(!scene.path("token").exists());
        until("its queue entry is removed", || scene.status()["waiting"] == 0);
        holder.tell("go").expect("it reads");
        assert_eq!(status(&mut holder), Some(0));
        scene.assert_free();
    }
}

#[test]
fn a_file_that_a_killed_program_left_empty_can_be_used_again() {
    let server = RedisServer::start().expect("there is a server");
    let scene = Scene::redis(&server);
    let mut holder = scene.start(&[], "echo running; read line");
    expect(&mut holder, "running");
    let waiter = start(scene.command(&ACQUIRE));
    until("it waits", || scene.status()["waiting"] == 1);
    signal(waiter.pid(), "KILL");
    drop(waiter);
    assert_eq!(scene.read("token"), "");
    release(&scene, &[]).check(2, "it is empty: no lock was acquired with it");
    holder.tell("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    // The dead process may be granted the lock, for the first lease.
    acquire(&scene, &["--wait", "15s"]).check(0, "");
    release(&scene, &[]).check(0, "");
}

#[test]
fn a_release_waits_for_an_extend_that_is_under_way() {
    let server = RedisServer::start().expect("there is a server");
    let scene = Scene::redis(&server);
    acquire(&scene, &[]).check(0, "");
    server.stop().expect("it runs");
    let extending = start(scene.command(&["extend", "--token-file", "token", "-vvv"]));
    let locked = || {
        let file = fs::File::open(scene.path("token")).expect("it is there");
        file.try_lock().is_err()
    };
    until("it works with the file", locked);
    let releasing = start(scene.command(&["release", "--token-file", "token"]));
    server.cont().expect("it is stopped");
    let (mut extending, mut releasing) = (extending, releasing);
    assert_eq!((status(&mut extending), status(&mut releasing)), (Some(0), Some(0)));
    assert!(!scene.path("token").exists());
    scene.assert_free();
}

#[test]
fn a_script_that_holds_a_lock_over_several_steps() {
    let scene = Scene::sqlite();
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
    fs::write(scene.path("script"), script).expect("the directory is ours");
    let run = ["run", "outer", "--", "sh", "script"];
    let outcome = scene.run(&run);
    outcome.check(3, "");
    assert!(outcome.stdout.contains("step two"), "{outcome:?}");
    assert!(!scene.path("token").exists());
    scene.assert_free();
}
