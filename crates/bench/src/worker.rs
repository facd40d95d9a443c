//! The roles in which this program takes part in a scenario, as a process of its own.

use crate::member::{Member, Sought};
use crate::peers::own;
use crate::protocol::{LOCK, Requests, reply};
use crate::section::{Section, now_ns};
use crate::waiters::Before;
use crate::{held, inside, marketplace, member, pairs, waiters};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use leasehold::Client;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use std::time::Duration;
use tokio::sync::mpsc;

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
    /// One of two that hand the lock, or a bare message, to and fro.
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
    /// Tasks of one process that contend for a lock of their own.
    Inside {
        #[arg(long)]
        url: String,
        #[arg(long)]
        tasks: u32,
    },
    /// Many tasks that wait for a lock that stays held.
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
    /// Leasehold's driver among the peers.
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

/// `acquire` replies when it returned, `release` pauses and replies when it was called; `listen` and `publish` do the same
/// with a bare message.
async fn pair(url: &str, process: u32) -> Result<()> {
    let client = Client::connect(url).await?;
    let mutex = client.mutex(LOCK)?;
    let (sender, mut messages) = mpsc::unbounded_channel();
    let mut bare = bare(url, sender).await?;
    bare.subscribe(format!("bare:{process}")).await?;
    let mut requests = Requests::new();
    let mut guard = None;
    reply("ready")?;
    loop {
        let request = requests.next().await?;
        let (verb, rest) = request.split_once(' ').unwrap_or((&request, ""));
        match verb {
            "acquire" => {
                let asked_ns = now_ns();
                let held = mutex.acquire().await?;
                let got_ns = now_ns();
                let fence = held.fencing_token().as_u64();
                guard = Some(held);
                reply(
                    &Section { process, task: 0, alone: true, fence, asked_ns, got_ns, released_ns: 0 }
                        .to_string(),
                )?;
            }
            "release" => {
                tokio::time::sleep(Duration::from_micros(rest.parse()?)).await;
                let held = guard.take().context("nothing is held")?;
                let released_ns = now_ns();
                held.release().await?;
                reply(&released_ns.to_string())?;
            }
            "listen" => {
                let got_ns: u64 = messages.recv().await.map(|()| now_ns()).context("the connection broke")?;
                reply(&got_ns.to_string())?;
            }
            "publish" => {
                let (pause_us, to) = rest.split_once(' ').context("publish PAUSE PROCESS")?;
                tokio::time::sleep(Duration::from_micros(pause_us.parse()?)).await;
                let sent_ns = now_ns();
                let message = "grant 00000000feedfacecafebeef 1762000000123456";
                let publish = redis::cmd("PUBLISH").arg(format!("bare:{to}")).arg(message).to_owned();
                publish.query_async::<i64>(&mut bare).await?;
                reply(&sent_ns.to_string())?;
            }
            "stop" => return Ok(()),
            other => bail!("no such request: {other}"),
        }
    }
}

/// A connection as Leasehold has one, with nothing around it.
async fn bare(url: &str, messages: mpsc::UnboundedSender<()>) -> Result<MultiplexedConnection> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let client = redis::Client::open(format!("{url}{separator}protocol=resp3"))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(
        move |push: redis::PushInfo| {
            if push.kind == redis::PushKind::Message { messages.send(()) } else { Ok(()) }
        },
    );
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}
