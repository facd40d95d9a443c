//! The votes of a quorum for a hold.

use std::fmt;

/// How many nodes of a quorum have a hold.
///
/// ```
/// use leasehold_core::Votes;
///
/// let votes = Votes { held: 4, nodes: 5 };
/// assert_eq!((votes.needed(), votes.margin(), votes.to_string()), (3, 2, "4 of 5".to_owned()));
/// assert_eq!(Votes { held: 3, nodes: 5 }.margin(), 1); // a bare majority
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Votes {
    /// The nodes that are known to have the hold.
    pub held: u32,
    /// All nodes.
    pub nodes: u32,
}

impl Votes {
    /// How many nodes are a majority.
    pub const fn needed(self) -> u32 {
        self.nodes / 2 + 1
    }

    /// How many nodes would have to lose the hold before its time until its holder has no majority, and another client may
    /// acquire the lock. 1 for a bare majority, and 0 if a majority is not known to have the hold.
    pub const fn margin(self) -> u32 {
        (self.held + 1).saturating_sub(self.needed())
    }
}

impl fmt::Display for Votes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.held, self.nodes)
    }
}
