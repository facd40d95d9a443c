//! The audit of holds that other clients or operators ended.

use crate::{FencingToken, Label};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// One eviction or forced release.
///
/// ```
/// use leasehold_core::{AuditEntry, Ended, FencingToken, Label};
///
/// let entry = AuditEntry {
///     at_ms: 1_762_000_000_123,
///     ended: Ended::ForceReleased,
///     fence: Some(FencingToken::new(4711)),
///     holder: Some(Label::new("web-3/4711/billing")?),
///     actor: Label::new("ops@bastion")?,
/// };
/// assert_eq!(entry.holder.map(|label| label.to_string()).as_deref(), Some("web-3/4711/billing"));
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When, in milliseconds of the store's clock.
    pub at_ms: u64,
    /// How the hold was ended.
    pub ended: Ended,
    /// The fencing token of the hold; a client of another library has none.
    pub fence: Option<FencingToken>,
    /// The label of its holder; not known for a client of another library.
    pub holder: Option<Label>,
    /// The client or operator that ended the hold.
    pub actor: Label,
}

/// The SHA-1 of the value at a lock's key: enough to recognise it, but not to release it.
///
/// ```
/// use leasehold_core::Fingerprint;
///
/// let seen = Fingerprint::of("b4f1c9e2-the-token-of-another-library");
/// assert_eq!(seen.to_string().parse(), Ok(seen));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 20]);

impl Fingerprint {
    /// The fingerprint of a value.
    pub fn of(value: &str) -> Self {
        Self(sha1_smol::Sha1::from(value).digest().bytes())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is not a [`Fingerprint`].
///
/// ```
/// use leasehold_core::{Fingerprint, ParseFingerprintError};
///
/// assert_eq!("hello".parse::<Fingerprint>(), Err(ParseFingerprintError));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 40 hexadecimal digits")]
pub struct ParseFingerprintError;

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, ParseFingerprintError> {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let digits: Vec<_> = text.bytes().filter_map(|byte| digit(&byte)).collect();
        if text.len() != 40 || digits.len() != 40 {
            return Err(ParseFingerprintError);
        }
        let mut bytes = [0; 20];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// How a hold ended, other than by its lease.
///
/// ```
/// use leasehold_core::{Ended, HoldStatus};
///
/// fn describe(status: HoldStatus) -> &'static str {
///     match status {
///         HoldStatus::Ended(Ended::Released) => "released",
///         HoldStatus::Ended(Ended::Evicted) => "evicted, because its process had died",
///         HoldStatus::Ended(Ended::ForceReleased) => "ended by an operator",
///         _ => "not ended",
///     }
/// }
/// # assert_eq!(describe(HoldStatus::Ended(Ended::Released)), "released");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ended {
    /// Its holder released it.
    Released,
    /// Its holder was dead.
    Evicted,
    /// The lock was released by force.
    ForceReleased,
}
