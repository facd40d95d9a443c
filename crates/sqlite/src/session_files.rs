//! Which sessions are alive: one file per session, locked while its process runs.
//!
//! The kernel drops the lock when the process ends, however it ends, and never while the process is stopped or slow.
//! A pid shows neither: it is reused, and has no meaning in another container.
//!
//! 1. The name `<session>.life` appears with the file already locked: it is locked under another name first. So a
//!    `.life` file that is *not* locked always belongs to a dead session.
//! 2. Nothing else means "dead". A session without a file never had one, was closed, or lost its file because a
//!    person deleted it. What it holds ends by its leases only.
//! 3. Closing a session unlinks its file first and unlocks it after that. A check reads the link count once it holds
//!    the lock, so a closed session is never mistaken for a dead one.
//! 4. A check takes a *shared* lock, so concurrent checks do not take each other for a live process.
//! 5. Session ids are never reused, so no new file has the name, and no new lock the inode, of a file that is being
//!    removed: removing a file twice, or late, is harmless.
//! 6. A dead session's file is removed only after its death was recorded in the store, since a missing file means
//!    nothing (2).

use leasehold_core::SessionId;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The age at which a file that was abandoned between its creation and its first lock is removed.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// The directory of the session files.
#[derive(Debug, Clone)]
pub(super) struct SessionFiles {
    dir: Arc<OwnedFd>,
}

/// What a session's file shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    /// Its process runs, or this cannot be determined.
    Alive,
    /// Its process has ended.
    Dead,
    /// There is no file (2).
    Absent,
}

impl SessionFiles {
    /// The session files in a directory of this store.
    pub(super) fn new(dir: OwnedFd) -> Self {
        Self { dir: Arc::new(dir) }
    }

    /// Creates the locked file of a session, which is alive until the file is closed.
    pub(super) fn create(&self, session: SessionId) -> io::Result<File> {
        let (temporary, name) = (format!("{session}.new"), file_name(session));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.dir, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
        let named = file.try_lock().map_err(io::Error::from).and_then(|()| {
            // A link, not a rename: it fails if the name exists.
            Ok(rustix::fs::linkat(&self.dir, &temporary, &self.dir, &name, AtFlags::empty())?)
        });
        self.unlink(&temporary);
        named.map(|()| file)
    }

    /// Whether a session is alive.
    pub(super) fn state(&self, session: SessionId) -> SessionState {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.dir, file_name(session), flags, Mode::empty()) {
            Ok(file) => state_of(&File::from(file)),
            Err(Errno::NOENT) => SessionState::Absent,
            Err(_) => SessionState::Alive,
        }
    }

    /// Removes the files of a session that is dead or closed.
    pub(super) fn remove(&self, session: SessionId) {
        // The session file is removed last: while it exists, a later cleanup removes the socket as well.
        self.unlink(&format!("{session}.sock"));
        self.unlink(&file_name(session));
    }

    /// Finds at most `most` dead sessions. Removes abandoned files that never became a session file.
    pub(super) fn find_dead(&self, most: usize) -> Vec<SessionId> {
        let Ok(entries) = Dir::read_from(&self.dir) else { return Vec::new() };
        let mut dead = Vec::new();
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().to_str() else { continue };
            if let Some(session) = name.strip_suffix(".life").and_then(|id| id.parse().ok()) {
                if self.state(session) == SessionState::Dead {
                    dead.push(session);
                }
            } else if name.strip_suffix(".new").is_some() && self.is_abandoned(name) {
                self.unlink(name);
            }
            if dead.len() == most {
                break;
            }
        }
        dead
    }

    /// A path of a session's socket that is short enough for a socket address, however long the store's path is.
    pub(super) fn socket(&self, session: SessionId) -> String {
        format!("/proc/self/fd/{}/{session}.sock", self.dir.as_raw_fd())
    }

    fn is_abandoned(&self, name: &str) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&self.dir, name, flags, Mode::empty()).map(File::from) else {
            return false;
        };
        let modified = file.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|at| at.elapsed().ok());
        age.is_some_and(|age| age > ABANDONED_AFTER) && file.try_lock_shared().is_ok()
    }

    fn unlink(&self, name: &str) {
        // It may be gone already; if it stays, the next cleanup removes it.
        let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
    }
}

fn file_name(session: SessionId) -> String {
    format!("{session}.life")
}

/// What an open file shows (3, 4).
fn state_of(file: &File) -> SessionState {
    match file.try_lock_shared() {
        Ok(()) => match rustix::fs::fstat(file) {
            Ok(stat) if stat.st_nlink > 0 => SessionState::Dead,
            Ok(_) => SessionState::Absent,
            Err(_) => SessionState::Alive,
        },
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => SessionState::Alive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> (tempfile::TempDir, SessionFiles) {
        let dir = tempfile::tempdir().expect("a directory");
        let fd = OwnedFd::from(File::open(dir.path()).expect("just made"));
        (dir, SessionFiles::new(fd))
    }

    fn session(n: u8) -> SessionId {
        SessionId::from_random([n; 12])
    }

    #[test]
    fn a_session_is_alive_while_its_file_is_locked() {
        let (dir, sessions) = sessions();
        assert_eq!(
            sessions.state(session(1)),
            SessionState::Absent,
            "a session that never began is not dead"
        );
        let file = sessions.create(session(1)).expect("a fresh session");
        assert_eq!(sessions.state(session(1)), SessionState::Alive);
        assert!(sessions.create(session(1)).is_err(), "a session begins once");
        assert_eq!(sessions.state(session(1)), SessionState::Alive, "the second attempt changed nothing");
        drop(file);
        assert_eq!(sessions.state(session(1)), SessionState::Dead);
        assert_eq!(sessions.find_dead(8), [session(1)]);
        sessions.remove(session(1));
        sessions.remove(session(1));
        assert_eq!(sessions.state(session(1)), SessionState::Absent);
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }

    #[test]
    fn a_closed_session_is_not_dead() {
        let (_dir, sessions) = sessions();
        let file = sessions.create(session(1)).expect("a fresh session");
        let check = rustix::fs::openat(
            &sessions.dir,
            super::file_name(session(1)),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let check = File::from(check.expect("it is there"));
        sessions.remove(session(1));
        drop(file);
        assert_eq!(state_of(&check), SessionState::Absent, "opened before it was unlinked, checked after");
    }

    #[test]
    fn concurrent_checks_do_not_disturb_each_other() {
        let (dir, sessions) = sessions();
        drop(sessions.create(session(1)).expect("a fresh session"));
        let name = format!("{}.life", session(1));
        let asking = File::open(dir.path().join(name)).expect("it is there");
        asking.try_lock_shared().expect("it is not locked");
        assert_eq!(sessions.state(session(1)), SessionState::Dead);
    }

    #[test]
    fn only_old_unlocked_files_are_removed() {
        let (dir, sessions) = sessions();
        let make = |name: &str, age: Duration| {
            let file = File::create(dir.path().join(name)).expect("a directory of ours");
            file.set_modified(std::time::SystemTime::now() - age).expect("a file of ours");
            file
        };
        let held = make("a.new", ABANDONED_AFTER * 2);
        held.try_lock().expect("it is not locked");
        make("b.new", Duration::ZERO);
        make("c.new", ABANDONED_AFTER * 2);
        assert_eq!(sessions.find_dead(8), []);
        let mut left: Vec<_> = std::fs::read_dir(dir.path())
            .expect("it is there")
            .map(|entry| entry.expect("it is there").file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["a.new", "b.new"]);
    }
}
