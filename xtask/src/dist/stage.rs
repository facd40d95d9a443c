//! What the packages are made from: the program, and what it prints for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Plan;
use crate::shell;

/// The file of each shell's completions.
pub(super) const COMPLETIONS: [(&str, &str); 3] =
    [("bash", "leasehold.bash"), ("zsh", "_leasehold"), ("fish", "leasehold.fish")];

/// What an archive contains besides, from the repository's root.
pub(super) const DOCUMENTS: [&str; 4] = ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Fills the stage, and the directory of the archive in it.
pub(super) fn fill(plan: &Plan, program: &Path) -> Result<()> {
    let packaged = plan.stage.join("leasehold");
    fs::copy(program, &packaged).with_context(|| format!("failed to copy {}", program.display()))?;
    let mut man = Command::new(&packaged);
    man.args(["man", "--dir"]).arg(plan.stage.join("man"));
    shell::run(man)?;
    // Pages of `leasehold help COMMAND`, which say nothing.
    for page in files(&plan.stage.join("man"))? {
        let is_empty = |name: &str| name.starts_with("leasehold-help-");
        if page.file_name().and_then(|name| name.to_str()).is_some_and(is_empty) {
            fs::remove_file(page)?;
        }
    }
    let completions = directory(&plan.stage, "completions")?;
    for (name, file) in COMPLETIONS {
        let mut print = Command::new(&packaged);
        print.args(["completions", name]);
        fs::write(completions.join(file), shell::output(print)?)?;
    }
    let units = directory(&plan.stage, "systemd")?;
    for file in files(&shell::root().join("contrib/systemd"))? {
        let text = fs::read_to_string(&file)?;
        let name = file.file_name().context("a file without a name")?;
        let text = packaged_unit(&text).with_context(|| format!("{}", file.display()))?;
        fs::write(units.join(name), text)?;
    }
    fill_archive(plan)
}

/// The archive has the same, with the units as they are in the repository: for `/usr/local`.
fn fill_archive(plan: &Plan) -> Result<()> {
    let archive = directory(&plan.stage, &plan.archive())?;
    fs::copy(plan.stage.join("leasehold"), archive.join("leasehold"))?;
    for name in ["man", "completions"] {
        copy_all(&plan.stage.join(name), &directory(&archive, name)?)?;
    }
    copy_all(&shell::root().join("contrib/systemd"), &directory(&archive, "systemd")?)?;
    for name in DOCUMENTS {
        fs::copy(shell::root().join(name), archive.join(name))?;
    }
    if plan.is_static() {
        fs::copy(shell::root().join("contrib/container/Containerfile"), archive.join("Containerfile"))?;
    }
    Ok(())
}

/// A unit as a package contains it: the program is in `/usr/bin`, and what its first step says is done.
fn packaged_unit(text: &str) -> Result<String> {
    const FIRST_STEP: &str = "# 1. Install the program as /usr/local/bin/leasehold, and this file";
    let lines = text.lines().map(|line| {
        if line.starts_with(FIRST_STEP) {
            return "# 1. The package has installed the program and this file.".to_owned();
        }
        line.replace("/usr/local/bin/leasehold", "/usr/bin/leasehold")
    });
    let unit = lines.map(|line| line + "\n").collect::<String>();
    if unit.contains("/usr/local/bin") {
        bail!("it still names /usr/local/bin");
    }
    Ok(unit)
}

/// The files of a directory, in the order of their names.
pub(super) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("failed to list {}", directory.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

fn directory(parent: &Path, name: &str) -> Result<PathBuf> {
    let path = parent.join(name);
    fs::create_dir_all(&path).with_context(|| format!("failed to make {}", path.display()))?;
    Ok(path)
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    for file in files(from)? {
        fs::copy(&file, to.join(file.file_name().context("a file without a name")?))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_of_the_repository_can_be_packaged() {
        for file in files(&shell::root().join("contrib/systemd")).expect("it is there") {
            let text = fs::read_to_string(&file).expect("it is text");
            let unit = packaged_unit(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let is_service = file.extension().is_some_and(|it| it == "service");
            assert_eq!(is_service, unit.contains("\nExecStart=/usr/bin/leasehold "), "{unit}");
            assert_eq!(is_service, unit.contains("# 1. The package has installed"), "{unit}");
            assert_eq!(text.lines().count(), unit.lines().count());
        }
    }
}
