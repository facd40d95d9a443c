//! `cargo xtask features`: whether the published crates compile with each of their features, and on Windows.
//!
//! The tests build them with all features that they need, so a feature that uses what only another one brings is not noticed there.

use anyhow::{Result, bail};

use crate::{cargo, extension, install, shell};

const CARGO_HACK: &str = "0.6.46";

/// The target that stands for Windows: its C compiler is a package of Debian's.
const WINDOWS: &str = "x86_64-pc-windows-gnu";

/// What the library has on Windows. `sqlite` compiles there, too, and says when it is opened that it needs Linux.
const ON_WINDOWS: [&str; 2] = ["", "redis,connection-manager,metrics,signal,sqlite,testing,tower"];

/// Checks without features, with each alone, and with all; then for Windows.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let [first, ..] = arguments {
        bail!("features takes no arguments, but was given `{first}`");
    }
    let metadata = cargo::metadata()?;
    let mut each = extension::cargo("hack", CARGO_HACK)?;
    each.args(["check", "--locked", "--each-feature"]);
    each.args(metadata.published().iter().flat_map(|(name, _)| ["-p", name]));
    shell::run(each)?;

    install::target(WINDOWS)?;
    install::mingw()?;
    for features in ON_WINDOWS {
        let check = ["check", "--locked", "-p", "leasehold", "--target", WINDOWS];
        let mut windows = shell::cargo(check);
        windows.args(["--no-default-features", "--features", features]);
        shell::run(windows)?;
    }
    Ok(())
}
