//! The marketplace of the book *Redis in Action*: sellers list items and buyers buy them, under several locking strategies.
//!
//! Each seller and each buyer is a process of its own, with a connection for data and those that its strategy needs. Their
//! choices come from seeds that are the same for all strategies in one round. Only the locking of a deal differs, so the
//! measurement shows its cost. After each run the books are audited: if a strategy loses money or sells an item twice, the
//! benchmark fails.
//!
//! Owns how runs are started and measured. What is traded is in `deal`, the locking in `strategy`, the process that trades
//! in `trader`, the audit in `ledger`, and the reports in `figures`, `pictures` and `page`.

mod deal;
mod figures;
mod ledger;
mod page;
mod pictures;
mod strategy;
mod trader;

pub(crate) use trader::{Trader, run as trade};

use crate::launch::{REPLY_TIMEOUT, start_server, start_worker, tell_all};
use crate::meter::{ServerStats, ThreadStats};
use anyhow::{Context, Result, ensure};
use figures::{Report, Run};
use leasehold_testkit::{RedisServer, Worker};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};
use strategy::Strategy;
use trader::Account;

/// The initial funds of each user: more than a user can spend.
const FUNDS: i64 = 1_000_000_000;
/// How long all traders trade before the measurement.
const WARM_UP: Duration = Duration::from_secs(1);

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Print one JSON object a line, for each strategy and crowd.
    #[arg(long)]
    json: bool,
    /// How long each strategy is measured with each crowd in a round.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How many rounds; each measures all strategies with all crowds.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// One round of a second for each strategy and crowd: to see that all of it works, not to compare.
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
    /// How many sellers and buyers; and among how many of the cheapest offers a buyer chooses, if not among all.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SELLERS+BUYERS[/AMONG]",
        default_value = "1+1,5+1,5+5,5+5/10"
    )]
    crowds: Vec<Crowd>,
    /// Draw charts into this directory.
    #[arg(long)]
    draw: Option<PathBuf>,
    /// Write the figures into this page, between its marks.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// The numbers of sellers and buyers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Crowd {
    sellers: u32,
    buyers: u32,
    /// Among how many of the cheapest offers a buyer chooses; among all, if it is 0.
    among: u64,
}

/// Runs all strategies with all crowds in each round, so that all meet the same load of the machine.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    let (seconds, rounds) = if plan.quick { (1, 1) } else { (plan.seconds, plan.rounds) };
    ensure!(seconds > 0 && rounds > 0, "there is nothing to measure in {rounds} rounds of {seconds} s");
    let server = start_server()?;
    let mut runs = Vec::new();
    for round in 0..rounds {
        for &crowd in &plan.crowds {
            for strategy in Strategy::ALL {
                let run = measure(&server, strategy, crowd, round, seconds)
                    .with_context(|| format!("{}, {}, round {}", strategy.name(), crowd.name(), round + 1))?;
                eprintln!("marketplace: round {} of {rounds}: {}", round + 1, run.summary());
                runs.push(run);
            }
        }
    }
    let report = Report::of(&runs, &plan.crowds, &server)?;
    report.print(plan.json)?;
    if let Some(directory) = plan.draw.as_deref() {
        pictures::draw(&report, directory)?;
    }
    plan.page.as_deref().map_or(Ok(()), |file| page::write(&report, plan.quick, file))
}

/// Runs one strategy with one crowd on an empty server, from seeding to the audit.
fn measure(server: &RedisServer, strategy: Strategy, crowd: Crowd, round: u64, seconds: u64) -> Result<Run> {
    seed(server, crowd)?;
    let mut traders = Vec::new();
    for user in crowd.users() {
        traders.push(start(server, strategy, crowd, user, round)?);
    }
    for trader in &mut traders {
        trader.expect("ready", REPLY_TIMEOUT)?;
    }
    tell_all(&mut traders, "begin")?;
    std::thread::sleep(WARM_UP);
    tell_all(&mut traders, "mark")?;
    server.reset_counts()?;
    let (begun, stats, cpu) = (Instant::now(), ServerStats::read(server)?, cpu_ns(&traders)?);
    std::thread::sleep(Duration::from_secs(seconds));
    let (took, stats, cpu) =
        (begun.elapsed(), ServerStats::read(server)?.since(stats), cpu_ns(&traders)? - cpu);
    let (counts, reads) = (server.command_counts()?, reads(server)?);
    tell_all(&mut traders, "stop")?;
    let mut accounts: Vec<Account> = Vec::new();
    for trader in &mut traders {
        accounts.push(serde_json::from_str(&trader.line(REPLY_TIMEOUT)?)?);
    }
    ledger::audit(FUNDS, &accounts, &ledger::State::read(&server.url(), crowd.users())?)?;
    let count = |command: &str| counts.get(command).copied().unwrap_or(0);
    let usage = figures::Usage {
        took,
        scripts: count("evalsha") + count("eval"),
        sets: if strategy == Strategy::Rslock { count("set") } else { 0 },
        reads,
        server_cpu_ns: stats.cpu_us * 1000,
        clients_cpu_ns: cpu,
    };
    Ok(Run::of(strategy, crowd, round, &accounts, usage))
}

impl FromStr for Crowd {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (people, among) = text.split_once('/').unwrap_or((text, "0"));
        let (sellers, buyers) = people.split_once('+').context("SELLERS+BUYERS is expected")?;
        let crowd = Self { sellers: sellers.parse()?, buyers: buyers.parse()?, among: among.parse()? };
        ensure!(crowd.sellers > 0 && crowd.buyers > 0, "there must be a seller and a buyer");
        Ok(crowd)
    }
}

impl Crowd {
    /// All users, sellers first.
    fn users(self) -> impl Iterator<Item = u32> {
        1..=self.sellers + self.buyers
    }

    fn name(self) -> String {
        let choice = if self.among == 0 { String::new() } else { format!(", of {}", self.among) };
        format!("{} + {}{choice}", self.sellers, self.buyers)
    }
}

/// Empties the server, and creates all users with their funds.
fn seed(server: &RedisServer, crowd: Crowd) -> Result<()> {
    server.cli(&["FLUSHALL", "SYNC"])?.ok()?;
    for user in crowd.users() {
        server.cli(&["HSET", &deal::user(user), "funds", &FUNDS.to_string()])?.ok()?;
    }
    Ok(())
}

fn start(server: &RedisServer, strategy: Strategy, crowd: Crowd, user: u32, round: u64) -> Result<Worker> {
    // The same for all strategies.
    let seed = (round * 1000 + u64::from(user)).to_string();
    let (url, number, among) = (server.url(), user.to_string(), crowd.among.to_string());
    let mut role = vec!["trade", "--url", &url, "--strategy", strategy.argument()];
    role.extend(["--user", &number, "--seed", &seed, "--among", &among]);
    if user > crowd.sellers {
        role.push("--buys");
    }
    start_worker(&role)
}

/// Processor time of all traders, in nanoseconds.
fn cpu_ns(traders: &[Worker]) -> Result<u64> {
    traders.iter().map(|trader| Ok(ThreadStats::read(trader.pid(), None)?.cpu_ns)).sum()
}

/// How often the server has read from a client since its counts were reset. It reads a pipeline at once.
fn reads(server: &RedisServer) -> Result<u64> {
    let info = server.cli(&["INFO", "stats"])?.ok()?;
    let mut lines = info.text().unwrap_or_default().lines();
    let reads = lines.find_map(|line| line.strip_prefix("total_reads_processed:"));
    Ok(reads.context("no count of reads")?.trim().parse()?)
}
