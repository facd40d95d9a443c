//! At a terminal the program is a job like any other: played by `script`, which makes one.

use super::scene::{PATIENCE, Scene, expect, finish, start, status, until};
use std::process::Command;

/// Runs a shell's script at a terminal of its own. `$LEASEHOLD` is the program.
fn terminal(scene: &Scene, script: &str) -> Option<Command> {
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", script, "/dev/null"]);
    command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold")).env("SHELL", "/bin/sh");
    command.env("LEASEHOLD_STORE", format!("sqlite:{}", scene.path("locks.db").display()));
    command.current_dir(scene.path(""));
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: there is no `script` here");
        return None;
    }
    Some(command)
}

#[test]
fn ctrl_c_ends_the_command_and_then_the_program_gives_the_lock_back() {
    // Once while the terminal is ours and once while the command has it.
    for first in ["", "read line <&3; "] {
        let scene = Scene::sqlite();
        let command = format!("{first}trap 'echo int; exit 3' INT; echo ready; while :; do sleep 0.02; done");
        let Some(script) = terminal(&scene, &format!("exec $LEASEHOLD run job -- sh -c \"{command}\" 3<&0"))
        else {
            return;
        };
        let mut run = start(script);
        run.tell("typed").expect("it reads");
        expect(&mut run, "ready");
        run.tell("\x03").expect("it reads");
        until("the command has ended", || run.line(PATIENCE).expect("it speaks").ends_with("int"));
        assert_eq!(status(&mut run), Some(3), "{first}");
        scene.assert_free();
    }
}

#[test]
fn a_command_that_reads_from_the_terminal_gets_it_and_gives_it_back() {
    let scene = Scene::sqlite();
    let script = "$LEASEHOLD run job -- sh -c 'read line; echo got $line > got'; echo $? > status; stty -a > /dev/null && echo mine > after";
    let Some(command) = terminal(&scene, script) else { return };
    finish(command, "typed\n");
    assert_eq!(scene.read("got"), "got typed\n");
    assert_eq!(scene.read("status"), "0\n");
    assert_eq!(scene.read("after"), "mine\n");
}
