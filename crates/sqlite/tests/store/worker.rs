//! Workers: processes of the test binary that execute commands.

use crate::session::{TestSession, open};
use leasehold_core::Acquired;
use leasehold_store::Notification;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The path of the worker's store; set in workers only.
const WORKER: &str = "LEASEHOLD_TEST_WORKER";

pub(crate) struct Worker {
    pub(crate) child: Child,
    pub(crate) commands: ChildStdin,
    pub(crate) answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub(crate) fn start(path: &Path) -> Self {
        Self::run(path, Command::new(std::env::current_exe().unwrap()))
    }

    pub(crate) fn run(path: &Path, mut command: Command) -> Self {
        let mut child = command
            .args(["--exact", "worker::worker", "--nocapture", "--test-threads=1"])
            .env(WORKER, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut worker = Self { child, commands, answers };
        assert_eq!(worker.answer(), "ready");
        worker
    }

    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        loop {
            let line = self.answers.next().expect("the worker is there").unwrap();
            // libtest prints its own output before the worker's first line.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.to_owned();
            }
        }
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn stop(&self) {
        rustix::process::kill_process(self.pid(), Signal::STOP).unwrap();
        rustix::process::waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
    }

    pub(crate) fn cont(&self) {
        rustix::process::kill_process(self.pid(), Signal::CONT).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn worker() {
    let Some(path) = std::env::var_os(WORKER).map(PathBuf::from) else { return };
    let ours = TestSession::join(&path);
    let (mut held, mut writing) = (None, None);
    answer("ready");
    for command in std::io::stdin().lines() {
        match command.unwrap().as_str() {
            "acquire" => {
                let (claim, fence) = ours.acquire();
                held = Some(claim);
                answer(&fence.to_string());
            }
            "queue" => {
                let claim = ours.claim();
                assert!(matches!(ours.acquired(&claim, true), Acquired::Taken { .. }));
                answer("queued");
                // The worker does not poll: only a message can wake it.
                let wake = ours.notifications.recv().unwrap();
                answer(&format!("woken {}", wake.fence()));
                held = Some(claim);
            }
            "detach" => answer(&ours.acquire_detached().to_string()),
            "begin" => {
                ours.begin("a worker");
                answer(&ours.session.to_string());
            }
            "await force" => {
                answer("waiting");
                match ours.notifications.recv().unwrap() {
                    Notification::ForceReleased { fence, .. } => answer(&format!("force_released {fence}")),
                    other => panic!("{other:?}"),
                }
            }
            "release" => {
                ours.release(held.take().unwrap());
                answer("released");
            }
            "write" => {
                let connection = rusqlite::Connection::open(&path).unwrap();
                connection.execute_batch("BEGIN IMMEDIATE").unwrap();
                writing = Some(connection);
                answer("writing");
            }
            "count" => {
                count(&ours, &path.with_extension("count"), 100);
                answer("counted");
            }
            "open with few files" => open_with_few_files(&path.with_extension("other")),
            // Ends: the test may lack the right to kill it.
            "fill the disk" => return answer(&fill_the_disk(&ours, &path)),
            "sign" => sign(&ours, &path.with_extension("signed")),
            "relay" => relay(&ours),
            other => panic!("{other}"),
        }
    }
    drop(writing);
}

fn answer(text: &str) {
    println!("@{text}");
}

/// Fills the file system of the store, and goes on. Returns how long the log is before and after the disk is full.
fn fill_the_disk(ours: &TestSession, path: &Path) -> String {
    let cycle = |times| {
        for _ in 0..times {
            ours.release(ours.acquire().0);
        }
    };
    cycle(1);
    // The pages of the database are in its file from now on.
    let sql = rusqlite::Connection::open(path).unwrap();
    sql.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    cycle(30);
    let length = || path.with_file_name("locks.db-wal").metadata().unwrap().len();
    let before = length();
    let mut filler = std::fs::File::create(path.with_file_name("filler")).unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}
    cycle(1);
    let after = length();
    cycle(300);
    format!("{before} {after}")
}

/// Reports what it is to open a file with no, one, two, … descriptors, until it can be opened.
fn open_with_few_files(path: &Path) {
    let free = rustix::io::dup(std::io::stdin()).unwrap();
    let first = u64::try_from(free.as_raw_fd()).unwrap();
    drop(free);
    for few in 0.. {
        let limit = Rlimit { current: Some(first + few), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        match open(path) {
            Ok(_) => break,
            Err(fault) => answer(&format!("{:?}", fault.kind)),
        }
    }
    answer("opened");
}

/// Acquires the lock again and again and reports each acquire and release, until it is killed.
fn relay(ours: &TestSession) {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = |at: rustix::time::Timespec| at.tv_sec * 1_000_000_000 + at.tv_nsec;
    let (mut claim, mut fence) = ours.acquire();
    loop {
        let got = now();
        std::thread::sleep(Duration::from_millis(5));
        let gave = now();
        let (again, acquired) = ours.release_and_queue(claim);
        answer(&format!("{fence} {} {}", nanos(got), nanos(gave)));
        (claim, fence) = ours.await_grant(again, acquired);
    }
}

/// Reads a number from a file and writes its successor, many times.
fn count(ours: &TestSession, file: &Path, times: u32) {
    for _ in 0..times {
        let (claim, _) = ours.acquire();
        let number: u32 = std::fs::read_to_string(file).unwrap().parse().unwrap();
        std::fs::write(file, (number + 1).to_string()).unwrap();
        ours.release(claim);
    }
}

/// Writes its name into a file under the lock and reports whether it stayed there, until it is killed.
fn sign(ours: &TestSession, file: &Path) {
    let name = ours.session.to_string();
    loop {
        let (claim, _) = ours.acquire();
        std::fs::write(file, &name).unwrap();
        std::thread::yield_now();
        let alone = std::fs::read_to_string(file).unwrap() == name;
        ours.release(claim);
        answer(if alone { "alone" } else { "two at once" });
    }
}
