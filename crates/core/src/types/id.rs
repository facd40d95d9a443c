//! Identities: a session (one process, or one client in it), a hold, and the nonce of a request.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// One client for its whole life: 96 random bits, written as 16 characters.
///
/// It names the mailbox to which grants are sent, and it is part of every [`HoldId`]. It is not a secret.
///
/// ```
/// use leasehold_core::SessionId;
///
/// let session = SessionId::from_random([7; 12]); // in production, from the system's randomness
/// assert_eq!(session.to_string().parse(), Ok(session));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId([u8; 12]);

impl SessionId {
    /// A session from random bits that the caller supplies.
    pub const fn from_random(bits: [u8; 12]) -> Self {
        Self(bits)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 16];
        f.write_str(encode(&self.0, &mut text))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

impl FromStr for SessionId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        decode(text).map(Self)
    }
}

/// A partition of a store: a part that can fail independently, and in which a session has its own record. A
/// slot of a cluster, or one of several servers.
///
/// ```
/// use leasehold_core::Partition;
///
/// assert_eq!(Partition::new(0), Partition::ONLY); // a store with one partition
/// assert_eq!(Partition::new(16_383).to_string(), "16383");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition(u16);

impl Partition {
    /// The partition of a store that has only one.
    pub const ONLY: Self = Self(0);

    /// The partition with this number. The store decides how its partitions are numbered.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number of the partition.
    pub const fn as_u16(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One acquisition of one lock: a session and 128 random bits. The token of a Mutex in Redis.
///
/// A client that knows a hold id can end the hold, so neither `Debug` nor any message shows more of it than
/// its session. Only [`HoldId::token`] and [`token_bytes`](HoldId::token_bytes) give its text.
///
/// ```
/// use leasehold_core::{HoldId, SessionId};
///
/// let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
/// assert_eq!(HoldId::from_token(&hold.token()), Ok(hold));
/// assert_eq!(format!("{hold:?}"), "HoldId(BwcHBwcHBwcHBwcH.…)"); // the secret half is not shown
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId {
    session: SessionId,
    bits: [u8; 16],
}

impl HoldId {
    /// A hold of `session` from random bits that the caller supplies.
    pub const fn from_random(session: SessionId, bits: [u8; 16]) -> Self {
        Self { session, bits }
    }

    /// The session that the hold belongs to.
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// The text that the store keeps: `<session>.<random>`, 39 characters. A secret.
    pub fn token(&self) -> String {
        std::str::from_utf8(&self.token_bytes()).unwrap_or("").to_owned()
    }

    /// The same as bytes, without an allocation.
    ///
    /// ```
    /// use leasehold_core::{HoldId, SessionId};
    ///
    /// let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
    /// assert_eq!(hold.token_bytes(), hold.token().as_bytes());
    /// ```
    pub fn token_bytes(&self) -> [u8; 39] {
        let mut text = [b'.'; 39];
        let (session, bits) = text.split_at_mut(16);
        encode(&self.session.0, session);
        encode(&self.bits, &mut bits[1..]);
        text
    }

    /// Parses a [`token`](Self::token).
    pub fn from_token(token: &str) -> Result<Self, ParseIdError> {
        let (session, bits) = token.split_once('.').ok_or(ParseIdError)?;
        Ok(Self { session: session.parse()?, bits: decode(bits)? })
    }
}

impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoldId({}.…)", self.session)
    }
}

/// A fresh number that every request to acquire carries, and that the notification of the grant repeats.
///
/// A client counts the validity of a grant from the moment at which it sent *its* nonce. 64 of its bits are random, so a client that can publish,
/// but cannot read the lock's record, cannot forge a grant. The client chooses the other 32 bits, to find the waiter.
///
/// ```
/// use leasehold_core::Nonce;
///
/// let nonce = Nonce::new(2, 0x4d); // for the waiter with index 2
/// assert_eq!(nonce.to_string(), "00000002000000000000004d");
/// assert_eq!("00000002000000000000004d".parse::<Nonce>().map(Nonce::index), Ok(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce {
    index: u32,
    random: u64,
}

