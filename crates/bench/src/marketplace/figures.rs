//! The measurements, their summary over the rounds, and the report, as text or JSON.
//!
//! This program measures all figures but those of the book, which are named as the book's: its tables 6.1 to 6.3.

use super::Crowd;
use super::strategy::{DealEnd, Strategy};
use super::trader::{Account, Event};
use crate::meter::server_version;
use crate::report::{median, per, spread};
use anyhow::Result;
use leasehold_testkit::RedisServer;
use serde::Serialize;
use std::time::Duration;

/// How long the book measured.
pub(super) const BOOK_S: f64 = 60.0;

/// The figures of the book, *Redis in Action*, of 60 s on the machine of its author.
#[derive(Debug, Clone, Copy)]
struct Book {
    listed: f64,
    bought: f64,
    retries: f64,
    mean_wait_ms: f64,
    /// Which of them are upper bounds.
    below: &'static [&'static str],
}

impl Book {
    fn of(strategy: Strategy, crowd: Crowd) -> Option<Self> {
        const WAIT: &[&str] = &["mean_wait_ms"];
        const BOUGHT: &[&str] = &["bought"];
        const RETRIES: &[&str] = &["retries"];
        let rows = match strategy {
            Strategy::Watch => [
                (145_000.0, 27_000.0, 80_000.0, 14.0, &[][..]),
                (331_000.0, 200.0, 50_000.0, 150.0, BOUGHT),
                (206_000.0, 600.0, 161_000.0, 498.0, BOUGHT),
            ],
            Strategy::OneLock => [
                (51_000.0, 50_000.0, 0.0, 1.0, &[][..]),
                (68_000.0, 13_000.0, 10.0, 5.0, RETRIES),
                (21_000.0, 20_500.0, 0.0, 14.0, &[][..]),
            ],
            Strategy::PerItem => [
                (113_000.0, 110_000.0, 0.0, 1.0, WAIT),
                (192_000.0, 36_000.0, 0.0, 2.0, WAIT),
                (116_000.0, 111_000.0, 0.0, 3.0, WAIT),
            ],
            Strategy::Rslock => return None,
        };
        let crowds = [(1, 1, 0), (5, 1, 0), (5, 5, 0)];
        let row = crowds.iter().position(|book| *book == (crowd.sellers, crowd.buyers, crowd.among))?;
        let (listed, bought, retries, mean_wait_ms, below) = rows[row];
        Some(Self { listed, bought, retries, mean_wait_ms, below })
    }
}

/// The usage of server and clients.
#[derive(Debug)]
pub(super) struct Usage {
    pub(super) took: Duration,
    /// Calls of scripts, which only locks make.
    pub(super) scripts: u64,
    /// SETs of rslock's locks. Those in scripts of other locks are no requests.
    pub(super) sets: u64,
    /// How often the server has read from a client.
    pub(super) reads: u64,
    pub(super) server_cpu_ns: u64,
    pub(super) clients_cpu_ns: u64,
}

/// One strategy with one crowd in one round.
#[derive(Debug)]
pub(super) struct Run {
    strategy: Strategy,
    crowd: Crowd,
    round: u64,
    seconds: f64,
    listed: u64,
    bought: u64,
    retries: u64,
    /// Purchases of offers that were gone.
    missed: u64,
    gave_up: u64,
    mean_wait_ms: f64,
    longest_wait_ms: f64,
    /// Deals whose lock was acquired, or whose transaction ended.
    sections: u64,
    usage: Usage,
}

impl Run {
    pub(super) fn of(
        strategy: Strategy,
        crowd: Crowd,
        round: u64,
        accounts: &[Account],
        usage: Usage,
    ) -> Self {
        // A deal that was stopped did not finish during the measurement.
        let counts = |account: &Account, event: &Event| {
            let (from, until) = account.measured_ns;
            (from..=until).contains(&event.ended_ns) || event.end == DealEnd::Stopped
        };
        let of = |buys: bool| {
            let selected = accounts.iter().filter(move |account| account.buys == buys);
            selected.flat_map(|one| one.events.iter().filter(move |event| counts(one, event))).copied()
        };
        let number = |buys, end| of(buys).filter(|event| event.end == end).count() as u64;
        let wait = |event: Event| event.ended_ns.saturating_sub(event.decided_ns);
        let waited: u64 = of(true).filter(|event| event.end == DealEnd::Done).map(wait).sum();
        let bought = number(true, DealEnd::Done);
        let sections: u64 =
            of(true).chain(of(false)).filter(|event| event.end != DealEnd::GaveUp).count() as u64;
        let retries = match strategy {
            // The library does not report its retries, but each of its tries is a SET.
            Strategy::Rslock => usage.sets.saturating_sub(sections),
            _ => of(true).chain(of(false)).map(|event| u64::from(event.retries)).sum(),
        };
        Self {
            strategy,
            crowd,
            round,
            seconds: usage.took.as_secs_f64(),
            listed: number(false, DealEnd::Done),
            bought,
            retries,
            missed: number(true, DealEnd::Gone),
            gave_up: number(true, DealEnd::GaveUp) + number(false, DealEnd::GaveUp),
            mean_wait_ms: per(waited, bought) / 1e6,
            longest_wait_ms: per(of(true).map(wait).max().unwrap_or(0), 1_000_000),
            sections,
            usage,
        }
    }

