//! Workers: output, input, stopping and killing.

use std::io;
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::Worker;

const PATIENCE: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(50);

/// The entry of the workers below; as a test of its own it does nothing.
#[test]
fn worker() {
    match Worker::role().as_deref() {
        Some("echo") => {
            Worker::say("ready");
            while let Some(line) = Worker::told() {
                println!("noise that is not for the test");
                Worker::say(&format!("echo {line}"));
            }
        }
        Some("greet") => {
            Worker::say(&std::env::var("GREETING").expect("the test sets a greeting"));
        }
        _ => {}
    }
}

#[test]
fn a_worker_receives_and_replies() -> io::Result<()> {
    let mut worker = Worker::of_test("worker", "echo").start()?;
    assert_eq!(worker.line(PATIENCE)?, "ready");
    worker.tell("one")?;
    worker.tell("two words")?;
    assert_eq!(worker.expect("echo", PATIENCE)?, "one");
    assert_eq!(worker.line(PATIENCE)?, "echo two words");
    worker.close_input();
    assert!(worker.wait(PATIENCE)?.success());
    Ok(())
}

#[test]
fn the_environment_reaches_a_worker_and_its_end_is_seen() -> io::Result<()> {
    let mut worker = Worker::of_test("worker", "greet").env("GREETING", "hello").start()?;
    assert_eq!(worker.line(PATIENCE)?, "hello");
    let error = worker.line(PATIENCE).expect_err("the worker says nothing more");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!(error.to_string().contains("hello"), "{error}");
    Ok(())
}

#[test]
fn a_stopped_worker_is_silent_until_it_goes_on() -> io::Result<()> {
    let mut worker = Worker::of_test("worker", "echo").start()?;
    worker.expect("ready", PATIENCE)?;
    worker.stop()?;
    worker.tell("late")?;
    assert_eq!(worker.line(SOON).map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    worker.cont()?;
    assert_eq!(worker.expect("echo", PATIENCE)?, "late");
    Ok(())
}

#[test]
fn a_worker_is_killed_stopped_or_not_and_on_drop() -> io::Result<()> {
    let mut killed = Worker::of_test("worker", "echo").start()?;
    killed.stop()?;
    killed.kill()?;
    killed.kill()?;
    assert!(!killed.wait(PATIENCE)?.success());

    let dropped = Worker::of_test("worker", "echo").start()?;
    let pid = dropped.pid();
    drop(dropped);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}

#[test]
fn any_program_can_be_a_worker() -> io::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done"]);
    let mut worker = Worker::of_command(command).start()?;
    worker.expect("up", PATIENCE)?;
    worker.terminate()?;
    worker.expect("bye", PATIENCE)?;
    assert_eq!(worker.wait(PATIENCE)?.code(), Some(3));
    Ok(())
}
