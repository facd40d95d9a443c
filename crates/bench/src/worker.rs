//! The roles in which this program takes part in a scenario, told what to do by lines on its stdin.

use crate::member::{Member, Sought};
use crate::peers::own;
use crate::section::{Section, now_ns};
use crate::waiters::Before;
use crate::{held, inside, marketplace, member, pairs, waiters};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use leasehold::Client;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use std::io::Write;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin, stdin};
use tokio::sync::mpsc;

/// The name that all contend for.
pub(crate) const LOCK: &str = "bench";

/// A role.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// One process of a crowd.
    Member {
        #[arg(long)]
        url: String,
        #[arg(long)]
        process: u32,
        #[arg(long)]
        tasks: u32,
        /// How long each holds the lock.
        #[arg(long, default_value_t = 0)]
        hold_us: u64,
        /// `mutex`, `rwlock:READS`, `semaphore:PERMITS`
        #[arg(long, default_value = "mutex")]
        sought: Sought,
    },
    /// One of two that pass the lock, or a bare message, to and fro.
    Pair {
        #[arg(long)]
        url: String,
        #[arg(long)]
        process: u32,
    },
    /// Holds many locks.
    Hold {
        #[arg(long)]
        url: String,
        #[arg(long)]
        locks: u64,
        #[arg(long)]
        over_ms: u64,
    },
    /// Tasks of one process, before a lock that no other wants.
    Inside {
        #[arg(long)]
        url: String,
        #[arg(long)]
        tasks: u32,
    },
    /// Many tasks that wait for what they do not get.
    Wait {
        #[arg(long)]
        url: String,
        #[arg(long)]
        before: Before,
        #[arg(long)]
        tasks: u64,
    },
    /// Acquires and releases uncontended locks, by the library or by hand.
    Pairs {
        #[arg(long)]
        url: String,
        #[arg(long)]
        tasks: u32,
        #[arg(long)]
        lease_ms: u64,
    },
    /// Extends as many keys with nothing around it.
    Extend {
        #[arg(long)]
        url: String,
        #[arg(long)]
        locks: u64,
    },
    /// Sells or buys.
    Trade(marketplace::Trader),
    /// Is the driver of our own library among the peers.
    Peer {
        #[arg(long)]
        url: String,
    },
}

/// Runs a role to its end.
pub(crate) fn run(role: Role) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match role {
            Role::Member { url, process, tasks, hold_us, sought } => {
                let hold = Duration::from_micros(hold_us);
                member::run(&url, Member { process, tasks, hold, sought }).await
            }
            Role::Pair { url, process } => pair(&url, process).await,
            Role::Hold { url, locks, over_ms } => {
                held::hold(&url, locks, Duration::from_millis(over_ms)).await
            }
            Role::Inside { url, tasks } => inside::run(&url, tasks).await,
            Role::Wait { url, before, tasks } => waiters::run(&url, before, tasks).await,
            Role::Pairs { url, tasks, lease_ms } => pairs::run(&url, tasks, lease_ms).await,
            Role::Extend { url, locks } => held::extend_bare(&url, locks).await,
            Role::Trade(trader) => marketplace::trade(trader).await,
            Role::Peer { url } => own::drive(&url).await,
        }
    })
}

/// Lines from the process that measures.
pub(crate) struct Orders(Lines<BufReader<Stdin>>);

impl Orders {
    pub(crate) fn new() -> Self {
        Self(BufReader::new(stdin()).lines())
    }

    pub(crate) async fn next(&mut self) -> Result<String> {
        self.0.next_line().await?.context("the measuring process is gone")
    }
}

pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// `take` acquires and says when, `give` releases after a pause and says when; `listen` and `publish`
/// do the same with a bare message.
async fn pair(url: &str, process: u32) -> Result<()> {
    let client = Client::connect(url).await?;
    let mutex = client.mutex(LOCK)?;
    let (sender, mut heard) = mpsc::unbounded_channel();
    let mut bare = bare(url, sender).await?;
    bare.subscribe(format!("bare:{process}")).await?;
    let mut orders = Orders::new();
    let mut guard = None;
    say("ready")?;
    loop {
        let order = orders.next().await?;
        let (verb, rest) = order.split_once(' ').unwrap_or((&order, ""));
        match verb {
            "take" => {
                let asked_ns = now_ns();
                let held = mutex.acquire().await?;
                let got_ns = now_ns();
                let fence = held.fencing_token().as_u64();
                guard = Some(held);
                say(&Section { process, task: 0, alone: true, fence, asked_ns, got_ns, released_ns: 0 }
                    .to_string())?;
            }
            "give" => {
                tokio::time::sleep(Duration::from_micros(rest.parse()?)).await;
                let held = guard.take().context("nothing to give")?;
                let released_ns = now_ns();
                held.release().await?;
                say(&released_ns.to_string())?;
            }
            "listen" => {
                let got_ns: u64 = heard.recv().await.map(|()| now_ns()).context("the connection broke")?;
                say(&got_ns.to_string())?;
            }
            "publish" => {
                let (pause_us, to) = rest.split_once(' ').context("publish PAUSE PROCESS")?;
                tokio::time::sleep(Duration::from_micros(pause_us.parse()?)).await;
                let sent_ns = now_ns();
                let message = "grant 00000000feedfacecafebeef 1762000000123456";
                let publish = redis::cmd("PUBLISH").arg(format!("bare:{to}")).arg(message).to_owned();
                publish.query_async::<i64>(&mut bare).await?;
                say(&sent_ns.to_string())?;
            }
            "stop" => return Ok(()),
            other => bail!("no such order: {other}"),
        }
    }
}

/// A connection as Leasehold has one, with nothing around it.
pub(crate) async fn bare(url: &str, heard: mpsc::UnboundedSender<()>) -> Result<MultiplexedConnection> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let client = redis::Client::open(format!("{url}{separator}protocol=resp3"))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(
        move |push: redis::PushInfo| {
            if push.kind == redis::PushKind::Message { heard.send(()) } else { Ok(()) }
        },
    );
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}
