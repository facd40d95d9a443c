//! The names of tests that documents quote: each must be a name in the code.
//!
//! Owns what counts as such a name. `docs/reference/failure-modes.md` has a stricter test of its own, which also knows
//! where its tests are.
//!
//! 1. A quoted name is a code span that consists of four words or more, joined by `_`. A shorter one may be anything.
//! 2. `row_13_…` stands for a name with that beginning, `*_cancelled_at_every_await` for one with that end.

use std::collections::BTreeSet;

/// The fewest `_` in a name of a test.
const MIN_JOINTS: usize = 3;

/// What the name of a metric begins with: it is a text in the code, and a test compares those.
const METRIC: &str = "leasehold_";

/// The names in Rust code, as far as documents could quote them.
#[derive(Default)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    /// Adds the names of a source without its comments and strings.
    pub(crate) fn add(&mut self, code: &str) {
        let names = code.split(|char: char| !is_part(char)).filter(|name| name.contains('_'));
        self.0.extend(names.map(str::to_owned));
    }

    /// The quoted names of a document that no code has, each with its line.
    pub(crate) fn missing(&self, document: &str) -> Vec<(usize, String)> {
        let lines = document.lines().enumerate();
        let spans =
            lines.flat_map(|(at, line)| line.split('`').skip(1).step_by(2).map(move |span| (at + 1, span)));
        spans.filter(|(_, span)| !self.has(span)).map(|(line, span)| (line, span.to_owned())).collect()
    }

    /// Whether a code span is no name of a test, or one that exists.
    fn has(&self, span: &str) -> bool {
        let name = span.trim_start_matches('*').trim_end_matches('…');
        let is_pattern = name != span;
        let is_metric = name.starts_with(METRIC);
        if is_metric || !name.chars().all(is_part) || !is_pattern && name.matches('_').count() < MIN_JOINTS {
            return true;
        }
        match (span.starts_with('*'), span.ends_with('…')) {
            (false, false) => self.0.contains(name),
            (false, true) => {
                self.0.range(name.to_owned()..).next().is_some_and(|first| first.starts_with(name))
            }
            (true, _) => self.0.iter().any(|other| other.contains(name)),
        }
    }
}

fn is_part(char: char) -> bool {
    char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_code_has_are_found() {
        let mut names = Names::default();
        names.add("async fn row_1_a_reply_is_lost() {}\nfn it_is_cancelled_at_every_await() {}");
        let found = |document: &str| names.missing(document);
        assert_eq!(
            found(
                "`row_1_a_reply_is_lost`, `row_1_…`, `*_cancelled_at_every_await`, `a_short_name`, `leasehold_of_a_metric_s`"
            ),
            []
        );
        assert_eq!(found("`three_words_long` and not_in_a_span_at_all, `a.b_c_d_e`, `-a_b_c_d`"), []);
        let missing = found("text\n`row_1_a_reply_was_lost` `row_2_…`\n`*_at_no_await`");
        let missing: Vec<_> = missing.iter().map(|(line, name)| (*line, name.as_str())).collect();
        assert_eq!(missing, [(2, "row_1_a_reply_was_lost"), (2, "row_2_…"), (3, "*_at_no_await")]);
    }
}
