//! What operators copy: units for systemd, manifests for Kubernetes and pipelines. Each starts the program with options that
//! it has, and a stop is no failure.
//!
//! Whether systemd accepts the units is tested beside the monitor, in `daemon`.

use super::fixture::{Fixture, Outcome, expect, finish, start, status};
use leasehold_testkit::RedisServer;
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The path of the program in manifests and units.
const PROGRAM: &str = "/usr/local/bin/leasehold";
const PASSWORD: &str = "s3cr3tPW";

fn contrib(directory: &str) -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(directory);
    let entries = fs::read_dir(&directory).expect("a directory of contrib");
    let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).expect("text"))).collect()
}

/// A server with a password, and a directory in which the file `password` contains it.
fn with_password() -> (RedisServer, Fixture) {
    let server = RedisServer::builder().password(PASSWORD).start().expect("there is a server");
    let fixture = Fixture::at(format!("redis://127.0.0.1:{}", server.port()));
    fs::write(fixture.path("password"), format!("{PASSWORD}\n")).expect("the directory is ours");
    (server, fixture)
}

/// The arguments of a file, with what a test has in place of password files, addresses and commands.
fn adapted<'a>(arguments: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    let options = arguments.split(|argument| *argument == "--").next().unwrap_or_default();
    let mut adapted = Vec::new();
    for (at, argument) in options.iter().enumerate() {
        adapted.push(match at.checked_sub(1).map(|before| options[before]) {
            Some("--password-file") => "password",
            Some("--listen") => "127.0.0.1:0",
            _ => argument,
        });
    }
    if options.len() < arguments.len() {
        adapted.push("--");
        adapted.extend(command);
    }
    adapted
}

/// Runs what a manifest or unit runs, to its end, and once more until SIGTERM. Returns the status after SIGTERM.
fn run_and_stop(fixture: &Fixture, arguments: &[&str]) -> Option<i32> {
    let is_monitor = arguments.first() == Some(&"monitor");
    if !is_monitor {
        fixture.run(&adapted(arguments, &["true"])).check(0, "");
    }
    let waiting = adapted(arguments, &["sh", "-c", "echo begun; exec sleep 60"]);
    let mut program = start(fixture.command(&waiting));
    expect(&mut program, if is_monitor { "{\"event\":\"listening\"" } else { "begun" });
    program.terminate().expect("it runs");
    status(&mut program)
}

/// All objects within a value that have such a field.
fn with_field<'v>(value: &'v Value, field: &str, found: &mut Vec<&'v Value>) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key(field) {
                found.push(value);
            }
            fields.values().for_each(|value| with_field(value, field, found));
        }
        Value::Array(values) => values.iter().for_each(|value| with_field(value, field, found)),
        _ => {}
    }
}

fn all_with_field<'v>(value: &'v Value, field: &str) -> Vec<&'v Value> {
    let mut found = Vec::new();
    with_field(value, field, &mut found);
    found
}

fn list(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn names<'v>(value: &'v Value, field: &str) -> Vec<&'v str> {
    value.as_array().into_iter().flatten().filter_map(|entry| entry[field].as_str()).collect()
}

