//! Runs a lane: checks its table, builds its tests once, runs its parts and reports what took longest.
//!
//! 1. Three jobs run at a time, since most of them wait more than they compute; but only one that calls cargo: two would
//!    wait for one another's lock. Parts that measure or judge times run after the others, with nothing beside them.
//! 2. A job that fails stops no other. Its output is printed when it ends.
//! 3. The tests' files are in memory, where the machine has a directory for that: SQLite and Redis wait for the disk,
//!    which a build beside the tests can keep busy for seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::cargo::{self, TestBinary};
use crate::parts::{self, Cases, Lane, PARTS, Part};
use crate::processor::wait_and_measure;
use crate::servers::{Server, TEST_SERVER};
use crate::{circles, install, interop, prose, shell, shuttle};

/// How many jobs run at a time.
const WORKERS: usize = 3;
/// How many parts and cases the report names.
const SLOWEST: usize = 10;
/// Where Linux has files in memory.
const IN_MEMORY: &str = "/dev/shm";
/// How much room the tests' files may need there.
const ROOM_IN_MEMORY: u64 = 2 << 30;
/// The package whose tests boot PostgreSQL.
const WITH_POSTGRESQL: &str = "leasehold-examples";
/// Which share of the random sequences a process runs, and of how many.
const SHARE: &str = "LEASEHOLD_SHARE";

/// One process that must succeed.
struct Job {
    title: String,
    command: Command,
    /// Whether it is cargo that runs.
    is_cargo: bool,
}

/// What is left to do, and what came of the rest.
#[derive(Default)]
struct Queue {
    waiting: Vec<Job>,
    cargo_runs: bool,
    done: Vec<Done>,
}

struct Done {
    title: String,
    took: Duration,
    /// Processor time of the job and of what it started and waited for. Zero if it is not measured.
    processor: Duration,
    succeeded: bool,
    /// What each case came to, where the job is a test binary.
    cases: Vec<Case>,
}

/// A test that was run.
#[derive(Debug, PartialEq, Eq)]
struct Case {
    name: String,
    passed: bool,
    took: Duration,
}

/// `cargo xtask check`.
pub(crate) fn check(arguments: &[String]) -> Result<()> {
    run(Lane::Check, arguments)
}

/// `cargo xtask test [--all] [--server SERVER] [NAME]`.
pub(crate) fn test(arguments: &[String]) -> Result<()> {
    let (mut is_full, mut server, mut name, mut options) = (false, None, None, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--all" => is_full = true,
            "--server" => {
                let named = arguments.next().context("--server is followed by the name of a server")?;
                server = Some(Server::named(named)?);
            }
            option if option.starts_with('-') => options.push(argument.clone()),
            _ if name.is_none() => name = Some(argument.clone()),
            other => bail!("there is one name at most, and not `{other}` besides"),
        }
    }
    match (name, server) {
        (Some(name), server) => run_named(&name, server, &options),
        (None, Some(_)) => bail!("--server needs a name: which tests to run there"),
        (None, None) => run(if is_full { Lane::Full } else { Lane::Test }, &options),
    }
}

/// Runs all of a lane. The options are cargo's, such as `--locked`.
fn run(lane: Lane, options: &[String]) -> Result<()> {
    refuse_others_than_cargo_takes(options)?;
    let start = Instant::now();
    let parts: Vec<Part> = PARTS.iter().filter(|part| part.lane <= lane).copied().collect();
    let metadata = cargo::metadata()?;
    parts::check_targets(&metadata.test_targets(), PARTS)?;
    let mut done = Vec::new();
    done.push(timed("format", || shell::run(shell::cargo(["fmt", "--all", "--check"]))));
    done.push(timed("import circles", || circles::run(&[])));
    done.push(timed("prose", || prose::run(&[])));
    let programs = match lane {
        Lane::Check => Programs::new(),
        Lane::Test => {
            install::redis()?;
            install::openssl()?;
            install::prometheus()?;
            install::systemd()?;
            install::browser()?;
            Programs::new()
        }
        Lane::Full => {
            install::postgresql()?;
            install::openssl()?;
            install::prometheus()?;
            install::systemd()?;
            install::browser()?;
            install_servers(&Server::ALL)?
        }
    };
    let built = Instant::now();
    let binaries = cargo::build_tests(&metadata, &parts, options)?;
    done.push(Done::of_time("building the tests", built.elapsed()));
    let mut jobs = vec![clippy(options)];
    if lane >= Lane::Full {
        jobs.push(drivers()?);
        jobs.push(Job { title: "shuttle".into(), command: shuttle::command(options)?, is_cargo: true });
    }
    if lane >= Lane::Test {
        jobs.push(doc_tests(options));
    }
    let (alone, beside): (Vec<Part>, Vec<Part>) = parts.iter().copied().partition(|part| part.is_alone);
    jobs.extend(test_jobs(&beside, &binaries, None, &programs)?);
    done.extend(run_jobs(jobs)?);
    done.extend(run_jobs(test_jobs(&alone, &binaries, None, &programs)?)?);
    if lane >= Lane::Full {
        // Last and alone: its drivers are processes of five languages, which take all of the machine.
        done.push(timed("interop", || interop::run(&[])));
    }
    report(done, start.elapsed())
}

