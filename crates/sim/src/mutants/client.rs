//! A store with a client's mutant in it: see [`Mutant`].

use crate::mutants::Mutant;
use crate::world::store::SimStore;
use futures_util::future::BoxFuture;
use leasehold::store::{
    Capabilities, Executed, Fault, Lock, NotificationSink, Op, Outcome, SessionOp, SessionReply, Store,
};
use leasehold_core::{
    Acquire, Acquired, Claim, Extend, Extended, FencingToken, Heartbeat, HeartbeatReply, HoldId, HoldStatus,
    Inspection, KeyError, Liveness, MultiAcquired, Nonce, Notification, Partition, Release, Released, Reply,
    SessionId, TokenBlock, drift,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A client's store, with a mutant or without one.
#[derive(Clone)]
pub(crate) struct MutantStore {
    inner: Arc<SimStore>,
    mutant: Option<Mutant>,
    seen: Arc<Mutex<CallHistory>>,
}

/// What a mutant knows of the past.
#[derive(Default)]
struct CallHistory {
    /// The last poll of each queue entry, by its slot.
    last_nonce: BTreeMap<u32, Nonce>,
    /// Holds that the client knows it acquired.
    had: BTreeSet<HoldId>,
    /// Holds that wait, as far as the client knows.
    queued: BTreeSet<HoldId>,
    /// The last hold whose release had no reply.
    half_released: BTreeMap<Lock, Claim>,
    /// How long the answer to the last beat took.
    beat_took: Duration,
    /// Holds of an acquire of several locks that had no reply.
    unsure: BTreeSet<HoldId>,
    /// The last hold of each acquire of several locks.
    lasts: BTreeSet<HoldId>,
    /// How long the client's session lives without a beat.
    alive_ms: Option<u64>,
    /// Results of inspections: the leader before, the last one, and whether the next inspection returns the one
    /// before.
    looks: BTreeMap<Lock, (Inspection, Inspection, bool)>,
    /// Holds that stand for others.
    aliases: BTreeMap<HoldId, Claim>,
    /// The last hold for which tokens were reserved, its tokens, and those of the hold before.
    blocks: BTreeMap<Lock, (HoldId, TokenBlock, Option<TokenBlock>)>,
    /// Holds that were cached.
    kept: BTreeSet<HoldId>,
}

impl MutantStore {
    pub(crate) fn new(inner: SimStore, mutant: Option<Mutant>) -> Self {
        Self { inner: Arc::new(inner), mutant, seen: Arc::default() }
    }

    fn seen(&self) -> MutexGuard<'_, CallHistory> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, mutant: Mutant, lock: &Lock, op: &Op, within: Duration) -> Outcome {
        self.remember_question(op);
        if self.forgets(mutant, op) {
            let (status, holder, next) = (HoldStatus::Forgotten, None, None);
            return Outcome::Done(Reply::Release(Released { status, remaining_holds: 0, holder, next }));
        }
        if mutant == Mutant::PeriodHoldIsNotExtended && self.is_of_turn(lock) && matches!(op, Op::Extend(_)) {
            return Outcome::Done(Reply::Extend(Extended::Extended));
        }
        let asked = self.twisted(mutant, lock, op);
        let sent_at = self.inner.world.now();
        let mut outcome = self.inner.execute(lock, &asked, within).await;
        self.remember_answer(lock, &asked, &outcome);
        let took = self.inner.world.now().since(sent_at);
        match (mutant, &mut outcome, &asked) {
            (
                Mutant::ValidFromReply,
                Outcome::Done(Reply::Acquire(Acquired::Granted { remaining_ms, .. })),
                _,
            ) => {
                *remaining_ms += u64::try_from(took.as_millis()).unwrap_or(0);
            }
            (Mutant::NoDrift, Outcome::Done(Reply::Acquire(Acquired::Granted { remaining_ms, .. })), _) => {
                let allowance = drift(Duration::from_millis(*remaining_ms));
                *remaining_ms += u64::try_from(allowance.as_millis()).unwrap_or(0);
            }
            (
                Mutant::ObserverForgets | Mutant::InspectIsStale,
                Outcome::Done(Reply::Inspect(seen)),
                Op::Inspect(look),
            ) if look.claim.is_none() => {
                self.tell_old(mutant, lock, seen);
            }
            (Mutant::UnknownIsNo, Outcome::Failed(Executed::Unknown, fault), _) => {
                return Outcome::Failed(Executed::No, fault.clone());
            }
            (Mutant::UnknownExtendIsYes, Outcome::Failed(Executed::Unknown, _), Op::Extend(_)) => {
                return Outcome::Done(Reply::Extend(Extended::Extended));
            }
            (
                Mutant::UnknownReserveIsYes,
                Outcome::Failed(Executed::Unknown, _),
                Op::Extend(Extend { reserve: Some(_), .. }),
            ) => {
                let block = self.seen().blocks.get(lock).map(|(_, block, _)| *block);
                let block = block.unwrap_or(TokenBlock::new(FencingToken::new(1), TokenBlock::MAX_LEN));
                return Outcome::Done(Reply::Extend(Extended::Reserved { block, others_wait: false }));
            }
            (
                Mutant::EarlierBlockIsUsed,
                Outcome::Done(Reply::Extend(Extended::Reserved { block, .. })),
                _,
            ) => {
                if let Some((_, _, Some(former))) = self.seen().blocks.get(lock) {
                    *block = *former;
                }
            }
            (Mutant::UnknownAcquireIsYes, Outcome::Failed(Executed::Unknown, _), Op::Acquire(ask)) => {
                let (fence, remaining_ms) = (FencingToken::new(1), ask.lease_ms);
                let granted =
                    Acquired::Granted { fence, remaining_ms, others_wait: false, owner_holds: None };
                return Outcome::Done(Reply::Acquire(granted));
            }
            (Mutant::RenewedAfterRelease, Outcome::Done(_), Op::Release(release)) => {
                self.renew_later(lock.clone(), release.claim.clone());
            }
            _ => {}
        }
        outcome
    }

    /// Whether something is done once in a period by this lock.
    fn is_of_turn(&self, lock: &Lock) -> bool {
        let sim = &self.inner.world.sim;
        sim.period.is_some_and(|period| period.lock == sim.lock_id(lock))
    }

    /// Makes an inspection return an earlier result.
    fn tell_old(&self, mutant: Mutant, lock: &Lock, seen: &mut Inspection) {
        let mut all = self.seen();
        let (older, newest, is_behind) =
            all.looks.entry(lock.clone()).or_insert_with(|| (seen.clone(), seen.clone(), false));
        let fence = |seen: &Inspection| seen.holder.as_ref().and_then(|holder| holder.fence);
        if mutant == Mutant::InspectIsStale {
            seen.clone_from(older);
        } else if fence(seen).is_some() {
            if fence(seen) != fence(newest) {
                older.clone_from(newest);
                newest.clone_from(seen);
            } else if mem::replace(is_behind, !*is_behind) {
                seen.clone_from(older);
            }
        }
    }

    async fn call_for_all(
        &self,
        asks: &[(Lock, Acquire)],
        within: Duration,
    ) -> Option<Outcome<Vec<MultiAcquired>>> {
        // The reply may never come, or find its caller gone.
        let holds = || asks.iter().map(|(_, ask)| ask.claim.hold);
        self.seen().unsure.extend(holds());
        let outcome = self.inner.acquire_all(asks, within).await?;
        let mut seen = self.seen();
        if let Outcome::Done(shares) = &outcome {
            let mut had =
                asks.iter().zip(shares).filter(|(_, share)| matches!(share, MultiAcquired::Acquired(_)));
            seen.had.extend(had.clone().map(|((_, ask), _)| ask.claim.hold));
            seen.lasts.extend(had.next_back().map(|((_, ask), _)| ask.claim.hold));
            seen.unsure.retain(|hold| holds().all(|asked| asked != *hold));
        }
        Some(outcome)
    }

    async fn beat(&self, mutant: Mutant, beat: &Heartbeat, within: Duration) -> Outcome<SessionReply> {
        let mut sent = beat.clone();
        self.seen().alive_ms = Some(beat.alive_ms);
        match mutant {
            // The store learns of a shorter lifetime than the client counts on.
            Mutant::HoldsOutliveSession => sent.alive_ms /= 3,
            // To count from the reply is to count for longer than the store does: here for as long as the last took.
            Mutant::SessionFromReply => {
                let took = self.seen().beat_took;
                sent.alive_ms =
                    sent.alive_ms.saturating_sub(u64::try_from(took.as_millis()).unwrap_or(0)).max(1);
            }
            Mutant::LapsedSessionReturns => drop(sent.begin.get_or_insert_default()),
            _ => {}
        }
        let sent_at = self.inner.world.now();
        let outcome = self.inner.execute_session(Partition::ONLY, &SessionOp::Heartbeat(sent), within).await;
        match (mutant, &outcome) {
            (Mutant::SessionFromReply, Outcome::Done(_)) => {
                self.seen().beat_took = self.inner.world.now().since(sent_at);
                outcome
            }
            (Mutant::HoldsOutliveSession, Outcome::Done(_))
            | (Mutant::UnknownHeartbeatIsYes, Outcome::Failed(Executed::Unknown, _)) => {
                Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive))
            }
            _ => outcome,
        }
    }

    /// Records what the engine requests.
    fn remember_question(&self, op: &Op) {
        let queue = match op {
            Op::Acquire(ask) => ask.queue.as_ref(),
            Op::Release(release) => release.next.as_ref().and_then(|next| next.queue.as_ref()),
            _ => None,
        };
        if let Some(queue) = queue {
            self.seen().last_nonce.insert(queue.nonce.slot(), queue.nonce);
        }
    }

    /// Records what the engine learns.
    fn remember_answer(&self, lock: &Lock, op: &Op, outcome: &Outcome) {
        let mut seen = self.seen();
        match (op, outcome) {
            (Op::Acquire(ask), Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))) => {
                seen.had.insert(ask.claim.hold);
            }
            (Op::Acquire(ask), Outcome::Done(Reply::Acquire(Acquired::Taken { position: Some(_), .. }))) => {
                seen.queued.insert(ask.claim.hold);
            }
            (Op::Extend(extend), outcome) => {
                let hold = extend.claim.hold;
                seen.had.insert(hold);
                seen.kept.extend(extend.reserve.filter(|reserve| reserve.notify_wanted).map(|_| hold));
                if let Outcome::Done(Reply::Extend(Extended::Reserved { block, .. })) = outcome {
                    let old = seen.blocks.get(lock).copied();
                    let former =
                        old.and_then(|(of, old, former)| if of == hold { former } else { Some(old) });
                    seen.blocks.insert(lock.clone(), (hold, *block, former));
                }
            }
            (Op::Release(release), Outcome::Failed(Executed::Unknown, _))
                if seen.had.contains(&release.claim.hold) =>
            {
                seen.half_released.insert(lock.clone(), release.claim.clone());
            }
            _ => {}
        }
    }

    /// Whether the mutant is that this is not sent at all.
    fn forgets(&self, mutant: Mutant, op: &Op) -> bool {
        let Op::Release(Release { claim, next: None, .. }) = op else { return false };
        let seen = self.seen();
        let (had, queued) = (seen.had.contains(&claim.hold), seen.queued.contains(&claim.hold));
        match mutant {
            Mutant::NoUndo => !had && !queued,
            Mutant::QueueEntryIsNotRemoved => !had && queued,
            // The keeper sends cleanups; a task sends its own release.
            Mutant::NoUndoOfMulti => !had && seen.unsure.contains(&claim.hold),
            Mutant::MultiDropKeepsOne => {
                seen.lasts.contains(&claim.hold) && self.inner.link == self.inner.other
            }
            Mutant::DroppedGuardKeepsLock => had && self.inner.link == self.inner.other,
            Mutant::CachedHoldIsNotReleased => {
                seen.kept.contains(&claim.hold) && self.inner.link == self.inner.other
            }
            _ => false,
        }
    }

    /// The operation that is sent instead.
    fn twisted(&self, mutant: Mutant, lock: &Lock, op: &Op) -> Op {
        let mut op = op.clone();
        match (mutant, &mut op) {
            (Mutant::PredecessorIsNotChecked, Op::Acquire(ask)) => ask.predecessor = None,
            (Mutant::RemoteOwnerBoundToSession, Op::Acquire(ask)) => self.bind(ask),
            (Mutant::RemoteOwnerBoundToSession, Op::Release(release)) => {
                if let Some(next) = &mut release.next {
                    self.bind(next);
                }
            }
            (Mutant::QueueEntryTooShort, Op::Acquire(ask)) => {
                if let Some(queue) = &mut ask.queue {
                    queue.ttl_ms /= 10;
                }
            }
            (Mutant::ReleasedHoldIsReused, Op::Acquire(ask)) => {
                let mut seen = self.seen();
                if let Some(old) = seen.half_released.remove(lock) {
                    seen.aliases.insert(ask.claim.hold, old);
                }
                ask.claim = seen.aliases.get(&ask.claim.hold).unwrap_or(&ask.claim).clone();
            }
            (Mutant::ReleasedHoldIsReused, Op::Release(release)) => {
                let seen = self.seen();
                release.claim = seen.aliases.get(&release.claim.hold).unwrap_or(&release.claim).clone();
            }
            (Mutant::ReleasedHoldIsReused, Op::Extend(extend)) => {
                let seen = self.seen();
                extend.claim = seen.aliases.get(&extend.claim.hold).unwrap_or(&extend.claim).clone();
            }
            _ => {}
        }
        op
    }

    /// Binds the hold to the client's session, if there is one.
    fn bind(&self, ask: &mut Acquire) {
        if let Some(alive_ms) = self.seen().alive_ms {
            ask.liveness = Liveness::Session { alive_ms };
        }
    }

    fn renew_later(&self, lock: Lock, claim: Claim) {
        let (store, sim) = (self.inner.clone(), self.inner.world.sim.clone());
        let at = sim.scheduler.now() + Duration::from_millis(50);
        let wait = sim.scheduler.sleep_until(at);
        let renewal = async move {
            wait.await;
            let extend = Op::Extend(Extend { claim, lease_ms: 3_000, keep_record: false, reserve: None });
            // The outcome does not matter.
            drop(store.execute(&lock, &extend, Duration::from_secs(1)).await);
        };
        sim.scheduler.spawn(self.inner.world.host, Box::pin(renewal));
    }
}

