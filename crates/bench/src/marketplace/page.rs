//! The table of docs/explanation/marketplace.md: the figures of a run beside those of the book.
//!
//! Owns what is between the marks of the page, and changes nothing else of it. No figure of the page is written by hand.

use super::figures::{Report, Row};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- figures: written by `cargo xtask bench marketplace --page` -->\n";
const END: &str = "<!-- end of the figures -->";
/// What is written for a mean without a purchase, and for a figure that the book does not have.
const NONE: &str = "–";

/// Replaces the figures of the page. The marks must be there.
pub(super) fn write(report: &Report, is_quick: bool, file: &Path) -> Result<()> {
    let page = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let (before, old) = page.split_once(BEGIN).context("the page has no mark where the figures begin")?;
    let (_, after) = old.split_once(END).context("the page has no mark where the figures end")?;
    let page = [before, BEGIN, &figures(report, is_quick), END, after].concat();
    fs::write(file, page).with_context(|| format!("writing {}", file.display()))
}

/// The conditions of the run, and the table.
fn figures(report: &Report, is_quick: bool) -> String {
    let mut text = String::from("\n");
    if let Some(row) = report.0.first() {
        let build = if cfg!(debug_assertions) { ", built without optimisation" } else { "" };
        let rounds = if row.rounds == 1 { "one round".to_owned() } else { format!("{} rounds", row.rounds) };
        let conditions = format!("{}, {rounds} of {:.0} s a cell{build}", row.server, row.round_s);
        let introduction = if is_quick {
            format!(
                "**These are the figures of a quick run** ({conditions}), on a machine that other programs used. They \
                 show\nthe pattern, and are not for comparison.\n"
            )
        } else {
            format!("{conditions}; medians.\n")
        };
        text.push_str(&introduction);
    }
    text += "\n| Sellers + buyers | Guard | Listed | Bought | Retries | Mean wait | Book: listed | bought | retries | mean wait |\n";
    text += "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    for row in &report.0 {
        let [listed, bought, retries, wait] = measured(row);
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {listed} | {bought} | {retries} | {wait} | {} |",
            row.crowd().name(),
            row.strategy.name(),
            book(row).join(" | ")
        );
    }
    text + "\n"
}

fn measured(row: &Row) -> [String; 4] {
    let wait =
        if row.mean_wait_ms.is_nan() { NONE.to_owned() } else { format!("{:.2} ms", row.mean_wait_ms) };
    [count(row.listed_in_60_s), count(row.bought_in_60_s), count(row.retries_in_60_s), wait]
}

/// The figures as the book prints them.
fn book(row: &Row) -> [String; 4] {
    let write = |value: Option<f64>, name: &str, unit: &str| {
        let below = if row.book_below.contains(&name) { "under " } else { "" };
        value.map_or_else(|| NONE.to_owned(), |value| format!("{below}{}{unit}", grouped(value)))
    };
    [
        write(row.book_listed, "listed", ""),
        write(row.book_bought, "bought", ""),
        write(row.book_retries, "retries", ""),
        write(row.book_mean_wait_ms, "mean_wait_ms", " ms"),
    ]
}

/// Three digits that are not zero: a measurement has no more.
fn count(value: f64) -> String {
    if value.is_nan() {
        return NONE.to_owned();
    }
    if value < 1000.0 {
        return grouped(value);
    }
    let unit = 10_f64.powf(value.log10().floor() - 2.0);
    grouped((value / unit).round() * unit)
}

/// With a space before each three digits.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of this repository.
    const PAGE: &str = include_str!("../../../../docs/explanation/marketplace.md");

    #[test]
    fn numbers_have_three_digits_and_groups() {
        let of = [f64::NAN, 0.0, 7.4, 999.0, 1_234.0, 206_499.0, 1_236_000.0].map(count);
        assert_eq!(of, [NONE, "0", "7", "999", "1 230", "206 000", "1 240 000"]);
        assert_eq!(grouped(20_500.0), "20 500");
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("page.md");
        fs::write(&file, format!("before\n\n{BEGIN}old\n{END}\n\nafter\n")).expect("written");
        let report = Report::of_the_book();
        write(&report, true, &file).expect("both marks are there");
        let page = fs::read_to_string(&file).expect("read");
        assert!(
            page.starts_with(&format!("before\n\n{BEGIN}")) && page.ends_with(&format!("{END}\n\nafter\n"))
        );
        assert!(!page.contains("old"), "{page}");
        assert!(page.contains("| 331 000 | under 200 | 50 000 | 150 ms |\n"), "{page}");
        assert!(page.contains("| 68 000 | 13 000 | under 10 | 5 ms |\n"), "{page}");
        assert!(page.contains("| rslock per item | – | – | – | – | – | – | – | – |\n"), "{page}");

        fs::write(&file, BEGIN).expect("written");
        let error = write(&report, true, &file).expect_err("a mark is missing");
        assert!(error.to_string().contains("where the figures end"), "{error}");
    }

    /// A figure of the book that is mended here is mended there, too.
    #[test]
    fn the_page_has_the_figures_of_the_book() {
        let (_, figures) = PAGE.split_once(BEGIN).expect("a mark");
        for row in &Report::of_the_book().0 {
            let (cell, book) =
                (format!("| {} | {} |", row.crowd().name(), row.strategy.name()), book(row).join(" | "));
            let line =
                figures.lines().find(|line| line.starts_with(&cell)).unwrap_or_else(|| panic!("no {cell}"));
            assert!(line.ends_with(&format!("| {book} |")), "{line}");
        }
    }
}