/// Runs the cases with this in their name, of all lanes: on that server, or as most of them run.
pub(crate) fn run_named(name: &str, server: Option<Server>, options: &[String]) -> Result<()> {
    refuse_others_than_cargo_takes(options)?;
    let start = Instant::now();
    let metadata = cargo::metadata()?;
    install::redis()?;
    install::openssl()?;
    install::prometheus()?;
    install::systemd()?;
    install::browser()?;
    let binaries = cargo::build_tests(&metadata, PARTS, options)?;
    // The package of Debian starts a service, so it is installed only for the tests that need its programs.
    let boots_postgresql = |part: &Part| part.package == WITH_POSTGRESQL && has_case(part, &binaries, name);
    if PARTS.iter().any(boots_postgresql) {
        install::postgresql()?;
    }
    let on = |part: &Part, server| Part { server, is_shared: false, ..*part };
    let on_path = PARTS.iter().filter(|part| part.server == Server::Redis70);
    let (parts, programs): (Vec<Part>, Programs) = match server {
        Some(server) => {
            let own = PARTS.iter().filter(|part| part.server == server);
            (on_path.chain(own).map(|part| on(part, server)).collect(), install_servers(&[server])?)
        }
        None => (on_path.map(|part| on(part, Server::Redis70)).collect(), Programs::new()),
    };
    let mut jobs = test_jobs(&parts, &binaries, Some(name), &programs)?;
    if jobs.is_empty() && server.is_none() {
        // Cases that run on other servers only.
        let others: Vec<Part> = PARTS.iter().filter(|part| part.server != Server::Redis70).copied().collect();
        let needed: Vec<Part> = others.into_iter().filter(|part| has_case(part, &binaries, name)).collect();
        let servers: BTreeSet<Server> = needed.iter().map(|part| part.server).collect();
        let programs = install_servers(&servers.into_iter().collect::<Vec<_>>())?;
        jobs = test_jobs(&needed, &binaries, Some(name), &programs)?;
    }
    if jobs.is_empty() {
        bail!("no test has `{name}` in its name");
    }
    report(run_jobs(jobs)?, start.elapsed())
}

fn has_case(part: &Part, binaries: &[TestBinary], name: &str) -> bool {
    let own = binaries.iter().filter(|it| it.package == part.package && it.target == part.target);
    own.filter_map(|binary| cases_of(binary).ok())
        .flatten()
        .any(|case| part.selects(&case) && case.contains(name))
}

fn refuse_others_than_cargo_takes(options: &[String]) -> Result<()> {
    match options.iter().find(|option| !["--locked", "--offline", "--frozen"].contains(&option.as_str())) {
        Some(option) => {
            bail!("there is no option `{option}`: there are --all, --locked, --offline, --frozen")
        }
        None => Ok(()),
    }
}

/// The program of each server.
type Programs = BTreeMap<Server, PathBuf>;

/// Installs servers, and says which versions they are. One that cannot be installed is an error.
fn install_servers(servers: &[Server]) -> Result<Programs> {
    let install = |server: &Server| {
        let program = server.install().with_context(|| format!("the tests need {}", server.name()))?;
        eprintln!("xtask: {} is {}", server.name(), program.display());
        Ok((*server, program))
    };
    servers.iter().map(install).collect()
}

fn clippy(options: &[String]) -> Job {
    let mut command = shell::cargo(["clippy", "--workspace", "--all-targets"]);
    command.args(options).args(["--", "-D", "warnings"]);
    Job { title: "clippy".into(), command, is_cargo: true }
}

/// Installs the libraries that `interop` tests at the end. It calls cargo, but builds in a directory of its own.
fn drivers() -> Result<Job> {
    let mut command = shell::in_root(env::current_exe().context("this program has no path")?);
    command.args(["interop", interop::PREPARE]);
    Ok(Job { title: "drivers of other libraries".into(), command, is_cargo: false })
}

fn doc_tests(options: &[String]) -> Job {
    let mut command = shell::cargo(["test", "--workspace", "--doc"]);
    command.args(options);
    Job { title: "examples in the documentation".into(), command, is_cargo: true }
}

