//! What an observer is called with.

use crate::lost_reason::LostReason;
use leasehold_core::{FencingToken, Kind, LockName};
use std::sync::Arc;
use std::time::Duration;

/// Receives what happens to the locks of a client: for metrics, logs and tests. Each method does nothing unless it is
/// implemented. [`ClientBuilder::observer`](crate::ClientBuilder::observer) installs it.
///
/// A method is called on the thread where the event happens: that of a task, or that of the keeper, which renews all
/// holds of the client. It must return quickly, and must not block: while it runs, that task or the keeper waits. The client holds no
/// lock of its own meanwhile, so a method may call the client. A panic is caught and logged, and the
/// client goes on.
///
/// Events of one hold arrive in their order: acquired, renewed, then released or lost, once. Events of different holds may
/// arrive in another order than they happened, from several threads at once.
///
/// An observer that keeps a [`Client`](crate::Client) for which it is installed keeps that client alive for ever.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use leasehold::telemetry::{Acquired, Lost, Observer};
/// use std::time::Duration;
///
/// struct Log;
///
/// impl Observer for Log {
///     fn acquired(&self, event: &Acquired<'_>) {
///         if event.waited > Duration::from_secs(1) {
///             println!("{} after {:?}", event.lock.name, event.waited);
///         }
///     }
///
///     fn lost(&self, event: &Lost<'_>) {
///         eprintln!("{} lost after {:?}: {}", event.lock.name, event.held, event.reason);
///     }
/// }
///
/// let client = Client::builder("memory:").observer(Log).connect().await?;
/// client.mutex("orders/42")?.acquire().await?.release().await?;
/// # Ok(()) }
/// ```
#[allow(unused_variables, reason = "the names are for those who implement it")]
pub trait Observer: Send + Sync + 'static {
    /// An acquire found the lock taken, and waits for it. At most once for each acquire.
    fn waiting(&self, event: &Waiting<'_>) {}

    /// An acquire has succeeded.
    fn acquired(&self, event: &Acquired<'_>) {}

    /// An acquire has ended without the lock.
    fn not_acquired(&self, event: &NotAcquired<'_>) {}

    /// The lock was handed off to the task that has just [acquired](Self::acquired) it.
    fn handed_off(&self, event: &HandedOff<'_>) {}

    /// A hold was extended: by the keeper, the first time 0.1 s after it was acquired if its lease is above 3 s (after 1 s
    /// where a session must begin for that), or by [`Guard::extend`](crate::Guard::extend).
    fn renewed(&self, event: &Renewed<'_>) {}

    /// The keeper's request to extend a hold failed, or was not answered in time. It is sent again, as long as the hold lasts.
    fn renewal_failed(&self, event: &RenewalFailed<'_>) {}

    /// A guard was released or dropped.
    fn released(&self, event: &Released<'_>) {}

    /// A hold was lost, or has reached its cap, or was ended by a shutdown of its client.
    fn lost(&self, event: &Lost<'_>) {}

    /// The keeper ran later than it wanted to: the process was suspended, or starved of processor time. All renewals are late
    /// by that much. Reported from half a second on.
    fn stalled(&self, event: &Stalled) {}

    /// A request to the store was answered, or was not.
    fn requested(&self, event: &Requested) {}

    /// A heartbeat has extended the client's session.
    fn session_renewed(&self, event: &SessionRenewed) {}

    /// The client's session has lapsed, with all holds that depend on it: each is reported as [lost](Self::lost) as well.
    fn session_lapsed(&self) {}
}

/// Which lock an event is about.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ObservedLock<'a> {
    /// Its name. There may be any number of names: use the class as a label.
    pub name: &'a LockName,
    /// Its kind.
    pub kind: Kind,
    /// Its class: given by [`class`](crate::Mutex::class), or made from the name, with `*` in place of numbers, hexadecimal runs,
    /// UUIDs and other ids. A client has at most 200, and then `other`.
    pub class: &'a str,
    /// The number of the class in its client.
    #[cfg_attr(
        not(feature = "metrics"),
        allow(dead_code, reason = "only tables of figures by class need it")
    )]
    pub(super) class_index: usize,
}

/// Part of [`Observer::waiting`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Waiting<'a> {
    /// The lock.
    pub lock: ObservedLock<'a>,
    /// How long ago the acquire began.
    pub since: Duration,
    /// How many clients are ahead in the queue, if known.
    pub ahead: Option<u64>,
    /// The label of the present holder, if known.
    pub holder: Option<&'a str>,
}

/// Part of [`Observer::acquired`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Acquired<'a> {
    /// The lock.
    pub lock: ObservedLock<'a>,
    /// The time from the call to the acquisition.
    pub waited: Duration,
    /// Whether the lock was taken at first: [`Observer::waiting`] was called before.
    pub was_taken: bool,
    /// The fencing token.
    pub fence: FencingToken,
    /// Whether it is a [detached hold](crate::DetachedHold), which this client does not hold: no release and no loss of it
    /// is reported.
    pub detached: bool,
}

/// Part of [`Observer::not_acquired`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct NotAcquired<'a> {
    /// The lock.
    pub lock: ObservedLock<'a>,
    /// The time from the call to its end.
    pub waited: Duration,
    /// Whether the lock was taken, and the acquire waited for it: [`Observer::waiting`] was called before.
    pub was_taken: bool,
    /// Why it ended.
    pub outcome: NotAcquiredReason,
}

/// How an acquire ended that did not acquire the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAcquiredReason {
    /// The lock was taken, and a single attempt was made, or no attempts were left.
    Taken,
    /// The lock was taken until the time limit.
    TimedOut,
    /// The store did not answer or refused, or the hold was lost before it was confirmed.
    Failed,
    /// The future was dropped.
    Cancelled,
    /// The client was shut down.
    Closed,
}

