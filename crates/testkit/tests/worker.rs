//! Workers: output, input, stopping and killing.

use std::io;
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::Worker;

const LIMIT: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(50);

/// The entry of the workers below; as a test of its own it does nothing.
#[test]
fn worker() {
    match Worker::role().as_deref() {
        Some("echo") => {
            Worker::report("ready");
            while let Some(line) = Worker::receive() {
                println!("noise that is not for the test");
                Worker::report(&format!("echo {line}"));
            }
        }
        Some("greet") => {
            Worker::report(&std::env::var("GREETING").expect("the test sets a greeting"));
        }
        _ => {}
    }
}

#[test]
fn a_worker_receives_and_replies() -> io::Result<()> {
    let mut worker = Worker::of_test("worker", "echo").start()?;
    assert_eq!(worker.line(LIMIT)?, "ready");
    worker.send("one")?;
    worker.send("two words")?;
    assert_eq!(worker.expect("echo", LIMIT)?, "one");
    assert_eq!(worker.line(LIMIT)?, "echo two words");
    worker.close_input();
    assert!(worker.wait(LIMIT)?.success());
    Ok(())
}

#[test]
fn the_environment_reaches_a_worker_and_its_end_is_seen() -> io::Result<()> {
    let mut worker = Worker::of_test("worker", "greet").env("GREETING", "hello").start()?;
    assert_eq!(worker.line(LIMIT)?, "hello");
    let error = worker.line(LIMIT).expect_err("the worker prints nothing more");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!(error.to_string().contains("hello"), "{error}");
    Ok(())
}

#[test]
fn a_stopped_worker_is_silent_until_it_is_resumed() -> io::Result<()> {
    let mut worker = Worker::of_test("worker", "echo").start()?;
    worker.expect("ready", LIMIT)?;
    worker.stop()?;
    worker.send("late")?;
    assert_eq!(worker.line(SOON).map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    worker.resume()?;
    assert_eq!(worker.expect("echo", LIMIT)?, "late");
    Ok(())
}

#[test]
fn a_worker_is_killed_stopped_or_not_and_on_drop() -> io::Result<()> {
    let mut killed = Worker::of_test("worker", "echo").start()?;
    killed.stop()?;
    killed.kill()?;
    killed.kill()?;
    assert!(!killed.wait(LIMIT)?.success());

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
    worker.expect("up", LIMIT)?;
    worker.terminate()?;
    worker.expect("bye", LIMIT)?;
    assert_eq!(worker.wait(LIMIT)?.code(), Some(3));
    Ok(())
}
