//! What stands at the key of a lock that several have side by side: each with a part, an end and a fencing token of his own.
//!
//! 1. Each counts until his own end, and no longer: one who lives keeps no one who is dead.
//! 2. They stand in the order of their fencing tokens, which is the order in which they came.

use super::record::Tenant;
use crate::{Claim, FencingToken, HoldId, Holder, Label, Life, OwnValue, Portion};
use serde::{Deserialize, Serialize};

/// Those who have a part of a lock.
///
/// [`LockState`](super::LockState) has it, and shows what it is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// The oldest first (2).
    pub holds: Vec<Part>,
}

/// One who has a part.
///
/// [`LockState`](super::LockState) has it, and shows what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The hold.
    pub hold: HoldId,
    /// Whose it is, of an RwLock.
    pub owner: Option<OwnValue>,
    /// What part it is.
    pub portion: Portion,
    /// Its fencing token.
    pub fence: FencingToken,
    /// Until when it counts, in milliseconds of the store's clock.
    pub until_ms: u64,
    /// Since when, in milliseconds of the store's clock.
    pub since_ms: u64,
    /// What ends it before its time.
    pub life: Life,
    /// Who it is, for others to read.
    pub label: Label,
}

impl Parts {
    /// The part of a hold.
    pub fn part(&self, hold: &HoldId) -> Option<&Part> {
        self.holds.iter().find(|part| part.hold == *hold)
    }

    /// How many of those that are counted are taken: permits, or arrivals.
    pub fn count(&self) -> u64 {
        self.holds.iter().map(|part| u64::from(part.portion.count())).sum()
    }

    /// Those of an owner.
    pub(super) fn of<'a>(&'a self, owner: Option<&'a OwnValue>) -> impl Iterator<Item = &'a Part> {
        self.holds.iter().filter(move |part| owner.is_some() && part.owner.as_ref() == owner)
    }

    /// They, as those who have the lock.
    pub(super) fn lessees(&self) -> impl Iterator<Item = Tenant> {
        self.holds.iter().map(|part| {
            let Part { hold, owner, since_ms, life, label, .. } = part.clone();
            Tenant { claim: Claim { hold, value: owner }, since_ms, life, label }
        })
    }

    /// Adds one (2). A hold has one part: an older one that was over is there again where the clock has gone back.
    pub(super) fn add(&mut self, part: Part) {
        self.holds.retain(|other| other.hold != part.hold);
        self.holds.push(part);
        self.holds.sort_by_cached_key(|part| (part.fence, part.hold.token()));
    }

    /// Lengthens one, if it is there.
    pub(super) fn extend(&mut self, hold: &HoldId, until_ms: u64) {
        if let Some(part) = self.holds.iter_mut().find(|part| part.hold == *hold) {
            part.until_ms = part.until_ms.max(until_ms);
        }
    }

    /// When the last of them ends, in milliseconds of the store's clock.
    pub(super) fn until_ms(&self) -> Option<u64> {
        self.holds.iter().map(|part| part.until_ms).max()
    }
}

impl Part {
    /// What others may know of it.
    pub(super) fn holder(&self, now_ms: u64) -> Holder {
        Holder {
            label: Some(self.label.clone()),
            owner: self.owner.clone(),
            count: 1,
            remaining_ms: Some(self.until_ms - now_ms),
            fence: Some(self.fence),
            since_ms: Some(self.since_ms),
            session: self.life.ends_with_session().then(|| self.hold.session()),
            portion: self.portion,
            rests: false,
        }
    }
}