impl NotAcquiredReason {
    /// Returns a word for a label: `taken`, `timed_out`, `failed`, `cancelled` or `closed`.
    ///
    /// ```
    /// assert_eq!(leasehold::telemetry::NotAcquiredReason::TimedOut.as_str(), "timed_out");
    /// ```
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Closed => "closed",
        }
    }

    /// Whether it is an error, and not what its caller asked for.
    pub(super) const fn is_error(self) -> bool {
        matches!(self, Self::TimedOut | Self::Failed)
    }
}

/// Part of [`Observer::handed_off`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct HandedOff<'a> {
    /// The lock.
    pub lock: ObservedLock<'a>,
    /// The fencing token of the new hold.
    pub fence: FencingToken,
    /// From where.
    pub from: Handover,
}

/// From where a lock was handed off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handover {
    /// From a task of the same client, without a request to the store.
    Local,
    /// From the store, after the lock had been taken.
    Remote,
}

impl Handover {
    /// Returns a word for a label: `local` or `remote`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

/// Part of [`Observer::renewed`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Renewed<'a> {
    /// The lock.
    pub lock: ObservedLock<'a>,
    /// The fencing token.
    pub fence: FencingToken,
    /// How long the hold would still have lasted when it was extended. Little slack means that the lease is short for this
    /// network and store.
    pub slack: Duration,
}

/// Part of [`Observer::renewal_failed`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RenewalFailed<'a> {
    /// The lock.
    pub lock: ObservedLock<'a>,
    /// The fencing token.
    pub fence: FencingToken,
    /// How long the hold still lasts.
    pub remaining: Duration,
}

/// Part of [`Observer::released`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Released<'a> {
    /// The lock.
    pub lock: ObservedLock<'a>,
    /// The fencing token.
    pub fence: FencingToken,
    /// How long it was held.
    pub held: Duration,
    /// How it was released.
    pub how: HowReleased,
}

/// How a hold was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HowReleased {
    /// By a call that has returned: at the store, or to the next task of the client.
    Released,
    /// In the background: the guard, or the future of its release, was dropped.
    Background,
    /// The store did not answer the release, or refused it. The hold ends with its lease at the latest.
    Unanswered,
}

impl HowReleased {
    /// Returns a word for a label: `released`, `background` or `unanswered`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Background => "background",
            Self::Unanswered => "unanswered",
        }
    }
}

/// Part of [`Observer::lost`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Lost<'a> {
    /// The lock.
    pub lock: ObservedLock<'a>,
    /// The fencing token.
    pub fence: FencingToken,
    /// How long it was held, until the loss was reported.
    pub held: Duration,
    /// Why.
    pub reason: &'a LostReason,
}

/// Part of [`Observer::stalled`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Stalled {
    /// How much later than planned the keeper ran.
    pub late: Duration,
}

/// Part of [`Observer::requested`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Requested {
    /// What was requested: `acquire`, `extend`, `release`, `evict`, `force_release`, `inspect`, `resize`, `raise_fence`, `proclaim`, or,
    /// about sessions, `heartbeat`, `end_session` or `list_sessions`; or `merge_statistics` or `list_statistics`.
    pub operation: &'static str,
    /// Whether it was executed.
    pub outcome: RequestOutcome,
    /// The time from the request to its answer, or to the end of its time limit. Requests that were sent together
    /// have the same.
    pub took: Duration,
}

/// Whether a request was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// The store has answered.
    Done,
    /// It was certainly not executed.
    NotExecuted,
    /// It was not answered, and may have been executed.
    Unknown,
}

impl RequestOutcome {
    /// Returns a word for a label: `done`, `not_executed` or `unknown`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotExecuted => "not_executed",
            Self::Unknown => "unknown",
        }
    }
}

/// Part of [`Observer::session_renewed`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SessionRenewed {
    /// How long the session would still have lasted when the heartbeat was answered.
    pub margin: Duration,
}

/// Forwards each event.
macro_rules! forward {
    ($($name:ident($event:ty)),+) => {
        $(fn $name(&self, event: &$event) {
            (**self).$name(event);
        })+
    };
}

impl<T: Observer + ?Sized> Observer for Arc<T> {
    forward! {
        waiting(Waiting<'_>), acquired(Acquired<'_>), not_acquired(NotAcquired<'_>), handed_off(HandedOff<'_>),
        renewed(Renewed<'_>), renewal_failed(RenewalFailed<'_>), released(Released<'_>), lost(Lost<'_>),
        stalled(Stalled), requested(Requested), session_renewed(SessionRenewed)
    }

    fn session_lapsed(&self) {
        (**self).session_lapsed();
    }
}
