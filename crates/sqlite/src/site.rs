//! The files of a store: where they are, that they are ours, and that nobody else may touch them.
//!
//! 1. The file is looked at by `lstat` and created by `mknod`, and never opened here: SQLite's locks are
//!    POSIX locks, and closing *any* descriptor of the file in this process would drop them all.
//! 2. What is not ours is refused before SQLite sees it: a symbolic link, another user's file, one that
//!    other users may open, one with a second name.

use leasehold_store::{Fault, FaultKind, Phase};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a store is.
#[derive(Debug)]
pub(super) struct Site {
    path: PathBuf,
    node: Arc<str>,
    /// Device and inode: a file put in its place is another store.
    identity: (u64, u64),
}

impl Site {
    /// Finds or creates the file, and refuses what is not ours (2).
    pub(super) fn prepare(path: &Path) -> Result<Self, Fault> {
        let node: Arc<str> = path.display().to_string().into();
        let fault = |kind| Fault::new(kind, Phase::Connect, node.clone());
        let unusable = |what: &str| fault(FaultKind::Unusable(what.to_owned()));
        let name = path.file_name().ok_or_else(|| unusable("it is not the path of a file"))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        // SQLite is told to follow no link at all, so those of the directories are resolved here.
        let parent = parent.unwrap_or(Path::new(".")).canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                unusable("its directory does not exist: create it first, with mode 0700").because(error)
            }
            std::io::ErrorKind::PermissionDenied => fault(FaultKind::Forbidden).because(error),
            _ => fault(FaultKind::Failed(error.to_string())),
        })?;
        let mut site = Self { path: parent.join(name), node, identity: (0, 0) };
        site.check_parent(&parent)?;
        let owner_only = Mode::RUSR | Mode::WUSR;
        match rustix::fs::mknodat(CWD, &site.path, FileType::RegularFile, owner_only, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(site.io(Phase::Connect, errno)),
        }
        let stat = site.check(&site.path, FileType::RegularFile)?;
        site.identity = (stat.st_dev, stat.st_ino);
        for beside in ["-wal", "-shm"] {
            let path = site.beside(beside);
            match look_at(&path) {
                Ok(stat) => site.judge(&path, &stat, FileType::RegularFile)?,
                // Whoever closes the file last removes them, at any time.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(site.io(Phase::Connect, errno)),
            }
        }
        Ok(site)
    }

    /// The file, by a path that no link is in.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the sessions, which is created where it is missing.
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

    /// Fails if another file stands in the place of the one that was opened. Going on with the old one
    /// would give every lock to two holders.
    pub(super) fn check_in_place(&self) -> Result<(), Fault> {
        let stat = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        match stat.map(|stat| (stat.st_dev, stat.st_ino)) {
            Ok(found) if found == self.identity => Ok(()),
            Ok(_) | Err(Errno::NOENT) => Err(self.fault(
                Phase::Send,
                FaultKind::Unusable("the file was replaced or removed while in use: open it anew".into()),
            )),
            Err(errno) => Err(self.io(Phase::Send, errno)),
        }
    }

    /// A fault at this file.
    pub(super) fn fault(&self, phase: Phase, kind: FaultKind) -> Fault {
        Fault::new(kind, phase, self.node.clone())
    }

    /// What the operating system said.
    pub(super) fn io(&self, phase: Phase, error: impl Into<std::io::Error>) -> Fault {
        let error = error.into();
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => FaultKind::Forbidden,
            _ => FaultKind::Failed(error.to_string()),
        };
        self.fault(phase, kind).because(error)
    }

    /// A path beside the file's own.
    fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = OsString::from(&self.path);
        path.push(suffix);
        path.into()
    }

    /// Fails if anybody could put another file into the place of ours.
    fn check_parent(&self, parent: &Path) -> Result<(), Fault> {
        let stat = rustix::fs::stat(parent).map_err(|errno| self.io(Phase::Connect, errno))?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.intersects(Mode::WOTH | Mode::WGRP) && !mode.contains(Mode::SVTX) {
            let what = format!("other users may replace it: run `chmod go-w {}`", parent.display());
            return Err(self.fault(Phase::Connect, FaultKind::Unusable(what)));
        }
        Ok(())
    }

    /// Fails if what stands at `path` is anything but ours, and ours alone (2).
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
            format!("{shown} is a symbolic link, and those are refused: give the path of the file itself")
        } else if found != wanted {
            let wanted = if wanted == FileType::Directory { "directory" } else { "regular file" };
            format!("{shown} is not a {wanted}")
        } else if stat.st_uid != user.as_raw() {
            format!(
                "{shown} belongs to user {}, and this process to user {user}: use a file of its own",
                stat.st_uid
            )
        } else if mode & 0o077 != 0 {
            let right = if wanted == FileType::Directory { "700" } else { "600" };
            format!(
                "other users may open {shown} (mode {mode:04o}): if it is a store of Leasehold's, run `chmod {right} \
                 {shown}`, else give another path"
            )
        } else if wanted == FileType::RegularFile && stat.st_nlink > 1 {
            format!("{shown} has a second name (a hard link), and SQLite's log would go by the other")
        } else {
            return Ok(());
        };
        Err(self.fault(Phase::Connect, FaultKind::Unusable(wrong)))
    }
}

/// What stands at a path, which may be a link.
fn look_at(path: &Path) -> Result<Stat, Errno> {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
}
