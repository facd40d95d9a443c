//! Looks into each file that was made: what it contains, and what it says about itself.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::products::SUMS;
use super::{MAX_PROGRAM, Plan, stage};
use crate::shell;

/// Checks all files.
pub(super) fn all(plan: &Plan) -> Result<()> {
    program(plan)?;
    archive(plan)?;
    sources(plan)?;
    formula(plan)?;
    sbom(plan)?;
    if !plan.is_static() {
        deb(plan)?;
        rpm(plan)?;
    }
    for name in plan.products() {
        ensure!(plan.directory.join(&name).is_file(), "{name} was not made");
    }
    checksums(&plan.directory)
}

fn program(plan: &Plan) -> Result<()> {
    let file = plan.stage.join("leasehold");
    let size = fs::metadata(&file)?.len();
    ensure!(size <= MAX_PROGRAM, "the program has {size} bytes, and {MAX_PROGRAM} at most are allowed");
    let bytes = fs::read(&file)?;
    for name in [&b"\0.symtab\0"[..], b"\0.debug_info\0"] {
        let has = bytes.windows(name.len()).any(|window| window == name);
        ensure!(!has, "the program is not stripped: it has {}", String::from_utf8_lossy(name));
    }
    let root = shell::root().display().to_string();
    let names = bytes.windows(root.len()).any(|window| window == root.as_bytes());
    ensure!(!names, "the program contains {root}: it depends on where it was built");
    let mut print = Command::new(&file);
    print.arg("--version");
    let version = shell::output(print)?;
    ensure!(version.trim() == format!("leasehold {}", plan.version), "--version prints {version}");
    Ok(())
}

/// The names of the manual pages: one of the program, and one of each command.
fn pages(plan: &Plan) -> Result<BTreeSet<String>> {
    let names = stage::files(&plan.stage.join("man"))?;
    let names: BTreeSet<_> =
        names.iter().filter_map(|file| Some(file.file_name()?.to_str()?.to_owned())).collect();
    for page in ["leasehold.1", "leasehold-run.1", "leasehold-monitor.1"] {
        ensure!(names.contains(page), "there is no page {page}");
    }
    Ok(names)
}

fn units() -> Result<BTreeSet<String>> {
    let files = stage::files(&shell::root().join("contrib/systemd"))?;
    Ok(files.iter().filter_map(|file| Some(file.file_name()?.to_str()?.to_owned())).collect())
}

fn archive(plan: &Plan) -> Result<()> {
    let file = plan.directory.join(format!("{}.tar.gz", plan.archive()));
    let listed = list_archive(&file)?;
    let mut expected = vec!["leasehold".to_owned()];
    expected.extend(pages(plan)?.iter().map(|name| format!("man/{name}")));
    expected.extend(stage::COMPLETIONS.iter().map(|(_, name)| format!("completions/{name}")));
    expected.extend(units()?.iter().map(|name| format!("systemd/{name}")));
    expected.extend(stage::DOCUMENTS.iter().map(ToString::to_string));
    if plan.is_static() {
        expected.push("Containerfile".to_owned());
    }
    let expected = expected.into_iter().map(|name| format!("{}/{name}", plan.archive())).collect();
    same(&file, &listed, &expected)
}

fn sources(plan: &Plan) -> Result<()> {
    let file = plan.directory.join(format!("{}.tar.gz", plan.sources()));
    let listed = list_archive(&file)?;
    for name in ["Cargo.toml", "Cargo.lock", "crates/cli/Cargo.toml", "LICENSE-MIT", "LICENSE-APACHE"] {
        let name = format!("leasehold-{}/{name}", plan.version);
        ensure!(listed.contains(&name), "{} has no {name}", file.display());
    }
    Ok(())
}

/// The files in an archive, without its directories.
fn list_archive(file: &Path) -> Result<BTreeSet<String>> {
    let mut tar = Command::new("tar");
    tar.arg("--list").arg("--file").arg(file);
    let listed = shell::output(tar)?;
    Ok(listed.lines().filter(|name| !name.ends_with('/')).map(str::to_owned).collect())
}

fn formula(plan: &Plan) -> Result<()> {
    let text = fs::read_to_string(plan.directory.join("leasehold.rb"))?;
    let sums = fs::read_to_string(plan.directory.join(SUMS))?;
    let name = format!("{}.tar.gz", plan.sources());
    let sum = sums.lines().find_map(|line| line.strip_suffix(&format!("  {name}")));
    let sum = sum.with_context(|| format!("{SUMS} has no line for {name}"))?;
    ensure!(text.contains(&format!("sha256 \"{sum}\"")), "the formula has another checksum than {SUMS}");
    ensure!(text.contains(&format!("/v{}/{name}\"", plan.version)), "the formula does not load {name}");
    ensure!(!text.contains("@VERSION@") && !text.contains("@SHA256@"), "the formula is not filled in");
    Ok(())
}

fn sbom(plan: &Plan) -> Result<()> {
    let text = fs::read_to_string(plan.directory.join(plan.sbom()))?;
    let list: Value = serde_json::from_str(&text).context("the list of components is no JSON")?;
    ensure!(list["bomFormat"] == "CycloneDX", "the list of components is not CycloneDX");
    let component = &list["metadata"]["component"];
    ensure!(component["name"] == "leasehold-cli" && component["version"] == plan.version.as_str());
    let components = list["components"].as_array().context("the list has no components")?;
    let versions = |name: &str| -> Vec<_> {
        let of_name = components.iter().filter(|it| it["name"] == name);
        of_name.filter_map(|it| it["version"].as_str().map(str::to_owned)).collect()
    };
    let lock = fs::read_to_string(shell::root().join("Cargo.lock"))?;
    for name in ["leasehold", "redis", "rusqlite", "rustls", "tokio"] {
        let versions = versions(name);
        let is_locked =
            |version: &String| lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n"));
        ensure!(!versions.is_empty() && versions.iter().all(is_locked), "{name}: {versions:?}");
    }
    ensure!(versions("vt100").is_empty(), "the list has what only tests use");
    ensure!(!text.contains(&shell::root().display().to_string()), "the list names the checkout");
    Ok(())
}

