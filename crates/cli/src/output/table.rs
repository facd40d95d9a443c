//! Tables that fit the terminal.
//!
//! 1. What is not written to a terminal is written in full.
//! 2. On a terminal, columns that say again what others say are left out first, then texts are shortened, the longest first.

use std::iter;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    head: &'static str,
    fit: Fit,
}

/// What is done with a column if the table is too wide (2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Keep,
    Shorten,
    /// Left out, the smallest number first.
    Omit(u8),
}

/// No text is shortened below this.
const MIN_WIDTH: usize = 6;
/// Between two columns.
const GAP: usize = 2;

impl Column {
    pub(crate) const fn new(head: &'static str) -> Self {
        Self { head, fit: Fit::Keep }
    }

    /// With texts that can be shortened.
    pub(crate) const fn text(head: &'static str) -> Self {
        Self { head, fit: Fit::Shorten }
    }

    /// That can be left out; among several, first the one with the smallest number.
    pub(crate) const fn omitted(head: &'static str, order: u8) -> Self {
        Self { head, fit: Fit::Omit(order) }
    }
}

/// A table with a line for its head. The last column is not padded.
pub(crate) fn table<const N: usize>(
    columns: &[Column; N],
    rows: &[[String; N]],
    max_width: Option<usize>,
) -> String {
    let all = || iter::once(columns.map(|column| column.head.to_owned())).chain(rows.iter().cloned());
    let mut widths = [0; N];
    for row in all() {
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = (*width).max(cell.width());
        }
    }
    let mut shown: Vec<_> = (0..N).collect();
    if let Some(max) = max_width {
        fit(columns, &mut widths, &mut shown, max);
    }
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for &at in &shown {
            let cell = shorten(&row[at], widths[at]);
            let padding = widths[at].saturating_sub(cell.width()) + GAP;
            line.push_str(&cell);
            line.extend(iter::repeat_n(' ', padding));
        }
        let line = line.trim_end();
        text.push_str(&max_width.map_or_else(|| line.to_owned(), |max| shorten(line, max)));
        text.push('\n');
    }
    text
}

/// Makes the columns narrower, or leaves some out, as far as necessary and possible.
fn fit(columns: &[Column], widths: &mut [usize], shown: &mut Vec<usize>, max: usize) {
    let total = |widths: &[usize], shown: &[usize]| {
        shown.iter().map(|at| widths[*at]).sum::<usize>() + GAP * shown.len().saturating_sub(1)
    };
    let omitted = |at: &usize| match columns[*at].fit {
        Fit::Omit(order) => Some((order, *at)),
        _ => None,
    };
    while total(widths, shown) > max
        && let Some((_, first)) = shown.iter().filter_map(omitted).min()
    {
        shown.retain(|at| *at != first);
    }
    while total(widths, shown) > max {
        let can_shrink = |at: &&usize| columns[**at].fit == Fit::Shorten && widths[**at] > MIN_WIDTH;
        let Some(&widest) = shown.iter().filter(can_shrink).max_by_key(|at| widths[**at]) else { return };
        widths[widest] -= 1;
    }
}

/// The text, or as much of its beginning as fits, and an ellipsis.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    if text.width() <= max {
        return text.to_owned();
    }
    let mut left = max.saturating_sub(1);
    let mut short = String::new();
    for c in text.chars() {
        let width = c.width().unwrap_or(0);
        if width > left {
            break;
        }
        left -= width;
        short.push(c);
    }
    if max > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let rows = [["a", "1"], ["lönger", "2"], ["漢字", "3"]].map(|row| row.map(str::to_owned));
        let columns = [Column::text("N"), Column::new("W")];
        assert_eq!(table(&columns, &rows, None), "N       W\na       1\nlönger  2\n漢字    3\n");
    }

    #[test]
    fn a_narrow_table_omits_columns_and_then_shortens_texts() {
        let rows =
            [["a-long-name-of-a-lock", "mutex", "42s", "web-3/412/x"]].map(|row| row.map(str::to_owned));
        let columns = [
            Column::text("NAME"),
            Column::omitted("KIND", 2),
            Column::new("LEFT"),
            Column::omitted("HOLDER", 1),
        ];
        let line = |max| table(&columns, &rows, Some(max)).lines().last().unwrap_or_default().to_owned();
        assert_eq!(line(60), "a-long-name-of-a-lock  mutex  42s   web-3/412/x");
        assert_eq!(line(40), "a-long-name-of-a-lock  mutex  42s");
        assert_eq!(line(30), "a-long-name-of-a-lock  42s");
        assert_eq!(line(20), "a-long-name-o…  42s");
        assert_eq!(line(12), "a-lon…  42s");
        assert_eq!(line(5), "a-lo…");
    }

    #[test]
    fn a_wide_character_is_not_cut() {
        assert_eq!(shorten("漢字漢字", 8), "漢字漢字");
        assert_eq!(shorten("漢字漢字", 6), "漢字…");
        assert_eq!(shorten("漢字", 2), "…");
        assert_eq!(shorten("漢字", 0), "");
    }
}