    /// A line about the progress of the benchmark.
    pub(super) fn summary(&self) -> String {
        format!(
            "{}, {}: {:.0} listed and {:.0} bought a second, {} retries, waits of {:.2} ms",
            self.strategy.name(),
            self.crowd.name(),
            self.per_s(self.listed),
            self.per_s(self.bought),
            self.retries,
            self.mean_wait_ms
        )
    }

    #[allow(clippy::cast_precision_loss, reason = "a rate needs no more than the leading bits")]
    fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    fn deals(&self) -> u64 {
        self.listed + self.bought
    }
}

/// One strategy with one crowd over all rounds. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) scenario: &'static str,
    pub(super) bought_to_watch: f64,
    pub(super) bought_to_rslock: f64,
    #[serde(rename = "way")]
    pub(super) strategy: Strategy,
    pub(super) sellers: u32,
    pub(super) buyers: u32,
    pub(super) among: u64,
    pub(super) bought_per_s: f64,
    pub(super) listed_per_s: f64,
    pub(super) deals_per_s: f64,
    pub(super) retries_per_s: f64,
    pub(super) missed_per_s: f64,
    pub(super) gave_up: u64,
    pub(super) mean_wait_ms: f64,
    pub(super) longest_wait_ms: f64,
    pub(super) bought_in_60_s: f64,
    pub(super) listed_in_60_s: f64,
    pub(super) retries_in_60_s: f64,
    pub(super) book_bought: Option<f64>,
    pub(super) book_listed: Option<f64>,
    pub(super) book_retries: Option<f64>,
    pub(super) book_mean_wait_ms: Option<f64>,
    pub(super) book_below: &'static [&'static str],
    pub(super) lock_requests_per_section: f64,
    pub(super) reads_per_deal: f64,
    pub(super) server_cpu_share: f64,
    pub(super) clients_cpu_share: f64,
    pub(super) bought_to_watch_spread: [f64; 2],
    pub(super) bought_to_rslock_spread: [f64; 2],
    pub(super) bought_per_s_spread: [f64; 2],
    pub(super) listed_per_s_spread: [f64; 2],
    pub(super) mean_wait_ms_spread: [f64; 2],
    pub(super) rounds: usize,
    pub(super) round_s: f64,
    pub(super) server: String,
}

/// All rows.
#[derive(Debug)]
pub(super) struct Report(pub(super) Vec<Row>);

impl Report {
    pub(super) fn of(runs: &[Run], crowds: &[Crowd], server: &RedisServer) -> Result<Self> {
        let server = server_version(server)?;
        let pairs = crowds.iter().flat_map(|crowd| Strategy::ALL.map(|strategy| (strategy, *crowd)));
        Ok(Self(pairs.map(|(strategy, crowd)| Row::of(strategy, crowd, runs, &server)).collect()))
    }

    /// The rows of the book's crowds without a measurement.
    #[cfg(test)]
    pub(super) fn of_the_book() -> Self {
        let crowds = [(1, 1), (5, 1), (5, 5)].map(|(sellers, buyers)| Crowd { sellers, buyers, among: 0 });
        let pairs = crowds.into_iter().flat_map(|crowd| Strategy::ALL.map(|strategy| (strategy, crowd)));
        Self(pairs.map(|(strategy, crowd)| Row::of(strategy, crowd, &[], "no server")).collect())
    }

    pub(super) fn print(&self, json: bool) -> Result<()> {
        for row in &self.0 {
            println!("{}", if json { serde_json::to_string(row)? } else { row.sentence() });
        }
        Ok(())
    }
}

