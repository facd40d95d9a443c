//! Contention: why a lock is not acquired at the moment. It is a value, and a part of some errors.

use crate::guard::owner::Owner;
use leasehold_core::machine::contender::WaitStatus;
use leasehold_core::{Holder, Label};
use std::fmt;
use std::time::Duration;

/// What prevents an acquisition, as far as the client knows: the holder, and the clients ahead in the queue.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Attempt, Client};
///
/// let client = Client::builder("memory:").label("billing on web-3").connect().await?;
/// let orders = client.mutex("orders/42")?;
/// let _guard = orders.acquire().await?;
/// if let Attempt::Taken(contention) = orders.try_acquire().await? {
///     // "held by billing on web-3 for 2.9s unless it is extended"
///     println!("{contention}");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Contention {
    /// The current holder of the lock; `None` if it is not held at the moment.
    pub holder: Option<Holder>,
    /// How many sessions are ahead of this one in the queue, if it has queued.
    pub ahead: Option<u64>,
}

impl From<WaitStatus> for Contention {
    fn from(status: WaitStatus) -> Self {
        Self { holder: status.holder, ahead: status.position }
    }
}

impl Contention {
    /// Creates a contention, for tests of code that handles one.
    ///
    /// ```
    /// use leasehold::LockName;
    /// use leasehold::error::AcquireError;
    /// use leasehold::inspect::Contention;
    /// use std::time::Duration;
    ///
    /// let (lock, waited) = (LockName::new("orders/42")?, Duration::from_secs(5));
    /// let error = AcquireError::TimedOut { lock, waited, contention: Box::new(Contention::new(None, Some(3))) };
    /// assert!(leasehold::Error::from(error).is_contended());
    /// # Ok::<(), leasehold::error::NameError>(())
    /// ```
    pub const fn new(holder: Option<Holder>, ahead: Option<u64>) -> Self {
        Self { holder, ahead }
    }

    /// Returns the owner that holds a ReentrantMutex, if known, whichever library its client uses; `None` for
    /// a Mutex.
    pub fn owner(&self) -> Option<Owner> {
        self.holder.as_ref()?.owner.clone().map(Owner::from_store)
    }
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(holder) = &self.holder else { return f.write_str("not held at the moment") };
        if holder.in_cooldown {
            write_cooldown(holder, f)?;
        } else {
            write_holder(holder, f)?;
        }
        match self.ahead {
            Some(ahead @ 1..) => write!(f, ", {ahead} ahead in the queue"),
            _ => Ok(()),
        }
    }
}

fn write_cooldown(holder: &Holder, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("in cooldown")?;
    if let Some(ms) = holder.remaining_ms {
        write!(f, " for {:?}", Duration::from_millis(ms))?;
    }
    write!(f, ", released by {}", client(holder))
}

fn write_holder(holder: &Holder, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "held by {}", client(holder))?;
    match (&holder.owner, holder.count) {
        (Some(owner), 1) => write!(f, " (owner {})", owner.as_str())?,
        (Some(owner), count) => write!(f, " (owner {}, {count} times)", owner.as_str())?,
        (None, _) => {}
    }
    match holder.remaining_ms {
        Some(ms) => write!(f, " for {:?} unless it is extended", Duration::from_millis(ms)),
        None => f.write_str(" without an expiry"),
    }
}

/// Describes the client of a hold.
fn client(holder: &Holder) -> &str {
    match holder.label.as_ref().map(Label::as_str) {
        Some("") => "a client without a label",
        Some(label) => label,
        None => "a client of another library",
    }
}
