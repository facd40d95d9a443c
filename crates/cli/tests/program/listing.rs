//! `ls` and `show`: patterns, order, width, times, watching, and what only a scan finds.

use super::fixture::{Fixture, expect, finish, signal, start, status, until};
use super::terminal::terminal;
use leasehold_testkit::{Cluster, RedisServer, Worker};
use serde_json::Value;

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn names(fixture: &Fixture, options: &[&str]) -> Vec<String> {
    let outcome = fixture.run(&[&["ls", "--json"], options].concat());
    outcome.check(0, "");
    rows(&outcome.stdout).iter().map(|row| row["name"].as_str().expect("a name").to_owned()).collect()
}

/// Holders of locks with these names, once they are listed.
fn holders(fixture: &Fixture, names_of_locks: &[&str]) -> Vec<Worker> {
    let hold = |name: &&str| {
        let mut worker = start(fixture.command(&["run", *name, "--", "sh", "-c", "echo held; read line"]));
        expect(&mut worker, "held");
        worker
    };
    let workers = names_of_locks.iter().map(hold).collect();
    until("they are listed", || names(fixture, &[]).len() == names_of_locks.len());
    workers
}

#[test]
fn locks_are_selected_by_a_pattern_and_sorted() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let mut all = holders(&fixture, &["orders:2", "orders:1", "other"]);
        assert_eq!(names(&fixture, &[]), ["orders:1", "orders:2", "other"]);
        assert_eq!(names(&fixture, &["orders:*"]), ["orders:1", "orders:2"]);
        assert_eq!(names(&fixture, &["o?????"]), [""; 0]);
        assert_eq!(names(&fixture, &["*:1"]), ["orders:1"]);
        assert_eq!(names(&fixture, &["--sort", "since"]), ["orders:2", "orders:1", "other"]);
        let mut waiter = start(fixture.command(&["run", "other", "--", "true"]));
        until("it waits", || names(&fixture, &["--sort", "waiting"])[0] == "other");
        let sessions = fixture.run(&["ls", "--sessions", "--json", "*:2"]);
        assert_eq!(rows(&sessions.stdout)[0]["pid"], all[0].pid());
        for worker in &mut all {
            worker.send("go").expect("it reads");
            assert_eq!(status(worker), Some(0));
        }
        assert_eq!(status(&mut waiter), Some(0));
    }
}

#[test]
fn times_are_ages_or_exact() {
    let fixture = Fixture::sqlite();
    let mut all = holders(&fixture, &["job"]);
    let text = fixture.run(&["ls"]).stdout;
    assert!(text.contains("  sh       now  ") || text.contains("s ago  "), "{text}");
    let text = fixture.run(&["ls", "--utc"]).stdout;
    let since = fixture.status()["since"].as_str().expect("it is known").to_owned();
    assert!(text.contains(&since) && since.ends_with('Z'), "{text}");
    let shown = fixture.run(&["show", "job", "--utc"]).stdout;
    assert!(shown.contains(&format!("since    {since}\n")), "{shown}");
    let mut local = fixture.command(&["show", "job"]);
    local.env("TZ", "Asia/Kathmandu");
    let shown = finish(local, "").stdout;
    let line = shown.lines().find(|line| line.starts_with("since")).unwrap_or_default();
    let has_zone =
        line.contains("+05:45 (") || !std::path::Path::new("/usr/share/zoneinfo/Asia/Kathmandu").exists();
    assert!(has_zone && (line.ends_with(" ago)") || line.ends_with("(now)")), "{shown}");
    all[0].send("go").expect("it reads");
    assert_eq!(status(&mut all[0]), Some(0));
}

#[test]
fn a_list_fits_the_terminal() {
    let fixture = Fixture::sqlite();
    let name = format!("漢字-{}", "n".repeat(100));
    let mut all = holders(&fixture, &[&name]);
    for columns in [50, 80] {
        let Some(command) = terminal(&fixture, &format!("stty cols {columns} rows 24; exec $LEASEHOLD ls"))
        else {
            return;
        };
        let text = finish(command, "").stdout;
        let [head, line] = text.lines().collect::<Vec<_>>()[..] else { panic!("two lines: {text}") };
        assert!(line.starts_with("漢字-") && line.contains("…  ") && line.contains("  sh  "), "{text}");
        assert!(head.ends_with("WAITING") && line.ends_with(" 0"), "{text}");
        // Two characters of the line are twice as wide as others.
        assert!(line.chars().count() + 2 <= columns, "{columns}: {text}");
    }
    let piped = fixture.run(&["ls"]).stdout;
    assert!(piped.contains(&name) && piped.contains("HOLDER"), "{piped}");
    all[0].send("go").expect("it reads");
    assert_eq!(status(&mut all[0]), Some(0));
}

#[test]
fn a_watched_list_is_appended_to_a_pipe_and_ends_at_a_signal() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        let mut watch = start(fixture.command(&["ls", "--watch", "--interval", "500ms"]));
        expect(&mut watch, "NAME");
        let mut all = holders(&fixture, &["job"]);
        expect(&mut watch, "job ");
        expect(&mut watch, "job ");
        all[0].send("go").expect("it reads");
        assert_eq!(status(&mut all[0]), Some(0));
        signal(watch.pid(), "INT");
        assert_eq!(status(&mut watch), Some(0));
        let mut show = start(fixture.command(&["show", "job", "--json", "--watch", "--interval", "500ms"]));
        for _ in 0..3 {
            expect(&mut show, "{\"name\":\"job\"");
        }
        signal(show.pid(), "INT");
        assert_eq!(status(&mut show), Some(0));
    }
}

