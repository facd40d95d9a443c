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
/// use leasehold_sim::history::{Stay, judge};
///
/// let reads = Stay { alone: false, asked_us: 10, queued_us: None, entered_us: 20, left_us: 90, token: 1 };
/// let writes = Stay { alone: true, asked_us: 15, queued_us: Some(25), entered_us: 95, left_us: 99, token: 2 };
/// assert!(judge(&[reads, writes]).is_ok());
///
/// let beside = Stay { entered_us: 80, ..writes };
/// println!("{}", judge(&[reads, beside]).expect_err("the writer came before the reader had left"));
/// assert_eq!(reads.to_string().parse(), Ok(reads));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay {
    /// Whether it excludes all others.
    pub alone: bool,
    /// Before the first request was sent.
    pub asked_us: u64,
    /// When the first reply with a queue position arrived, if there was one.
    pub queued_us: Option<u64>,
    /// When the holder knew that it held the lock.
    pub entered_us: u64,
    /// Before the release began.
    pub left_us: u64,
    /// The fencing token.
    pub token: u64,
}

impl fmt::Display for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { alone, asked_us, queued_us, entered_us, left_us, token } = self;
        let (alone, queued_us) = (u8::from(*alone), queued_us.unwrap_or(0));
        write!(f, "{alone} {asked_us} {queued_us} {entered_us} {left_us} {token}")
    }
}

/// A line that is not a valid record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoStay(String);

impl std::str::FromStr for Stay {
    type Err = NoStay;

    fn from_str(line: &str) -> Result<Self, NoStay> {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [alone @ 0..=1, asked_us, queued_us, entered_us, left_us, token] = numbers[..] else {
            return Err(NoStay(line.to_owned()));
        };
        let queued_us = (queued_us > 0).then_some(queued_us);
        Ok(Self { alone: alone == 1, asked_us, queued_us, entered_us, left_us, token })
    }
}

/// A violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// Two holds overlap, and one of them is exclusive (1).
    Together(Stay, Stay),
    /// The second was granted before the first, but requested after the first was queued (2).
    Passed(Stay, Stay),
    /// Two holds have the same token.
    SameToken(Stay, Stay),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Together(one, other) => write!(f, "both had the lock: {one:?} and {other:?}"),
            Self::Passed(first, second) => {
                write!(f, "{second:?} was let in before {first:?}, who came before")
            }
            Self::SameToken(one, other) => write!(f, "of one token: {one:?} and {other:?}"),
        }
    }
}

/// How much was checked, so that a caller can detect an empty history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Judged {
    /// Holds that allow others.
    pub shared: usize,
    /// Exclusive holds.
    pub alone: usize,
    /// The most that were inside at a time.
    pub most_inside: usize,
    /// Holds that were queued.
    pub queued: usize,
    /// Holds whose order relative to another is certain.
    pub in_order: usize,
}

/// Judges a history.
pub fn judge(stays: &[Stay]) -> Result<Judged, Flaw> {
    let mut judged = Judged {
        alone: stays.iter().filter(|stay| stay.alone).count(),
        queued: stays.iter().filter(|stay| stay.queued_us.is_some()).count(),
        ..Judged::default()
    };
    judged.shared = stays.len() - judged.alone;
    judged.most_inside = together(stays)?;
    judged.in_order = in_order(stays)?;
    Ok(judged)
}

/// Finds overlapping holds that exclude each other (1). Returns the largest number of concurrent holds.
fn together(stays: &[Stay]) -> Result<usize, Flaw> {
    let mut by_entry: Vec<_> = stays.iter().collect();
    by_entry.sort_by_key(|stay| stay.entered_us);
    let (mut inside, mut most): (Vec<&Stay>, usize) = (Vec::new(), 0);
    for stay in by_entry {
        inside.retain(|other| other.left_us > stay.entered_us);
        if let Some(other) = inside.iter().find(|other| other.alone || stay.alone) {
            return Err(Flaw::Together(**other, *stay));
        }
        inside.push(stay);
        most = most.max(inside.len());
    }
    Ok(most)
}

/// Finds a hold granted before another that was queued when it was requested (2).
fn in_order(stays: &[Stay]) -> Result<usize, Flaw> {
    let mut by_token: Vec<_> = stays.iter().collect();
    by_token.sort_by_key(|stay| stay.token);
    for pair in by_token.windows(2) {
        if pair[0].token == pair[1].token {
            return Err(Flaw::SameToken(*pair[0], *pair[1]));
        }
    }
    let mut queued: Vec<_> = stays.iter().filter(|stay| stay.queued_us.is_some()).collect();
    queued.sort_by_key(|stay| stay.queued_us);
    let mut by_asking: Vec<_> = stays.iter().collect();
    by_asking.sort_by_key(|stay| stay.asked_us);
    let (mut at, mut last_let_in, mut sure): (usize, Option<&Stay>, usize) = (0, None, 0);
    for stay in by_asking {
        while let Some(earlier) = queued.get(at).filter(|earlier| earlier.queued_us < Some(stay.asked_us)) {
            if last_let_in.is_none_or(|last| last.token < earlier.token) {
                last_let_in = Some(earlier);
            }
            at += 1;
        }
        match last_let_in {
            Some(earlier) if earlier.token > stay.token => return Err(Flaw::Passed(*earlier, *stay)),
            // A hold that ended long before does not constrain the order.
            Some(earlier) if earlier.entered_us > stay.asked_us => sure += 1,
            _ => {}
        }
    }
    Ok(sure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stay(alone: bool, times: [u64; 4], token: u64) -> Stay {
        let [asked_us, queued_us, entered_us, left_us] = times;
        let queued_us = (queued_us > 0).then_some(queued_us);
        Stay { alone, asked_us, queued_us, entered_us, left_us, token }
    }

    /// Two readers, a writer that waits for both, and a reader that waits for the writer.
    fn good() -> Vec<Stay> {
        vec![
            stay(false, [10, 0, 12, 40], 1),
            stay(false, [11, 0, 13, 50], 2),
            stay(true, [20, 22, 55, 70], 3),
            stay(false, [30, 32, 75, 90], 4),
        ]
    }

    #[test]
    fn what_can_have_been_is_believed() {
        let judged = Judged { shared: 3, alone: 1, most_inside: 2, queued: 2, in_order: 1 };
        assert_eq!(judge(&good()), Ok(judged));
        assert_eq!(judge(&[]), Ok(Judged::default()));
    }

    #[test]
    fn a_writer_is_alone() {
        for at in [0, 1, 3] {
            let mut history = good();
            history[at].entered_us = history[at].entered_us.min(60);
            history[at].left_us = history[at].left_us.max(60);
            assert!(matches!(judge(&history), Err(Flaw::Together(..))), "{at}");
        }
    }

    #[test]
    fn a_later_request_does_not_overtake_a_writer() {
        let mut history = good();
        history[3] = stay(false, [30, 32, 35, 54], 3);
        history[2].token = 4;
        assert!(matches!(judge(&history), Err(Flaw::Passed(..))));
        // Concurrent requests have no order.
        history[3].asked_us = 21;
        assert!(judge(&history).is_ok());
    }

    #[test]
    fn tokens_are_given_once() {
        let mut history = good();
        history[1].token = 1;
        assert!(matches!(judge(&history), Err(Flaw::SameToken(..))));
    }
}
