//! Who is alive: one file a session, locked for as long as its process lives.
//!
//! The kernel drops the lock when the process ends, however it ends, and never while it is only stopped
//! or slow. A pid would tell neither: it is given to others, and means nothing in another container.
//!
//! 1. The name `<session>.life` appears with the file locked already: it is locked under another name
//!    first. So a `.life` that is *not* locked is that of a dead session, without a moment's doubt.
//! 2. Nothing else says "dead". A session whose file is missing never had one, closed its mailbox in
//!    order, or lost the file to somebody who cleaned up: its leases alone end what it has.
//! 3. Whoever closes in order unlinks first and unlocks after, and whoever asks looks at the link count
//!    once it has the lock, so that closing is never mistaken for death.
//! 4. Asking takes a *shared* lock, so those who ask do not take one another for the living.
//! 5. Session ids are not used twice, so no new file ever has the name, nor a new lock the inode, of a
//!    file that is being removed: removing twice, or late, harms nobody.
//! 6. A dead session's file goes only after its death was written down in the store, since the missing
//!    file says nothing (2).

use leasehold_core::SessionId;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How old a file is that was given up between its creation and its first lock.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);

/// The directory of the sessions' files.
#[derive(Debug, Clone)]
pub(super) struct Sessions {
    dir: Arc<OwnedFd>,
}

/// What a session's file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// Its process lives, or that cannot be told.
    Alive,
    /// Its process has ended.
    Dead,
    /// There is none (2).
    Absent,
}

impl Sessions {
    /// The sessions in a directory of ours.
    pub(super) fn new(dir: OwnedFd) -> Self {
        Self { dir: Arc::new(dir) }
    }

    /// Begins the life of a session: it lasts until the file is closed.
    pub(super) fn begin(&self, session: SessionId) -> io::Result<File> {
        let (fresh, life) = (format!("{session}.new"), life(session));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.dir, &fresh, flags, Mode::RUSR | Mode::WUSR)?);
        let named = file.try_lock().map_err(io::Error::from).and_then(|()| {
            // A link, not a rename: it fails if the name is there already.
            Ok(rustix::fs::linkat(&self.dir, &fresh, &self.dir, &life, AtFlags::empty())?)
        });
        self.unlink(&fresh);
        named.map(|()| file)
    }

    /// Whether a session lives.
    pub(super) fn ask(&self, session: SessionId) -> Sign {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.dir, life(session), flags, Mode::empty()) {
            Ok(file) => sign_of(&File::from(file)),
            Err(Errno::NOENT) => Sign::Absent,
            Err(_) => Sign::Alive,
        }
    }

    /// Removes the files of a session that is dead, or that ends in order.
    pub(super) fn remove(&self, session: SessionId) {
        // The life goes last: as long as it is there, somebody will remove the rest.
        self.unlink(&format!("{session}.sock"));
        self.unlink(&life(session));
    }

    /// Some of the dead, `most` at most. What was left of files that never were a life is removed.
    pub(super) fn find_dead(&self, most: usize) -> Vec<SessionId> {
        let Ok(entries) = Dir::read_from(&self.dir) else { return Vec::new() };
        let mut dead = Vec::new();
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().to_str() else { continue };
            if let Some(session) = name.strip_suffix(".life").and_then(|id| id.parse().ok()) {
                if self.ask(session) == Sign::Dead {
                    dead.push(session);
                }
            } else if name.strip_suffix(".new").is_some() && self.is_left_behind(name) {
                self.unlink(name);
            }
            if dead.len() == most {
                break;
            }
        }
        dead
    }

    /// A path of a session's socket that is short enough for a socket's address, whatever the store's.
    pub(super) fn socket(&self, session: SessionId) -> String {
        format!("/proc/self/fd/{}/{session}.sock", self.dir.as_raw_fd())
    }

    fn is_left_behind(&self, name: &str) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&self.dir, name, flags, Mode::empty()).map(File::from) else {
            return false;
        };
        let modified = file.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|at| at.elapsed().ok());
        age.is_some_and(|age| age > LEFT_BEHIND) && file.try_lock_shared().is_ok()
    }

    fn unlink(&self, name: &str) {
        // That it is gone already is as good; that it stays is for the next one who cleans up.
        let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
    }
}

fn life(session: SessionId) -> String {
    format!("{session}.life")
}

/// What an open file says (3, 4).
fn sign_of(file: &File) -> Sign {
    match file.try_lock_shared() {
        Ok(()) => match rustix::fs::fstat(file) {
            Ok(stat) if stat.st_nlink > 0 => Sign::Dead,
            Ok(_) => Sign::Absent,
            Err(_) => Sign::Alive,
        },
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => Sign::Alive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> (tempfile::TempDir, Sessions) {
        let dir = tempfile::tempdir().expect("a directory");
        let fd = OwnedFd::from(File::open(dir.path()).expect("just made"));
        (dir, Sessions::new(fd))
    }

    fn session(n: u8) -> SessionId {
        SessionId::from_random([n; 12])
    }

    #[test]
    fn a_session_lives_as_long_as_its_file_is_locked() {
        let (dir, sessions) = sessions();
        assert_eq!(sessions.ask(session(1)), Sign::Absent, "one that never began is not dead");
        let life = sessions.begin(session(1)).expect("a fresh session");
        assert_eq!(sessions.ask(session(1)), Sign::Alive);
        assert!(sessions.begin(session(1)).is_err(), "a session begins once");
        assert_eq!(sessions.ask(session(1)), Sign::Alive, "and the second try did no harm");
        drop(life);
        assert_eq!(sessions.ask(session(1)), Sign::Dead);
        assert_eq!(sessions.find_dead(8), [session(1)]);
        sessions.remove(session(1));
        sessions.remove(session(1));
        assert_eq!(sessions.ask(session(1)), Sign::Absent);
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }

    #[test]
    fn closing_in_order_is_never_taken_for_death() {
        let (_dir, sessions) = sessions();
        let life = sessions.begin(session(1)).expect("a fresh session");
        let asker = rustix::fs::openat(
            &sessions.dir,
            super::life(session(1)),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let asker = File::from(asker.expect("it is there"));
        sessions.remove(session(1));
        drop(life);
        assert_eq!(sign_of(&asker), Sign::Absent, "asked before it was unlinked, answered after");
    }

    #[test]
    fn those_who_ask_do_not_disturb_one_another() {
        let (dir, sessions) = sessions();
        drop(sessions.begin(session(1)).expect("a fresh session"));
        let name = format!("{}.life", session(1));
        let asking = File::open(dir.path().join(name)).expect("it is there");
        asking.try_lock_shared().expect("nobody holds it");
        assert_eq!(sessions.ask(session(1)), Sign::Dead);
    }

    #[test]
    fn only_old_files_that_nobody_locked_are_swept() {
        let (dir, sessions) = sessions();
        let make = |name: &str, age: Duration| {
            let file = File::create(dir.path().join(name)).expect("a directory of ours");
            file.set_modified(std::time::SystemTime::now() - age).expect("a file of ours");
            file
        };
        let held = make("a.new", LEFT_BEHIND * 2);
        held.try_lock().expect("nobody holds it");
        make("b.new", Duration::ZERO);
        make("c.new", LEFT_BEHIND * 2);
        assert_eq!(sessions.find_dead(8), []);
        let mut left: Vec<_> = std::fs::read_dir(dir.path())
            .expect("it is there")
            .map(|entry| entry.expect("it is there").file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["a.new", "b.new"]);
    }
}
