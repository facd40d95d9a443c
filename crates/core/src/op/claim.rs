//! The right to end a hold.

use crate::{HoldId, OwnValue};
use serde::{Deserialize, Serialize};

/// Identifies a hold, and the value at the lock's key while the hold lasts. A client that knows it can end the hold.
///
/// ```
/// use leasehold_core::{Claim, HoldId, OwnValue, SessionId};
///
/// let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
/// assert_eq!(Claim::new(hold).token(), hold.token());
///
/// let own = Claim { hold, value: Some(OwnValue::new("worker-7")?) };
/// assert_eq!(own.token(), "worker-7"); // other libraries see this value; the record has the hold
/// # Ok::<(), leasehold_core::OwnValueError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The hold. Every acquisition has its own.
    pub hold: HoldId,
    /// For a Mutex, set if the user wants a value of their own at the lock's key; the record beside the key
    /// then identifies the hold. For a ReentrantMutex or an RwLock, the owner, which is required. Other kinds
    /// ignore it.
    pub value: Option<OwnValue>,
}

impl Claim {
    /// A claim of a hold, without a user-defined value.
    pub const fn new(hold: HoldId) -> Self {
        Self { hold, value: None }
    }

    /// The value at the lock's key, after the [prefix](crate::Kind::token_prefix) of its kind: a secret.
    pub fn token(&self) -> String {
        self.value.as_ref().map_or_else(|| self.hold.token(), |value| value.as_str().to_owned())
    }
}

/// The name that no owner of a ReentrantMutex may have: Leasehold's own field beside the owner's has it.
pub const RESERVED_OWNER: &str = "leasehold";
