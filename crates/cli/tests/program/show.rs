//! The output of `show`.

use super::fixture::{Fixture, expect, finish, status, until};
use leasehold_testkit::RedisServer;

#[test]
fn a_free_lock() {
    let fixture = Fixture::sqlite();
    let shown = fixture.run(&["show", "job"]);
    shown.check(0, "");
    assert_eq!(shown.stdout, "name     job\nkind     mutex\nheld     no\nwaiting  0\n");
    let json = fixture.run(&["show", "job", "--json"]).stdout;
    let wanted = "{\"name\":\"job\",\"kind\":\"mutex\",\"held\":false,\"in_cooldown\":false,\"holder\":null,\"owner\":null,\"count\":0,\
                  \"since\":null,\"until\":null,\"remaining_ms\":null,\"fence\":null,\"votes\":null,\"blocked_ms\":null,\"waiting\":0,\"queue\":[],\"behind\":null,\"audit\":[],\"history\":[],\
                  \"taken\":null,\"limit\":null,\"sharers\":[]}\n";
    assert_eq!(json, wanted);
}

#[test]
fn a_held_lock_and_a_waiter() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let mut holder = fixture.start(&[], "echo fence $LEASEHOLD_FENCE; read line");
        let fence = expect(&mut holder, "fence");
        let mut waiter = fixture.start(&[], "true");
        until("it waits", || fixture.status()["waiting"] == 1);
        let json = fixture.status();
        assert_eq!((&json["name"], &json["held"]), (&"job".into(), &true.into()));
        assert_eq!(json["fence"].to_string(), fence);
        let by = format!("/{}/leasehold", holder.pid());
        assert!(json["holder"].as_str().expect("it is known").ends_with(&by), "{json}");
        let left = json["remaining_ms"].as_u64().expect("it has an expiry");
        assert!((10_000..=30_000).contains(&left), "{json}");
        let text = |field: &str| json[field].as_str().expect("it is known").to_owned();
        let (since, until) = (text("since"), text("until"));
        assert!(since < until && since.len() == 24 && since.ends_with('Z'), "{json}");
        let shown = fixture.run(&["show", "job"]);
        shown.check(0, "");
        for line in ["held     yes\n", &format!("{by}\n"), &format!("fence    {fence}\n"), "waiting  1\n"] {
            assert!(shown.stdout.contains(line), "{line}: {shown:?}");
        }
        holder.send("go").expect("it reads");
        assert_eq!((status(&mut holder), status(&mut waiter)), (Some(0), Some(0)));
    }
}

#[test]
fn the_history_lists_the_last_holds_if_commands_ask_for_it() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let run = |entries: &str, label: &str| {
            let command = ["run", "job", "--label", label, "--", "sleep", "0.05"];
            let mut command = fixture.command(&command);
            command.env("LEASEHOLD_HISTORY", entries);
            finish(command, "")
        };
        run("", "zero").check(0, "");
        let shown = fixture.run(&["show", "job", "--history"]);
        assert!(
            shown
                .stdout
                .ends_with("history  none: no client that releases it asks for one (LEASEHOLD_HISTORY)\n")
        );
        for label in ["one", "two\u{200b}", "three"] {
            run("2", label).check(0, "");
        }
        let listed = fixture.status()["history"].as_array().expect("a list").clone();
        let labels: Vec<_> = listed.iter().map(|entry| entry["whose"].as_str().expect("a label")).collect();
        assert_eq!(labels, ["three", "two\u{200b}"]);
        assert!(listed.iter().all(|entry| entry["held_ms"].as_u64() >= Some(50)), "{listed:?}");
        assert!(listed[1]["to"].as_str() <= listed[0]["from"].as_str(), "{listed:?}");
        let shown = fixture.run(&["show", "job", "--history", "--utc"]).stdout;
        let lines: Vec<_> = shown.lines().filter(|line| line.starts_with("history")).collect();
        let from = listed[1]["from"].as_str().expect("a time");
        assert!(lines[1].starts_with(&format!("history  {from} held for ")), "{shown}");
        assert!(lines[1].contains(r"by two\u{200b} (fence "), "{shown}");
        assert!(!fixture.run(&["show", "job"]).stdout.contains("history"), "only if it is asked for");
        run("101", "four").check(2, "LEASEHOLD_HISTORY is `101`");
    }
}

#[test]
fn a_lock_of_another_library_without_an_expiry() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    server.cli(&["SET", "job", "token-of-a-stranger"]).expect("it answers");
    let json = fixture.status();
    assert_eq!(json["held"], true);
    for field in ["holder", "until", "remaining_ms"] {
        assert!(json[field].is_null(), "{json}");
    }
    let shown = fixture.run(&["show", "job"]);
    shown.check(0, "");
    assert!(shown.stdout.contains("for ever: it has no expiry"), "{shown:?}");
    assert!(!shown.stdout.contains("stranger"), "{shown:?}");
}

#[test]
fn invisible_characters_are_escaped_for_people_and_not_for_programs() {
    let fixture = Fixture::sqlite();
    let (name, label) = ("pay\u{200b}roll", "gpj\u{202e}exe\u{2028}two");
    let acquire = ["acquire", name, "--label", label, "--lease", "1m", "--token-file", "token", "-v"];
    let acquired = fixture.run(&acquire);
    acquired.check(0, "acquired");
    assert!(!acquired.stderr.contains('\u{200b}'), "{acquired:?}");
    let shown = fixture.run(&["show", name]);
    shown.check(0, "");
    for line in ["name     pay\\u{200b}roll\n", "holder   gpj\\u{202e}exe\\u{2028}two\n"] {
        assert!(shown.stdout.contains(line), "{line}: {shown:?}");
    }
    let taken = fixture.run(&["run", name, "--try", "--", "true"]);
    taken.check(75, "failed to acquire `pay\\u{200b}roll`: held by gpj\\u{202e}exe\\u{2028}two");
    let json = fixture.run(&["show", name, "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!((json["name"].as_str(), json["holder"].as_str()), (Some(name), Some(label)));
    let freed = fixture.run(&["free", name, "--yes"]);
    freed.check(0, "");
    assert!(freed.stdout.starts_with("freed `pay\\u{200b}roll`: taken from gpj\\u{202e}exe"), "{freed:?}");
    assert!(!freed.stdout.contains("which were not shown"), "its one hold was shown: {freed:?}");
}
