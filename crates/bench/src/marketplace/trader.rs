//! A seller or a buyer, in a process of its own.
//!
//! Its choices depend on its seed and on the market alone, not on the way that its deals are guarded. Lines on its standard
//! input begin the trade, begin the measurement, and end it; then it prints all that it did.

use super::deal::{Browser, Deal, Offer, PRICE, inventory};
use super::way::{End, Guarded, Settled, Way, connect};
use crate::protocol::{Requests, reply};
use crate::section::now_ns;
use anyhow::{Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How many items a seller makes when none is left to list.
const SUPPLY: u64 = 1000;
/// Numbers of items that one seller can make.
const RANGE: u64 = 1_000_000_000;
/// How long a buyer looks away from an empty market.
const NOTHING_THERE: Duration = Duration::from_millis(1);

/// How a trader is started.
#[derive(Debug, clap::Args)]
pub(crate) struct Trader {
    #[arg(long)]
    url: String,
    #[arg(long)]
    way: Way,
    /// The number of the user.
    #[arg(long)]
    user: u32,
    #[arg(long)]
    seed: u64,
    /// Set for a buyer; otherwise it is a seller.
    #[arg(long)]
    buys: bool,
    /// Among how many of the cheapest offers a buyer chooses; among all, if it is 0.
    #[arg(long, default_value_t = 0)]
    among: u64,
}

/// All that a trader did.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) buys: bool,
    /// The first number of the user's items, and the first that is not made yet.
    pub(super) made: (u64, u64),
    pub(super) events: Vec<Event>,
    /// Between which times events count.
    pub(super) measured_ns: (u64, u64),
}

/// A deal that was begun.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Event {
    pub(super) end: End,
    pub(super) offer: Offer,
    pub(super) retries: u32,
    /// Since when the deal was wanted: for a buyer whose item was gone, since that item was chosen.
    pub(super) since_ns: u64,
    pub(super) ended_ns: u64,
}

/// Runs a trader to its end.
pub(crate) async fn run(trader: Trader) -> Result<()> {
    let mut requests = Requests::new();
    let stop = Arc::new(AtomicBool::new(false));
    let mut trading = Trading::begin(&trader, stop.clone()).await?;
    if !trader.buys {
        trading.make_items().await?;
    }
    reply("ready")?;
    expect(&mut requests, "go").await?;
    let trade = async { if trader.buys { trading.buy(trader.among).await } else { trading.sell().await } };
    let (traded, measured_ns) = tokio::try_join!(trade, until_stopped(&mut requests, &stop))?;
    let Trading { user, made, guarded, events, .. } = traded;
    guarded.close().await;
    let buys = trader.buys;
    reply(&serde_json::to_string(&Account { user, buys, made, events, measured_ns })?)
}

/// Gives from when to when what happens counts.
async fn until_stopped(requests: &mut Requests, stop: &AtomicBool) -> Result<(u64, u64)> {
    expect(requests, "mark").await?;
    let from_ns = now_ns();
    expect(requests, "stop").await?;
    stop.store(true, Ordering::Relaxed);
    Ok((from_ns, now_ns()))
}

async fn expect(requests: &mut Requests, request: &str) -> Result<()> {
    let given = requests.next().await?;
    ensure!(given == request, "{request} was due, not {given}");
    Ok(())
}

struct Trading {
    user: u32,
    /// For all that is read and written, but in transactions that watch.
    data: MultiplexedConnection,
    guarded: Guarded,
    chance: StdRng,
    stop: Arc<AtomicBool>,
    /// What a seller has made and not listed yet.
    stock: Vec<u64>,
    made: (u64, u64),
    events: Vec<Event>,
}

impl Trading {
    async fn begin(trader: &Trader, stop: Arc<AtomicBool>) -> Result<Self> {
        let first = u64::from(trader.user) * RANGE;
        Ok(Self {
            user: trader.user,
            data: connect(&trader.url).await?,
            guarded: Guarded::connect(trader.way, &trader.url).await?,
            chance: StdRng::seed_from_u64(trader.seed),
            stop,
            stock: Vec::new(),
            made: (first, first),
            events: Vec::new(),
        })
    }

    async fn make_items(&mut self) -> Result<()> {
        let (from, to) = (self.made.1, self.made.1 + SUPPLY);
        self.stock.extend(from..to);
        self.data.sadd::<_, _, ()>(inventory(self.user), &self.stock).await?;
        self.made.1 = to;
        Ok(())
    }

    /// Lists any of the seller's items, at any price.
    async fn sell(mut self) -> Result<Self> {
        while !self.stop.load(Ordering::Relaxed) {
            if self.stock.is_empty() {
                self.make_items().await?;
            }
            let item = self.stock.swap_remove(self.chance.random_range(0..self.stock.len()));
            let offer = Offer { item, seller: self.user, price: self.chance.random_range(1..=PRICE) };
            match self.settle(Deal::List(offer), now_ns()).await?.end {
                End::Done => {}
                End::GaveUp | End::Stopped => self.stock.push(item),
                End::Gone => bail!("item {item} is not where its only owner has put it"),
            }
        }
        Ok(self)
    }

    /// Buys any of the offers that are there.
    async fn buy(mut self, among: u64) -> Result<Self> {
        let (mut browser, mut next, mut wanted_ns) = (Browser::new(among), None, None);
        while !self.stop.load(Ordering::Relaxed) {
            let look = browser.look(self.chance.random());
            let Some(offer) = next.take() else {
                next = browser.choose(look.alone(&mut self.data).await?, None)?;
                if next.is_none() && browser.is_empty() {
                    wanted_ns = None;
                    tokio::time::sleep(NOTHING_THERE).await;
                }
                continue;
            };
            let since_ns = *wanted_ns.get_or_insert_with(now_ns);
            let settled = self.settle(Deal::Buy(offer, self.user, look), since_ns).await?;
            if settled.end != End::Gone {
                wanted_ns = None;
            }
            if let Some(seen) = settled.seen {
                next = browser.choose(seen, Some(offer))?;
            }
        }
        Ok(self)
    }

    async fn settle(&mut self, deal: Deal, since_ns: u64) -> Result<Settled> {
        let settled = self.guarded.settle(&mut self.data, deal, &self.stop).await?;
        let Settled { end, retries, .. } = settled;
        self.events.push(Event { end, offer: *deal.offer(), retries, since_ns, ended_ns: now_ns() });
        Ok(settled)
    }
}