impl fmt::Debug for MutantStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutantStore")
            .field("inner", &self.inner)
            .field("mutant", &self.mutant)
            .finish_non_exhaustive()
    }
}

impl Store for MutantStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        match self.mutant {
            Some(mutant) => Box::pin(self.call(mutant, lock, op, within)),
            None => self.inner.execute(lock, op, within),
        }
    }

    fn acquire_all<'a>(
        &'a self,
        asks: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        match self.mutant {
            Some(_) => Box::pin(self.call_for_all(asks, within)),
            None => self.inner.acquire_all(asks, within),
        }
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        let post: Arc<dyn NotificationSink> = match self.mutant {
            Some(mutant) => Arc::new(MutantSink { inner: post, mutant, seen: self.seen.clone() }),
            None => post,
        };
        self.inner.open_mailbox(place, session, post, within)
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.inner.close_mailbox(place, session);
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn execute_session<'a>(
        &'a self,
        place: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        match (self.mutant, op) {
            (Some(mutant), SessionOp::Heartbeat(beat)) => Box::pin(self.beat(mutant, beat, within)),
            _ => self.inner.execute_session(place, op, within),
        }
    }

    fn fork(&self) -> Arc<dyn Store> {
        let fork = SimStore { link: self.inner.other, ..(*self.inner).clone() };
        Arc::new(Self { inner: Arc::new(fork), mutant: self.mutant, seen: self.seen.clone() })
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// A mailbox with a mutant in it.
struct MutantSink {
    inner: Arc<dyn NotificationSink>,
    mutant: Mutant,
    seen: Arc<Mutex<CallHistory>>,
}

impl NotificationSink for MutantSink {
    fn deliver(&self, mut wake: Notification) {
        if self.mutant == Mutant::WantedIsIgnored && matches!(wake, Notification::Wanted { .. }) {
            return;
        }
        if self.mutant == Mutant::GrantCountsFromLastPoll {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if let Notification::Grant { nonce, .. } = &mut wake {
                *nonce = seen.last_nonce.get(&nonce.slot()).copied().unwrap_or(*nonce);
            }
        }
        self.inner.deliver(wake);
    }

    fn resubscribed(&self) {
        if self.mutant != Mutant::NoPollAfterSubscribing {
            self.inner.resubscribed();
        }
    }
}
