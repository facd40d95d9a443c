//! A guard of any kind.

use leasehold::error::{ExtendError, LostHold as Loss, ReleaseError};
use leasehold::inspect::Votes;
use leasehold::{
    FencingToken, Guard, Leadership, Moment, MultiGuard, Owner, Permit, ReadGuard, ReentrantGuard, Released,
    UpgradableGuard, WriteGuard,
};
use std::time::Duration;

/// A guard of any kind.
#[derive(Debug)]
pub(crate) enum AnyGuard {
    /// With how long its process may cache the hold after its release.
    Mutex(Guard, Option<Duration>),
    Leader(Leadership),
    Reentrant(ReentrantGuard),
    All(MultiGuard),
    Permit(Permit),
    Read(ReadGuard),
    Upgradable(UpgradableGuard),
    Write(WriteGuard),
}

/// The remaining holds after a release that ends the hold, or the name of the lock if it failed.
async fn single(
    name: String,
    releases: impl Future<Output = Result<(), ReleaseError>>,
) -> Result<u64, Vec<String>> {
    match releases.await {
        Ok(()) => Ok(0),
        Err(error) => settle(error).await.map_err(|_| vec![name]),
    }
}

/// Tries a release without an answer once more, or drops it: the process goes on in the background then.
async fn settle(error: ReleaseError) -> Result<u64, ReleaseError> {
    match error {
        ReleaseError::Store { unreleased: Some(unreleased), .. }
        | ReleaseError::Unknown { unreleased: Some(unreleased), .. }
            if unreleased.fencing_token().as_u64() % 2 == 0 =>
        {
            unreleased.release().await.map(|()| 0)
        }
        error => Err(error),
    }
}

impl AnyGuard {
    /// The guard that it is, or that it dereferences to; otherwise that of several locks.
    fn guard(&self) -> Result<&Guard, &MultiGuard> {
        Ok(match self {
            Self::Mutex(guard, _) => guard,
            Self::Leader(leadership) => leadership,
            Self::Permit(permit) => permit,
            Self::Read(guard) => guard,
            Self::Upgradable(guard) => guard,
            Self::Write(guard) => guard,
            Self::Reentrant(guard) => guard,
            Self::All(guard) => return Err(guard),
        })
    }

    /// The leadership of an Election.
    pub(crate) const fn leadership(&self) -> Option<&Leadership> {
        if let Self::Leader(leadership) = self { Some(leadership) } else { None }
    }

    /// The owner of the hold.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Reentrant(guard) => Some(guard.owner()),
            Self::Read(guard) => Some(guard.owner()),
            Self::Upgradable(guard) => Some(guard.owner()),
            Self::Write(guard) => Some(guard.owner()),
            Self::Mutex(..) | Self::Leader(_) | Self::All(_) | Self::Permit(_) => None,
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.guard().map_or_else(MultiGuard::valid_until, Guard::valid_until)
    }

    /// How many nodes of a quorum have the hold.
    pub(crate) fn votes(&self) -> Option<Votes> {
        self.guard().ok().and_then(Guard::votes)
    }

    pub(crate) fn check(&self) -> Result<(), Loss> {
        self.guard().map_or_else(MultiGuard::check, Guard::check)
    }

    pub(crate) async fn lost(&self) -> Loss {
        match self.guard() {
            Ok(guard) => guard.lost().await,
            Err(all) => all.lost().await,
        }
    }

    pub(crate) async fn extend(&self) -> Result<(), ExtendError> {
        match self.guard() {
            Ok(guard) => guard.extend().await,
            Err(all) => all.extend().await,
        }
    }

    pub(crate) async fn extend_to(&self, lease: Duration) -> Result<(), ExtendError> {
        match self.guard() {
            Ok(guard) => guard.extend_to(lease).await,
            Err(all) => all.extend_to(lease).await,
        }
    }

    /// Its fencing tokens, by the names of the locks.
    pub(crate) fn fences(&self) -> Vec<(String, FencingToken)> {
        match self.guard() {
            Ok(guard) => vec![(guard.name().to_string(), guard.fencing_token())],
            Err(all) => all.fencing_tokens().map(|(name, fence)| (name.to_string(), fence)).collect(),
        }
    }

    /// How long its process may cache the hold after its release.
    pub(crate) const fn keep_for(&self) -> Option<Duration> {
        if let Self::Mutex(_, keep_for) = self { *keep_for } else { None }
    }

    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Reentrant(guard) => guard.count(),
            _ => 1,
        }
    }

    /// Releases the guard. Returns how many holds its owner has left, or the names of the locks that were not
    /// released.
    pub(crate) async fn release(self) -> Result<u64, Vec<String>> {
        match self {
            Self::Mutex(guard, _) => single(guard.name().to_string(), guard.release()).await,
            Self::Leader(leadership) => single(leadership.name().to_string(), leadership.resign()).await,
            Self::Permit(permit) => single(permit.name().to_string(), permit.release()).await,
            Self::Read(guard) => single(guard.name().to_string(), guard.release()).await,
            Self::Upgradable(guard) => single(guard.name().to_string(), guard.release()).await,
            Self::Write(guard) => single(guard.name().to_string(), guard.release()).await,
            Self::Reentrant(guard) => {
                let name = guard.name().to_string();
                match guard.release().await {
                    Ok(Released::NoLongerHeld) => Ok(0),
                    Ok(Released::StillHeld { count }) => Ok(count),
                    Err(_) => Err(vec![name]),
                }
            }
            Self::All(guard) => {
                let released = guard.release().await;
                let failed = |(name, _): &(leasehold::LockName, _)| name.to_string();
                released.map(|()| 0).map_err(|error| error.failed.iter().map(failed).collect())
            }
        }
    }
}
