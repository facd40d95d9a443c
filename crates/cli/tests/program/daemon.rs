//! The monitor as a daemon: what it serves, and what it reports to the service manager.

use super::fixture::{Fixture, LIMIT, expect, finish, start, status, until};
use leasehold_testkit::{RedisServer, ReservedPort, Worker};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A monitor that serves its pages.
struct Daemon {
    monitor: Worker,
    address: String,
}

impl Daemon {
    fn start(fixture: &Fixture, arguments: &[&str]) -> Self {
        let listening = ["monitor", "--json", "--listen", "127.0.0.1:0"];
        let mut monitor = start(fixture.command(&[&listening, arguments].concat()));
        let line = expect(&mut monitor, "{\"event\":\"listening\"");
        let event: Value =
            serde_json::from_str(&format!("{{\"event\":\"listening\"{line}")).expect("it is JSON");
        let address = event["address"].as_str().expect("it has an address").to_owned();
        Self { monitor, address }
    }

    fn get(&self, path: &str) -> Answer {
        exchange(&self.address, &format!("GET {path} HTTP/1.0\r\n\r\n")).expect("it answers")
    }

    fn metrics(&self) -> String {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    /// Waits until the metrics have such a line, and returns them.
    #[track_caller]
    fn until(&self, line: &str) -> String {
        let mut metrics = String::new();
        until(line, || {
            metrics = self.metrics();
            metrics.lines().any(|of_all| of_all == line)
        });
        metrics
    }

    fn end(mut self) {
        self.monitor.terminate().expect("it runs");
        assert_eq!(status(&mut self.monitor), Some(0));
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Sends a text, and reads until the end.
fn exchange(address: &str, request: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok(Answer { status, head: head.to_lowercase(), body: body.to_owned() })
}

/// The value of a sample.
fn value(metrics: &str, sample: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs `promtool`, which `cargo xtask test` installs.
#[track_caller]
fn promtool(arguments: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(contrib("prometheus"));
    let found =
        Command::new("promtool").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(found.is_ok(), "there is no promtool: install the package `prometheus`");
    finish(command, input).check(0, "");
}

/// A server with a user that has the rights of a monitor and no others, and the fixtures of the two.
fn with_least_user(server: &RedisServer) -> (Fixture, Fixture) {
    let fixture = Fixture::redis(server);
    let rules = fixture.run(&["acl", "--for", "monitor", "--user", "watch"]);
    rules.check(0, "");
    let words = rules.stdout.trim_end().split(' ');
    let words: Vec<_> = words.map(|word| if word.starts_with('#') { "nopass" } else { word }).collect();
    server.cli(&words).expect("it answers").ok().expect("it is set");
    let monitor = Fixture::at(server.url().replace("//", "//watch@"));
    (fixture, monitor)
}

#[test]
fn the_locks_of_the_fleet_are_metrics_by_class_and_never_by_name() {
    let server = RedisServer::start().expect("there is a server");
    let (jobs, by_least_user) = with_least_user(&server);
    let file = Fixture::sqlite();
    for (jobs, monitor) in [(&jobs, &by_least_user), (&file, &file)] {
        let run = |script: &str| {
            let options =
                ["run", "orders/4711", "--session", "1s", "--lease", "10m", "--", "sh", "-c", script];
            start(jobs.command(&options))
        };
        let mut holder = run("echo held; read line");
        expect(&mut holder, "held");
        let mut waiter = run("echo mine; read line");
        let daemon = Daemon::start(monitor, &["--every", "200ms"]);
        let of_class = "{kind=\"mutex\",class=\"orders/*\"}";
        daemon.until(&format!("leasehold_fleet_waiting{of_class} 1"));
        let metrics = daemon.until(&format!("leasehold_fleet_held{of_class} 1"));
        for line in [
            &format!("leasehold_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
            "leasehold_monitor_up 1",
            "leasehold_monitor_interval_seconds 0.2",
            "leasehold_fleet_up 1",
            "leasehold_fleet_deadlocks 0",
            "leasehold_fleet_sessions{state=\"alive\"} 2",
            "leasehold_fleet_sessions{state=\"dead\"} 0",
            &format!("leasehold_fleet_held_without_expiry{of_class} 0"),
        ] {
            assert!(metrics.lines().any(|of_all| of_all == line), "{line}: {metrics}");
        }
        assert!(!metrics.contains("4711"), "{metrics}");
        let longest = |name: &str| {
            value(&daemon.metrics(), &format!("leasehold_fleet_longest_{name}_seconds{of_class}"))
        };
        until("the wait and the hold get older", || {
            longest("wait") > Some(1.0) && longest("hold") > longest("wait")
        });
        promtool(&["check", "metrics"], &daemon.metrics());

        assert!(
            metrics.contains("\nleasehold_monitor_evicted_holds_total 0\n"),
            "an increase from 0 is seen"
        );
        // The waiter first: it would take the lock from a holder that is dead.
        waiter.kill().expect("it runs");
        holder.kill().expect("it runs");
        daemon.until("leasehold_monitor_freed_total{class=\"orders/*\",what=\"hold\"} 1");
        daemon.until("leasehold_monitor_evicted_holds_total 1");
        daemon.end();
    }
}

/// A Prometheus that is ended with its test.
struct Prometheus {
    child: Child,
    address: String,
    _port: ReservedPort,
}

impl Prometheus {
    /// With the rules of this project. Scrapes that address.
    fn start(fixture: &Fixture, target: &str) -> Self {
        let port = ReservedPort::new().expect("a port is free");
        let address = format!("127.0.0.1:{}", port.number());
        let config = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: leasehold, static_configs: [{{targets: ['{target}']}}]}}]\n",
            contrib("prometheus/leasehold.rules.yml").display()
        );
        fs::write(fixture.path("prometheus.yml"), config).expect("it is written");
        let mut command = Command::new("prometheus");
        command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"]);
        command.arg(format!("--web.listen-address={address}")).current_dir(fixture.path(""));
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.expect("there is no prometheus: install the package of that name");
        Self { child, address, _port: port }
    }

    /// The answer of its API.
    fn get(&self, path: &str) -> Option<Value> {
        let answer = exchange(&self.address, &format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n")).ok()?;
        (answer.status == 200).then(|| serde_json::from_str(&answer.body).expect("it is JSON"))
    }

    /// The values of an expression.
    fn query(&self, expression: &str) -> Vec<String> {
        let mut encoded = String::new();
        for byte in expression.bytes() {
            write!(encoded, "%{byte:02x}").expect("writing to a string cannot fail");
        }
        let answer = self.get(&format!("query?query={encoded}")).unwrap_or_default();
        let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        results.iter().filter_map(|result| Some(result["value"][1].as_str()?.to_owned())).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn prometheus_scrapes_the_monitor_and_its_alerts_name_what_is_served() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let mut holder = fixture.start(&[], "echo held; read line");
    expect(&mut holder, "held");
    // No client of this library sets such a key.
    server.cli(&["SET", "foreign", "1"]).expect("it answers").ok().expect("it is set");
    let _waiter = start(fixture.command(&["run", "foreign", "--", "true"]));
    let daemon = Daemon::start(&fixture, &["--every", "200ms"]);
    let prometheus = Prometheus::start(&fixture, &daemon.address);
    let holds =
        |expression: &str, expected: &[&str]| until(expression, || prometheus.query(expression) == expected);
    holds("up{job=\"leasehold\"}", &["1"]);
    holds("leasehold_fleet_held{kind=\"mutex\",class=\"job\"}", &["1"]);
    holds("leasehold_fleet_waiting{class=\"foreign\"}", &["1"]);
    holds("leasehold_fleet_held_without_expiry{class=\"foreign\"}", &["1"]);
    holds("leasehold_fleet_sessions{state=\"alive\"}", &["2"]);
    holds("rate(leasehold_monitor_rounds_total{outcome=\"done\"}[30s]) > bool 0", &["1"]);
    holds("histogram_quantile(0.99, rate(leasehold_monitor_round_seconds_bucket[30s])) < bool 10", &["1"]);
    holds("time() - leasehold_monitor_last_round_timestamp_seconds < bool 60", &["1"]);

    let mut rules = Vec::new();
    let of =
        |rules: &[Value], name| rules.iter().find(|rule| rule["name"] == name).cloned().unwrap_or_default();
    until("the rules are evaluated, and one of them sees the key", || {
        let answer = prometheus.get("rules").unwrap_or_default();
        rules = answer["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        let is_evaluated = rules.iter().all(|rule| rule["health"] != "unknown");
        is_evaluated && of(&rules, "LeaseholdLockWithoutExpiry")["state"] == "pending"
    });
    assert!(rules.iter().all(|rule| rule["health"] == "ok"), "{rules:?}");
    let alert = of(&rules, "LeaseholdLockWithoutExpiry");
    assert_eq!(alert["alerts"][0]["labels"]["class"], "foreign", "{alert}");
    assert_eq!(of(&rules, "LeaseholdStoreDown")["state"], "inactive");
    daemon.end();
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    words.filter(|word| word.starts_with("leasehold_")).map(str::to_owned).collect()
}

#[test]
fn dashboard_and_rules_name_only_what_is_served_and_the_dashboard_all_of_it() {
    let fixture = Fixture::sqlite();
    let daemon = Daemon::start(&fixture, &[]);
    let metrics = daemon.metrics();
    daemon.end();
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut served: BTreeSet<_> = types.clone().map(|(name, _)| name.to_owned()).collect();
    let all = served.clone();
    for (name, _) in types.filter(|(_, kind)| *kind == "histogram") {
        served.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
    }
    let dashboard = read(&contrib("grafana/leasehold.json"));
    let rules = read(&contrib("prometheus/leasehold.rules.yml"));
    for text in [&dashboard, &rules] {
        let unknown: Vec<_> = names(text).into_iter().filter(|name| !served.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
    let drawn = names(&dashboard.replace("_bucket", ""));
    assert_eq!(all.difference(&drawn).collect::<Vec<_>>(), <[&String; 0]>::default());

    let dashboard: Value = serde_json::from_str(&dashboard).expect("it is JSON");
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    assert!(targets.clone().count() > 10);
    for target in targets {
        assert_eq!(target["datasource"]["uid"], "${datasource}", "{target}");
    }
}

#[test]
fn the_rules_are_valid_fire_when_they_should_and_name_a_runbook() {
    promtool(&["check", "rules", "leasehold.rules.yml"], "");
    promtool(&["check", "config", "prometheus.yml"], "");
    promtool(&["test", "rules", "leasehold.rules.test.yml"], "");
    let rules = read(&contrib("prometheus/leasehold.rules.yml"));
    let runbooks = read(&contrib("../docs/how-to/respond-to-alerts.md"));
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 5, "{rules}");
    for alert in &alerts {
        assert!(runbooks.lines().any(|line| line == format!("## {alert}")), "{alert}");
        let link = format!("docs/how-to/respond-to-alerts.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&link), "{link}");
    }
    assert_eq!(runbooks.lines().filter(|line| line.starts_with("## Leasehold")).count(), alerts.len());
}

#[test]
fn systemd_accepts_the_units() {
    let found = Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).status();
    assert!(found.is_ok(), "there is no systemd-analyze: install the package `systemd`");
    let fixture = Fixture::sqlite();
    for name in [
        "leasehold-monitor.service",
        "leasehold-lead@.service",
        "leasehold-run@.service",
        "leasehold-run@.timer",
    ] {
        let unit = read(&contrib("systemd").join(name));
        let unit = unit.replace("/usr/local/bin/leasehold", env!("CARGO_BIN_EXE_leasehold"));
        fs::write(fixture.path(&name.replace('@', "@nightly-report")), unit).expect("it is written");
    }
    for name in [
        "leasehold-monitor.service",
        "leasehold-lead@nightly-report.service",
        "leasehold-run@nightly-report.timer",
    ] {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(fixture.path(name));
        let outcome = finish(command, "");
        outcome.check(0, "");
        // It succeeds with an unknown setting as well.
        assert!(!outcome.stderr.contains(name.split(['.', '@']).next().expect("a part")), "{outcome:?}");
    }
}

#[test]
fn only_get_and_head_of_two_pages_are_answered() {
    let fixture = Fixture::sqlite();
    let daemon = Daemon::start(&fixture, &["--every", "100ms"]);
    until("the first round", || daemon.get("/healthz").status == 200);
    let health = daemon.get("/healthz");
    assert_eq!((&*health.body, health.head.contains("content-type: text/plain")), ("ok\n", true));
    assert!(daemon.get("/metrics").head.contains("content-type: text/plain; version=0.0.4"));
    assert_eq!((daemon.get("/metrics?name=x").status, daemon.get("/").status), (200, 404));
    let send = |request: &str| exchange(&daemon.address, request).expect("it answers");
    let head = send("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((head.status, &*head.body), (200, ""));
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let refused = send(&format!("{method} /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!((refused.status, refused.head.contains("allow: get, head")), (405, true), "{refused:?}");
    }
    let long = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    // It may close the connection before all of that is sent, or read.
    let refused = exchange(&daemon.address, &long);
    assert!(refused.as_ref().map_or(true, |answer| [0, 431].contains(&answer.status)), "{refused:?}");
    assert_eq!(daemon.get("/healthz").status, 200);
    daemon.end();
}

#[test]
fn slow_clients_do_not_keep_others_from_an_answer() {
    let fixture = Fixture::sqlite();
    let daemon = Daemon::start(&fixture, &[]);
    let slow: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(&daemon.address).expect("it accepts");
            stream.write_all(b"GET /metrics HTTP/1.1\r\n").expect("it is connected");
            stream
        })
        .collect();
    assert_eq!(daemon.get("/metrics").status, 200);
    for mut stream in slow {
        stream.set_read_timeout(Some(LIMIT)).expect("a time");
        let mut rest = Vec::new();
        // Closed, whether or not with an answer.
        let end = stream.read_to_end(&mut rest);
        assert!(!end.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock), "it is never closed");
    }
    daemon.end();
}

#[test]
fn scrapes_cost_the_server_nothing() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let daemon = Daemon::start(&fixture, &["--every", "1h"]);
    let calls = || {
        let info = server.cli(&["INFO", "commandstats"]).expect("it answers");
        let info = info.text().expect("a text").to_owned();
        let of =
            |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse::<u64>().ok();
        info.lines().find_map(of).unwrap_or(0)
    };
    daemon.until("leasehold_monitor_rounds_total{outcome=\"done\"} 1");
    let (before, start) = (calls(), std::time::Instant::now());
    for _ in 0..1000 {
        daemon.metrics();
    }
    // The list of the fleet is read every 2 s, and nothing else.
    let most = start.elapsed().as_secs() / 2 * 2 + 4;
    assert!(calls() - before <= most, "{} > {most}", calls() - before);
    daemon.end();
}

#[test]
fn health_is_503_with_the_reason_while_the_store_does_not_answer() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let daemon = Daemon::start(&fixture, &["--every", "100ms"]);
    until("the first round", || daemon.get("/healthz").status == 200);
    daemon.until("leasehold_fleet_up 1");
    server.stop().expect("it runs");
    daemon.until("leasehold_monitor_up 0");
    until("it is unhealthy", || daemon.get("/healthz").status == 503);
    let reason = daemon.get("/healthz").body;
    assert!(reason.starts_with("the store has not answered for 1"), "{reason}");
    let metrics = daemon.until("leasehold_fleet_up 0");
    assert!(
        !metrics.contains("\nleasehold_fleet_sessions{") && !metrics.contains("\nleasehold_fleet_deadlocks ")
    );
    server.resume().expect("it is stopped");
    until("it is healthy", || daemon.get("/healthz").status == 200);
    daemon.until("leasehold_fleet_up 1");
    assert!(value(&daemon.metrics(), "leasehold_monitor_rounds_total{outcome=\"failed\"}") >= Some(1.0));
    daemon.end();
}

#[test]
fn a_health_check_needs_no_store_and_no_shell() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let daemon = Daemon::start(&fixture, &["--every", "100ms"]);
    // As in a container, where the variable names the store of the monitor.
    let nowhere = Fixture::at("redis://127.0.0.1:1".to_owned());
    let check = || nowhere.run(&["monitor", "--check", &daemon.address]);
    until("the first round", || daemon.get("/healthz").status == 200);
    let healthy = check();
    healthy.check(0, "");
    assert_eq!((&*healthy.stdout, &*healthy.stderr), ("", ""));
    server.stop().expect("it runs");
    until("it is unhealthy", || daemon.get("/healthz").status == 503);
    let unhealthy = format!("the monitor at {} is not healthy: the store has not answered", daemon.address);
    check().check(69, &unhealthy);
    server.resume().expect("it is stopped");
    until("it is healthy", || check().status.success());
    let address = daemon.address.clone();
    daemon.end();
    let failed = format!("failed to ask http://{address}/healthz");
    nowhere.run(&["monitor", "--check", &address]).check(69, &failed);
    nowhere.run(&["monitor", "--check", &address, "--listen", "0"]).check(2, "cannot be used with");
}

#[test]
fn a_health_check_of_something_else_ends() {
    let fixture = Fixture::sqlite();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    // Accepted by the kernel, and never answered.
    fixture.run(&["monitor", "--check", &address]).check(69, "no answer within 3s");
    let endless = std::thread::spawn(move || {
        // That client comes first, and is gone.
        drop(listener.accept().expect("a client"));
        let (mut stream, _) = listener.accept().expect("a client");
        // An answer before the request would be refused for that.
        let request = stream.read(&mut [0; 1024]).expect("a request");
        assert!(request > 0, "the client sends a request");
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut sent = stream.write_all(head.as_bytes());
        while sent.is_ok() {
            sent = stream.write_all(b"4\r\nmore\r\n");
        }
    });
    fixture.run(&["monitor", "--check", &address]).check(69, "length limit exceeded");
    endless.join().expect("it ends with its client");
}

/// The socket of a service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn next(&self) -> Option<String> {
        let mut buffer = [0; 4096];
        let len = self.0.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }
}

