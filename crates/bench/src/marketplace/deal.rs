//! What is traded: items, offers, and the two deals, with what they read and write.
//!
//! It owns the keys. It knows nothing of what guards a deal: all ways read and write the same, with the same commands in the
//! same pipelines.
//!
//! A user is a hash `users:N` with the `funds`, and a set `inventory:N` of items. The `market` is a sorted set whose members
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
    /// No other item of any user has the same number.
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

/// A look at the offer of one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    rank: u64,
}

/// How many offers there are, and the one that was looked at, if there is one: with its price, as the market has it.
pub(super) type ObservedHolder = (u64, Vec<(String, i64)>);

impl Look {
    fn add_to(self, ask: &mut Pipeline) {
        ask.zcard(MARKET).cmd("ZRANGE").arg(MARKET).arg(self.rank).arg(self.rank).arg("WITHSCORES");
    }

    /// Looks, and nothing else.
    pub(super) async fn alone(
        self,
        connection: &mut (impl ConnectionLike + Send),
    ) -> RedisResult<ObservedHolder> {
        let mut ask = redis::pipe();
        self.add_to(&mut ask);
        ask.query_async(connection).await
    }
}

/// Something to be done with an offer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Deal {
    /// The seller puts it on the market.
    List(Offer),
    /// A buyer takes it from there, and looks at what to buy next.
    Buy(Offer, u32, Look),
}

impl Deal {
    pub(super) fn offer(&self) -> &Offer {
        let (Self::List(offer) | Self::Buy(offer, ..)) = self;
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
            Self::Buy(_, buyer, _) => vec![MARKET.to_owned(), user(*buyer)],
        }
    }

    /// Reads whether it can be done: the item is where it should be, at its price, and can be paid for.
    pub(super) async fn read(
        &self,
        connection: &mut (impl ConnectionLike + Send),
    ) -> RedisResult<(bool, Option<ObservedHolder>)> {
        match self {
            Self::List(offer) => {
                let mut ask = redis::cmd("SISMEMBER");
                ask.arg(inventory(offer.seller)).arg(offer.item);
                Ok((ask.query_async(connection).await?, None))
            }
            Self::Buy(offer, buyer, look) => {
                let mut ask = redis::pipe();
                ask.zscore(MARKET, offer.member()).hget(user(*buyer), "funds");
                look.add_to(&mut ask);
                let (price, funds, size, found): (Option<i64>, i64, _, _) =
                    ask.query_async(connection).await?;
                Ok((price == Some(offer.price) && funds >= offer.price, Some((size, found))))
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
            Self::Buy(_, buyer, _) => {
                writes.hincr(user(offer.seller), "funds", offer.price).ignore();
                writes.hincr(user(*buyer), "funds", -offer.price).ignore();
                writes.sadd(inventory(*buyer), offer.item).ignore();
                writes.zrem(MARKET, offer.member()).ignore();
            }
        }
        writes
    }
}

/// Chooses offers. What is chosen next is seen while the last one is paid for, so that a look costs no round trip of its own,
/// and a purchase as many as a listing.
#[derive(Debug)]
pub(super) struct Browser {
    /// Among how many of the cheapest offers the buyer chooses; among all, if it is 0.
    among: u64,
    /// How much was on the market at the last look.
    size: u64,
}

impl Browser {
    pub(super) fn new(among: u64) -> Self {
        Self { among, size: 0 }
    }

    /// Whether the market was empty at the last look.
    pub(super) fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Where to look, by 64 random bits.
    pub(super) fn look(&self, chance: u64) -> Look {
        let choice = if self.among == 0 { self.size } else { self.size.min(self.among) };
        Look { rank: chance % choice.max(1) }
    }

    /// The offer that was seen; not the one that is being bought anyhow.
    pub(super) fn choose(
        &mut self,
        (size, found): ObservedHolder,
        but: Option<Offer>,
    ) -> Result<Option<Offer>> {
        self.size = size;
        let chosen = found.first().map(|(member, price)| Offer::parse(member, *price)).transpose()?;
        Ok(chosen.filter(|offer| Some(*offer) != but))
    }
}
