//! What is traded: items, offers, and the two deals, with what they read and write.
//!
//! Owns the keys. It does not contain locking: all strategies read and write the same, with the same commands in the same
//! pipelines.
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

/// The key of a user's items.
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
    /// Parses a member of the market.
    pub(super) fn parse(member: &str, price: i64) -> Result<Self> {
        let (item, seller) = member.split_once('.').context("ITEM.SELLER is expected")?;
        Ok(Self { item: item.parse()?, seller: seller.parse()?, price })
    }

    fn member(&self) -> String {
        format!("{}.{}", self.item, self.seller)
    }
}

/// Reads the offer of one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct MarketQuery {
    rank: u64,
}

/// The number of offers, and the offer of that rank with its price, if there is one.
pub(super) type QueryResult = (u64, Vec<(String, i64)>);

impl MarketQuery {
    fn add_to(self, request: &mut Pipeline) {
        request.zcard(MARKET).cmd("ZRANGE").arg(MARKET).arg(self.rank).arg(self.rank).arg("WITHSCORES");
    }

    /// Sends the query by itself.
    pub(super) async fn send(
        self,
        connection: &mut (impl ConnectionLike + Send),
    ) -> RedisResult<QueryResult> {
        let mut request = redis::pipe();
        self.add_to(&mut request);
        request.query_async(connection).await
    }
}

/// A change of the market.
#[derive(Debug, Clone, Copy)]
pub(super) enum Deal {
    /// The seller lists the offer.
    List(Offer),
    /// A buyer buys it, and queries the market for the next one.
    Buy(Offer, u32, MarketQuery),
}

impl Deal {
    pub(super) fn offer(&self) -> &Offer {
        let (Self::List(offer) | Self::Buy(offer, ..)) = self;
        offer
    }

    /// How long it is retried at most, as in the book.
    pub(super) fn time_limit(&self) -> Duration {
        Duration::from_secs(if matches!(self, Self::List(_)) { 5 } else { 10 })
    }

    /// The keys that must not change between reading and writing.
    pub(super) fn watched(&self) -> Vec<String> {
        match self {
            Self::List(offer) => vec![inventory(offer.seller)],
            Self::Buy(_, buyer, _) => vec![MARKET.to_owned(), user(*buyer)],
        }
    }

    /// Reads whether it is possible: the item is available at its price, and the buyer can pay for it.
    pub(super) async fn read(
        &self,
        connection: &mut (impl ConnectionLike + Send),
    ) -> RedisResult<(bool, Option<QueryResult>)> {
        match self {
            Self::List(offer) => {
                let mut request = redis::cmd("SISMEMBER");
                request.arg(inventory(offer.seller)).arg(offer.item);
                Ok((request.query_async(connection).await?, None))
            }
            Self::Buy(offer, buyer, query) => {
                let mut request = redis::pipe();
                request.zscore(MARKET, offer.member()).hget(user(*buyer), "funds");
                query.add_to(&mut request);
                let (price, funds, size, found): (Option<i64>, i64, _, _) =
                    request.query_async(connection).await?;
                Ok((price == Some(offer.price) && funds >= offer.price, Some((size, found))))
            }
        }
    }

    /// The commands that execute it.
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

/// Chooses offers. The query for the next one is sent with the purchase of the last one. So it takes no round trip of its own,
/// and a purchase takes as many as a listing.
#[derive(Debug)]
pub(super) struct Browser {
    /// Among how many of the cheapest offers the buyer chooses; among all, if it is 0.
    among: u64,
    /// The number of offers at the last query.
    size: u64,
}

impl Browser {
    pub(super) fn new(among: u64) -> Self {
        Self { among, size: 0 }
    }

    /// Whether the market was empty at the last query.
    pub(super) fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The next query, chosen by 64 random bits.
    pub(super) fn query(&self, random: u64) -> MarketQuery {
        let choice = if self.among == 0 { self.size } else { self.size.min(self.among) };
        MarketQuery { rank: random % choice.max(1) }
    }

    /// The offer of a query, except one that is being bought.
    pub(super) fn choose(
        &mut self,
        (size, found): QueryResult,
        except: Option<Offer>,
    ) -> Result<Option<Offer>> {
        self.size = size;
        let chosen = found.first().map(|(member, price)| Offer::parse(member, *price)).transpose()?;
        Ok(chosen.filter(|offer| Some(*offer) != except))
    }
}