#[test]
fn the_service_manager_learns_of_the_first_round_of_each_further_one_and_of_the_end() {
    let fixture = Fixture::sqlite();
    let path = fixture.path("notify");
    let name = format!("leasehold-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    for (socket, variable) in [
        (UnixDatagram::bind(&path), path.display().to_string()),
        (UnixDatagram::bind_addr(&address), format!("@{name}")),
    ] {
        let manager = Manager(socket.expect("it is free"));
        manager.0.set_read_timeout(Some(LIMIT)).expect("a time");
        let listening = ["monitor", "--json", "--every", "2s", "--listen", "127.0.0.1:0"];
        let mut command = fixture.command(&listening);
        command.env("NOTIFY_SOCKET", variable).env("WATCHDOG_USEC", "10000000");
        let mut monitor = start(command);
        let line = expect(&mut monitor, "{\"event\":\"listening\"");
        let address = line.split('"').rev().nth(1).expect("an address").to_owned();
        let rounds = || {
            let answer = exchange(&address, "GET /metrics HTTP/1.0\r\n\r\n").expect("it answers");
            value(&answer.body, "leasehold_monitor_rounds_total{outcome=\"done\"}")
        };
        let first = manager.next().expect("a message");
        for line in
            ["READY=1", "WATCHDOG=1", "STATUS=sessions: 0 alive, 0 dead; locks and queue entries freed: 0"]
        {
            assert!(first.lines().any(|of_all| of_all == line), "{line}: {first}");
        }
        let mut messages = 1_u32;
        while messages < 3 {
            let next = manager.next().expect("a message");
            assert!(next.contains("WATCHDOG=1\n") && !next.contains("READY"), "{next}");
            messages += 1;
        }
        until("there were as many rounds", || rounds() >= Some(f64::from(messages)));
        let rounds = rounds();
        monitor.terminate().expect("it runs");
        until("it is stopping", || {
            let next = manager.next().expect("a message");
            messages += u32::from(next.contains("WATCHDOG=1\n"));
            next.contains("STOPPING=1\n")
        });
        assert!(rounds <= Some(f64::from(messages)), "each round is reported: {rounds:?}, {messages}");
        assert_eq!(status(&mut monitor), Some(0));
        manager.0.set_read_timeout(Some(Duration::from_millis(50))).expect("a time");
        assert_eq!(manager.next(), None);
    }
}

