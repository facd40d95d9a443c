//! Messages to the mailbox of a session.

use crate::{FencingToken, Nonce, SessionId};

/// A message to a session's mailbox: a hint, which can be lost, late or forged.
///
/// ```
/// use leasehold_core::{FencingToken, Nonce, SessionId, Notification};
///
/// let to = SessionId::from_random([7; 12]);
/// let notification = Notification::Grant { to, nonce: Nonce::new(2, 0x4d), fence: FencingToken::new(4711) };
/// assert_eq!(notification.message(), "grant 00000002000000000000004d 4711");
/// assert_eq!(Notification::parse(to, b"grant 00000002000000000000004d 4711"), Ok(notification));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Notification {
    /// A lock has been granted.
    Grant {
        /// The session whose mailbox receives it.
        to: SessionId,
        /// The nonce of the request that it answers.
        nonce: Nonce,
        /// The fencing token of the hold.
        fence: FencingToken,
    },
    /// A hold was ended by an operator.
    ForceReleased {
        /// The session whose mailbox receives it.
        to: SessionId,
        /// The fencing token of the hold that was ended.
        fence: FencingToken,
    },
    /// Another session requests a lock, and its holder subscribed to this notification.
    Wanted {
        /// The session whose mailbox receives it.
        to: SessionId,
        /// The fencing token that the store has granted with the hold.
        fence: FencingToken,
    },
}

impl Notification {
    /// The session whose mailbox receives it.
    pub const fn to(&self) -> SessionId {
        match self {
            Self::Grant { to, .. } | Self::ForceReleased { to, .. } | Self::Wanted { to, .. } => *to,
        }
    }

    /// The fencing token of the hold that it is about.
    pub const fn fence(&self) -> FencingToken {
        match self {
            Self::Grant { fence, .. } | Self::ForceReleased { fence, .. } | Self::Wanted { fence, .. } => {
                *fence
            }
        }
    }

    /// The nonce of the request that it answers, if it is a grant.
    pub const fn nonce(&self) -> Option<Nonce> {
        match self {
            Self::Grant { nonce, .. } => Some(*nonce),
            Self::ForceReleased { .. } | Self::Wanted { .. } => None,
        }
    }

    /// The message as it is published to the mailbox.
    pub fn message(&self) -> String {
        match self {
            Self::Grant { nonce, fence, .. } => format!("grant {nonce} {fence}"),
            Self::ForceReleased { fence, .. } => format!("force_released {fence}"),
            Self::Wanted { fence, .. } => format!("wanted {fence}"),
        }
    }

    /// Parses a message from `to`'s mailbox.
    pub fn parse(to: SessionId, message: &[u8]) -> Result<Self, NotificationError> {
        let text = std::str::from_utf8(message).map_err(|_| NotificationError)?;
        let words: Vec<_> = text.split(' ').collect();
        match words.as_slice() {
            ["grant", nonce, fence] => {
                let nonce = nonce.parse().map_err(|_| NotificationError)?;
                let fence = fence.parse().map_err(|_| NotificationError)?;
                Ok(Self::Grant { to, nonce, fence })
            }
            ["force_released", fence] => {
                Ok(Self::ForceReleased { to, fence: fence.parse().map_err(|_| NotificationError)? })
            }
            ["wanted", fence] => {
                Ok(Self::Wanted { to, fence: fence.parse().map_err(|_| NotificationError)? })
            }
            _ => Err(NotificationError),
        }
    }
}

/// A message that does not come from Leasehold. The error does not show the message.
///
/// ```
/// use leasehold_core::{SessionId, Notification, NotificationError};
///
/// let to = SessionId::from_random([7; 12]);
/// assert_eq!(Notification::parse(to, b"hello"), Err(NotificationError)); // any client may publish there
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message in the mailbox is not from Leasehold")]
pub struct NotificationError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back() {
        let to = SessionId::from_random([3; 12]);
        let fence = FencingToken::new(1_762_000_000_123_456);
        let notification = Notification::Grant { to, nonce: Nonce::new(2, 77), fence };
        assert_eq!(notification.message(), "grant 00000002000000000000004d 1762000000123456");
        assert_eq!(Notification::parse(to, notification.message().as_bytes()), Ok(notification));
        let notification = Notification::ForceReleased { to, fence };
        assert_eq!(notification.message(), "force_released 1762000000123456");
        assert_eq!(Notification::parse(to, notification.message().as_bytes()), Ok(notification));
        let notification = Notification::Wanted { to, fence };
        assert_eq!(notification.message(), "wanted 1762000000123456");
        assert_eq!(Notification::parse(to, notification.message().as_bytes()), Ok(notification));
        for forged in [
            "",
            "grant",
            "grant x 1",
            "grant 00000002000000000000004d",
            "free 00000002000000000000004d 1",
            "force_released",
            "force_released x",
            "force_released 1 2",
            "wanted",
            "wanted 1 2",
            "\u{0}",
        ] {
            assert_eq!(Notification::parse(to, forged.as_bytes()), Err(NotificationError), "{forged}");
        }
        assert_eq!(Notification::parse(to, &[0xff, 0xfe]), Err(NotificationError));
    }
}