#[test]
fn a_watched_list_ends_when_no_one_reads_it() {
    let fixture = Fixture::sqlite();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "$LEASEHOLD ls --watch --interval 500ms | head -n 1; echo ended"]);
    shell.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold")).env("LEASEHOLD_STORE", fixture.url());
    assert!(finish(shell, "").stdout.ends_with("ended\n"));
}

#[test]
fn a_watched_lock_is_redrawn_in_place_on_a_terminal() {
    let fixture = Fixture::sqlite();
    let script = "stty cols 60 rows 12; exec $LEASEHOLD show job --watch --interval 500ms";
    let Some(command) = terminal(&fixture, script) else { return };
    let mut watch = start(command);
    expect(&mut watch, "name     job");
    let again = (0..20)
        .map(|_| watch.line(super::fixture::LIMIT).expect("it goes on"))
        .find(|line| line.contains("name"));
    assert!(
        again.is_some_and(|line| line.contains("\u{1b}[J\u{1b}[4A\rname     job\u{1b}[K")),
        "four lines are drawn over"
    );
    watch.send("\x03").expect("it reads");
    assert_eq!(status(&mut watch), Some(0));
}

#[test]
fn an_outage_does_not_end_a_watched_list() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut watch = super::fixture::start_with_errors(&fixture, &["ls", "--watch", "--interval", "500ms"]);
    expect(&mut watch, "NAME");
    server.stop().expect("it runs");
    expect(&mut watch, "leasehold: failed to list the locks");
    server.resume().expect("it is stopped");
    expect(&mut watch, "NAME");
    signal(watch.pid(), "TERM");
    assert_eq!(status(&mut watch), Some(0));
}

#[test]
fn a_scan_finds_locks_of_other_libraries_detached_ones_and_those_without_an_expiry() {
    let server = RedisServer::start().expect("there is a server");
    let cluster = Cluster::start(3, 0).expect("there is a cluster");
    for (fixture, prefix) in [
        (Fixture::redis(&server), ""),
        (Fixture::at(format!("{}?prefix=app:", server.url())), "app:"),
        (Fixture::at(cluster.url()), ""),
    ] {
        let set = |command: &[&str]| {
            let key = format!("{prefix}{}", command[1]);
            let command: Vec<_> =
                command.iter().enumerate().map(|(at, word)| if at == 1 { &*key } else { word }).collect();
            if fixture.url().contains("cluster") {
                cluster.cli_at(&key, &command).expect("it answers").ok().expect("it is set");
            } else {
                server.cli(&command).expect("it answers").ok().expect("it is set");
            }
        };
        set(&["SET", "orders:[1]", "a-token-of-redsync", "PX", "60000"]);
        set(&["SET", "orders:*", "left behind"]);
        set(&["SET", "cache:1", "no lock"]);
        set(&["RPUSH", "orders:list", "no lock"]);
        set(&["HSET", "orders:redisson", "6f9a:41", "2"]);
        set(&["PEXPIRE", "orders:redisson", "60000"]);
        set(&["HSET", "orders:stuck", "6f9a:42", "1"]);
        set(&["HSET", "orders:user", "name", "no lock"]);
        set(&["HSET", "orders:two", "name", "1", "age", "2"]);
        let detached =
            ["acquire", "orders:detached", "--lease", "1m", "--token-file", "t", "--label", "a script"];
        fixture.run(&detached).check(0, "");
        let mut held = holders(&fixture, &["orders:ours"]);

        assert_eq!(
            names(&fixture, &["orders:*", "--foreign"]),
            ["orders:*", "orders:[1]", "orders:detached", "orders:redisson", "orders:stuck"]
        );
        assert_eq!(names(&fixture, &["orders:*", "--no-expiry"]), ["orders:*", "orders:stuck"]);
        assert_eq!(names(&fixture, &["orders:[*", "--foreign"]), ["orders:[1]"]);
        assert_eq!(names(&fixture, &["orders:\\*", "--foreign"]), ["orders:*"]);
        assert_eq!(names(&fixture, &["*", "--no-expiry"]), ["cache:1", "orders:*", "orders:stuck"]);
        let outcome = fixture.run(&["ls", "orders:*", "--foreign", "--json"]);
        let found = rows(&outcome.stdout);
        let foreign: Vec<_> = found.iter().map(|row| row["foreign"] == true).collect();
        assert_eq!(
            (foreign, &found[2]["holder"]),
            (vec![true, true, false, true, true], &"a script".into()),
            "{found:?}"
        );
        assert_eq!((&found[3]["kind"], &found[3]["count"]), (&"reentrant".into(), &2.into()), "{found:?}");
        assert!(!outcome.stdout.contains("redsync") && !outcome.stdout.contains("behind it"), "{outcome:?}");
        let text = fixture.run(&["ls", "orders:*", "--foreign"]).stdout;
        assert!(text.contains("for ever") && text.contains("another library"), "{text}");
        held[0].send("go").expect("it reads");
        assert_eq!(status(&mut held[0]), Some(0));
    }
}

#[test]
fn a_key_without_an_expiry_is_adopted_and_then_bars_the_lock_no_longer() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    server.cli(&["SET", "job", "left behind"]).expect("it answers");
    fixture.script(&["--try"], "true").check(75, "held by");
    assert_eq!(fixture.status()["remaining_ms"], Value::Null);
    let adopted = fixture.script(&["--wait", "10s", "--adopt", "2s"], "echo mine");
    adopted.check(0, "");
    assert_eq!(adopted.stdout, "mine\n");
    // A key with an expiry keeps it.
    server.cli(&["SET", "job", "a token", "PX", "60000"]).expect("it answers");
    fixture.script(&["--try", "--adopt", "1s"], "true").check(75, "held by");
    let left = fixture.status()["remaining_ms"].as_u64().expect("it has an expiry");
    assert!(left > 30_000, "{left}");
}
