//! The figures as pictures: purchases and waits beside the book's, and what the choice of items changes.

use super::Crowd;
use super::figures::{BOOK_S, Reported, Row};
use super::way::Way;
use crate::chart::{Axis, Chart, Kind, Series, Spread};
use anyhow::Result;
use std::path::Path;

const BOUGHT: &str = "bought a second";

/// Draws all of them.
pub(super) fn draw(reported: &Reported, directory: &Path) -> Result<()> {
    let title = "Marketplace: purchases a second, by what guards them";
    beside_the_book(reported, title, BOUGHT, bought, |row| row.book_bought.map(|all| all / BOOK_S))
        .draw(directory, "marketplace")?;
    let title = "Marketplace: how long a buyer waits in the mean";
    beside_the_book(reported, title, "mean wait, in ms", wait, |row| row.book_mean_wait_ms)
        .draw(directory, "marketplace-wait")?;
    by_choice(reported).draw(directory, "marketplace-choice")
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
    reported: &Reported,
    title: &str,
    axis: &str,
    ours: fn(&Row) -> Spread,
    book: fn(&Row) -> Option<f64>,
) -> Chart {
    let of = |way| reported.0.iter().filter(move |row| row.way == way && row.among == 0);
    let rows = || Way::ALL.into_iter().flat_map(of);
    let exactly = |value: f64| Spread { median: value, least: value, most: value };
    let way = |row: &Row| row.way.name().replace(" per ", "\nper ");
    let groups = rows().map(|row| format!("{}\n{}", row.crowd().name(), way(row))).collect();
    let series = vec![
        Series { name: "here".to_owned(), values: rows().map(ours).collect() },
        Series {
            name: "the book, another machine".to_owned(),
            values: rows().map(|row| exactly(book(row).unwrap_or(f64::NAN))).collect(),
        },
    ];
    chart(reported, title, axis, groups, series)
}

/// All crowds, with the ways side by side.
fn by_choice(reported: &Reported) -> Chart {
    let name = |crowd: Crowd| match crowd.among {
        0 => format!("{}\nany offer", crowd.name()),
        among => format!("{} + {}\none of the {among} cheapest", crowd.sellers, crowd.buyers),
    };
    let of = |way| reported.0.iter().filter(move |row| row.way == way);
    let groups = of(Way::Watch).map(|row| name(row.crowd())).collect();
    let series =
        Way::ALL.map(|way| Series { name: way.name().to_owned(), values: of(way).map(bought).collect() });
    let title = "Marketplace: purchases a second, by what buyers choose from";
    chart(reported, title, BOUGHT, groups, series.into())
}

fn chart(
    reported: &Reported,
    title: &str,
    axis: &str,
    groups: Vec<String>,
    series: Vec<Series<Spread>>,
) -> Chart {
    let note = reported.0.first().map_or_else(String::new, |row| {
        format!(
            "Sellers + buyers, each a process, on one core, {} on another; medians of {} rounds of {:.0} s, smallest to greatest",
            row.server, row.rounds, row.round_s
        )
    });
    let (title, y) = (title.to_owned(), Axis { label: axis.to_owned(), log: true });
    Chart { title, note, y, kind: Kind::Bars { groups, series }, limits: Vec::new() }
}
