//! The files of a release: archives, packages, the list of components, the formula and the checksums.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Plan, git, stage};
use crate::{cargo, extension, shell};

/// The list of the checksums.
pub(super) const SUMS: &str = "SHA256SUMS";

/// Makes one package as this file.
type Make = fn(&Plan, &Path) -> Result<()>;

/// Makes all files.
pub(super) fn make(plan: &Plan) -> Result<()> {
    archive(plan)?;
    sources(plan)?;
    formula(plan)?;
    sbom(plan)?;
    if !plan.is_static() {
        let (deb, rpm) = (plan.directory.join(plan.deb()), plan.directory.join(plan.rpm()));
        make_deb(plan, &deb)?;
        make_rpm(plan, &rpm)?;
        // The manifests or the tools could add a time or an order by chance.
        let packages: [(&PathBuf, Make); 2] = [(&deb, make_deb), (&rpm, make_rpm)];
        for (first, make) in packages {
            let second = plan.stage.join(first.file_name().context("a file without a name")?);
            make(plan, &second)?;
            if fs::read(first)? != fs::read(&second)? {
                bail!("two packages of the same files differ: {} and {}", first.display(), second.display());
            }
        }
    }
    checksums(&plan.directory)
}

/// The program with its pages, completions and units, for any system of the target.
fn archive(plan: &Plan) -> Result<()> {
    let name = plan.archive();
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar"]);
    // Whatever the umask was when the checkout was made.
    tar.args(["--mode=u+rw,go=rX", "--use-compress-program=gzip -9 --no-name"]);
    tar.arg(format!("--mtime=@{}", plan.epoch)).arg("--directory").arg(&plan.stage);
    tar.arg("--file").arg(plan.directory.join(format!("{name}.tar.gz"))).arg(&name);
    shell::run(tar)
}

/// The sources of the commit, for those that build it themselves.
fn sources(plan: &Plan) -> Result<()> {
    let name = plan.sources();
    let mut pack = git(["-c", "tar.tar.gz.command=gzip -9 --no-name", "archive", "--format=tar.gz"]);
    pack.arg(format!("--prefix=leasehold-{}/", plan.version)).arg("--output");
    pack.arg(plan.directory.join(format!("{name}.tar.gz"))).arg("HEAD");
    shell::run(pack)
}

/// The formula of Homebrew, which builds the sources.
fn formula(plan: &Plan) -> Result<()> {
    let template = fs::read_to_string(shell::root().join("contrib/homebrew/leasehold.rb.in"))?;
    let sum = sha256(&plan.directory.join(format!("{}.tar.gz", plan.sources())))?;
    let text = template.replace("@VERSION@", &plan.version).replace("@SHA256@", &sum);
    Ok(fs::write(plan.directory.join("leasehold.rb"), text)?)
}

fn make_deb(plan: &Plan, file: &Path) -> Result<()> {
    let mut deb = extension::cargo("deb", "3.8.0")?;
    deb.args(["--package", "leasehold-cli", "--no-build", "--no-strip", "--locked", "--target"]);
    deb.arg(&plan.target).arg("--output").arg(file);
    shell::run(plan.timed(deb))
}

fn make_rpm(plan: &Plan, file: &Path) -> Result<()> {
    let mut rpm = extension::cargo("generate-rpm", "0.21.1")?;
    rpm.args(["--package", "crates/cli", "--target", &plan.target, "--output"]).arg(file);
    shell::run(plan.timed(rpm))
}

/// The components of the program, in the format of `CycloneDX`.
fn sbom(plan: &Plan) -> Result<()> {
    const NAME: &str = "leasehold-components";
    let mut list = extension::cargo("cyclonedx", "0.5.9")?;
    list.args(["--format", "json", "--spec-version", "1.5", "--override-filename", NAME, "--target"]);
    list.arg(&plan.target);
    let made = shell::run(plan.timed(list));
    // It writes one beside each manifest of the workspace.
    let metadata = cargo::metadata()?;
    let file = |directory: &Path| directory.join(format!("{NAME}.json"));
    let text = fs::read_to_string(file(metadata.directory("leasehold-cli")?));
    for (_, directory) in metadata.packages() {
        match fs::remove_file(file(directory)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    made?;
    let text = text.context("cargo-cyclonedx succeeded, but wrote no list")?;
    let text = text.replace(&shell::root().display().to_string(), "/leasehold");
    Ok(fs::write(plan.directory.join(plan.sbom()), text)?)
}

/// Writes the list of the checksums of all files in a directory.
pub(super) fn checksums(directory: &Path) -> Result<()> {
    let mut list = String::new();
    for file in stage::files(directory)? {
        let name = file.file_name().context("a file without a name")?.to_string_lossy().into_owned();
        if name != SUMS {
            let sum = sha256(&file)?;
            list.extend([sum.as_str(), "  ", name.as_str(), "\n"]);
        }
    }
    Ok(fs::write(directory.join(SUMS), list)?)
}

fn sha256(file: &Path) -> Result<String> {
    let mut sum = Command::new("sha256sum");
    sum.arg(file);
    Ok(shell::output(sum)?.split(' ').next().context("sha256sum prints a sum")?.to_owned())
}