impl Nonce {
    /// A nonce for the waiter with the client's own `index`, from random bits that the caller supplies.
    pub const fn new(index: u32, random: u64) -> Self {
        Self { index, random }
    }

    /// The client's index of the waiter.
    pub const fn index(self) -> u32 {
        self.index
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:016x}", self.index, self.random)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({:08x}…)", self.index)
    }
}

impl FromStr for Nonce {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let canonical = text.len() == 24 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !canonical {
            return Err(ParseIdError);
        }
        let index = u32::from_str_radix(&text[..8], 16).map_err(|_| ParseIdError)?;
        let random = u64::from_str_radix(&text[8..], 16).map_err(|_| ParseIdError)?;
        Ok(Self { index, random })
    }
}

/// A text that is not an id of Leasehold. The error does not show the text, which may be a secret.
///
/// ```
/// use leasehold_core::{HoldId, ParseIdError};
///
/// // The value of another library at the key.
/// assert_eq!(HoldId::from_token("b4f1c9e2"), Err(ParseIdError));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id of this format")]
pub struct ParseIdError;

/// Writes `bytes` into `text`, which must have exactly the required length.
fn encode<'a>(bytes: &[u8], text: &'a mut [u8]) -> &'a str {
    let len = URL_SAFE_NO_PAD.encode_slice(bytes, text).unwrap_or(0);
    std::str::from_utf8(&text[..len]).unwrap_or("")
}

fn decode<const N: usize>(text: &str) -> Result<[u8; N], ParseIdError> {
    let mut bytes = [0; N];
    // The decoder's estimate rounds up to whole groups, so the buffer is slightly larger.
    let mut room = [0; 24];
    let len = URL_SAFE_NO_PAD.decode_slice(text, &mut room).map_err(|_| ParseIdError)?;
    if len != N {
        return Err(ParseIdError);
    }
    bytes.copy_from_slice(&room[..N]);
    Ok(bytes)
}

macro_rules! serde_as_text {
    ($type:ty, $text:expr, $parse:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                #[allow(clippy::redundant_closure_call, reason = "the macro takes one way in and one out")]
                serializer.serialize_str(&($text)(self))
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                #[allow(clippy::redundant_closure_call, reason = "the macro takes one way in and one out")]
                ($parse)(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

serde_as_text!(SessionId, |id: &SessionId| id.to_string(), |text: &str| text.parse::<SessionId>());
serde_as_text!(HoldId, |id: &HoldId| id.token(), |text: &str| HoldId::from_token(text));
serde_as_text!(Nonce, |id: &Nonce| id.to_string(), |text: &str| text.parse::<Nonce>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_what_they_wrote() {
        for seed in 0..=255_u8 {
            let session = SessionId::from_random([seed; 12]);
            assert_eq!(session.to_string().len(), 16);
            assert_eq!(session.to_string().parse(), Ok(session));
            let hold = HoldId::from_random(session, [!seed; 16]);
            assert_eq!(hold.token().len(), 39);
            assert_eq!(HoldId::from_token(&hold.token()), Ok(hold));
            let nonce = Nonce::new(u32::from(seed), u64::from(seed) << 56);
            assert_eq!(nonce.to_string().parse(), Ok(nonce));
        }
        for bad in ["", ".", "x", "AAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAA.", "AAAAAAAAAAAAAAAA.AAAA"] {
            assert_eq!(HoldId::from_token(bad), Err(ParseIdError));
        }
        for bad in
            ["", "0", "00000000000000000000000G", "+00000000000000000000000", "00000000000000000000000F"]
        {
            assert_eq!(bad.parse::<Nonce>(), Err(ParseIdError));
        }
    }

    #[test]
    fn debug_keeps_the_secret() {
        let hold = HoldId::from_random(SessionId::from_random([1; 12]), [7; 16]);
        let shown = format!("{hold:?}");
        let secret = hold.token().split_once('.').map(|(_, s)| s.to_owned()).expect("a token has a dot");
        assert!(!shown.contains(&secret), "{shown}");
    }
}
