//! A report as text: one line for each value, with a label before it.

use crate::output::printable::printable;
use std::fmt::Write;

/// Lines of a label and a value, in two columns.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    text: String,
}

impl Lines {
    pub(crate) fn push(&mut self, label: &str, value: &str) {
        writeln!(self.text, "{label:<9}{}", printable(value)).expect("writing to a string cannot fail");
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}
