//! Checks a recorded history of holds on a lock with several holders.
//!
//! It only checks. The recorder stamps all events by one clock, the machine's, in microseconds.
//!
//! 1. An exclusive holder is alone from when it knows that it holds the lock until it begins to release it.
//! 2. A client that requests the lock after another is known to be queued is granted after that one. Fencing tokens
//!    follow the order of grants. Concurrent requests may be granted in either order.

use std::fmt;

/// One hold, as its holder recorded it.
///
/// ```
/// use leasehold_sim::history::{RecordedHold, check};
///
/// let read = RecordedHold {
///     exclusive: false,
///     requested_us: 10,
///     queued_us: None,
///     acquired_us: 20,
///     released_us: 90,
///     token: 1,
/// };
/// let write = RecordedHold {
///     exclusive: true,
///     requested_us: 15,
///     queued_us: Some(25),
///     acquired_us: 95,
///     released_us: 99,
///     token: 2,
/// };
/// assert!(check(&[read, write]).is_ok());
///
/// let overlapping = RecordedHold { acquired_us: 80, ..write };
/// println!("{}", check(&[read, overlapping]).expect_err("the writer overlaps the reader"));
/// assert_eq!(read.to_string().parse(), Ok(read));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedHold {
    /// Whether it excludes all others.
    pub exclusive: bool,
    /// Before the first request was sent.
    pub requested_us: u64,
    /// When the first reply with a queue position arrived, if there was one.
    pub queued_us: Option<u64>,
    /// When the holder knew that it held the lock.
    pub acquired_us: u64,
    /// Before the release began.
    pub released_us: u64,
    /// The fencing token.
    pub token: u64,
}

impl fmt::Display for RecordedHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exclusive, requested_us, queued_us, acquired_us, released_us, token } = self;
        let (exclusive, queued_us) = (u8::from(*exclusive), queued_us.unwrap_or(0));
        write!(f, "{exclusive} {requested_us} {queued_us} {acquired_us} {released_us} {token}")
    }
}

/// A line that is not a valid record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseHoldError(String);

impl std::str::FromStr for RecordedHold {
    type Err = ParseHoldError;

    fn from_str(line: &str) -> Result<Self, ParseHoldError> {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [exclusive @ 0..=1, requested_us, queued_us, acquired_us, released_us, token] = numbers[..]
        else {
            return Err(ParseHoldError(line.to_owned()));
        };
        let queued_us = (queued_us > 0).then_some(queued_us);
        Ok(Self { exclusive: exclusive == 1, requested_us, queued_us, acquired_us, released_us, token })
    }
}

/// A violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Two holds overlap, and one of them is exclusive (1).
    Overlap(RecordedHold, RecordedHold),
    /// The second was granted before the first, but requested after the first was queued (2).
    Overtaken(RecordedHold, RecordedHold),
    /// Two holds have the same token.
    SameToken(RecordedHold, RecordedHold),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap(one, other) => write!(f, "both hold the lock: {one:?} and {other:?}"),
            Self::Overtaken(first, second) => {
                write!(f, "{second:?} was granted before {first:?}, which was queued before it")
            }
            Self::SameToken(one, other) => write!(f, "the same token: {one:?} and {other:?}"),
        }
    }
}

/// How much was checked, so that a caller can detect an empty history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Holds that allow others.
    pub shared: usize,
    /// Exclusive holds.
    pub exclusive: usize,
    /// The largest number of concurrent holds.
    pub most_concurrent: usize,
    /// Holds that were queued.
    pub queued: usize,
    /// Holds whose order relative to another is certain.
    pub in_order: usize,
}

/// Checks a history.
pub fn check(holds: &[RecordedHold]) -> Result<Coverage, Violation> {
    let mut coverage = Coverage {
        exclusive: holds.iter().filter(|hold| hold.exclusive).count(),
        queued: holds.iter().filter(|hold| hold.queued_us.is_some()).count(),
        ..Coverage::default()
    };
    coverage.shared = holds.len() - coverage.exclusive;
    coverage.most_concurrent = check_exclusion(holds)?;
    coverage.in_order = check_order(holds)?;
    Ok(coverage)
}