/// The paths that a package installs, but for what its system adds.
fn installed(plan: &Plan, zsh: &str, compressed: &str) -> Result<BTreeSet<String>> {
    let mut paths = BTreeSet::from([
        "/usr/bin/leasehold".to_owned(),
        "/usr/share/bash-completion/completions/leasehold".to_owned(),
        format!("/usr/share/zsh/{zsh}/_leasehold"),
        "/usr/share/fish/vendor_completions.d/leasehold.fish".to_owned(),
    ]);
    paths.extend(pages(plan)?.iter().map(|name| format!("/usr/share/man/man1/{name}{compressed}")));
    paths.extend(units()?.iter().map(|name| format!("/usr/lib/systemd/system/{name}")));
    Ok(paths)
}

fn deb(plan: &Plan) -> Result<()> {
    let file = plan.directory.join(plan.deb());
    let field = |name: &str| {
        let mut field = Command::new("dpkg-deb");
        field.arg("--field").arg(&file).arg(name);
        shell::output(field).map(|value| value.trim().to_owned())
    };
    let version = format!("{}-1", plan.version);
    for (name, expected) in [
        ("Package", "leasehold"),
        ("Version", version.as_str()),
        ("Architecture", plan.debian_processor()),
        ("Section", "admin"),
        ("Maintainer", "The Leasehold authors"),
        ("Homepage", "https://github.com/leasehold/leasehold"),
    ] {
        let value = field(name)?;
        ensure!(value == expected, "{}: {name} is `{value}`, not `{expected}`", plan.deb());
    }
    let depends = field("Depends")?;
    ensure!(depends.contains("libc6 (>= "), "{}: it depends on `{depends}`", plan.deb());
    let mut contents = Command::new("dpkg-deb");
    contents.arg("--contents").arg(&file);
    let contents = shell::output(contents)?;
    // Mode, owner, size, date, time, path.
    let lines: Vec<Vec<&str>> = contents.lines().map(|line| line.split_whitespace().collect()).collect();
    ensure!(lines.iter().all(|line| line.get(1) == Some(&"0/0")), "another owner: {contents}");
    let is_program =
        |line: &Vec<&str>| line.first() == Some(&"-rwxr-xr-x") && line.last() == Some(&"./usr/bin/leasehold");
    ensure!(lines.iter().any(is_program), "the program is not executable: {contents}");
    let listed = lines.iter().filter(|line| line.first().is_some_and(|mode| mode.starts_with('-')));
    let listed = listed.filter_map(|line| Some(line.last()?.strip_prefix('.')?.to_owned())).collect();
    let mut expected = installed(plan, "vendor-completions", ".gz")?;
    let documents = ["LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md", "copyright"];
    expected.extend(documents.map(|name| format!("/usr/share/doc/leasehold/{name}")));
    same(&file, &listed, &expected)
}

fn rpm(plan: &Plan) -> Result<()> {
    let file = plan.directory.join(plan.rpm());
    let query = |options: &[&str]| {
        let mut query = Command::new("rpm");
        query.args(["--query", "--package", "--nosignature"]).args(options).arg(&file);
        shell::output(query)
    };
    let head = query(&["--queryformat", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH} %{LICENSE}"])?;
    let expected = format!("leasehold {}-1 {} MIT OR Apache-2.0", plan.version, plan.processor());
    ensure!(head == expected, "{}: it says `{head}`, not `{expected}`", plan.rpm());
    let requires = query(&["--requires"])?;
    ensure!(requires.contains("libc.so.6("), "{}: it requires {requires}", plan.rpm());
    let listed = query(&["--list"])?.lines().map(str::to_owned).collect();
    let mut expected = installed(plan, "site-functions", "")?;
    expected.extend(
        ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| format!("/usr/share/licenses/leasehold/{name}")),
    );
    expected.insert("/usr/share/doc/leasehold/CHANGELOG.md".to_owned());
    same(&file, &listed, &expected)
}

/// Checks the list of checksums by the program that users check it with, and that it names all files.
pub(super) fn checksums(directory: &Path) -> Result<()> {
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "--quiet", SUMS]).current_dir(directory);
    shell::output(check)?;
    let sums = fs::read_to_string(directory.join(SUMS))?;
    for file in stage::files(directory)? {
        let name = file.file_name().context("a file without a name")?.to_string_lossy();
        let is_listed = sums.lines().any(|line| line.ends_with(&format!("  {name}")));
        ensure!(name == SUMS || is_listed, "{SUMS} has no line for {name}");
    }
    Ok(())
}

fn same(file: &Path, listed: &BTreeSet<String>, expected: &BTreeSet<String>) -> Result<()> {
    if listed == expected {
        return Ok(());
    }
    let missing: Vec<_> = expected.difference(listed).collect();
    let more: Vec<_> = listed.difference(expected).collect();
    bail!("{}: missing: {missing:?}; not expected: {more:?}", file.display())
}
