//! A marketplace: each item is sold once, at the price that the buyer has seen, to a buyer with enough money.
//!
//! Looking at an item and buying it are two steps, and anything could happen in between. A lock per item
//! makes them one step, and lets the sales of other items continue meanwhile. There are three reasons for a
//! rejection, and the buyer learns which: the price has changed, the money does not suffice, or the item is
//! already sold.
//!
//!     cargo run --example marketplace
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example marketplace

use leasehold::{Client, FencingToken};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const BUYERS: [&str; 5] = ["ann", "bob", "cleo", "dan", "eve"];
const ITEMS: u32 = 6;
const PURSE: u32 = 100;

/// The result of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Bought,
    PriceChanged { now: u32 },
    TooLittleMoney { missing: u32 },
    AlreadySold,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    let market = Arc::new(Market::default());
    for item in 0..ITEMS {
        market.offer(item, 20 + 10 * item);
    }
    for buyer in BUYERS {
        market.purses().insert(buyer, PURSE);
    }

    // Each buyer has its own instance of the shop, and wants everything.
    let mut shops = tokio::task::JoinSet::new();
    for buyer in BUYERS {
        let (market, locks) = (market.clone(), Client::builder(&store).label(buyer).connect().await?);
        shops.spawn(async move {
            let mut answers = Vec::new();
            for item in 0..ITEMS {
                let seen = market.look(item).await.price;
                answers.push(buy(&market, &locks, buyer, item, seen).await?);
            }
            Ok::<_, Box<dyn Error + Send + Sync>>((buyer, answers, locks))
        });
    }
    let mut bought = 0;
    for shop in shops.join_all().await {
        let (buyer, answers, _) = shop?;
        bought += answers.iter().filter(|answer| **answer == Answer::Bought).count();
        println!("{buyer}: {answers:?}, and {} left", market.purses()[buyer]);
    }

    // The three reasons for a rejection, one by one.
    let locks = Client::connect(&store).await?;
    market.purses().insert("zoe", 5);
    market.offer(100, 10);
    println!("too little money: {:?}", buy(&market, &locks, "zoe", 100, 10).await?);
    market.offer(100, 4);
    println!("the price was another when she looked: {:?}", buy(&market, &locks, "zoe", 100, 10).await?);
    println!("now she knows it: {:?}", buy(&market, &locks, "zoe", 100, 4).await?);
    println!("and once more: {:?}", buy(&market, &locks, "zoe", 100, 4).await?);

    // A shop stalls until another client holds its lock: its late write is rejected.
    market.offer(101, 1);
    let stopped = locks.mutex("example/marketplace/101")?.lease(Duration::from_millis(50)).acquire().await?;
    market.open(101, stopped.fencing_token()).await?;
    stopped.lost().await;
    println!("meanwhile: {:?}", buy(&market, &locks, "zoe", 101, 1).await?);
    match market.deliver(101, "ann", stopped.fencing_token()).await {
        Ok(()) => println!("sold twice!"),
        Err(rejected) => println!("the sale that came too late: {rejected}"),
    }

    println!("{bought} bought, and {} sold", market.sold(0..ITEMS));
    Ok(())
}

/// Buys an item for the price that the buyer has seen.
async fn buy(market: &Market, locks: &Client, buyer: &'static str, item: u32, seen: u32) -> Result<Answer> {
    // One lock per item: sales of different items do not wait for one another.
    let lock = locks.mutex(format!("example/marketplace/{item}"))?;
    let guard = lock.acquire_timeout(Duration::from_secs(30)).await?;
    let answer = buy_alone(market, buyer, item, seen, guard.fencing_token()).await;
    // The result is final, whatever happens to the lock: it ends with its lease at the latest.
    if let Err(error) = guard.release().await {
        eprintln!("item {item} stays locked for a while: {error}");
    }
    answer
}

/// The sale itself, by the holder of the item's lock.
async fn buy_alone(
    market: &Market,
    buyer: &'static str,
    item: u32,
    seen: u32,
    fence: FencingToken,
) -> Result<Answer> {
    // From here on no earlier holder of the lock can change anything, however late its write arrives.
    let listing = market.open(item, fence).await?;
    if listing.sold_to.is_some() {
        return Ok(Answer::AlreadySold);
    }
    if listing.price != seen {
        return Ok(Answer::PriceChanged { now: listing.price });
    }
    // A purse does not belong to the item, so the item's lock does not protect it: it is changed in one step.
    if let Err(missing) = market.pay(buyer, seen) {
        return Ok(Answer::TooLittleMoney { missing });
    }
    // Rejected if this holder stalled for so long that another client holds the lock by now.
    if let Err(stale) = market.deliver(item, buyer, fence).await {
        market.pay_back(buyer, seen);
        return Err(stale);
    }
    Ok(Answer::Bought)
}

/// A minimal shop database: one row per item, one purse per buyer. Each step takes some time.
#[derive(Default)]
struct Market {
    items: Mutex<BTreeMap<u32, Listing>>,
    purses: Mutex<BTreeMap<&'static str, u32>>,
}

#[derive(Clone, Copy, Default)]
struct Listing {
    price: u32,
    sold_to: Option<&'static str>,
    /// The greatest fencing token seen.
    fence: Option<FencingToken>,
}

impl Listing {
    /// Rejects a token that is smaller than the greatest seen: the example `guarded_writes` does so in SQL.
    fn admit(&mut self, fence: FencingToken) -> Result<&mut Self> {
        if self.fence > Some(fence) {
            return Err("rejected, since another client holds the item's lock by now".into());
        }
        self.fence = Some(fence);
        Ok(self)
    }
}

impl Market {
    fn offer(&self, item: u32, price: u32) {
        self.items().entry(item).or_default().price = price;
    }

    async fn look(&self, item: u32) -> Listing {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.items().get(&item).copied().unwrap_or_default()
    }

    /// Takes the price out of a purse, or returns how much is missing.
    fn pay(&self, buyer: &'static str, price: u32) -> std::result::Result<(), u32> {
        let mut purses = self.purses();
        let purse = purses.entry(buyer).or_default();
        *purse = purse.checked_sub(price).ok_or_else(|| price - *purse)?;
        Ok(())
    }

    fn pay_back(&self, buyer: &'static str, price: u32) {
        *self.purses().entry(buyer).or_default() += price;
    }

    /// Reads an item as the holder of its lock, and records its token.
    async fn open(&self, item: u32, fence: FencingToken) -> Result<Listing> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.items().entry(item).or_default().admit(fence).copied()
    }

    /// Records a sale. The item was seen unsold when it was opened; the step that writes verifies that no
    /// later holder has opened it since, and so may be selling it too.
    async fn deliver(&self, item: u32, buyer: &'static str, fence: FencingToken) -> Result<()> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.items().entry(item).or_default().admit(fence)?.sold_to = Some(buyer);
        Ok(())
    }

    fn sold(&self, items: std::ops::Range<u32>) -> usize {
        self.items().range(items).filter(|(_, listing)| listing.sold_to.is_some()).count()
    }

    fn items(&self) -> MutexGuard<'_, BTreeMap<u32, Listing>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn purses(&self) -> MutexGuard<'_, BTreeMap<&'static str, u32>> {
        self.purses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
