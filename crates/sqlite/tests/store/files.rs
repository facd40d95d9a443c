//! The files: ownership, permissions, and refusals.

use crate::session::{TestSession, WITHIN, block_on, lock, open, temporary_path};
use crate::worker::Worker;
use leasehold_core::{Op, Partition, Release, ReleaseAction};
use leasehold_store::{Executed, Outcome, Store};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn check_refused(path: &Path, said: &str) {
    let fault = open(path).expect_err("it should be refused");
    assert!(!fault.is_transient(), "{fault}");
    assert!(fault.to_string().contains(said), "{fault}");
}

#[test]
fn the_files_are_for_their_owner_alone() {
    let (dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    ours.try_acquire().unwrap();
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        assert_eq!(mode(&dir.path().join(name)), 0o600, "{name}");
    }
    let sessions = dir.path().join("locks.db-sessions");
    assert_eq!(mode(&sessions), 0o700);
    let entries: Vec<_> = std::fs::read_dir(&sessions).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 2);
    for entry in entries {
        assert_eq!(mode(&entry), 0o600, "{}", entry.display());
    }
    ours.store.close_mailbox(Partition::ONLY, ours.session);
    // The thread executes one operation after the other.
    assert_eq!(ours.try_acquire(), None);
    assert_eq!(std::fs::read_dir(&sessions).unwrap().count(), 0, "a closed mailbox leaves nothing");
}

/// The commands that may give a process a mount namespace of its own, in which it may mount.
const NAMESPACES: [&[&str]; 3] = [
    &["unshare", "-m"],
    &["unshare", "-rm"],
    &["sudo", "-n", "--preserve-env=LEASEHOLD_TEST_WORKER", "unshare", "-m"],
];

/// Needs the right to mount: root, a user namespace, or `sudo` without a password. Without it, it fails.
#[test]
fn a_full_disk_is_left_by_truncating_the_log() {
    let (dir, path) = temporary_path();
    let shown = dir.path().display();
    let mount = format!("mount -t tmpfs -o size=3m,mode=700 tmpfs {shown} && exec \"$0\" \"$@\"");
    let on_small_disk = |namespace: &[&str]| {
        let mut command = Command::new(namespace[0]);
        command.args(&namespace[1..]).args(["sh", "-c", &mount]);
        command
    };
    let works = |namespace: &&&[&str]| {
        on_small_disk(namespace).arg("true").output().is_ok_and(|output| output.status.success())
    };
    let namespace = NAMESPACES.iter().find(works);
    let mut command = on_small_disk(namespace.expect("this test needs the right to mount a small disk"));
    command.arg(std::env::current_exe().unwrap());
    let mut worker = Worker::run(&path, command);
    let answer = worker.ask("fill the disk");
    let (before, after) = answer.split_once(' ').expect("two lengths");
    let (before, after): (u64, u64) = (before.parse().unwrap(), after.parse().unwrap());
    assert!(after < before, "{answer}");
}

#[test]
fn too_few_descriptors_are_not_taken_for_a_wrong_path() {
    let (_dir, path) = temporary_path();
    let mut worker = Worker::start(&path);
    worker.send("open with few files");
    let mut faults = Vec::new();
    while let answer = worker.answer()
        && answer != "opened"
    {
        faults.push(answer);
    }
    assert!(faults.len() > 2, "{faults:?}");
    for fault in faults {
        assert!(fault.starts_with("Failed") && fault.contains("Too many open files"), "{fault}");
    }
}

#[test]
fn what_others_may_open_is_refused_with_its_remedy() {
    let (dir, path) = temporary_path();
    drop(open(&path).unwrap());
    set_mode(&path, 0o644);
    check_refused(&path, &format!("chmod 600 {}", path.display()));
    set_mode(&path, 0o600);
    let sessions = dir.path().join("locks.db-sessions");
    set_mode(&sessions, 0o755);
    check_refused(&path, &format!("chmod 700 {}", sessions.display()));
    set_mode(&sessions, 0o700);
    set_mode(dir.path(), 0o777);
    check_refused(&path, &format!("chmod go-w {}", dir.path().display()));
    set_mode(dir.path(), 0o770);
    check_refused(&path, &format!("chmod go-w {}", dir.path().display()));
    set_mode(dir.path(), 0o1777);
    drop(open(&path).unwrap());
}

#[test]
fn another_users_file_is_refused() {
    let (_dir, path) = temporary_path();
    std::fs::write(&path, "").unwrap();
    set_mode(&path, 0o600);
    // Only root can change the owner of a file.
    if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
        check_refused(&path, "belongs to user 12345");
    }
}

