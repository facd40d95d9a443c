//! Charts of the figures: purchases and waits beside the book's, and the effect of what buyers choose from.

use super::Crowd;
use super::figures::{BOOK_S, Report, Row};
use super::strategy::Strategy;
use crate::chart::{Axis, Chart, Kind, Series, Spread};
use anyhow::Result;
use std::path::Path;

const BOUGHT: &str = "bought a second";

/// Draws all of them.
pub(super) fn draw(report: &Report, directory: &Path) -> Result<()> {
    let title = "Marketplace: purchases a second, by locking strategy";
    beside_the_book(report, title, BOUGHT, bought, |row| row.book_bought.map(|all| all / BOOK_S))
        .draw(directory, "marketplace")?;
    let title = "Marketplace: mean wait of a buyer";
    beside_the_book(report, title, "mean wait, in ms", wait, |row| row.book_mean_wait_ms)
        .draw(directory, "marketplace-wait")?;
    by_choice(report).draw(directory, "marketplace-choice")
}

fn bought(row: &Row) -> Spread {
    let [least, most] = row.bought_per_s_spread;
    Spread { median: row.bought_per_s, least, most }
}

fn wait(row: &Row) -> Spread {
    let [least, most] = row.mean_wait_ms_spread;
    Spread { median: row.mean_wait_ms, least, most }
}

/// The runs whose buyers choose among all offers, as in the book.
fn beside_the_book(
    report: &Report,
    title: &str,
    axis: &str,
    here: fn(&Row) -> Spread,
    book: fn(&Row) -> Option<f64>,
) -> Chart {
    let of = |strategy| report.0.iter().filter(move |row| row.strategy == strategy && row.among == 0);
    let rows = || Strategy::ALL.into_iter().flat_map(of);
    let exactly = |value: f64| Spread { median: value, least: value, most: value };
    let strategy = |row: &Row| row.strategy.name().replace(" per ", "\nper ");
    let groups = rows().map(|row| format!("{}\n{}", row.crowd().name(), strategy(row))).collect();
    let series = vec![
        Series { name: "here".to_owned(), values: rows().map(here).collect() },
        Series {
            name: "the book, another machine".to_owned(),
            values: rows().map(|row| exactly(book(row).unwrap_or(f64::NAN))).collect(),
        },
    ];
    chart(report, title, axis, groups, series)
}

/// All crowds, each with all strategies.
fn by_choice(report: &Report) -> Chart {
    let name = |crowd: Crowd| match crowd.among {
        0 => format!("{}\nany offer", crowd.name()),
        among => format!("{} + {}\none of the {among} cheapest", crowd.sellers, crowd.buyers),
    };
    let of = |strategy| report.0.iter().filter(move |row| row.strategy == strategy);
    let groups = of(Strategy::Watch).map(|row| name(row.crowd())).collect();
    let series = Strategy::ALL.map(|strategy| Series {
        name: strategy.name().to_owned(),
        values: of(strategy).map(bought).collect(),
    });
    let title = "Marketplace: purchases a second, by what buyers choose from";
    chart(report, title, BOUGHT, groups, series.into())
}

fn chart(
    report: &Report,
    title: &str,
    axis: &str,
    groups: Vec<String>,
    series: Vec<Series<Spread>>,
) -> Chart {
    let note = report.0.first().map_or_else(String::new, |row| {
        format!(
            "Sellers + buyers, each a process, on one core, {} on another; medians of {} rounds of {:.0} s, smallest to greatest",
            row.server, row.rounds, row.round_s
        )
    });
    let (title, y) = (title.to_owned(), Axis { label: axis.to_owned(), log: true });
    Chart { title, note, y, kind: Kind::Bars { groups, series }, limits: Vec::new() }
}