/// Finds overlapping holds that exclude each other (1). Returns the largest number of concurrent holds.
fn check_exclusion(holds: &[RecordedHold]) -> Result<usize, Violation> {
    let mut by_acquire: Vec<_> = holds.iter().collect();
    by_acquire.sort_by_key(|hold| hold.acquired_us);
    let (mut current, mut most): (Vec<&RecordedHold>, usize) = (Vec::new(), 0);
    for hold in by_acquire {
        current.retain(|other| other.released_us > hold.acquired_us);
        if let Some(other) = current.iter().find(|other| other.exclusive || hold.exclusive) {
            return Err(Violation::Overlap(**other, *hold));
        }
        current.push(hold);
        most = most.max(current.len());
    }
    Ok(most)
}

/// Finds a hold granted before another that was queued when it was requested (2).
fn check_order(holds: &[RecordedHold]) -> Result<usize, Violation> {
    let mut by_token: Vec<_> = holds.iter().collect();
    by_token.sort_by_key(|hold| hold.token);
    for pair in by_token.windows(2) {
        if pair[0].token == pair[1].token {
            return Err(Violation::SameToken(*pair[0], *pair[1]));
        }
    }
    let mut queued: Vec<_> = holds.iter().filter(|hold| hold.queued_us.is_some()).collect();
    queued.sort_by_key(|hold| hold.queued_us);
    let mut by_request: Vec<_> = holds.iter().collect();
    by_request.sort_by_key(|hold| hold.requested_us);
    let (mut at, mut last_queued, mut certain): (usize, Option<&RecordedHold>, usize) = (0, None, 0);
    for hold in by_request {
        while let Some(earlier) = queued.get(at).filter(|earlier| earlier.queued_us < Some(hold.requested_us))
        {
            if last_queued.is_none_or(|last| last.token < earlier.token) {
                last_queued = Some(earlier);
            }
            at += 1;
        }
        match last_queued {
            Some(earlier) if earlier.token > hold.token => return Err(Violation::Overtaken(*earlier, *hold)),
            // A hold that ended long before does not constrain the order.
            Some(earlier) if earlier.acquired_us > hold.requested_us => certain += 1,
            _ => {}
        }
    }
    Ok(certain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(exclusive: bool, times: [u64; 4], token: u64) -> RecordedHold {
        let [requested_us, queued_us, acquired_us, released_us] = times;
        let queued_us = (queued_us > 0).then_some(queued_us);
        RecordedHold { exclusive, requested_us, queued_us, acquired_us, released_us, token }
    }

    /// Two readers, a writer that waits for both, and a reader that waits for the writer.
    fn good() -> Vec<RecordedHold> {
        vec![
            hold(false, [10, 0, 12, 40], 1),
            hold(false, [11, 0, 13, 50], 2),
            hold(true, [20, 22, 55, 70], 3),
            hold(false, [30, 32, 75, 90], 4),
        ]
    }

    #[test]
    fn a_possible_history_is_accepted() {
        let coverage = Coverage { shared: 3, exclusive: 1, most_concurrent: 2, queued: 2, in_order: 1 };
        assert_eq!(check(&good()), Ok(coverage));
        assert_eq!(check(&[]), Ok(Coverage::default()));
    }

    #[test]
    fn a_writer_excludes_all_others() {
        for at in [0, 1, 3] {
            let mut history = good();
            history[at].acquired_us = history[at].acquired_us.min(60);
            history[at].released_us = history[at].released_us.max(60);
            assert!(matches!(check(&history), Err(Violation::Overlap(..))), "{at}");
        }
    }

    #[test]
    fn a_later_request_does_not_overtake_a_writer() {
        let mut history = good();
        history[3] = hold(false, [30, 32, 35, 54], 3);
        history[2].token = 4;
        assert!(matches!(check(&history), Err(Violation::Overtaken(..))));
        // Concurrent requests have no order.
        history[3].requested_us = 21;
        assert!(check(&history).is_ok());
    }

    #[test]
    fn no_two_holds_have_the_same_token() {
        let mut history = good();
        history[1].token = 1;
        assert!(matches!(check(&history), Err(Violation::SameToken(..))));
    }
}
