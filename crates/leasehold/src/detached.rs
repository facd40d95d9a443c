//! A detached hold: what can be written down, and released by whoever reads it.
//!
//! It owns the text and its format, and says what is asked of the engine. It does not keep anything: a
//! [`DetachedHold`] that is dropped changes nothing.

use crate::client::Client;
use crate::engine::{self, Detached, Engine, LostReason, NotAttached, NotExtended, NotReleased, Parting};
use crate::error::{AttachError, ExtendError, ReleaseError};
use crate::guard::Guard;
use leasehold_core::tenure::{Plan, Tenure};
use leasehold_core::{
    Claim, Executed, FencingToken, HoldId, Lease, Lock, LockName, OwnValue, Pass, whole_millis,
};
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
    lock: Lock,
    claim: Claim,
    fence: FencingToken,
    /// The lease that was asked for.
    lease: Duration,
    /// By the wall clock of whoever acquired or extended it; a hint.
    ends_by: SystemTime,
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

    /// Lengthens the hold to last `lease` from now, if it would end earlier. It never ends earlier for it.
    ///
    /// Fails if it was lost, which says why, and if the store does not answer within the client's call
    /// timeout; then it lasts at least as long as it did. A client of another store says that it is lost.
    ///
    /// Cancel safety: if the future is dropped, the hold may have been extended.
    pub async fn extend(&mut self, client: &Client, lease: impl Into<Lease>) -> Result<(), ExtendError> {
        let engine = &*client.engine;
        let lease = lease.into().remaining(engine.world.wall())?;
        let in_time = self.is_in_time(engine);
        // Whatever comes of it, it may last until then from here on.
        let latest = engine.world.wall() + engine.timings.call + lease;
        let before = self.ends_by;
        self.ends_by = before.max(latest);
        match engine::extend_detached(engine, &self.lock, &self.claim, lease, in_time).await {
            Ok(()) => {
                self.ends_by = before.max(engine.world.wall() + lease);
                Ok(())
            }
            Err(why) => Err(ExtendError::of(why, self.name(), self.fence)),
        }
    }

    /// Gives the lock back, and hands it to the next who waits. Doing so again is no error, as long as nobody has
    /// held the lock since: so after an error it can be tried again.
    ///
    /// Fails if the hold was lost before, which says why, and if the store does not answer within the client's call
    /// timeout: then it ends with its lease at the latest. A client of another store says that it is lost:
    /// [`LostReason::StoreLostData`](crate::LostReason::StoreLostData) while the lease runs.
    ///
    /// If this client has [attached](Self::attach) the hold, its guard is lost from now on. A guard that
    /// another process has of it learns of the release at its next renewal only.
    ///
    /// Cancel safety: if the future is dropped, the hold may have been released; this client attaches it no more.
    pub async fn release(&self, client: &Client) -> Result<(), ReleaseError> {
        self.give_up(client, Pass::Grant).await
    }

    /// Gives the lock back, but leaves it taken, by nobody, until `at_least` has passed since it was acquired, by the
    /// store's clock; where that is over it is handed to the next who waits. Nobody who waits is told before, and
    /// whoever looks is told that it [rests](crate::Status::rests). Doing so again is no error.
    ///
    /// The rest cannot be lengthened or ended by anything that is sent about this hold. Only
    /// [force](crate::Mutex::free_by_force) ends it earlier.
    ///
    /// Fails as [`release`](Self::release) does.
    ///
    /// Cancel safety: as [`release`](Self::release).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let digest = client.mutex("digest")?.lease(Duration::from_secs(600));
    /// let hold = digest.acquire_detached().await?;
    /// hold.release_not_before(&client, Duration::from_secs(60)).await?;
    /// assert!(digest.try_acquire().await?.granted().is_none(), "a minute is not over yet");
    /// assert!(digest.inspect().await?.rests);
    /// # Ok(()) }
    /// ```
    pub async fn release_not_before(&self, client: &Client, at_least: Duration) -> Result<(), ReleaseError> {
        self.give_up(client, Pass::Rest { for_ms: whole_millis(at_least) }).await
    }

    async fn give_up(&self, client: &Client, pass: Pass) -> Result<(), ReleaseError> {
        let engine = &*client.engine;
        let (in_time, may_last) = (self.is_in_time(engine), self.may_last(engine));
        let released = engine::release_detached(engine, &self.lock, &self.claim, pass, in_time, may_last);
        released.await.map_err(|error| match error {
            NotReleased::Lost(reason) => ReleaseError::Lost(reason),
            NotReleased::Fault { fault, executed: Executed::No } => ReleaseError::Store(fault),
            NotReleased::Fault { fault, executed: Executed::Unknown } => ReleaseError::Unknown(fault),
        })
    }

    /// Turns the hold into an ordinary guard, which this client keeps from now on: its watchdog renews it, it is
    /// given back when the guard is dropped, and its loss is told.
    ///
    /// It is extended first, to the client's watchdog lease, and believed as long as that carries: counted from the
    /// sending. There is one guard of a hold: the same client attaches it once, from whatever copy of its text. Two
    /// *processes* must not both attach it, since the release of the one ends what the other believes in.
    ///
    /// Fails if the hold cannot be extended, because it is lost or the store does not answer; the error hands it
    /// back. And fails if this client has attached or released it before.
    ///
    /// Cancel safety: if the future is dropped, the hold stays detached: it may have been extended, and ends with its
    /// lease. Its text still stands for it.
    pub async fn attach(self, client: &Client) -> Result<Guard, AttachError> {
        let engine = &client.engine;
        let lease = engine.timings.watchdog;
        let (in_time, may_last) = (self.is_in_time(engine), self.may_last(engine));
        let ours = (self.claim.clone(), self.fence);
        match engine::attach(engine, &self.lock, ours, lease, in_time, may_last).await {
            Ok((seat, hold)) => {
                let tenure = Tenure::new(Plan::Renew { lease }, hold.valid_until(), engine.world.now());
                let Some(keep) = engine.keeper.keep(hold.clone(), tenure) else {
                    let why = NotExtended::Lost(LostReason::ShutDown);
                    let error = ExtendError::of(why, self.name(), self.fence);
                    return Err(AttachError::NotExtended { hold: Box::new(self), error });
                };
                Ok(Guard::new(engine.clone(), seat, hold, keep, None, Parting::default()))
            }
            Err(NotAttached::Already) => Err(AttachError::Already { lock: self.lock.name }),
            Err(NotAttached::NotExtended(why)) => {
                let error = ExtendError::of(why, self.name(), self.fence);
                Err(AttachError::NotExtended { hold: Box::new(self), error })
            }
        }
    }

    /// Whether the lease runs still, as far as the hint says. The hint is late by a call at most.
    fn is_in_time(&self, engine: &Engine) -> bool {
        engine.world.wall() + engine.timings.call < self.ends_by
    }

    /// For how long the store may have it still.
    fn may_last(&self, engine: &Engine) -> Duration {
        // At least its lease: the hint is of another clock.
        self.ends_by.duration_since(engine.world.wall()).unwrap_or_default().max(self.lease)
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
