//! The marketplace of the book *Redis in Action*: sellers list items, buyers buy them, and something has to keep two of them
//! from doing it at the same time.
//!
//! Each seller and each buyer is a process of its own, with a connection for data and whatever its way needs. All of them
//! choose alike: by seeds that are the same for all ways in one round. Only what guards a deal differs, so what is measured is
//! the price of the guarding. After each cell the books are audited: a way that loses money or sells an item twice is not
//! slow, but wrong, and the run fails.
//!
//! It owns how cells are run. What is traded is in `deal`, what guards it in `way`, the process that trades in `trader`,
//! what must be in order afterwards in `ledger`, and the reports in `figures` and `pictures`.

mod deal;
mod figures;
mod ledger;
mod pictures;
mod trader;
mod way;

pub(crate) use trader::{Trader, run as trade};

use crate::handoff::{PATIENCE, tell_all, worker};
use crate::meter::{Served, Threads};
use anyhow::{Context, Result, ensure};
use figures::{Cell, Reported};
use leasehold_testkit::{RedisServer, Worker};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};
use trader::Account;
use way::Way;

/// The funds of each user at first: more than a user can spend.
const FUNDS: i64 = 1_000_000_000;
/// How long all trade before it counts.
const WARM_UP: Duration = Duration::from_secs(1);

/// What is to be measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Print one JSON object a line, way and crowd.
    #[arg(long)]
    json: bool,
    /// How long each way is measured with each crowd in a round.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How many rounds; each measures all ways with all crowds.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// How many sellers and buyers; and, if that is not all, among how many of the cheapest offers a buyer chooses.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SELLERS+BUYERS[/AMONG]",
        default_value = "1+1,5+1,5+5,5+5/10"
    )]
    crowds: Vec<Crowd>,
    /// Draw pictures into this directory.
    #[arg(long)]
    draw: Option<PathBuf>,
}

/// How many sellers and buyers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Crowd {
    sellers: u32,
    buyers: u32,
    /// Among how many of the cheapest offers a buyer chooses; among all, if it is 0.
    among: u64,
}

/// Runs all ways with all crowds, and again; so each gets what the machine gives at that time.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    let Plan { seconds, rounds, .. } = *plan;
    ensure!(seconds > 0 && rounds > 0, "there is nothing to measure in {rounds} rounds of {seconds} s");
    let server = RedisServer::builder().pinned(0).start().context("booting redis-server")?;
    let mut cells = Vec::new();
    for round in 0..rounds {
        for &crowd in &plan.crowds {
            for way in Way::ALL {
                let cell = cell(&server, way, crowd, round, plan.seconds)
                    .with_context(|| format!("{}, {}, round {}", way.name(), crowd.name(), round + 1))?;
                eprintln!("marketplace: round {} of {rounds}: {}", round + 1, cell.told());
                cells.push(cell);
            }
        }
    }
    let reported = Reported::of(&cells, &plan.crowds, &server)?;
    reported.print(plan.json)?;
    plan.draw.as_deref().map_or(Ok(()), |directory| pictures::draw(&reported, directory))
}

/// One way with one crowd on an empty server, from seeding to auditing.
fn cell(server: &RedisServer, way: Way, crowd: Crowd, round: u64, seconds: u64) -> Result<Cell> {
    seed(server, crowd)?;
    let mut traders = Vec::new();
    for user in crowd.users() {
        traders.push(start(server, way, crowd, user, round)?);
    }
    for trader in &mut traders {
        trader.expect("ready", PATIENCE)?;
    }
    tell_all(&mut traders, "go")?;
    std::thread::sleep(WARM_UP);
    tell_all(&mut traders, "mark")?;
    server.reset_counts()?;
    let (begun, served, used) = (Instant::now(), Served::of(server)?, cpu_ns(&traders)?);
    std::thread::sleep(Duration::from_secs(seconds));
    let (took, served, used) = (begun.elapsed(), Served::of(server)?.since(served), cpu_ns(&traders)? - used);
    let (counts, reads) = (server.command_counts()?, reads(server)?);
    tell_all(&mut traders, "stop")?;
    let mut accounts: Vec<Account> = Vec::new();
    for trader in &mut traders {
        accounts.push(serde_json::from_str(&trader.line(PATIENCE)?)?);
    }
    ledger::audit(FUNDS, &accounts, &ledger::State::read(&server.url(), crowd.users())?)?;
    let count = |command: &str| counts.get(command).copied().unwrap_or(0);
    let usage = figures::Usage {
        took,
        scripts: count("evalsha") + count("eval"),
        sets: if way == Way::Rslock { count("set") } else { 0 },
        reads,
        server_cpu_ns: served.cpu_us * 1000,
        clients_cpu_ns: used,
    };
    Ok(Cell::of(way, crowd, round, &accounts, usage))
}

impl FromStr for Crowd {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (people, among) = text.split_once('/').unwrap_or((text, "0"));
        let (sellers, buyers) = people.split_once('+').context("say SELLERS+BUYERS")?;
        let crowd = Self { sellers: sellers.parse()?, buyers: buyers.parse()?, among: among.parse()? };
        ensure!(crowd.sellers > 0 && crowd.buyers > 0, "there must be a seller and a buyer");
        Ok(crowd)
    }
}

impl Crowd {
    /// Sellers first.
    fn users(self) -> impl Iterator<Item = u32> {
        1..=self.sellers + self.buyers
    }

    fn name(self) -> String {
        let choice = if self.among == 0 { String::new() } else { format!(", of {}", self.among) };
        format!("{} + {}{choice}", self.sellers, self.buyers)
    }
}

/// All users with their funds, and nothing else.
fn seed(server: &RedisServer, crowd: Crowd) -> Result<()> {
    server.cli(&["FLUSHALL", "SYNC"])?.ok()?;
    for user in crowd.users() {
        server.cli(&["HSET", &deal::user(user), "funds", &FUNDS.to_string()])?.ok()?;
    }
    Ok(())
}

fn start(server: &RedisServer, way: Way, crowd: Crowd, user: u32, round: u64) -> Result<Worker> {
    // The same in all ways.
    let seed = (round * 1000 + u64::from(user)).to_string();
    let (url, number, among) = (server.url(), user.to_string(), crowd.among.to_string());
    let mut role = vec!["trade", "--url", &url, "--way", way.argument()];
    role.extend(["--user", &number, "--seed", &seed, "--among", &among]);
    if user > crowd.sellers {
        role.push("--buys");
    }
    worker(&role)
}

/// Processor time of all traders, in nanoseconds.
fn cpu_ns(traders: &[Worker]) -> Result<u64> {
    traders.iter().map(|trader| Ok(Threads::of(trader.pid(), None)?.cpu_ns)).sum()
}

/// How often the server has read from a client since its counts were reset: what is sent in one piece is read at once.
fn reads(server: &RedisServer) -> Result<u64> {
    let info = server.cli(&["INFO", "stats"])?.ok()?;
    let mut lines = info.text().unwrap_or_default().lines();
    let reads = lines.find_map(|line| line.strip_prefix("total_reads_processed:"));
    Ok(reads.context("no count of reads")?.trim().parse()?)
}
