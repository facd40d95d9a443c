//! A detached hold: it can be written down as text, and released by any process that reads the text.
//!
//! It owns the text and its format, and calls the engine. It renews nothing: dropping a [`DetachedHold`]
//! changes nothing.

use crate::engine::Detached;
use leasehold_core::{
    Claim, FencingToken, HoldId, Kind, Lease, Lock, LockName, OwnValue, delay_margin, whole_millis,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The format of the text.
const FORMAT: u64 = 1;
/// A hold that belongs to no process: no process renews it, and it ends with no process.
///
/// It ends with its lease, or when any client of the same store calls [`release`](Self::release). Until then
/// it exists in its text, [`to_secret_text`](Self::to_secret_text): **a process that knows the text can end
/// the hold**, so protect it like a password. If a `DetachedHold` is dropped without its text having been
/// saved, the lock stays taken until the lease ends.
///
/// No process monitors the hold, so none is notified of its loss. Work under it must be done well before the
/// lease ends, or [`extend`](Self::extend) it in time, which fails once the hold is lost. The [fencing
/// token](Self::fencing_token) protects writes like that of a guard.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, DetachedHold};
/// use std::time::Duration;
///
/// let client = Client::connect("memory:").await?;
/// let deploy = client.mutex("deploy")?.lease(Duration::from_secs(600));
/// let hold = deploy.acquire_detached().await?;
/// let secret = hold.to_secret_text(); // store it in a file of mode 0600, or an encrypted column
///
/// // The next step, in another process:
/// let mut hold: DetachedHold = secret.parse()?;
/// hold.extend(&client, Duration::from_secs(600)).await?;
/// // And the last one, which wants it renewed while it works:
/// let guard = hold.attach(&client).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct DetachedHold {
    pub(crate) lock: Lock,
    pub(crate) claim: Claim,
    fence: FencingToken,
    /// The lease requested.
    lease: Duration,
    /// How much longer the store keeps it: the margin of a lock delay.
    pub(crate) margin: Duration,
    /// When it ends at the latest, by the wall clock of the client that acquired or last extended it: approximate.
    pub(crate) expires_at: SystemTime,
}

impl DetachedHold {
    pub(crate) fn new(lock: Lock, detached: Detached, expires_at: SystemTime) -> Self {
        let Detached { claim, fence, lease, margin, .. } = detached;
        Self { lock, claim, fence, lease, margin, expires_at }
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        &self.lock.name
    }

    /// Returns the fencing token of this hold: a number greater than that of every earlier hold of the lock.
    pub fn fencing_token(&self) -> FencingToken {
        self.fence
    }

    /// Returns the lease requested when it was acquired.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns when it ends at the latest unless it is extended, by the wall clock of the client that
    /// acquired or last extended it. Use it only to show it, or to decide whether to inspect the lock: it
    /// is approximate, because a wall clock can be set, and clocks of different machines differ.
    pub fn expires_at(&self) -> SystemTime {
        self.expires_at
    }

    /// Returns the hold as one line of JSON, which [`FromStr`] parses. **This is a secret**: a process that
    /// knows it can end the hold. `docs/reference/json.md` describes its fields.
    pub fn to_secret_text(&self) -> String {
        let since_1970 = self.expires_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let text = Text {
            kind: self.lock.kind.as_str().into(),
            name: self.name().as_str().into(),
            hold: self.claim.hold,
            value: self.claim.value.clone(),
            fence: self.fence.as_u64(),
            lease_ms: whole_millis(self.lease),
            margin_ms: if self.margin.is_zero() { 0 } else { whole_millis(self.margin) },
            ends_by_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
        };
        let versioned = Versioned { format: FORMAT, text };
        serde_json::to_string(&versioned).expect("strings and numbers are JSON")
    }
}

impl fmt::Debug for DetachedHold {
    /// Shows no secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedHold")
            .field("lock", self.name())
            .field("fence", &self.fence)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

impl FromStr for DetachedHold {
    type Err = DetachedTextError;

    fn from_str(text: &str) -> Result<Self, DetachedTextError> {
        // An error of serde could quote the text.
        let malformed = |_| DetachedTextError::Malformed;
        let Format { format } = serde_json::from_str(text).map_err(malformed)?;
        if format != FORMAT {
            return Err(DetachedTextError::Format { found: format });
        }
        let text: Text = serde_json::from_str(text).map_err(malformed)?;
        let kind = Kind::parse(&text.kind).filter(|kind| is_detachable(*kind));
        let kind = kind.ok_or(DetachedTextError::Kind)?;
        let lock = Lock { kind, name: LockName::new(text.name).map_err(|_| DetachedTextError::Malformed)? };
        let expires_at = UNIX_EPOCH.checked_add(Duration::from_millis(text.ends_by_ms));
        let lease = Lease::For(Duration::from_millis(text.lease_ms)).check();
        let (Some(expires_at), Ok(Lease::For(lease))) = (expires_at, lease) else {
            return Err(DetachedTextError::Malformed);
        };
        let claim = Claim { hold: text.hold, value: text.value };
        let margin = Duration::from_millis(text.margin_ms);
        if margin > delay_margin(Lease::MAX) {
            return Err(DetachedTextError::Malformed);
        }
        Ok(Self { lock, claim, fence: FencingToken::new(text.fence), lease, margin, expires_at })
    }
}

/// Whether locks of this kind have detached holds. A Latch has only arrivals, which belong to no process anyway, and a Barrier
/// has no holds.
const fn is_detachable(kind: Kind) -> bool {
    !matches!(kind, Kind::Latch | Kind::Barrier)
}

/// A text that is not a detached hold. The error does not show the text, which may be a secret.
///
/// ```
/// use leasehold::DetachedHold;
/// use leasehold::error::DetachedTextError;
///
/// assert_eq!("hunter2".parse::<DetachedHold>().err(), Some(DetachedTextError::Malformed));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetachedTextError {
    /// It is not JSON, or a field is missing or invalid.
    #[error("it is not the text of a detached hold")]
    Malformed,
    /// It was written in another format.
    #[error(
        "it has format {found}, but this version supports format {FORMAT}: use the version of Leasehold that wrote it"
    )]
    Format {
        /// The format that was found.
        found: u64,
    },
    /// It names a kind of lock that this version does not support.
    #[error(
        "it names a kind of lock that this version does not support: use the version of Leasehold that wrote it"
    )]
    Kind,
}

/// What every version of the text starts with.
#[derive(Deserialize)]
struct Format {
    format: u64,
}

#[derive(Serialize)]
struct Versioned {
    format: u64,
    #[serde(flatten)]
    text: Text,
}

/// The fields of the text. Not `Debug`: it is the secret.
#[derive(Serialize, Deserialize)]
struct Text {
    kind: String,
    name: String,
    hold: HoldId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<OwnValue>,
    fence: u64,
    lease_ms: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    margin_ms: u64,
    ends_by_ms: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}