fn yaml(name: &str, text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn manifests_run_the_program_and_leave_it_time_to_stop() {
    let (_server, fixture) = with_password();
    let manifests = contrib("kubernetes");
    assert!(manifests.len() >= 3, "{}", manifests.len());
    for (name, text) in &manifests {
        let manifest = yaml(name, text);
        for field in ["apiVersion", "kind"] {
            assert!(manifest[field].is_string(), "{name}: {field}");
        }
        assert!(manifest["metadata"]["name"].is_string(), "{name}");
        let pods = all_with_field(&manifest, "containers");
        assert_eq!(pods.len(), 1, "{name}");
        let pod = pods[0];
        let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("the time to stop");
        let volumes = names(&pod["volumes"], "name");
        for container in pod["containers"].as_array().expect("a list") {
            let command = list(&container["command"]);
            assert!(
                matches!(&command[..], [PROGRAM | "/leasehold"]),
                "{name}: it is process 1, and gets SIGTERM: {command:?}"
            );
            let mounts = names(&container["volumeMounts"], "mountPath");
            assert!(names(&container["volumeMounts"], "name").iter().all(|name| volumes.contains(name)));
            let arguments = list(&container["args"]);
            let file = arguments.iter().position(|argument| *argument == "--password-file");
            let file = arguments[file.expect("no password is in the manifest") + 1];
            assert!(mounts.iter().any(|mount| file.starts_with(mount)), "{name}: {file}");
            assert!(names(&container["env"], "name").contains(&"LEASEHOLD_STORE"), "{name}");
            // The release takes 2 s at most, after the command has ended.
            assert!(grace > 2 && (grace >= 30 || arguments[0] == "monitor"), "{name}: {grace}");
            let is_stopped = run_and_stop(&fixture, &arguments);
            assert_eq!(is_stopped, Some(if arguments[0] == "monitor" { 0 } else { 143 }), "{name}");
        }
    }
    fixture
        .run(&["run", "nightly-report", "--try", "--password-file", "password", "--", "true"])
        .check(0, "");
}

#[test]
fn a_label_selects_the_pods_of_its_deployment() {
    for (name, text) in contrib("kubernetes") {
        let manifest = yaml(&name, &text);
        if manifest["kind"] == "Deployment" {
            let spec = &manifest["spec"];
            assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"], "{name}");
        }
    }
}

#[test]
fn a_unit_that_was_stopped_has_not_failed() {
    let (_server, fixture) = with_password();
    let mut commands = 0;
    for (name, unit) in contrib("systemd").iter().filter(|(name, _)| name.ends_with(".service")) {
        let setting = |name: &str| {
            unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
        };
        let line = setting("ExecStart").replace("%i", "nightly").replace("%H", "host");
        let words: Vec<&str> = line.split(' ').collect();
        let (program, arguments) = words.split_first().expect("a command");
        assert_eq!(*program, PROGRAM, "{name}");
        let stopped = run_and_stop(&fixture, arguments).expect("it ends by itself").to_string();
        let succeeds = |status: &str| setting("SuccessExitStatus").split(' ').any(|it| it == status);
        assert!(stopped == "0" || succeeds(&stopped), "{name}: {stopped} is a failure");
        if arguments[0] == "lead" {
            // Otherwise a command that another program ends by SIGTERM would stay ended.
            assert_eq!(setting("RestartForceExitStatus"), stopped, "{name}");
        }
        commands += 1;
    }
    assert_eq!(commands, 3);
}

/// A stand-in for what is deployed: it fails unless the lock is held meanwhile.
const STAND_IN: &str = "#!/bin/sh
leasehold run deploy/shop --try --quiet -- true
[ $? = 75 ] && echo \"$0\" \"${1:+with a token}\" >> done
";

fn in_a_runner(fixture: &Fixture, script: &str) -> Outcome {
    for name in ["deploy.sh", "migrate.sh", "switch-over.sh"] {
        fs::write(fixture.path(name), STAND_IN).expect("the directory is ours");
    }
    let mut shell = Command::new("bash");
    let made_executable = format!("chmod +x *.sh\n{script}");
    shell.args(["--norc", "-e", "-c", &made_executable]).current_dir(fixture.path(""));
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().expect("a directory");
    let path = format!("{}:{}", program.display(), env::var("PATH").expect("there is a PATH"));
    shell.env("PATH", path).env("LEASEHOLD_STORE", fixture.url()).env("RUNNER_TEMP", fixture.path(""));
    shell.env("LEASEHOLD_STATE_DIR", fixture.path("state")).env("TOKEN", fixture.path("gitlab.token"));
    for name in ["GITHUB_REPOSITORY", "GITHUB_RUN_ID", "CI_PROJECT_PATH", "CI_JOB_ID"] {
        shell.env(name, name.to_lowercase());
    }
    finish(shell, "")
}

/// The scripts of each job: its steps, in a shell each or in one.
fn jobs(name: &str, pipeline: &Value) -> Vec<Vec<String>> {
    if name.starts_with("github") {
        let jobs = pipeline["jobs"].as_object().expect("jobs");
        let steps = |job: &Value| -> Vec<String> {
            names(&job["steps"], "run").into_iter().map(str::to_owned).collect()
        };
        jobs.values().map(steps).collect()
    } else {
        let jobs = pipeline.as_object().expect("jobs");
        let scripts = |job: &Value| {
            ["script", "after_script"].map(|part| list(&job[part]).join("\n")).into_iter().collect()
        };
        jobs.values().map(scripts).collect()
    }
}

#[test]
fn pipelines_deploy_under_the_lock_and_release_it() {
    for (name, text) in contrib("ci") {
        for (at, steps) in jobs(&name, &yaml(&name, &text)).iter().enumerate() {
            assert!(!steps.is_empty(), "{name}");
            let fixture = Fixture::sqlite();
            for step in steps {
                in_a_runner(&fixture, step).check(0, "");
            }
            let done = fixture.read("done");
            assert!(
                done == "./deploy.sh \n" || done.ends_with("./switch-over.sh with a token\n"),
                "{name} {at}: {done}"
            );
            fixture.run(&["run", "deploy/shop", "--try", "--", "true"]).check(0, "");
        }
    }
}
