//! `cargo xtask dist`: the files of a release, made from this checkout, and checked.
//!
//! Owns what the files contain. Does not own the manifests of the packages, which are in `crates/cli/Cargo.toml`, and uploads
//! nothing: that is `.github/workflows/release.yml`.
//!
//! 1. What is made depends on the commit, the toolchain and the libraries of the machine only: not on the time, nor on where
//!    the checkout is.

mod build;
mod check;
mod products;
mod stage;
mod trial;

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cargo, install, shell};

/// The largest size of the program, in bytes.
const MAX_PROGRAM: u64 = 15_000_000;

/// What is packaged, and where.
struct Plan {
    version: String,
    /// The target, as the compiler calls it.
    target: String,
    /// When the commit was made, in seconds: the time of all files (1).
    epoch: String,
    /// Where the files of the release are put.
    directory: PathBuf,
    /// What they are made from: the manifests in `crates/cli/Cargo.toml` name it.
    stage: PathBuf,
}

/// The arguments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// The target; this machine's without it.
    target: Option<String>,
    /// Whether to install and remove what was made.
    is_tried: bool,
    /// Whether to build a second time, elsewhere, and compare.
    is_compared: bool,
    /// Whether to write only the list of checksums, of files that several machines have made.
    is_sum: bool,
}

/// Makes the files and checks them.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    let directory = shell::root().join("target/distribution");
    if options.is_sum {
        products::checksums(&directory)?;
        return check::checksums(&directory);
    }
    let plan = Plan::new(options.target, directory, epoch()?)?;
    plan.prepare()?;
    let program = build::program(&plan, &shell::target_directory())?;
    if options.is_compared {
        build::compare(&plan, &program)?;
    }
    stage::fill(&plan, &program)?;
    products::make(&plan)?;
    check::all(&plan)?;
    if options.is_tried {
        trial::run(&plan)?;
    }
    println!("{}", plan.directory.display());
    for name in plan.products() {
        println!("  {name}: {} bytes", fs::metadata(plan.directory.join(&name))?.len());
    }
    Ok(())
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--install" => options.is_tried = true,
                "--twice" => options.is_compared = true,
                "--sums" => options.is_sum = true,
                "--target" => {
                    options.target = Some(arguments.next().context("--target needs a target")?.clone());
                }
                other => bail!("dist takes --target, --install, --twice or --sums, but was given `{other}`"),
            }
        }
        Ok(options)
    }
}

impl Plan {
    fn new(target: Option<String>, directory: PathBuf, epoch: String) -> Result<Self> {
        let target = target.map_or_else(cargo::host, Ok)?;
        if !target.ends_with("-linux-gnu") && !target.ends_with("-linux-musl") {
            bail!("{target} is not packaged: only Linux with glibc or musl is");
        }
        let version = cargo::metadata()?.version("leasehold-cli")?.to_owned();
        let stage = directory.join("stage");
        Ok(Self { version, target, epoch, directory, stage })
    }

    /// Installs what is missing, and removes what an earlier run has made.
    fn prepare(&self) -> Result<()> {
        install::target(&self.target)?;
        if self.is_static() {
            install::musl()?;
        } else {
            install::dpkg()?;
            install::rpm()?;
        }
        if !shell::output(git(["status", "--porcelain"]))?.is_empty() {
            eprintln!("xtask: warning: the source archive is that of the last commit, without later changes");
        }
        if self.directory.is_dir() {
            fs::remove_dir_all(&self.directory)?;
        }
        fs::create_dir_all(&self.stage).with_context(|| format!("failed to make {}", self.stage.display()))
    }

    /// Whether the program is linked statically. It is in an archive only: a package has the libraries of its system.
    fn is_static(&self) -> bool {
        self.target.ends_with("-musl")
    }

    /// The processor, as the compiler calls it.
    fn processor(&self) -> &str {
        self.target.split('-').next().unwrap_or_default()
    }

    /// The processor, as Debian calls it.
    fn debian_processor(&self) -> &str {
        match self.processor() {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
    }

    /// The name of the archive without its ending, and of the directory in it.
    fn archive(&self) -> String {
        format!("leasehold-{}-{}", self.version, self.target)
    }

    fn deb(&self) -> String {
        format!("leasehold_{}-1_{}.deb", self.version, self.debian_processor())
    }

    fn rpm(&self) -> String {
        format!("leasehold-{}-1.{}.rpm", self.version, self.processor())
    }

    fn sbom(&self) -> String {
        format!("{}.cdx.json", self.archive())
    }

    fn sources(&self) -> String {
        format!("leasehold-{}-src", self.version)
    }

    /// The names of the files, without the list of their checksums.
    fn products(&self) -> Vec<String> {
        let mut names = vec![
            format!("{}.tar.gz", self.archive()),
            self.sbom(),
            format!("{}.tar.gz", self.sources()),
            "leasehold.rb".to_owned(),
        ];
        if !self.is_static() {
            names.extend([self.deb(), self.rpm()]);
        }
        names
    }

    /// A command whose output has the time of the commit (1).
    fn timed(&self, mut command: Command) -> Command {
        command.env("SOURCE_DATE_EPOCH", &self.epoch);
        command
    }
}

/// The time of the commit, unless the environment has another.
fn epoch() -> Result<String> {
    if let Ok(epoch) = env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    let time = shell::output(git(["log", "-1", "--format=%ct"]));
    Ok(time.context("the time of all files is that of the commit, or SOURCE_DATE_EPOCH")?.trim().to_owned())
}

fn git<const N: usize>(arguments: [&str; N]) -> Command {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(shell::root());
    git
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(target: &str) -> Result<Plan> {
        Plan::new(Some(target.to_owned()), PathBuf::from("/products"), "0".to_owned())
    }

    #[test]
    fn packages_have_the_names_that_their_systems_expect() {
        let plan = plan("aarch64-unknown-linux-gnu").expect("it is packaged");
        let version = &plan.version;
        assert_eq!(plan.deb(), format!("leasehold_{version}-1_arm64.deb"));
        assert_eq!(plan.rpm(), format!("leasehold-{version}-1.aarch64.rpm"));
        assert_eq!(plan.products().len(), 6);
    }

    #[test]
    fn a_static_program_is_in_an_archive_only() {
        let plan = plan("x86_64-unknown-linux-musl").expect("it is packaged");
        assert!(plan.is_static());
        assert!(!plan.products().iter().any(|name| name.contains(".deb") || name.contains(".rpm")));
    }

    #[test]
    fn another_system_is_named() {
        let error = plan("x86_64-pc-windows-msvc").err().expect("it is not packaged");
        assert!(error.to_string().starts_with("x86_64-pc-windows-msvc is not packaged"), "{error}");
    }

    #[test]
    fn unknown_arguments_are_refused() {
        let parse =
            |words: &[&str]| Options::parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(parse(&["--target", "x", "--twice"]).is_ok_and(|options| options.is_compared));
        for wrong in [&["--target"][..], &["--instal"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
