//! At a terminal the program is a job like any other. `script` provides the terminal.

use super::fixture::{Fixture, LIMIT, expect, finish, runs, start, status, until};
use leasehold_testkit::Worker;
use std::process::Command;

/// Runs a shell script at a terminal of its own. `$LEASEHOLD` is the program.
pub(crate) fn terminal(fixture: &Fixture, script: &str) -> Option<Command> {
    recorded_terminal(fixture, script, "/dev/null")
}

/// The same, with what it shows in a file of the fixture, too.
pub(crate) fn recorded_terminal(fixture: &Fixture, script: &str, file: &str) -> Option<Command> {
    let mut command = Command::new("script");
    command.args(["--quiet", "--flush", "--return", "--command", script, file]);
    command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold")).env("SHELL", "/bin/sh");
    command.env("LEASEHOLD_STORE", fixture.url()).env("LEASEHOLD_STATE_DIR", fixture.path("state"));
    command.env("TERM", "xterm").current_dir(fixture.path(""));
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: there is no `script` here");
        return None;
    }
    Some(command)
}

#[test]
fn ctrl_c_ends_the_command_and_then_the_program_gives_the_lock_back() {
    // Once while the terminal belongs to the program, and once while the command has it.
    for first in ["", "read line <&3; "] {
        let fixture = Fixture::sqlite();
        let command = format!("{first}trap 'echo int; exit 3' INT; echo ready; while :; do sleep 0.02; done");
        let Some(script) =
            terminal(&fixture, &format!("exec $LEASEHOLD run job -- sh -c \"{command}\" 3<&0"))
        else {
            return;
        };
        let mut run = start(script);
        run.send("typed").expect("it reads");
        expect(&mut run, "ready");
        run.send("\x03").expect("it reads");
        until("the command has ended", || run.line(LIMIT).expect("it prints a line").ends_with("int"));
        assert_eq!(status(&mut run), Some(3), "{first}");
        fixture.assert_free();
    }
}

#[test]
fn a_command_that_reads_from_the_terminal_gets_it_and_gives_it_back() {
    let fixture = Fixture::sqlite();
    let script = "$LEASEHOLD run job -- sh -c 'read line; echo got $line > got'; echo $? > status; stty -a > /dev/null && echo mine > after";
    let Some(command) = terminal(&fixture, script) else { return };
    finish(command, "typed\n");
    assert_eq!(fixture.read("got"), "got typed\n");
    assert_eq!(fixture.read("status"), "0\n");
    assert_eq!(fixture.read("after"), "mine\n");
}

/// A shell with job control, at a terminal, in which a command runs under the lock. Returns the shell and the id of the
/// command.
fn job(fixture: &Fixture, options: &str) -> Option<(Worker, String)> {
    let mut shell = start(terminal(fixture, "PS1= bash --norc --noprofile --noediting -i")?);
    // Not a loop: a shell that has just called vfork cannot be stopped before its child has.
    let command = "echo $$ > new; mv new pid; exec sleep 600";
    shell.send(&format!("$LEASEHOLD run job {options} -- sh -c '{command}'")).expect("it reads");
    until("the command runs", || fixture.path("pid").exists());
    Some((shell, fixture.read("pid").trim().to_owned()))
}

/// Stops the job with Ctrl-Z, and waits until the shell can have noticed.
fn stop(shell: &mut Worker, command: &str) {
    let parent = stat(command, 1);
    shell.send("\x1a").expect("it reads");
    until("both are stopped", || stat(command, 0) == "T" && stat(&parent, 0) == "T");
}

/// A field of the process in `/proc`, counted from its state.
fn stat(pid: &str, field: usize) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    fields.split(' ').nth(field).unwrap_or_default().to_owned()
}

/// The exit status of the job, as the shell reports it.
fn job_status(fixture: &Fixture, shell: &mut Worker) -> String {
    shell.send("echo $? > new; mv new status").expect("it reads");
    until("the shell goes on", || fixture.path("status").exists());
    fixture.read("status")
}

#[test]
fn a_job_can_be_stopped_and_continued() {
    let fixture = Fixture::sqlite();
    let Some((mut shell, command)) = job(&fixture, "") else { return };
    stop(&mut shell, &command);
    shell.send("fg").expect("it reads");
    until("it runs again", || runs(&command) && stat(&command, 0) != "T");
    shell.send("\x03").expect("it reads");
    until("it has ended", || !runs(&command));
    assert_eq!(job_status(&fixture, &mut shell), "130\n");
}

#[test]
fn a_job_that_was_stopped_past_its_lease_does_not_go_on() {
    let fixture = Fixture::sqlite();
    let Some((mut shell, command)) = job(&fixture, "--lease 1s") else { return };
    stop(&mut shell, &command);
    until("the lease ends", || fixture.status()["held"] == false);
    shell.send("fg").expect("it reads");
    until("it has ended", || !runs(&command));
    assert_eq!(job_status(&fixture, &mut shell), "70\n");
}
