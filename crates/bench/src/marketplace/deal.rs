//! What is traded: items, offers, and the two deals, with what they read and write.
//!
//! It owns the keys. It knows nothing of what guards a deal: all ways read and write the same, with the same commands in the
//! same pipelines.
//!
//! A user is a hash `users:N` with his `funds`, and a set `inventory:N` of items. The `market` is a sorted set whose members
//! are `ITEM.SELLER`, with the price as the score.

use anyhow::{Context, Result};
use redis::aio::ConnectionLike;
use redis::{Pipeline, RedisResult};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// All offers.
pub(super) const MARKET: &str = "market";
/// The highest price; the lowest is 1.
pub(super) const PRICE: i64 = 100;

/// The key of a user.
pub(super) fn user(id: u32) -> String {
    format!("users:{id}")
}

/// The key of what a user has.
pub(super) fn inventory(id: u32) -> String {
    format!("inventory:{id}")
}

/// An item on the market.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    /// No other item has the same number, whoever has it.
    pub(super) item: u64,
    pub(super) seller: u32,
    pub(super) price: i64,
}

impl Offer {
    /// By how the market has it.
    pub(super) fn parse(member: &str, price: i64) -> Result<Self> {
        let (item, seller) = member.split_once('.').context("no ITEM.SELLER")?;
        Ok(Self { item: item.parse()?, seller: seller.parse()?, price })
    }

    fn member(&self) -> String {
        format!("{}.{}", self.item, self.seller)
    }
}

/// Something to be done with an offer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Deal {
    /// The seller puts it on the market.
    List(Offer),
    /// A buyer takes it from there.
    Buy(Offer, u32),
}

impl Deal {
    pub(super) fn offer(&self) -> &Offer {
        let (Self::List(offer) | Self::Buy(offer, _)) = self;
        offer
    }

    /// How long it is tried at most: as in the book.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(if matches!(self, Self::List(_)) { 5 } else { 10 })
    }

    /// What must not change between reading and writing.
    pub(super) fn watched(&self) -> Vec<String> {
        match self {
            Self::List(offer) => vec![inventory(offer.seller)],
            Self::Buy(_, buyer) => vec![MARKET.to_owned(), user(*buyer)],
        }
    }

    /// Reads whether it can be done: the item is where it should be, at its price, and can be paid for.
    pub(super) async fn is_possible(
        &self,
        connection: &mut (impl ConnectionLike + Send),
    ) -> RedisResult<bool> {
        match self {
            Self::List(offer) => {
                let mut ask = redis::cmd("SISMEMBER");
                ask.arg(inventory(offer.seller)).arg(offer.item).query_async(connection).await
            }
            Self::Buy(offer, buyer) => {
                let mut ask = redis::pipe();
                ask.zscore(MARKET, offer.member()).hget(user(*buyer), "funds");
                let (price, funds): (Option<i64>, i64) = ask.query_async(connection).await?;
                Ok(price == Some(offer.price) && funds >= offer.price)
            }
        }
    }

    /// What is written by it.
    pub(super) fn writes(&self) -> Pipeline {
        let mut writes = redis::pipe();
        let offer = self.offer();
        match self {
            Self::List(_) => {
                writes.zadd(MARKET, offer.member(), offer.price).ignore();
                writes.srem(inventory(offer.seller), offer.item).ignore();
            }
            Self::Buy(_, buyer) => {
                writes.hincr(user(offer.seller), "funds", offer.price).ignore();
                writes.hincr(user(*buyer), "funds", -offer.price).ignore();
                writes.sadd(inventory(*buyer), offer.item).ignore();
                writes.zrem(MARKET, offer.member()).ignore();
            }
        }
        writes
    }
}

/// What a buyer knows of the market: only how much was there when he last looked.
#[derive(Debug, Default)]
pub(super) struct Browser {
    size: u64,
}

impl Browser {
    /// Looks at one offer, at a rank that `chance` (64 random bits) says, in one round trip. `None` if nothing is there.
    pub(super) async fn look(
        &mut self,
        connection: &mut (impl ConnectionLike + Send),
        chance: u64,
    ) -> Result<Option<Offer>> {
        loop {
            let rank = chance % self.size.max(1);
            let mut ask = redis::pipe();
            ask.zcard(MARKET);
            ask.cmd("ZRANGE").arg(MARKET).arg(rank).arg(rank).arg("WITHSCORES");
            let (size, found): (u64, Vec<(String, i64)>) = ask.query_async(connection).await?;
            self.size = size;
            if let Some((member, price)) = found.first() {
                return Ok(Some(Offer::parse(member, *price)?));
            }
            // It has shrunk since; there may be something all the same.
            if size == 0 {
                return Ok(None);
            }
        }
    }
}
