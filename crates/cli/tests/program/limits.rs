//! Limits of the operating system that leave the program too little to start.

use super::fixture::{Fixture, Outcome, finish};
use leasehold_testkit::RedisServer;
use std::process::Command;

/// Runs the program with a limit of open files.
fn with_descriptors(fixture: &Fixture, most: u32, arguments: &[&str]) -> Outcome {
    let program = fixture.command(arguments);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -n {most}; exec \"$0\" \"$@\""));
    shell.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    finish(shell, "")
}

#[test]
fn too_few_descriptors_are_reported_before_anything_is_acquired() {
    let server = RedisServer::start().expect("there is a server");
    for fixture in [Fixture::sqlite(), Fixture::redis(&server)] {
        for most in [4, 5, 6, 8, 10, 12, 16, 24, 32] {
            let run = ["run", "job", "--", "echo", "never"];
            let failed = with_descriptors(&fixture, most, &run);
            failed.check(69, "file descriptors");
            assert_eq!(failed.stdout, "", "{failed:?}");
            with_descriptors(&fixture, most, &["show", "job"]).check(69, "ulimit -n");
        }
        let run = with_descriptors(&fixture, 40, &["run", "job", "--", "echo", "running"]);
        run.check(0, "");
        assert_eq!(run.stdout, "running\n");
        fixture.assert_free();
    }
}

#[test]
fn a_thread_that_cannot_start_is_an_error_and_no_panic() {
    let server = RedisServer::start().expect("there is a server");
    // A host name is looked up on a thread.
    let named = Fixture::at(format!("redis://localhost:{}", server.port()));
    for fixture in [Fixture::sqlite(), named] {
        let mut command = fixture.command(&["run", "job", "--", "echo", "never"]);
        // No address space has room for such a stack.
        command.env("RUST_MIN_STACK", (1_u64 << 46).to_string());
        finish(command, "").check(69, "cannot start a thread");
    }
}
