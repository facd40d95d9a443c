//! What the screen of `leasehold top` costs the server that it follows, while one process holds many locks.
//!
//! In each round, the same time is measured without the screen and with it. Of a server whose holders do the same in both, the
//! difference is the screen's.

use crate::launch::{REPLY_TIMEOUT, start_server, start_worker};
use crate::meter::{Machine, ServerStats, ThreadStats};
use crate::report::{Output, median, per, spread};
use crate::worker::renewal::PERIOD;
use anyhow::{Context, Result, ensure};
use leasehold_testkit::RedisServer;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SECOND_NS: u64 = 1_000_000_000;

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct TopReport {
    scenario: &'static str,
    /// Processor time of the server for the screen divided by the elapsed time: 0.01 is 1 % of one core.
    server_cpu_share: f64,
    server_cpu_share_spread: [f64; 2],
    /// The same of the server without the screen, and of the screen's own process.
    idle_cpu_share: f64,
    top_cpu_share: f64,
    /// Requests of the screen.
    requests_per_s: f64,
    locks: u64,
    rounds: usize,
    round_s: f64,
    #[serde(flatten)]
    machine: Machine,
}

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// The program to measure.
    #[arg(long, value_name = "FILE")]
    program: PathBuf,
    /// How many locks one process holds; each number is measured by itself.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    locks: Vec<u64>,
    /// How many rounds there are.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// For how many seconds each is measured without the screen, and then with it.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0, "at least one round must be measured");
    for locks in &options.locks {
        let report = measure(options, *locks)?;
        options.output.print(&report, || report.sentence())?;
    }
    Ok(())
}

/// The usage in one round, without the screen and with it.
struct Round {
    idle: (ServerStats, u64),
    followed: (ServerStats, u64),
    top: ThreadStats,
}

fn measure(options: &Options, locks: u64) -> Result<TopReport> {
    let server = start_server()?;
    let (url, locks_text, over_ms) = (server.url(), locks.to_string(), PERIOD.as_millis().to_string());
    let mut holder = start_worker(&["hold", "--url", &url, "--locks", &locks_text, "--over-ms", &over_ms])?;
    holder.expect("ready", REPLY_TIMEOUT)?;
    holder.send("acquire")?;
    holder.expect("held", REPLY_TIMEOUT + PERIOD)?;
    let time = Duration::from_secs(options.seconds);
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let idle = usage(&server, time)?;
        let screen = Screen::start(&options.program, &url)?;
        let pid = screen.pid()?;
        let followed = usage(&server, time)?;
        let top = ThreadStats::read(pid, None)?;
        screen.quit()?;
        rounds.push(Round { idle, followed, top });
    }
    holder.send("check")?;
    let checked = holder.line(REPLY_TIMEOUT)?;
    ensure!(checked.starts_with(&format!("{locks} ")), "of {locks} locks, these are held: {checked}");
    report(locks, &rounds, Machine::with(&server)?)
}

/// What the server uses in a time, and how long that was.
fn usage(server: &RedisServer, time: Duration) -> Result<(ServerStats, u64)> {
    let (start, before) = (Instant::now(), ServerStats::read(server)?);
    std::thread::sleep(time);
    let used = ServerStats::read(server)?.since(before);
    Ok((used, u64::try_from(start.elapsed().as_nanos())?))
}

fn report(locks: u64, rounds: &[Round], machine: Machine) -> Result<TopReport> {
    let all = |figure: &dyn Fn(&Round) -> f64| -> Vec<f64> { rounds.iter().map(figure).collect() };
    let share = |(stats, took): &(ServerStats, u64)| per(stats.cpu_us * 1000, *took);
    let requests = |(stats, took): &(ServerStats, u64)| per(stats.requests * SECOND_NS, *took);
    let shares = all(&|round| share(&round.followed) - share(&round.idle));
    let requests_per_s = median(&all(&|round| requests(&round.followed) - requests(&round.idle)));
    ensure!(requests_per_s > 0.0, "the screen has read nothing");
    Ok(TopReport {
        scenario: "top",
        server_cpu_share: median(&shares),
        server_cpu_share_spread: spread(&shares),
        idle_cpu_share: median(&all(&|round| share(&round.idle))),
        top_cpu_share: median(&all(&|round| per(round.top.cpu_ns, round.followed.1))),
        requests_per_s,
        locks,
        rounds: rounds.len(),
        round_s: median(&all(&|round| per(round.followed.1, SECOND_NS))),
        machine,
    })
}

impl TopReport {
    fn sentence(&self) -> String {
        let [least, most] = self.server_cpu_share_spread;
        format!(
            "top: with {} locks held, the screen costs the server {:.2} % of a core ({:.2} to {:.2}), beside {:.2} % for the \
             locks; it sends {:.1} requests a second, and uses {:.2} % of a core itself",
            self.locks,
            self.server_cpu_share * 100.0,
            least * 100.0,
            most * 100.0,
            self.idle_cpu_share * 100.0,
            self.requests_per_s,
            self.top_cpu_share * 100.0,
        )
    }
}

/// The program at a terminal of 80 columns, which `script` provides, on the core of the clients.
struct Screen {
    script: Child,
}

impl Screen {
    fn start(program: &Path, url: &str) -> Result<Self> {
        let mut script = Command::new("script");
        script.args([
            "--quiet",
            "--return",
            "--command",
            "stty rows 24 columns 80; exec taskset -c 1 \"$PROGRAM\" top",
        ]);
        script.arg("/dev/null").env("PROGRAM", program).env("TERM", "xterm").env("SHELL", "/bin/sh");
        script.env("LEASEHOLD_STORE", format!("{url}?accept=lua_vulnerabilities"));
        script.stdin(Stdio::piped()).stdout(Stdio::null());
        Ok(Self { script: script.spawn().context("failed to start `script`")? })
    }

    /// The id of the program.
    fn pid(&self) -> Result<u32> {
        let (script, begun) = (self.script.id(), Instant::now());
        let children = format!("/proc/{script}/task/{script}/children");
        loop {
            let child = std::fs::read_to_string(&children)?;
            let child = child.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
            let is_ours = |pid: &u32| {
                std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.ends_with("\0top\0"))
            };
            if let Some(pid) = child.filter(is_ours) {
                return Ok(pid);
            }
            ensure!(begun.elapsed() < REPLY_TIMEOUT, "the program has not started");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the program by its key.
    fn quit(mut self) -> Result<()> {
        self.script.stdin.take().context("it has a pipe")?.write_all(b"q")?;
        let status = self.script.wait()?;
        ensure!(status.success(), "the program ended with {status}");
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
