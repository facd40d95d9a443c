//! What the terminal can show.

use rustix::termios::{isatty, tcgetwinsize};
use std::env;
use std::os::fd::AsFd;

/// Whether this is a terminal on which a line can be written anew.
pub(crate) fn can_move_cursor(fd: impl AsFd) -> bool {
    isatty(fd) && env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// The number of columns of a terminal; `None` for anything else, and if it is not known.
pub(crate) fn width(fd: impl AsFd) -> Option<usize> {
    size(fd).0
}

/// The number of columns and of lines.
pub(crate) fn size(fd: impl AsFd) -> (Option<usize>, Option<usize>) {
    let known = |number: u16| (number > 0).then_some(usize::from(number));
    tcgetwinsize(fd).map_or((None, None), |size| (known(size.ws_col), known(size.ws_row)))
}
