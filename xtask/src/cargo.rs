//! What cargo knows and builds: the packages of the workspace, and their test binaries.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::parts::{Part, Target, TargetName};
use crate::shell;

/// The packages of the workspace.
pub(crate) struct Metadata {
    packages: Vec<Package>,
}

struct Package {
    name: String,
    version: String,
    /// Set unless its manifest says `publish = false`.
    is_published: bool,
    is_library: bool,
    directory: PathBuf,
    test_targets: BTreeSet<TargetName>,
}

/// A built test binary.
#[derive(Debug, Clone)]
pub(crate) struct TestBinary {
    pub(crate) package: String,
    pub(crate) target: TargetName,
    pub(crate) executable: PathBuf,
    /// Where cargo runs it: the directory of its package.
    pub(crate) directory: PathBuf,
}

/// What the compiler calls this machine.
pub(crate) fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say for which machine it compiles")?.to_owned())
}

/// Reads the packages of the workspace, without a network.
pub(crate) fn metadata() -> Result<Metadata> {
    let mut command = shell::cargo(["metadata", "--no-deps", "--format-version", "1"]);
    let output = command.stderr(Stdio::inherit()).output().context("failed to start cargo")?;
    if !output.status.success() {
        bail!("`cargo metadata` failed ({})", output.status);
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo's metadata is no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo's metadata has no packages")?;
    Ok(Metadata { packages: packages.iter().map(Package::read).collect::<Result<_>>()? })
}

impl Metadata {
    /// All targets that are built as test binaries, with the names of their packages.
    pub(crate) fn test_targets(&self) -> Vec<(String, TargetName)> {
        let of = |package: &Package| {
            let name = package.name.clone();
            package.test_targets.clone().into_iter().map(move |target| (name.clone(), target))
        };
        self.packages.iter().flat_map(of).collect()
    }

    /// The name and the version of each package that is published.
    pub(crate) fn published(&self) -> Vec<(String, String)> {
        let published = self.packages.iter().filter(|package| package.is_published);
        published.map(|package| (package.name.clone(), package.version.clone())).collect()
    }

    /// The name of each library that is published.
    pub(crate) fn published_libraries(&self) -> Vec<String> {
        let published = self.packages.iter().filter(|package| package.is_published && package.is_library);
        published.map(|package| package.name.clone()).collect()
    }

    /// The version of a package.
    pub(crate) fn version(&self, name: &str) -> Result<&str> {
        let package = self.packages.iter().find(|package| package.name == name);
        Ok(&package.with_context(|| format!("there is no package `{name}`"))?.version)
    }

    /// The directory of a package.
    pub(crate) fn directory(&self, name: &str) -> Result<&Path> {
        let package = self.packages.iter().find(|package| package.name == name);
        Ok(&package.with_context(|| format!("there is no package `{name}`"))?.directory)
    }

    /// The name and the directory of each package.
    pub(crate) fn packages(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.packages.iter().map(|package| (package.name.as_str(), package.directory.as_path()))
    }
}

impl Package {
    fn read(package: &Value) -> Result<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned).context("cargo's metadata lacks a name");
        let manifest = PathBuf::from(text(&package["manifest_path"])?);
        let targets = || package["targets"].as_array().into_iter().flatten();
        let mut test_targets = BTreeSet::new();
        for target in targets() {
            if target["test"].as_bool() == Some(true) {
                test_targets.insert(target_name(target)?);
            }
        }
        let directory = manifest.parent().context("a manifest without a directory")?.to_owned();
        Ok(Self {
            name: text(&package["name"])?,
            version: text(&package["version"])?,
            is_published: package["publish"].is_null(),
            is_library: targets().any(|target| target["kind"][0] == "lib"),
            directory,
            test_targets,
        })
    }
}

fn target_name(target: &Value) -> Result<TargetName> {
    let is_file = target["kind"].as_array().into_iter().flatten().any(|kind| kind == "test");
    let name = target["name"].as_str().context("a target without a name")?;
    Ok(if is_file { TargetName::File(name.to_owned()) } else { TargetName::Unit })
}

/// Builds the test binaries of these parts, all in one run of cargo. The whole workspace is selected in every lane, so
/// that the lanes share what is built.
pub(crate) fn build_tests(
    metadata: &Metadata,
    parts: &[Part],
    options: &[String],
) -> Result<Vec<TestBinary>> {
    let mut build = shell::cargo(["test", "--no-run", "--workspace", "--lib", "--bins"]);
    let files: BTreeSet<&str> = parts
        .iter()
        .filter_map(|part| match part.target {
            Target::Unit => None,
            Target::File(name) => Some(name),
        })
        .collect();
    for file in files {
        build.args(["--test", file]);
    }
    build.args(options).arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    eprintln!("xtask: building the tests");
    let mut cargo = build.spawn().context("failed to start cargo")?;
    let output = cargo.stdout.take().context("cargo's output was piped")?;
    let mut binaries = Vec::new();
    for line in BufReader::new(output).lines() {
        let message: Value = serde_json::from_str(&line?).context("a message of cargo's is no JSON")?;
        binaries.extend(test_binary(metadata, &message)?);
    }
    let status = cargo.wait()?;
    if !status.success() {
        bail!("the tests were not built ({status})");
    }
    Ok(binaries)
}

/// The test executables that cargo's messages name, each with the manifest of its package.
pub(crate) fn test_executables(messages: &str) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut executables = Vec::new();
    for line in messages.lines() {
        let message = serde_json::from_str(line).context("a message of cargo's is no JSON")?;
        executables.extend(test_executable(&message));
    }
    Ok(executables)
}

/// The manifest of a test executable's package, and the executable.
fn test_executable(message: &Value) -> Option<(PathBuf, PathBuf)> {
    let is_test = message["profile"]["test"].as_bool() == Some(true);
    let path = |field: &str| message[field].as_str().map(PathBuf::from);
    path("manifest_path").zip(path("executable")).filter(|_| is_test)
}

fn test_binary(metadata: &Metadata, message: &Value) -> Result<Option<TestBinary>> {
    let Some((manifest, executable)) = test_executable(message) else { return Ok(None) };
    let package = metadata.packages.iter().find(|package| Some(&*package.directory) == manifest.parent());
    let package =
        package.with_context(|| format!("{} is of no package of the workspace", executable.display()))?;
    Ok(Some(TestBinary {
        package: package.name.clone(),
        target: target_name(&message["target"])?,
        executable,
        directory: package.directory.clone(),
    }))
}