#[test]
fn a_monitor_is_ready_only_once_the_store_has_answered_a_round() {
    let server = RedisServer::start().expect("there is a server");
    let (_, fixture) = with_least_user(&server);
    let set = |right: &str| {
        server.cli(&["ACL", "SETUSER", "watch", right]).expect("it answers").ok().expect("it is set");
    };
    set("-zrange");
    let path = fixture.path("notify");
    let manager = Manager(UnixDatagram::bind(&path).expect("it is free"));
    manager.0.set_read_timeout(Some(LIMIT)).expect("a time");
    let mut command = fixture.command(&["monitor", "--every", "100ms"]);
    command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "10000000");
    let mut monitor = start(command);
    for _ in 0..2 {
        let message = manager.next().expect("a message");
        assert!(message.contains("STATUS=trouble: ") && message.contains("permission"), "{message}");
        assert!(message.contains("WATCHDOG=1\n") && !message.contains("READY"), "rounds go on: {message}");
    }
    set("+zrange");
    until("it is ready", || manager.next().expect("a message").contains("READY=1\n"));
    monitor.terminate().expect("it runs");
    assert_eq!(status(&mut monitor), Some(0));
}

#[test]
fn settings_that_cannot_work_are_refused_at_once() {
    let fixture = Fixture::sqlite();
    let mut command = fixture.command(&["monitor", "--every", "20s"]);
    command.env("NOTIFY_SOCKET", "/nowhere").env("WATCHDOG_USEC", "30000000");
    finish(command, "").check(2, "after 30s, but rounds can be 80s apart: set WatchdogSec=");
    fixture.run(&["monitor", "--listen", "localhost"]).check(2, "ADDRESS:PORT, or a port of 127.0.0.1");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    fixture.run(&["monitor", "--listen", &port]).check(69, &format!("failed to listen on 127.0.0.1:{port}"));
    // Of another process.
    let mut command = fixture.command(&["monitor", "--every", "20s", "--json"]);
    command.env("NOTIFY_SOCKET", "nowhere").env("WATCHDOG_USEC", "1").env("WATCHDOG_PID", "1");
    let mut monitor = start(command);
    expect(&mut monitor, "{\"event\":\"started\"");
    monitor.terminate().expect("it runs");
    assert_eq!(status(&mut monitor), Some(0));
}