impl Row {
    fn of(strategy: Strategy, crowd: Crowd, runs: &[Run], server: &str) -> Self {
        let mine = runs.iter().filter(|run| run.crowd == crowd && run.strategy == strategy);
        let mine: Vec<&Run> = mine.collect();
        let values = |of: &dyn Fn(&Run) -> f64| -> Vec<f64> { mine.iter().map(|run| of(run)).collect() };
        let ratios = |to: Strategy| values(&|run| per(run.bought, bought(runs, to, run).max(1)));
        let bought = values(&|run| run.per_s(run.bought));
        let listed = values(&|run| run.per_s(run.listed));
        let retries = values(&|run| run.per_s(run.retries));
        let waits = values(&|run| run.mean_wait_ms);
        let (to_watch, to_rslock) = (ratios(Strategy::Watch), ratios(Strategy::Rslock));
        let share = |ns: u64, run: &Run| per(ns, 1_000_000_000) / run.seconds;
        let book = Book::of(strategy, crowd);
        Self {
            scenario: "marketplace",
            bought_to_watch: median(&to_watch),
            bought_to_rslock: median(&to_rslock),
            strategy,
            sellers: crowd.sellers,
            buyers: crowd.buyers,
            among: crowd.among,
            bought_per_s: median(&bought),
            listed_per_s: median(&listed),
            deals_per_s: median(&values(&|run| run.per_s(run.deals()))),
            retries_per_s: median(&retries),
            missed_per_s: median(&values(&|run| run.per_s(run.missed))),
            gave_up: mine.iter().map(|run| run.gave_up).sum(),
            mean_wait_ms: median(&waits),
            longest_wait_ms: spread(&values(&|run| run.longest_wait_ms))[1],
            bought_in_60_s: median(&bought) * BOOK_S,
            listed_in_60_s: median(&listed) * BOOK_S,
            retries_in_60_s: median(&retries) * BOOK_S,
            book_bought: book.map(|book| book.bought),
            book_listed: book.map(|book| book.listed),
            book_retries: book.map(|book| book.retries),
            book_mean_wait_ms: book.map(|book| book.mean_wait_ms),
            book_below: book.map_or(&[], |book| book.below),
            lock_requests_per_section: median(&values(&|run| {
                per(run.usage.scripts + run.usage.sets, run.sections)
            })),
            reads_per_deal: median(&values(&|run| per(run.usage.reads, run.deals()))),
            server_cpu_share: median(&values(&|run| share(run.usage.server_cpu_ns, run))),
            clients_cpu_share: median(&values(&|run| share(run.usage.clients_cpu_ns, run))),
            bought_to_watch_spread: spread(&to_watch),
            bought_to_rslock_spread: spread(&to_rslock),
            bought_per_s_spread: spread(&bought),
            listed_per_s_spread: spread(&listed),
            mean_wait_ms_spread: spread(&waits),
            rounds: mine.len(),
            round_s: median(&values(&|run| run.seconds)),
            server: server.to_owned(),
        }
    }

    pub(super) fn crowd(&self) -> Crowd {
        Crowd { sellers: self.sellers, buyers: self.buyers, among: self.among }
    }

    fn sentence(&self) -> String {
        let below = |figure| if self.book_below.contains(&figure) { "under " } else { "" };
        let book = match (self.book_listed, self.book_bought, self.book_mean_wait_ms) {
            (Some(listed), Some(bought), Some(wait)) => format!(
                " (the book, another machine: {listed:.0}, {}{bought:.0}, waits of {}{wait} ms)",
                below("bought"),
                below("mean_wait_ms")
            ),
            _ => String::new(),
        };
        format!(
            "marketplace, {}, {}: {:.2} x what WATCH bought ({:.2} to {:.2}), {:.2} x rslock ({:.2} to {:.2}); \
             {:.0} listed and {:.0} bought a second ({:.0} to {:.0}), {:.1} retries a second, {} gave up; waits of \
             {:.2} ms, {:.0} ms at most; in 60 s: {:.0} listed, {:.0} bought{book}",
            self.strategy.name(),
            self.crowd().name(),
            self.bought_to_watch,
            self.bought_to_watch_spread[0],
            self.bought_to_watch_spread[1],
            self.bought_to_rslock,
            self.bought_to_rslock_spread[0],
            self.bought_to_rslock_spread[1],
            self.listed_per_s,
            self.bought_per_s,
            self.bought_per_s_spread[0],
            self.bought_per_s_spread[1],
            self.retries_per_s,
            self.gave_up,
            self.mean_wait_ms,
            self.longest_wait_ms,
            self.listed_in_60_s,
            self.bought_in_60_s,
        )
    }
}

/// The purchases under another strategy, with the same crowd in the same round.
fn bought(runs: &[Run], strategy: Strategy, like: &Run) -> u64 {
    let same = |run: &&Run| run.strategy == strategy && run.crowd == like.crowd && run.round == like.round;
    runs.iter().find(same).map_or(0, |run| run.bought)
}
