//! The file with the token of a detached hold: a secret on a disk.
//!
//! 1. It is created with mode 0600, never through a symbolic link, and never over an existing file, except an empty
//!    file of this user.
//! 2. It exists, and its disk space is reserved, before the lock is requested. It is synced to the disk before the
//!    program reports that the lock is held.
//! 3. Instances of this program use a file one at a time, by a file lock. An instance removes a file only while it
//!    holds that lock.
//! 4. No message contains any part of its content.

use crate::output::failure::Failure;
use anyhow::anyhow;
use leasehold::{DetachedHold, LockName};
use rustix::fs::{Mode, OFlags};
use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// No token is longer.
const MAX_BYTES: u64 = 4096;
/// How long another instance may use the file: longer than its calls to a store can take.
const BUSY_TIMEOUT: Duration = Duration::from_secs(15);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// A file with a token, or for one, locked against other instances (3).
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    file: File,
    /// Set if this instance created the file.
    created: bool,
    /// Set if this instance has to remove the file, unless a token is written.
    remove_on_drop: bool,
}

impl TokenFile {
    /// Creates the file for a token, or opens an existing empty one that is suitable.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Failure> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Self::prepare_created(path, file.into()),
            Err(rustix::io::Errno::EXIST) => Self::prepare_existing(path),
            Err(error) => Err(unusable(path, "it cannot be created", error.into())),
        }
    }

    /// A file that stays when this instance ends.
    fn found(path: &Path, file: File) -> Self {
        Self { path: path.to_owned(), file, created: false, remove_on_drop: false }
    }

    fn prepare_created(path: &Path, file: File) -> Result<Self, Failure> {
        let mut created = Self::found(path, file);
        created.lock_now()?;
        // Until the file was locked, another instance may have taken it as an existing empty file: only now it may be
        // removed.
        created.created = true;
        created.remove_on_drop = true;
        let restricted = rustix::fs::fchmod(&created.file, Mode::RUSR | Mode::WUSR).map_err(io::Error::from);
        restricted
            .and_then(|()| sync_directory(path))
            .map_err(|error| unusable(path, "it cannot be created", error))?;
        created.reserve()?;
        Ok(created)
    }

    /// An existing file: one of `mktemp`, or one that a killed `acquire` left.
    fn prepare_existing(path: &Path) -> Result<Self, Failure> {
        let found = Self::found(path, open(path)?);
        found.lock_now()?;
        let metadata = found.check_access()?;
        if metadata.nlink() == 0 {
            return Err(rejected(path, "it was just removed by another leasehold: try again"));
        }
        if metadata.nlink() > 1 {
            return Err(rejected(path, "it has other names (hard links), by which other users may read it"));
        }
        if metadata.len() > 0 {
            return Err(rejected(
                path,
                "it is not empty: if it contains the token of a hold, end the hold by `leasehold release \
                 --token-file`, which removes the file; or name another file",
            ));
        }
        found.reserve()?;
        Ok(found)
    }

    /// Opens the file with a token, and reads it. Waits until no other instance uses it. Fails if the token belongs to
    /// another lock than `name`.
    pub(crate) async fn open(path: &Path, name: Option<&LockName>) -> Result<(Self, DetachedHold), Failure> {
        let found = Self::found(path, open(path)?);
        let deadline = Instant::now() + BUSY_TIMEOUT;
        while !found.try_lock()? {
            if Instant::now() >= deadline {
                return Err(busy(path));
            }
            sleep(BUSY_PAUSE).await;
        }
        let hold = found.read()?;
        match name {
            Some(name) if name != hold.name() => Err(Failure::usage(anyhow!(
                "the token belongs to the lock `{}`, not to `{name}`",
                hold.name()
            ))),
            _ => Ok((found, hold)),
        }
    }

    fn read(&self) -> Result<DetachedHold, Failure> {
        let path = &self.path;
        if self.check_access()?.nlink() == 0 {
            return Err(rejected(path, "it was just removed: the lock has been released"));
        }
        let mut text = String::new();
        let read = (&self.file).take(MAX_BYTES).read_to_string(&mut text);
        read.map_err(|error| unusable(path, "it cannot be read", error))?;
        if text.trim().is_empty() {
            return Err(rejected(path, "it is empty: no lock was acquired with it"));
        }
        text.trim()
            .parse()
            .map_err(|error| Failure::usage(anyhow::Error::new(error).context(cannot_be_used(path))))
    }

    /// Writes a token into the empty file, and returns once it is on the disk (2).
    pub(crate) fn write(&mut self, hold: &DetachedHold) -> Result<(), Failure> {
        let written = self.write_text(hold);
        if written.is_err() {
            // A partial token is useless, and a file that is not empty would be rejected.
            let _ = self.file.set_len(0);
        }
        written?;
        self.remove_on_drop = false;
        Ok(())
    }

    /// Overwrites the token with the new state of the hold. Only a few digits differ, so a write that is cut short
    /// leaves a usable token.
    pub(crate) fn rewrite(&self, hold: &DetachedHold) -> Result<(), Failure> {
        self.write_text(hold)
    }

    fn write_text(&self, hold: &DetachedHold) -> Result<(), Failure> {
        let text = hold.to_secret_text() + "\n";
        let written = self.file.write_all_at(text.as_bytes(), 0);
        let written = written.and_then(|()| self.file.set_len(text.len() as u64));
        let written = written.and_then(|()| self.file.sync_all());
        written.map_err(|error| unusable(&self.path, "it cannot be written", error))
    }

    /// Removes the token of a hold that is over, and with it the file if this instance created that.
    pub(crate) fn discard(mut self) {
        // A token that stays is of no use to any process, and `acquire` says so of a file that is not empty.
        let _ = self.file.set_len(0).and_then(|()| self.file.sync_all());
        self.remove_on_drop = self.created;
    }

    /// Removes the file of a hold that is over.
    pub(crate) fn remove(mut self) -> io::Result<()> {
        self.remove_on_drop = false;
        self.unlink()
    }

    /// Leaves a different file of that name alone.
    fn unlink(&self) -> io::Result<()> {
        let (ours, there) = (self.file.metadata()?, std::fs::symlink_metadata(&self.path)?);
        if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
            return Ok(());
        }
        std::fs::remove_file(&self.path)
    }

    fn try_lock(&self) -> Result<bool, Failure> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(unusable(&self.path, "it cannot be locked", error)),
        }
    }

    fn lock_now(&self) -> Result<(), Failure> {
        if self.try_lock()? { Ok(()) } else { Err(busy(&self.path)) }
    }

    /// Reserves disk space for a token, if the file system supports that.
    fn reserve(&self) -> Result<(), Failure> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{FallocateFlags, fallocate};
            use rustix::io::Errno;
            match fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, MAX_BYTES) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(error) => return Err(unusable(&self.path, "there is no space for it", error.into())),
            }
        }
        Ok(())
    }

    /// Rejects a file that other users may have read or written.
    fn check_access(&self) -> Result<Metadata, Failure> {
        let path = &self.path;
        let metadata =
            self.file.metadata().map_err(|error| unusable(path, "it cannot be inspected", error))?;
        if !metadata.is_file() {
            return Err(rejected(path, "it is not a regular file"));
        }
        let user = rustix::process::geteuid();
        if metadata.uid() != user.as_raw() && !user.is_root() {
            return Err(rejected(path, "it belongs to another user, who may have written to it"));
        }
        if metadata.mode() & 0o077 != 0 {
            let advice = format!(
                "other users may access it (mode {:03o}), and a process that has read it can end the hold: run `chmod \
                 600` on it, and acquire the lock anew if another user may have read it",
                metadata.mode() & 0o777
            );
            return Err(rejected(path, &advice));
        }
        Ok(metadata)
    }
}

