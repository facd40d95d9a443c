//! The lease of a hold.

use std::time::{Duration, SystemTime};

/// The lease of a hold: for a duration, or until an instant.
///
/// A hold with a lease ends when the lease ends. Without one, the keeper renews the hold for as long as its
/// guard lives.
///
/// ```
/// use leasehold_core::Lease;
/// use std::time::Duration;
///
/// let lease = Lease::from(Duration::from_secs(60));
/// assert!(lease.check().is_ok());
/// assert!(Lease::from(Duration::ZERO).check().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// That long, counted from the acquisition.
    For(Duration),
    /// Until this instant of the client's wall clock, which is read once when the lock is acquired.
    Until(SystemTime),
}

impl Lease {
    /// The shortest lease.
    pub const MIN: Duration = Duration::from_millis(1);
    /// The longest lease.
    pub const MAX: Duration = Duration::from_secs(366 * 24 * 3600);

    /// Fails if the lease can never be valid: shorter than [`Lease::MIN`], or longer than [`Lease::MAX`]. An
    /// instant is only checked by [`Lease::remaining`], when the lock is requested.
    pub fn check(self) -> Result<Self, LeaseError> {
        match self {
            Self::For(lease) => within_bounds(lease).map(|_| self),
            Self::Until(_) => Ok(self),
        }
    }

    /// The length of the lease when it starts at `now` by the wall clock.
    pub fn remaining(self, now: SystemTime) -> Result<Duration, LeaseError> {
        match self {
            Self::For(lease) => within_bounds(lease),
            Self::Until(end) => match end.duration_since(now) {
                Ok(lease) if lease >= Self::MIN => within_bounds(lease),
                _ => Err(LeaseError::Past),
            },
        }
    }
}

impl From<Duration> for Lease {
    fn from(lease: Duration) -> Self {
        Self::For(lease)
    }
}

impl From<SystemTime> for Lease {
    fn from(end: SystemTime) -> Self {
        Self::Until(end)
    }
}

fn within_bounds(lease: Duration) -> Result<Duration, LeaseError> {
    if lease < Lease::MIN {
        Err(LeaseError::TooShort(lease))
    } else if lease > Lease::MAX {
        Err(LeaseError::TooLong(lease))
    } else {
        Ok(lease)
    }
}

/// Why a lease is not valid.
///
/// ```
/// use leasehold_core::{Lease, LeaseError};
/// use std::time::{Duration, SystemTime};
///
/// let midnight = SystemTime::now() - Duration::from_secs(60); // a minute ago
/// match Lease::Until(midnight).remaining(SystemTime::now()) {
///     Ok(left) => println!("{left:?} are left for it"),
///     Err(LeaseError::Past) => println!("tomorrow, then"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// Shorter than [`Lease::MIN`].
    #[error("a lease is at least 1 ms long, this one {0:?}")]
    TooShort(Duration),
    /// Longer than [`Lease::MAX`].
    #[error("a lease is at most 366 days long, this one {0:?}")]
    TooLong(Duration),
    /// Longer than the store accepts.
    #[error(
        "the lease is {lease:?} long, and this quorum keeps a lease for {max:?} at most, because a restarted node votes again after that time: request a shorter lease, or set `min_uptime` higher for all clients"
    )]
    TooLongForStore {
        /// The requested lease.
        lease: Duration,
        /// The longest lease that the store keeps.
        max: Duration,
    },
    /// The lease ends at an instant that has already passed.
    #[error("the lease should end at an instant that has passed already")]
    Past,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_duration_from_a_millisecond_to_days() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        for lease in [Duration::from_millis(1), Duration::from_millis(999), Duration::from_secs(86_400 * 30)]
        {
            assert_eq!(Lease::For(lease).remaining(now), Ok(lease));
            assert_eq!(Lease::Until(now + lease).remaining(now), Ok(lease));
        }
        let short = Duration::from_micros(999);
        assert_eq!(Lease::For(short).remaining(now), Err(LeaseError::TooShort(short)));
        assert_eq!(Lease::Until(now).remaining(now), Err(LeaseError::Past));
        assert_eq!(Lease::Until(now - short).remaining(now), Err(LeaseError::Past));
        assert!(Lease::For(Duration::MAX).check().is_err());
    }
}