/// A job for each part that has a case, with the cases checked against the table.
fn test_jobs(
    parts: &[Part],
    binaries: &[TestBinary],
    name: Option<&str>,
    programs: &Programs,
) -> Result<Vec<Job>> {
    let mut listed = BTreeMap::new();
    for binary in binaries {
        let cases = cases_of(binary)?;
        listed.entry((binary.package.clone(), binary.target.clone())).or_insert_with(Vec::new).extend(cases);
    }
    for ((package, target), cases) in &listed {
        parts::check_cases(package, target, cases, PARTS)?;
    }
    let (mut jobs, mut seen) = (Vec::new(), BTreeSet::new());
    for part in parts {
        for binary in binaries.iter().filter(|it| it.package == part.package && it.target == part.target) {
            let cases = cases_of(binary)?;
            let selected = |case: &&String| part.selects(case) && name.is_none_or(|name| case.contains(name));
            let mut selected: Vec<&String> = cases.iter().filter(selected).collect();
            selected.retain(|case| seen.insert((part.server, binary.executable.clone(), (*case).clone())));
            if !selected.is_empty() {
                jobs.push(test_job(part, binary, name.map(|_| &selected[..]), programs)?);
            }
        }
    }
    Ok(jobs)
}

fn test_job(part: &Part, binary: &TestBinary, only: Option<&[&String]>, programs: &Programs) -> Result<Job> {
    let mut command = test_command(binary);
    // The times of single cases: libtest prints them only where unstable options are allowed.
    command.env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--report-time"]);
    match (only, part.cases) {
        (Some(cases), _) => {
            command.arg("--exact").args(cases);
        }
        (None, Cases::All) => {}
        (None, Cases::Only(names)) => {
            command.args(names);
        }
        (None, Cases::Except(names)) => {
            command.args(names.iter().flat_map(|name| ["--skip", name]));
        }
    }
    if let Some(threads) = part.threads {
        command.env("RUST_TEST_THREADS", threads);
    }
    if part.is_shared {
        command.env(SHARE, part.server.share());
    }
    if part.server != Server::Redis70 {
        let program = programs.get(&part.server).context("each server of a part is installed")?;
        command.env(TEST_SERVER, program);
    }
    Ok(Job { title: part.title(), command, is_cargo: false })
}

fn test_command(binary: &TestBinary) -> Command {
    let mut command = Command::new(&binary.executable);
    command.current_dir(&binary.directory).env("CARGO_MANIFEST_DIR", &binary.directory);
    if env::var_os("TMPDIR").is_none() && has_room_in_memory() {
        command.env("TMPDIR", IN_MEMORY);
    }
    command
}

/// Whether the directory in memory has room, and files in it can be executed: some tests write a program.
fn has_room_in_memory() -> bool {
    statvfs(IN_MEMORY).is_ok_and(|stat| {
        let is_usable = !stat.f_flag.intersects(StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY);
        is_usable && stat.f_bavail.saturating_mul(stat.f_frsize) >= ROOM_IN_MEMORY
    })
}