impl Drop for TokenFile {
    /// Removes a file that was created but never used.
    fn drop(&mut self) {
        if self.remove_on_drop {
            // The file is empty, so the next attempt can use it.
            let _ = self.unlink();
        }
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    // Opening a FIFO or a device must not block.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(file.into()),
        Err(rustix::io::Errno::LOOP) => Err(rejected(
            path,
            "it is a symbolic link, which another user may have made: name the file itself",
        )),
        Err(rustix::io::Errno::NOENT) => {
            Err(rejected(path, "there is no such file: the lock was never acquired with it, or was released"))
        }
        Err(error) => Err(unusable(path, "it cannot be opened", error.into())),
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(parent)?.sync_all() {
        // Some file systems cannot sync a directory, and need not.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

fn cannot_be_used(path: &Path) -> String {
    format!("the token file `{}` cannot be used", path.display())
}

fn rejected(path: &Path, why: &str) -> Failure {
    Failure::usage(anyhow!("{}: {why}", cannot_be_used(path)))
}

fn unusable(path: &Path, why: &str, error: io::Error) -> Failure {
    Failure::usage(anyhow::Error::new(error).context(why.to_owned()).context(cannot_be_used(path)))
}

fn busy(path: &Path) -> Failure {
    rejected(path, "another leasehold is using it")
}
