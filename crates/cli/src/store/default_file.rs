//! The store without `--store` and `LEASEHOLD_STORE`: a SQLite file of this user.

use crate::output::failure::Failure;
use anyhow::{Context, anyhow};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The URL of the file in the user's state directory, which is created if necessary.
pub(crate) fn url() -> Result<String, Failure> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let is_root = rustix::process::geteuid().is_root();
    let dir = state_dir(variable("XDG_STATE_HOME"), variable("HOME"), is_root).ok_or_else(|| {
        Failure::usage(anyhow!(
            "there is no directory for the locks, because HOME is not set: give a store by --store"
        ))
    })?;
    let created = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    created
        .with_context(|| format!("failed to create the directory of the locks, `{}`", dir.display()))
        .map_err(Failure::unavailable)?;
    match dir.join("locks.db").to_str() {
        Some(path) => Ok(format!("sqlite:{path}")),
        None => Err(Failure::usage(anyhow!(
            "the path of the state directory is not UTF-8 text: give a store by --store"
        ))),
    }
}

/// The directory of this user's locks. The XDG specification says to ignore a relative path.
fn state_dir(xdg: Option<PathBuf>, home: Option<PathBuf>, is_root: bool) -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let state = xdg.filter(absolute).or_else(|| Some(home.filter(absolute)?.join(".local/state")));
    let state = state.or_else(|| is_root.then(|| Path::new("/var/lib").to_owned()))?;
    Some(state.join("leasehold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_directory() {
        let check = |xdg: Option<&str>, home: Option<&str>, root, wanted: Option<&str>| {
            assert_eq!(state_dir(xdg.map(Into::into), home.map(Into::into), root), wanted.map(Into::into));
        };
        check(Some("/x"), Some("/home/u"), false, Some("/x/leasehold"));
        check(Some("x"), Some("/home/u"), false, Some("/home/u/.local/state/leasehold"));
        check(None, Some(""), true, Some("/var/lib/leasehold"));
        check(None, None, true, Some("/var/lib/leasehold"));
        check(None, None, false, None);
    }
}