#[test]
fn links_to_the_file_are_refused() {
    let (dir, path) = temporary_path();
    let target = dir.path().join("elsewhere");
    for existing in [false, true] {
        if existing {
            drop(open(&target).unwrap());
        }
        std::os::unix::fs::symlink(&target, &path).unwrap();
        check_refused(&path, "is a symbolic link");
        assert_eq!(target.exists(), existing, "nothing is made by way of a link");
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::hard_link(&target, &path).unwrap();
    check_refused(&path, "second name");
    std::fs::remove_file(&path).unwrap();
    for beside in ["-sessions", "-wal", "-shm"] {
        let beside = dir.path().join(format!("locks.db{beside}"));
        std::os::unix::fs::symlink(dir.path(), &beside).unwrap();
        check_refused(&path, "is a symbolic link");
        std::fs::remove_file(&beside).unwrap();
    }
}

#[test]
fn links_to_its_directory_lead_to_the_same_store() {
    let dir = tempfile::tempdir().unwrap();
    let (real, linked) = (dir.path().join("real"), dir.path().join("linked"));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &linked).unwrap();
    let (one, two) = (TestSession::join(&real.join("locks.db")), TestSession::join(&linked.join("locks.db")));
    one.try_acquire().unwrap();
    assert_eq!(two.try_acquire(), None);
}

#[test]
fn what_is_no_store_is_refused_and_stays_as_it_was() {
    let (_dir, path) = temporary_path();
    for content in ["no database", &"no database either\n".repeat(1000)] {
        std::fs::write(&path, content).unwrap();
        set_mode(&path, 0o600);
        check_refused(&path, "not a SQLite database");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
    std::fs::remove_file(&path).unwrap();
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (7)").unwrap();
    set_mode(&path, 0o600);
    check_refused(&path, "database of something else");
    assert_eq!(foreign.query_row("SELECT x FROM t", [], |row| row.get(0)), Ok(7));
    assert_eq!(foreign.query_row("PRAGMA journal_mode", [], |row| row.get(0)), Ok("delete".to_owned()));
}

#[test]
fn what_is_no_path_of_a_file_is_refused() {
    let (dir, path) = temporary_path();
    drop(open(&path).unwrap());
    check_refused(dir.path(), "not a regular file");
    check_refused(&dir.path().join("missing/locks.db"), "directory does not exist");
    check_refused(&path.join("locks.db"), "locks.db");
    check_refused(&dir.path().join("n\0l"), "");
    check_refused(Path::new("/"), "not the path of a file");
    check_refused(Path::new(""), "not the path of a file");
}

#[test]
fn a_file_put_in_the_place_of_an_open_one_is_noticed() {
    let (dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let (claim, _) = ours.try_acquire().unwrap();
    std::fs::rename(&path, dir.path().join("moved.db")).unwrap();
    let op = Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 });
    let outcome = block_on(ours.store.execute(&lock(), &op, WITHIN));
    let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
    assert!(fault.to_string().contains("replaced or removed"), "{fault}");
}

#[test]
fn any_path_works_however_long_or_strange() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("x".repeat(120)).join("y ?#%&'\"é".repeat(12));
    std::fs::create_dir_all(&deep).unwrap();
    let path = deep.join(":memory:");
    let ours = TestSession::join(&path);
    let mut worker = Worker::start(&path);
    let (claim, _) = ours.acquire();
    assert_eq!(worker.ask("queue"), "queued");
    ours.release(claim);
    assert!(worker.answer().starts_with("woken "), "by its socket");
    assert!(path.exists());
}

#[test]
fn many_can_create_the_same_file_at_once() {
    let (_dir, path) = temporary_path();
    let sessions: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..16).map(|_| scope.spawn(|| TestSession::join(&path))).collect();
        all.into_iter().map(|ours| ours.join().unwrap()).collect()
    });
    let granted = sessions.iter().filter_map(TestSession::try_acquire).count();
    assert_eq!(granted, 1);
}

/// The last process to close removes the log, at any moment of another process's opening.
#[test]
fn a_store_can_be_opened_while_others_close() {
    let (_dir, path) = temporary_path();
    let opening = |_| {
        let path = path.clone();
        std::thread::spawn(move || (0..2000).for_each(|_| drop(open(&path).expect("it is let in"))))
    };
    let threads: Vec<_> = (0..4).map(opening).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
