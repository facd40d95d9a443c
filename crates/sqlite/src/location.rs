//! The files of a store: where they are, that they belong to this user, and that no other user has access.
//!
//! 1. The file is inspected with `lstat` and created with `mknod`, but never opened here: SQLite uses POSIX locks,
//!    and closing *any* descriptor of the file in this process would drop all of them.
//! 2. Unsafe files are refused before SQLite opens them: a symbolic link, another user's file, one that other users
//!    may open, one with a second name.

use leasehold_store::{Fault, FaultKind, Phase};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file of a store, and the paths beside it.
#[derive(Debug)]
pub(super) struct StoreLocation {
    path: PathBuf,
    node: Arc<str>,
    /// Device and inode: another file at the same path is another store.
    identity: (u64, u64),
}

impl StoreLocation {
    /// Finds or creates the file, and refuses an unsafe one (2).
    pub(super) fn prepare(path: &Path) -> Result<Self, Fault> {
        let node: Arc<str> = path.display().to_string().into();
        let fault = |kind| Fault::new(kind, Phase::Connect, node.clone());
        let unusable = |what: &str| fault(FaultKind::Unusable(what.to_owned()));
        let name = path.file_name().ok_or_else(|| unusable("it is not the path of a file"))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        // SQLite follows no symbolic link, so links among the directories are resolved here.
        let parent = parent.unwrap_or(Path::new(".")).canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                unusable("its directory does not exist: create it first, with mode 0700").with_source(error)
            }
            std::io::ErrorKind::PermissionDenied => fault(FaultKind::Forbidden).with_source(error),
            _ => fault(FaultKind::Failed(error.to_string())),
        })?;
        let mut location = Self { path: parent.join(name), node, identity: (0, 0) };
        location.check_parent(&parent)?;
        let owner_only = Mode::RUSR | Mode::WUSR;
        match rustix::fs::mknodat(CWD, &location.path, FileType::RegularFile, owner_only, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(location.io(Phase::Connect, errno)),
        }
        let stat = location.check(&location.path, FileType::RegularFile)?;
        location.identity = (stat.st_dev, stat.st_ino);
        for beside in ["-wal", "-shm"] {
            let path = location.beside(beside);
            match look_at(&path) {
                Ok(stat) => location.judge(&path, &stat, FileType::RegularFile)?,
                // The last process to close the file removes them, at any time.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(location.io(Phase::Connect, errno)),
            }
        }
        Ok(location)
    }

    /// The file, by a path without symbolic links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the sessions, created if missing.
    pub(super) fn sessions(&self) -> Result<OwnedFd, Fault> {
        let path = self.beside("-sessions");
        match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.io(Phase::Connect, errno)),
        }
        self.check(&path, FileType::Directory)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| self.io(Phase::Connect, errno))
    }

    /// Fails if another file has replaced the one that was opened. With the old one each lock could have two holders.
    pub(super) fn check_in_place(&self) -> Result<(), Fault> {
        let stat = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        match stat.map(|stat| (stat.st_dev, stat.st_ino)) {
            Ok(found) if found == self.identity => Ok(()),
            Ok(_) | Err(Errno::NOENT) => Err(self.fault(
                Phase::Send,
                FaultKind::Unusable("the file was replaced or removed while in use: reopen it".into()),
            )),
            Err(errno) => Err(self.io(Phase::Send, errno)),
        }
    }

    /// A fault at this file.
    pub(super) fn fault(&self, phase: Phase, kind: FaultKind) -> Fault {
        Fault::new(kind, phase, self.node.clone())
    }

    /// Maps an error of the operating system.
    pub(super) fn io(&self, phase: Phase, error: impl Into<std::io::Error>) -> Fault {
        let error = error.into();
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => FaultKind::Forbidden,
            _ => FaultKind::Failed(error.to_string()),
        };
        self.fault(phase, kind).with_source(error)
    }

    /// A path beside the file.
    fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = OsString::from(&self.path);
        path.push(suffix);
        path.into()
    }

    /// Fails if another user could replace the file.
    fn check_parent(&self, parent: &Path) -> Result<(), Fault> {
        let stat = rustix::fs::stat(parent).map_err(|errno| self.io(Phase::Connect, errno))?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.intersects(Mode::WOTH | Mode::WGRP) && !mode.contains(Mode::SVTX) {
            let what = format!("other users may replace it: run `chmod go-w {}`", parent.display());
            return Err(self.fault(Phase::Connect, FaultKind::Unusable(what)));
        }
        Ok(())
    }

    /// Fails unless the file at `path` is of the wanted type and safe (2).
    fn check(&self, path: &Path, wanted: FileType) -> Result<Stat, Fault> {
        let stat = look_at(path).map_err(|errno| self.io(Phase::Connect, errno))?;
        self.judge(path, &stat, wanted)?;
        Ok(stat)
    }

    fn judge(&self, path: &Path, stat: &Stat, wanted: FileType) -> Result<(), Fault> {
        let (shown, mode) = (path.display(), stat.st_mode & 0o7777);
        let found = FileType::from_raw_mode(stat.st_mode);
        let user = rustix::process::geteuid();
        let wrong = if found == FileType::Symlink {
            format!("{shown} is a symbolic link, which is refused: give the path of the file itself")
        } else if found != wanted {
            let wanted = if wanted == FileType::Directory { "directory" } else { "regular file" };
            format!("{shown} is not a {wanted}")
        } else if stat.st_uid != user.as_raw() {
            format!(
                "{shown} belongs to user {}, but this process runs as user {user}: use another file",
                stat.st_uid
            )
        } else if mode & 0o077 != 0 {
            let right = if wanted == FileType::Directory { "700" } else { "600" };
            format!(
                "other users may open {shown} (mode {mode:04o}): if it is a store of Leasehold, run `chmod {right} \
                 {shown}`, else give another path"
            )
        } else if wanted == FileType::RegularFile && stat.st_nlink > 1 {
            format!("{shown} has a second name (a hard link), and SQLite's log might use the other one")
        } else {
            return Ok(());
        };
        Err(self.fault(Phase::Connect, FaultKind::Unusable(wrong)))
    }
}

/// Inspects a path without following a link.
fn look_at(path: &Path) -> Result<Stat, Errno> {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
}