fn cases_of(binary: &TestBinary) -> Result<Vec<String>> {
    let output = test_command(binary).args(["--list", "--format", "terse"]).output();
    let output = output.with_context(|| format!("failed to start {}", binary.executable.display()))?;
    if !output.status.success() {
        bail!("{} does not list its cases ({})", binary.executable.display(), output.status);
    }
    let text = String::from_utf8(output.stdout).context("names of cases are UTF-8")?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn timed(title: &str, action: impl FnOnce() -> Result<()>) -> Done {
    let start = Instant::now();
    let result = action();
    if let Err(error) = &result {
        eprintln!("xtask: {title}: {error:#}");
    }
    Done { succeeded: result.is_ok(), ..Done::of_time(title, start.elapsed()) }
}

/// Runs all jobs, some of them side by side.
fn run_jobs(jobs: Vec<Job>) -> Result<Vec<Done>> {
    let logs = shell::target_directory().join("xtask/logs");
    fs::create_dir_all(&logs).with_context(|| format!("failed to make {}", logs.display()))?;
    let queue = Mutex::new(Queue { waiting: jobs, ..Queue::default() });
    let changed = Condvar::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|at| {
                let (log, queue, changed) = (logs.join(format!("worker-{at}")), &queue, &changed);
                scope.spawn(move || work(queue, changed, &log))
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    Ok(queue.into_inner().unwrap_or_else(PoisonError::into_inner).done)
}

/// Runs one job after the other until none is left.
fn work(queue: &Mutex<Queue>, changed: &Condvar, log: &PathBuf) -> Result<()> {
    loop {
        let mut guard = locked(queue);
        let job = loop {
            let cargo_runs = guard.cargo_runs;
            if let Some(at) = guard.waiting.iter().position(|job| !(job.is_cargo && cargo_runs)) {
                break guard.waiting.remove(at);
            }
            if guard.waiting.is_empty() {
                return Ok(());
            }
            guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        guard.cargo_runs |= job.is_cargo;
        drop(guard);
        let is_cargo = job.is_cargo;
        let done = run_job(job, log);
        let mut guard = locked(queue);
        guard.cargo_runs &= !is_cargo;
        changed.notify_all();
        guard.done.push(done?);
    }
}

fn run_job(mut job: Job, log: &PathBuf) -> Result<Done> {
    let output = File::create(log).with_context(|| format!("failed to make {}", log.display()))?;
    job.command.stdout(output.try_clone()?).stderr(output);
    let start = Instant::now();
    let child = job.command.spawn().with_context(|| format!("failed to start {}", job.title))?;
    let (status, processor) = wait_and_measure(child)?;
    let took = start.elapsed();
    let text = fs::read(log).with_context(|| format!("failed to read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let cases = cases_run(&text);
    let count = if cases.is_empty() { String::new() } else { format!(", {} cases", cases.len()) };
    let times = format!("{:>6.1} s, {:>6.1} s of processor", took.as_secs_f64(), processor.as_secs_f64());
    if status.success() {
        println!("ok      {times}  {}{count}", job.title);
    } else {
        println!("FAILED  {times}  {} ({status}): {:?}\n{text}", job.title, job.command);
    }
    Ok(Done { title: job.title, took, processor, succeeded: status.success(), cases })
}

/// The lines `test NAME ... ok <0.123s>` of a test binary. An example in the documentation has no time.
fn cases_run(output: &str) -> Vec<Case> {
    let case = |line: &str| {
        let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let timed = rest.strip_suffix("s>").and_then(|rest| rest.rsplit_once(" <"));
        let (result, seconds) = timed.unwrap_or((rest, "0"));
        let took = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
        let was_run = matches!(result, "ok" | "FAILED");
        was_run.then(|| Case { name: name.to_owned(), passed: result == "ok", took })
    };
    output.lines().filter_map(case).collect()
}

/// Prints what took longest and, in libtest's form, the sum; fails if a job has failed.
fn report(done: Vec<Done>, took: Duration) -> Result<()> {
    let failed: Vec<String> =
        done.iter().filter(|done| !done.succeeded).map(|done| done.title.clone()).collect();
    let mut cases: Vec<(String, Duration)> = Vec::new();
    let mut parts: Vec<(String, Duration)> = Vec::new();
    let mut processor: Vec<(String, Duration)> = Vec::new();
    let mut passed = 0;
    for Done { title, took, processor: used, cases: own, .. } in done {
        passed += own.iter().filter(|case| case.passed).count();
        cases.extend(own.into_iter().map(|case| (format!("{title}: {}", case.name), case.took)));
        processor.push((title.clone(), used));
        parts.push((title, took));
    }
    let failures = cases.len() - passed;
    let used: Duration = processor.iter().map(|(_, used)| *used).sum();
    print_longest("slowest parts", parts);
    print_longest("most processor time", processor);
    print_longest("slowest cases", cases);
    println!("\n{:.0} s of processor in all parts", used.as_secs_f64());
    println!(
        "\ntest result: {}. {passed} passed; {failures} failed; finished in {:.2}s",
        if failed.is_empty() { "ok" } else { "FAILED" },
        took.as_secs_f64()
    );
    if !failed.is_empty() {
        bail!("failed: {}", failed.join("; "));
    }
    Ok(())
}

fn print_longest(what: &str, mut times: Vec<(String, Duration)>) {
    times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    println!("\n{what}:");
    for (title, took) in times.iter().take(SLOWEST) {
        println!("{:>9.1} s  {title}", took.as_secs_f64());
    }
}

impl Done {
    fn of_time(title: &str, took: Duration) -> Self {
        Self { title: title.to_owned(), took, processor: Duration::ZERO, succeeded: true, cases: Vec::new() }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_and_times_of_cases_are_read() {
        let output = "running 2 tests\ntest a::one ... ok <0.250s>\ntest b ... FAILED <1.500s>\n\
                      test c ... ignored\ntest src/lib.rs - Lock (line 7) ... ok\ntest result: FAILED. 1 passed; finished in 1.75s\n";
        let case = |name: &str, passed, millis| {
            let (name, took) = (name.to_owned(), Duration::from_millis(millis));
            Case { name, passed, took }
        };
        let example = case("src/lib.rs - Lock (line 7)", true, 0);
        assert_eq!(cases_run(output), [case("a::one", true, 250), case("b", false, 1500), example]);
    }

    #[test]
    fn an_unknown_option_is_refused() {
        let error = test(&["--al".to_owned()]).expect_err("a refusal").to_string();
        assert!(error.starts_with("there is no option `--al`"), "{error}");
    }
}
