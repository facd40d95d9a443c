//! The store without `--store` and `LEASEHOLD_STORE`: a SQLite file of this user.
//!
//! 1. Its path depends on the effective user alone, never on the environment. A shell, cron, sudo and systemd set HOME
//!    and `XDG_STATE_HOME` differently, and the jobs of one user must exclude each other however they are started.
//! 2. An earlier version derived the path from these variables. Processes of that version, or with its path in --store,
//!    do not exclude those of this one: a file of this user at such a path is reported whenever the default is used.

use crate::output::failure::Failure;
use crate::output::log;
use anyhow::{Context, anyhow};
use nix::unistd::{Uid, User};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The default file of this user.
#[derive(Debug)]
pub(crate) struct DefaultFile {
    path: PathBuf,
    /// The user's home by the password database, if it is there.
    home: Option<PathBuf>,
}

impl DefaultFile {
    /// The file of the effective user. Creates nothing.
    pub(crate) fn of_this_user() -> Result<Self, Failure> {
        let user = Uid::effective();
        let home = home(user);
        let dir = match &home {
            _ if user.is_root() => Path::new("/var/lib").join("leasehold"),
            Ok(Some(home)) => state_dir(home),
            Ok(None) => {
                return Err(Failure::usage(anyhow!(
                    "there is no default store for this user ({user}), because the password database names no home \
                     directory: give a store by --store or LEASEHOLD_STORE"
                )));
            }
            Err(error) => {
                return Err(Failure::unavailable(anyhow!(
                    "failed to look this user ({user}) up in the password database, for the default store: {error}"
                )));
            }
        };
        Ok(Self { path: dir.join(FILE), home: home.ok().flatten() })
    }

    /// Its URL.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        match self.path.to_str() {
            Some(path) => Ok(format!("sqlite:{path}")),
            None => Err(Failure::usage(anyhow!(
                "the path of the home directory is not UTF-8 text: give a store by --store or LEASEHOLD_STORE"
            ))),
        }
    }

    /// Its directory, which may not exist.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.path.parent()
    }

    /// Creates its directory, unless it exists.
    pub(crate) fn create_directory(&self) -> Result<(), Failure> {
        let Some(dir) = self.directory() else { return Ok(()) };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| {
                format!(
                    "failed to create the directory of the default store, `{}` (another store is given by --store or \
                     LEASEHOLD_STORE)",
                    dir.display()
                )
            })
            .map_err(Failure::unavailable)
    }

    /// Warns of files of an earlier version (2).
    pub(crate) fn warn_of_earlier(&self) {
        if log::is_quiet() {
            return;
        }
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let candidates = candidates(variable("XDG_STATE_HOME"), variable("HOME"), self.home.clone());
        for path in self.earlier(candidates) {
            log::warning(&format!(
                "an earlier version kept the locks of this user in `{0}`, and locks there do not exclude those in \
                 `{1}`: remove that file once no process uses it",
                path.display(),
                self.path.display()
            ));
        }
    }

    /// The candidates that exist, belong to this user, and are not this file.
    fn earlier(&self, candidates: Vec<PathBuf>) -> Vec<PathBuf> {
        let identity = |path: &Path| {
            std::fs::metadata(path).ok().map(|metadata| (metadata.uid(), (metadata.dev(), metadata.ino())))
        };
        let user = Uid::effective().as_raw();
        let mut seen: Vec<_> = identity(&self.path).map(|(_, file)| file).into_iter().collect();
        let mut earlier = candidates;
        earlier.retain(|path| match identity(path) {
            // With sudo, HOME may be that of another user, whose default file it is.
            Some((owner, file)) if owner == user && !seen.contains(&file) => {
                seen.push(file);
                true
            }
            _ => false,
        });
        earlier
    }
}

const FILE: &str = "locks.db";

/// The directory of the locks of a user with this home.
fn state_dir(home: &Path) -> PathBuf {
    home.join(".local/state/leasehold")
}

/// The home of a user by the password database; `None` if there is none.
fn home(user: Uid) -> nix::Result<Option<PathBuf>> {
    Ok(User::from_uid(user)?.map(|user| user.dir).filter(|home| home.is_absolute()))
}

/// Where an earlier version may have put the file: by `XDG_STATE_HOME`, by HOME, or in the home that is HOME in a login shell.
fn candidates(xdg: Option<PathBuf>, variable: Option<PathBuf>, home: Option<PathBuf>) -> Vec<PathBuf> {
    let xdg = xdg.filter(|path| path.is_absolute()).map(|state| state.join("leasehold"));
    let homes = [variable, home].into_iter().flatten().filter(|path| path.is_absolute());
    xdg.into_iter().chain(homes.map(|home| state_dir(&home))).map(|dir| dir.join(FILE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    fn temporary() -> TempDir {
        TempDir::new().expect("there is a directory for temporary files")
    }

    #[test]
    fn the_state_directory_of_a_user_is_below_the_home() {
        assert_eq!(state_dir(Path::new("/home/u")), Path::new("/home/u/.local/state/leasehold"));
    }

    #[test]
    fn an_earlier_version_may_have_used_these() {
        let check = |xdg: Option<&str>, variable: Option<&str>, home: Option<&str>, wanted: &[&str]| {
            let found = candidates(xdg.map(Into::into), variable.map(Into::into), home.map(Into::into));
            assert_eq!(found, wanted.iter().map(PathBuf::from).collect::<Vec<_>>());
        };
        let (of_a, of_b) = ("/a/.local/state/leasehold/locks.db", "/b/.local/state/leasehold/locks.db");
        check(Some("/x"), Some("/a"), Some("/b"), &["/x/leasehold/locks.db", of_a, of_b]);
        check(Some("x"), Some(""), Some("/b"), &[of_b]);
        check(None, None, None, &[]);
    }

    #[test]
    fn each_other_file_is_reported_once() {
        let dir = temporary();
        let path = |name: &str| dir.path().join(name);
        for name in ["today", "other"] {
            std::fs::write(path(name), "").expect("it can be written");
        }
        std::os::unix::fs::symlink(path("today"), path("alias")).expect("it can be linked");
        let candidates = ["today", "alias", "other", "other", "missing"].map(path).to_vec();
        let file = DefaultFile { path: path("today"), home: None };
        assert_eq!(file.earlier(candidates.clone()), [path("other")]);
        // A store that does not exist yet is not one of the others.
        let file = DefaultFile { path: path("new"), home: None };
        assert_eq!(file.earlier(candidates), [path("today"), path("other")]);
    }

    #[test]
    fn only_the_user_may_enter_the_directory() {
        let dir = temporary();
        let file = DefaultFile { path: dir.path().join("a/leasehold/locks.db"), home: None };
        file.create_directory().expect("it can be created");
        let mode =
            std::fs::metadata(dir.path().join("a/leasehold")).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
