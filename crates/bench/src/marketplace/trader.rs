//! A seller or a buyer, in a process of its own.
//!
//! Its choices depend only on its seed and the market, not on the locking strategy. Requests begin the trade, begin the
//! measurement, and end it; then the process prints everything it did.

use super::deal::{Browser, Deal, Offer, PRICE, inventory};
use super::strategy::{DealEnd, Settlement, Strategy, StrategyClient, connect};
use crate::critical_section::now_ns;
use crate::worker::protocol::{Requests, reply};
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
/// The pause of a buyer if the market is empty.
const EMPTY_MARKET_PAUSE: Duration = Duration::from_millis(1);

/// How a trader is started.
#[derive(Debug, clap::Args)]
pub(crate) struct Trader {
    #[arg(long)]
    url: String,
    #[arg(long)]
    strategy: Strategy,
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

/// Everything a trader did.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) buys: bool,
    /// The first number of the user's items, and the first that is not yet used.
    pub(super) made: (u64, u64),
    pub(super) events: Vec<Event>,
    /// The begin and the end of the measurement.
    pub(super) measured_ns: (u64, u64),
}

/// A deal that a trader attempted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Event {
    pub(super) end: DealEnd,
    pub(super) offer: Offer,
    pub(super) retries: u32,
    /// When the trader decided on a deal. If an item was gone, that was when the buyer chose that item.
    pub(super) decided_ns: u64,
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
    expect(&mut requests, "begin").await?;
    let trade = async { if trader.buys { trading.buy(trader.among).await } else { trading.sell().await } };
    let (traded, measured_ns) = tokio::try_join!(trade, until_stopped(&mut requests, &stop))?;
    let Trading { user, made, client, events, .. } = traded;
    client.close().await;
    let buys = trader.buys;
    reply(&serde_json::to_string(&Account { user, buys, made, events, measured_ns })?)
}

/// Waits for the end. Returns the begin and the end of the measurement.
async fn until_stopped(requests: &mut Requests, stop: &AtomicBool) -> Result<(u64, u64)> {
    expect(requests, "mark").await?;
    let from_ns = now_ns();
    expect(requests, "stop").await?;
    stop.store(true, Ordering::Relaxed);
    Ok((from_ns, now_ns()))
}

async fn expect(requests: &mut Requests, request: &str) -> Result<()> {
    let given = requests.next().await?;
    ensure!(given == request, "`{request}` was expected, not `{given}`");
    Ok(())
}

struct Trading {
    user: u32,
    /// For all reads and writes outside of WATCH transactions.
    data: MultiplexedConnection,
    client: StrategyClient,
    random: StdRng,
    stop: Arc<AtomicBool>,
    /// Items of a seller that are not listed yet.
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
            client: StrategyClient::connect(trader.strategy, &trader.url).await?,
            random: StdRng::seed_from_u64(trader.seed),
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

    /// Lists random items of the seller at random prices.
    async fn sell(mut self) -> Result<Self> {
        while !self.stop.load(Ordering::Relaxed) {
            if self.stock.is_empty() {
                self.make_items().await?;
            }
            let item = self.stock.swap_remove(self.random.random_range(0..self.stock.len()));
            let offer = Offer { item, seller: self.user, price: self.random.random_range(1..=PRICE) };
            match self.settle(Deal::List(offer), now_ns()).await?.end {
                DealEnd::Done => {}
                DealEnd::GaveUp | DealEnd::Stopped => self.stock.push(item),
                DealEnd::Gone => bail!("item {item} is not in the inventory of its seller"),
            }
        }
        Ok(self)
    }

    /// Buys random offers.
    async fn buy(mut self, among: u64) -> Result<Self> {
        let (mut browser, mut next, mut first_decided_ns) = (Browser::new(among), None, None);
        while !self.stop.load(Ordering::Relaxed) {
            let query = browser.query(self.random.random());
            let Some(offer) = next.take() else {
                next = browser.choose(query.send(&mut self.data).await?, None)?;
                if next.is_none() && browser.is_empty() {
                    first_decided_ns = None;
                    tokio::time::sleep(EMPTY_MARKET_PAUSE).await;
                }
                continue;
            };
            let decided_ns = *first_decided_ns.get_or_insert_with(now_ns);
            let settlement = self.settle(Deal::Buy(offer, self.user, query), decided_ns).await?;
            if settlement.end != DealEnd::Gone {
                first_decided_ns = None;
            }
            if let Some(seen) = settlement.seen {
                next = browser.choose(seen, Some(offer))?;
            }
        }
        Ok(self)
    }

    async fn settle(&mut self, deal: Deal, decided_ns: u64) -> Result<Settlement> {
        let settlement = self.client.settle(&mut self.data, deal, &self.stop).await?;
        let Settlement { end, retries, .. } = settlement;
        self.events.push(Event { end, offer: *deal.offer(), retries, decided_ns, ended_ns: now_ns() });
        Ok(settlement)
    }
}
