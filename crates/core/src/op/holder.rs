//! What other clients may know about a holder.

use crate::{FencingToken, Label, LockMode, OwnValue, SessionId};

/// What other clients may know about a holder.
///
/// ```
/// use leasehold_core::{FencingToken, Holder, Label, LockMode};
///
/// fn shown(holder: &Holder) -> String {
///     match (&holder.label, holder.remaining_ms) {
///         (Some(label), _) => label.to_string(),
///         (None, Some(_)) => "a client of another library".into(),
///         (None, None) => "a client of another library, for ever".into(),
///     }
/// }
///
/// let fence = Some(FencingToken::new(4711));
/// let label = Some(Label::new("billing on web-3")?);
/// let ours = Holder {
///     label, owner: None, count: 1, remaining_ms: Some(2_900), fence, since_ms: None, session: None, in_cooldown: false,
///     mode: LockMode::Exclusive,
/// };
/// assert!(!ours.is_foreign() && shown(&ours) == "billing on web-3");
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its description. Not known for a client of another library.
    pub label: Option<Label>,
    /// The owner of a ReentrantMutex, also for a client of another library; `None` for a Mutex.
    pub owner: Option<OwnValue>,
    /// How many holds it has: one, except for a ReentrantMutex.
    pub count: u64,
    /// How long it still holds the lock without an extend, in milliseconds; `None` if its key has no expiry.
    pub remaining_ms: Option<u64>,
    /// Its fencing token, if it has one.
    pub fence: Option<FencingToken>,
    /// When it acquired the lock, in milliseconds of the store's clock, if known.
    pub since_ms: Option<u64>,
    /// The session whose death would end the hold, if there is one.
    pub session: Option<SessionId>,
    /// The mode in which it holds the lock.
    pub mode: LockMode,
    /// Set if the holder has released the lock, which stays taken until the end of a
    /// [cooldown](crate::ReleaseAction::Cooldown).
    pub in_cooldown: bool,
}

impl Holder {
    /// Whether it is a client of another library, which does not grant the lock to a waiter on release.
    pub const fn is_foreign(&self) -> bool {
        self.label.is_none()
    }
}
