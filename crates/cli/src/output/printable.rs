//! Text that is safe and readable on a terminal.

use leasehold::LockName;

/// A text from another client or a server, without the characters that a terminal would interpret.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Names for messages: in backquotes, separated by commas. A name contains no control characters.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a LockName>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_other_clients_cannot_control_a_terminal() {
        assert_eq!(printable("web-3\x1b[2J\u{9b}x\n"), "web-3\u{fffd}[2J\u{fffd}x\u{fffd}");
    }
}
