//! Several locks at once: [`MultiMutex`].

use crate::engine::{self, Engine, InTheWay, Missed};
use crate::error::{AcquireError, Contention, ExtendError, LockError, Lost, MultiReleaseError, ReleaseError};
use crate::guard::Guard;
use crate::request::{Asker, Request, settings};
use futures_util::future::join_all;
use leasehold_core::{FencingToken, Lease, LeaseError, LockName, Moment};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often all are sought without holding any of them while waiting. After that they are taken in their order, which
/// ends however many others want some of them.
const ROUNDS: u32 = 2;

/// How often they are taken in their order, where a hold on one ends before the last is had.
const LAPS: u32 = 3;

/// Several [mutexes](crate::Mutex) that are held together: all of them, or none.
///
/// While it waits for one of them it holds none of the others, so that whoever wants only one is not kept from it by
/// somebody who has to wait himself. Where one is in the way it queues for that one, in fairness, and asks for the rest in one
/// step when it has it. If others are in the way again and again, it takes them one after the other, in the order of
/// their names: everybody who holds some and waits for more does so in that order, so that no two wait for each other,
/// and each queue is fair. So everybody gets his locks, as long as nobody keeps one for ever. That does not hold for one who
/// holds a [`Mutex`](crate::Mutex) by itself, or another `MultiMutex`, while he acquires this.
///
/// Each is an ordinary [`Mutex`](crate::Mutex): others may want it alone, and so may clients of other libraries. On SQLite, in memory and on
/// one Redis server all are taken in one step.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// # async fn transfer(_from: &str, _to: &str) {}
/// let accounts = client.multi_mutex(["account/7", "account/3"])?;
/// let both = accounts.acquire().await?;
/// transfer("account/7", "account/3").await;
/// both.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MultiMutex {
    engine: Arc<Engine>,
    /// In the order of their names, each once; at least one. All are set alike.
    requests: Vec<Request>,
}

/// What became of a try to have several locks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, MultiAttempt};
///
/// let client = Client::connect("memory:").await?;
/// let stock = client.mutex("stock")?.acquire().await?;
/// match client.multi_mutex(["till", "stock"])?.try_acquire().await? {
///     MultiAttempt::Granted(_) => unreachable!("one of them is taken"),
///     MultiAttempt::Taken { lock, contention } => println!("{lock} is {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a guard that is dropped gives the locks back"]
pub enum MultiAttempt<G = MultiGuard> {
    /// All are held.
    Granted(G),
    /// None is: one is in the way.
    Taken {
        /// Which one. There may be others.
        lock: LockName,
        /// Who has it.
        contention: Contention,
    },
}

impl<G> MultiAttempt<G> {
    /// The guard, if all are held.
    pub fn granted(self) -> Option<G> {
        match self {
            Self::Granted(held) => Some(held),
            Self::Taken { .. } => None,
        }
    }

    /// The same of another kind of guard.
    pub(crate) fn map<H>(self, wrap: impl FnOnce(G) -> H) -> MultiAttempt<H> {
        match self {
            Self::Granted(held) => MultiAttempt::Granted(wrap(held)),
            Self::Taken { lock, contention } => MultiAttempt::Taken { lock, contention },
        }
    }
}

/// One that is in the way of all.
struct Blocked {
    at: usize,
    missed: Missed,
}

impl MultiMutex {
    /// How many locks can be held together: others wait while a store takes them in one step.
    pub const MOST: usize = 64;

    pub(crate) fn of(engine: Arc<Engine>, mut requests: Vec<Request>) -> Result<Self, LockError> {
        requests.sort_by(|a, b| a.name().cmp(b.name()));
        requests.dedup_by(|a, b| a.name() == b.name());
        match requests.len() {
            0 => Err(LockError::NoName),
            named if named > Self::MOST => Err(LockError::TooManyNames { named, most: Self::MOST }),
            _ => Ok(Self { engine, requests }),
        }
    }

