//! A detached hold: what can be written down, and released by whoever reads it.
//!
//! It owns the text and its format. What is done with a hold is in [`attach`](crate::attach).

use crate::engine::Detached;
use leasehold_core::{Claim, FencingToken, HoldId, Lease, Lock, LockName, OwnValue, whole_millis};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The format of the text.
const FORMAT: u64 = 1;
/// The one kind of lock that can be detached.
const KIND: &str = "mutex";

/// A lock that is held by nobody in particular: no process renews it, and it ends with no process.
///
/// It ends by [`release`](Self::release), by any client of the same store, or with its lease. Between the
/// two it lives in its text, [`to_secret_text`](Self::to_secret_text): **whoever knows the text can end
/// the hold**, so keep it as you would keep a password. A `DetachedHold` that is dropped without having
/// been written down leaves the lock taken until the lease ends.
///
/// Nobody watches over it, so nobody is told when it is lost: whoever works under it has to be done well
/// before the lease ends, or to [`extend`](Self::extend) it in time, which fails once it is lost. The
/// [fencing token](Self::fencing_token) protects a write as that of a guard does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, DetachedHold};
/// use std::time::Duration;
///
/// let client = Client::connect("memory:").await?;
/// let deploy = client.mutex("deploy")?.lease(Duration::from_secs(600));
/// let hold = deploy.acquire_detached().await?;
/// let secret = hold.to_secret_text(); // into a file of mode 0600, or an encrypted column
///
/// // The next step, in another process:
/// let mut hold: DetachedHold = secret.parse()?;
/// hold.extend(&client, Duration::from_secs(600)).await?;
/// // And the last one, which would rather have it kept while it works:
/// let guard = hold.attach(&client).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct DetachedHold {
    pub(crate) lock: Lock,
    pub(crate) claim: Claim,
    fence: FencingToken,
    /// The lease that was asked for.
    lease: Duration,
    /// By the wall clock of whoever acquired or extended it; a hint.
    pub(crate) ends_by: SystemTime,
}

impl DetachedHold {
    pub(crate) fn new(lock: Lock, detached: Detached, ends_by: SystemTime) -> Self {
        let Detached { claim, fence, lease, .. } = detached;
        Self { lock, claim, fence, lease, ends_by }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.lock.name
    }

    /// The number of this hold: greater than that of every earlier hold of the lock.
    pub fn fencing_token(&self) -> FencingToken {
        self.fence
    }

    /// The lease that was asked for when it was acquired.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// When it ends at the latest unless it is extended, by the wall clock of whoever acquired or extended it last.
    /// A hint, for people and for deciding whether to look at all: a wall clock can be set, and that of another
    /// machine differs.
    pub fn ends_by(&self) -> SystemTime {
        self.ends_by
    }

    /// The hold as one line of JSON, which [`FromStr`] reads. **A secret**: whoever knows it can end the
    /// hold. Its fields are described in `docs/reference/json.md`.
    pub fn to_secret_text(&self) -> String {
        let since_1970 = self.ends_by.duration_since(UNIX_EPOCH).unwrap_or_default();
        let text = Text {
            kind: KIND.into(),
            name: self.name().as_str().into(),
            hold: self.claim.hold,
            value: self.claim.value.clone(),
            fence: self.fence.as_u64(),
            lease_ms: whole_millis(self.lease),
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
            .field("ends_by", &self.ends_by)
            .finish_non_exhaustive()
    }
}

impl FromStr for DetachedHold {
    type Err = DetachedTextError;

    fn from_str(text: &str) -> Result<Self, DetachedTextError> {
        // What serde says of a text can repeat it.
        let garbled = |_| DetachedTextError::Garbled;
        let Format { format } = serde_json::from_str(text).map_err(garbled)?;
        if format != FORMAT {
            return Err(DetachedTextError::Format { found: format });
        }
        let text: Text = serde_json::from_str(text).map_err(garbled)?;
        let lock = match text.kind.as_str() {
            KIND => Lock::mutex(LockName::new(text.name).map_err(|_| DetachedTextError::Garbled)?),
            _ => return Err(DetachedTextError::Kind),
        };
        let ends_by = UNIX_EPOCH.checked_add(Duration::from_millis(text.ends_by_ms));
        let lease = Lease::For(Duration::from_millis(text.lease_ms)).check();
        let (Some(ends_by), Ok(Lease::For(lease))) = (ends_by, lease) else {
            return Err(DetachedTextError::Garbled);
        };
        let claim = Claim { hold: text.hold, value: text.value };
        Ok(Self { lock, claim, fence: FencingToken::new(text.fence), lease, ends_by })
    }
}

/// A text that is no detached hold. It does not show the text, which may be a secret.
///
/// ```
/// use leasehold::{DetachedHold, DetachedTextError};
///
/// assert_eq!("hunter2".parse::<DetachedHold>().err(), Some(DetachedTextError::Garbled));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetachedTextError {
    /// It is not JSON, or fields are missing or cannot be read.
    #[error("it is not the text of a detached hold")]
    Garbled,
    /// It was written in another format.
    #[error(
        "it has format {found}, and this version knows format {FORMAT}: use the version of Leasehold that wrote it"
    )]
    Format {
        /// The format that was found.
        found: u64,
    },
    /// It is of a kind of lock that this version does not know.
    #[error(
        "it is of a kind of lock that this version does not know: use the version of Leasehold that wrote it"
    )]
    Kind,
}

/// What every version of the text begins with.
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
    ends_by_ms: u64,
}