    settings! {
        /// How long a hold lasts: as [`Mutex::lease`](crate::Mutex::lease), of each. Where the locks had to be waited for one after the other, it
        /// counts for all from when the last was had.
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long a hold lasts at most: as [`Mutex::max_hold`](crate::Mutex::max_hold), of each.
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often each hold is renewed at most: as [`Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`acquire`](Self::acquire) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;
    }

    /// The names of the locks, in their order.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.requests.iter().map(Request::name)
    }

    /// Tries once: takes all if all are free and nobody waits for any of them.
    ///
    /// Fails as [`Mutex::try_acquire`](crate::Mutex::try_acquire) does.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the background.
    pub async fn try_acquire(&self) -> Result<MultiAttempt, AcquireError> {
        let call = self.engine.timings.call;
        let limit = self.engine.world.now() + call;
        match self.take(None, Some(limit)).await? {
            Ok(guards) => Ok(MultiAttempt::Granted(MultiGuard::of(&self.engine, guards))),
            Err(Blocked { at, missed: Missed::Taken(standing) }) => Ok(MultiAttempt::Taken {
                lock: self.requests[at].name().clone(),
                contention: (*standing).into(),
            }),
            Err(Blocked { at, missed }) => Err(self.requests[at].error(missed, call)),
        }
    }

    /// Acquires all of the locks, however long it takes, or for as long as [`wait`](Self::wait) says.
    ///
    /// Fails as [`Mutex::acquire`](crate::Mutex::acquire) does, naming the lock that was in the way; and with [`AcquireError::Lost`] where a lease,
    /// or a cap, is too short to hold the first ones for as long as the others have to be waited for.
    ///
    /// Cancel safety: if the future is dropped, nothing is held: places in queues are given up, and what was had of the
    /// locks is given back in the background.
    pub async fn acquire(&self) -> Result<MultiGuard, AcquireError> {
        let wait = self.requests.first().and_then(|request| request.wait);
        self.acquire_within(wait).await
    }

    /// Acquires all of the locks within `limit`. Otherwise as [`acquire`](Self::acquire), also as to cancel safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<MultiGuard, AcquireError> {
        self.acquire_within(Some(limit)).await
    }

    pub(crate) fn set(mut self, change: impl Fn(&mut Request)) -> Self {
        self.requests.iter_mut().for_each(change);
        self
    }

    async fn acquire_within(&self, wait: Option<Duration>) -> Result<MultiGuard, AcquireError> {
        let start = self.engine.world.now();
        // Who waits for no time at all still tries once.
        let limit = wait.map(|wait| start + if wait.is_zero() { self.engine.timings.call } else { wait });
        let failed =
            |at: usize, missed| self.requests[at].error(missed, self.engine.world.now().since(start));
        let mut first: Option<usize> = None;
        for _ in 0..ROUNDS {
            let held = match first {
                None => None,
                Some(at) => match self.requests[at].pursue(&Asker::default(), limit, false).await? {
                    Ok(kept) => Some((at, kept.guard)),
                    Err(missed) => return Err(failed(at, missed)),
                },
            };
            let rest = self.take(held.as_ref().map(|(at, _)| *at), limit).await?;
            match (rest, held) {
                (Ok(guards), None) => return Ok(MultiGuard::of(&self.engine, guards)),
                (Ok(mut guards), Some((at, guard))) => {
                    guards.insert(at, guard);
                    // The first one may have been lost meanwhile: that was in vain, as if another had been in the way.
                    if let Ok(all) = self.together(guards, limit).await {
                        return Ok(all);
                    }
                }
                (Err(Blocked { at, missed: Missed::Taken(standing) }), held) => {
                    if wait.is_some_and(|wait| wait.is_zero()) {
                        return Err(failed(at, Missed::TimedOut(standing)));
                    }
                    if let Some((_, guard)) = held {
                        // Handed on before anything is waited for. If that fails it is no reason to give up.
                        self.until(limit, guard.hand_on()).await;
                    }
                    if limit.is_some_and(|limit| limit <= self.engine.world.now()) {
                        return Err(failed(at, Missed::TimedOut(standing)));
                    }
                    first = Some(at);
                }
                (Err(Blocked { at, missed }), _) => return Err(failed(at, missed)),
            }
        }
        self.in_order(limit, start).await
    }

    /// Takes one after the other, in the order of their names. What is held meanwhile is renewed; where a lease or a cap
    /// does not allow that for long enough, it begins anew, and gives up in the end.
    async fn in_order(&self, limit: Option<Moment>, start: Moment) -> Result<MultiGuard, AcquireError> {
        let mut laps = 1;
        loop {
            let mut guards = Vec::with_capacity(self.requests.len());
            for request in &self.requests {
                match request.pursue(&Asker::default(), limit, false).await? {
                    Ok(kept) => guards.push(kept.guard),
                    Err(missed) => return Err(request.error(missed, self.engine.world.now().since(start))),
                }
            }
            match self.together(guards, limit).await {
                Ok(all) => return Ok(all),
                Err(lost) if laps == LAPS => return Err(AcquireError::Lost(lost)),
                Err(_) => laps += 1,
            }
        }
    }

    /// Makes one of locks that were had one after the other: the lease counts for all from now on. Fails if one was lost
    /// meanwhile; then the others are given back.
    async fn together(&self, guards: Vec<Guard>, limit: Option<Moment>) -> Result<MultiGuard, Lost> {
        let all = MultiGuard::of(&self.engine, guards);
        if self.requests.iter().any(Request::ends_with_its_lease) {
            // Whatever keeps it from being longer, a hold that is there is there. A watchdog needs no help.
            self.until(limit, all.extend()).await;
        }
        match all.check() {
            Ok(()) => Ok(all),
            Err(lost) => {
                self.until(limit, join_all(all.guards.into_iter().map(Guard::hand_on))).await;
                Err(lost)
            }
        }
    }

    /// Does something for as long as there is time: what is dropped then goes on in the background, or need not.
    async fn until<T>(&self, limit: Option<Moment>, work: impl Future<Output = T>) {
        let time_is_up = async {
            match limit {
                Some(limit) => self.engine.world.sleep_until(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = work => {}
            () = time_is_up => {}
        }
    }

    /// Takes all but one that is held already, in one step; waits for nothing.
    async fn take(
        &self,
        held: Option<usize>,
        limit: Option<Moment>,
    ) -> Result<Result<Vec<Guard>, Blocked>, LeaseError> {
        let wanted: Vec<_> = (0..self.requests.len()).filter(|at| Some(*at) != held).collect();
        let Some(first) = wanted.first().map(|at| &self.requests[*at]) else { return Ok(Ok(Vec::new())) };
        let (asker, span) = (Asker::default(), first.span()?);
        let pursuit = first.pursuit(&asker, span.wanted(), limit, true, None);
        let seats: Vec<_> = wanted.iter().map(|at| &self.requests[*at].seat).collect();
        let won = match engine::acquire_all(&self.engine, &seats, &pursuit).await {
            Ok(won) => won,
            Err(InTheWay { at, missed }) => return Ok(Err(Blocked { at: wanted[at], missed })),
        };
        // All are told to the keeper before anything fails: then dropping their guards gives them back.
        let kept: Vec<_> = wanted
            .iter()
            .zip(won)
            .map(|(at, won)| (*at, self.requests[*at].keep(&asker, won, span, &self.requests[*at].seat)))
            .collect();
        let mut held = Vec::with_capacity(kept.len());
        let mut blocked = None;
        for (at, kept) in kept {
            match kept? {
                Ok(kept) => held.push((at, kept)),
                Err(missed) => blocked = Some(Blocked { at, missed }),
            }
        }
        if let Some(blocked) = blocked {
            return Ok(Err(blocked));
        }
        let confirmed = held.into_iter().map(async |(at, kept)| {
            let confirmed = self.requests[at].confirmed(kept, limit).await;
            confirmed.map(|kept| kept.guard).map_err(|missed| Blocked { at, missed })
        });
        Ok(join_all(confirmed).await.into_iter().collect())
    }
}

/// Several locks that are held together.
///
/// They are lost together, too: as soon as one of them is, the guard counts as lost. [`release`](Self::release) gives all back,
/// and so does dropping it, in the background.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// # async fn pay() {}
/// let both = client.multi_mutex(["till", "stock"])?.acquire().await?;
/// for (name, token) in both.fencing_tokens() {
///     println!("{name}: {token}");
/// }
/// tokio::select! {
///     lost = both.lost() => eprintln!("stopped: {lost}"),
///     () = pay() => both.release().await?,
/// }
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped gives the locks back"]
pub struct MultiGuard {
    engine: Arc<Engine>,
    guards: Vec<Guard>,
    /// Given when any of them is lost.
    signal: CancellationToken,
}

impl MultiGuard {
    fn of(engine: &Arc<Engine>, guards: Vec<Guard>) -> Self {
        let signal = CancellationToken::new();
        for guard in &guards {
            guard.share_signal(&signal);
        }
        Self { engine: engine.clone(), guards, signal }
    }

    /// Each lock's name and the number of its hold: greater than that of every earlier hold of that lock.
    pub fn fencing_tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)> {
        self.guards.iter().map(|guard| (guard.name(), guard.fencing_token()))
    }

    /// The number of the hold of one of the locks; `None` if that name is none of them.
    pub fn fencing_token(&self, name: &str) -> Option<FencingToken> {
        let guard = self.guards.iter().find(|guard| guard.name().as_str() == name)?;
        Some(guard.fencing_token())
    }

    /// Whether all are still held: fails once the deadline of one has passed, or it is known to be lost. Needs no network;
    /// as [`Guard::check`].
    pub fn check(&self) -> Result<(), Lost> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// Whether one of the holds ends by its cap as things stand: as [`Guard::is_capped`].
    pub fn is_capped(&self) -> bool {
        self.guards.iter().any(Guard::is_capped)
    }

    /// Until when all may be believed as things stand: as [`Guard::valid_until`].
    pub fn valid_until(&self) -> Moment {
        self.guards.iter().map(Guard::valid_until).min().unwrap_or(Moment::ZERO)
    }

    /// How long all may be believed as things stand: as [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.valid_until().since(self.engine.world.now())
    }

    /// Waits until one of the locks is lost, and says which and why. It does not end while all are held.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn lost(&self) -> Lost {
        loop {
            self.signal.cancelled().await;
            // Of another one it may be known that it is gone, and not yet why.
            if let Some(lost) = self.guards.iter().find_map(Guard::told) {
                return lost;
            }
            tokio::task::yield_now().await;
        }
    }

    /// A token that is cancelled when one of the locks is lost: as [`Guard::lost_signal`].
    pub fn lost_signal(&self) -> CancellationToken {
        self.signal.child_token()
    }

    /// Lengthens all holds now: as [`Guard::extend`].
    ///
    /// Fails as that does, with the first error; the others may have been lengthened.
    ///
    /// Cancel safety: if the future is dropped, some may have been extended.
    pub async fn extend(&self) -> Result<(), ExtendError> {
        join_all(self.guards.iter().map(Guard::extend)).await.into_iter().collect()
    }

    /// Lengthens all holds to last `lease` from now, where they would end earlier: as [`Guard::extend_to`].
    ///
    /// Fails, and is cancelled, as [`extend`](Self::extend).
    pub async fn extend_to(&self, lease: impl Into<Lease>) -> Result<(), ExtendError> {
        let lease = lease.into();
        join_all(self.guards.iter().map(|guard| guard.extend_to(lease))).await.into_iter().collect()
    }

    /// Gives all locks back, and hands each to the next who waits for it. All are tried, whatever becomes of one.
    ///
    /// Fails with those that were not released, and why: as [`Guard::release`].
    ///
    /// Cancel safety: if the future is dropped, the locks are given back in the background.
    pub async fn release(self) -> Result<(), MultiReleaseError> {
        let release = |guard: Guard| async {
            let name = guard.name().clone();
            guard.release().await.map_err(|error| (name, error))
        };
        let released = join_all(self.guards.into_iter().map(release)).await;
        let failed: Vec<(LockName, ReleaseError)> = released.into_iter().filter_map(Result::err).collect();
        if failed.is_empty() { Ok(()) } else { Err(MultiReleaseError { failed }) }
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
