//! Client mutants, between the engine and its store or mailbox: see [`Mutant`].

use crate::mutants::Mutant;
use crate::world::store::SimStore;
use futures_util::future::BoxFuture;
use leasehold::store::{
    Capabilities, Executed, Fault, FaultKind, Lock, NotificationSink, Op, Outcome, Phase, SessionOp,
    SessionReply, Store,
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

/// A client's store, with or without a mutant.
#[derive(Clone)]
pub(crate) struct MutantStore {
    inner: Arc<SimStore>,
    mutant: Option<Mutant>,
    history: Arc<Mutex<CallHistory>>,
}

/// The calls of a client so far.
#[derive(Default)]
struct CallHistory {
    /// The last poll of each queue entry, by the index in its nonce.
    last_nonce: BTreeMap<u32, Nonce>,
    /// Holds that the client knows it acquired.
    acquired: BTreeSet<HoldId>,
    /// Holds that wait, as far as the client knows.
    queued: BTreeSet<HoldId>,
    /// The last hold whose release had no reply.
    unanswered_releases: BTreeMap<Lock, Claim>,
    /// How long the reply to the last heartbeat took.
    heartbeat_took: Duration,
    /// Holds of acquires of several locks without a reply.
    unanswered_multi: BTreeSet<HoldId>,
    /// The last hold of each acquire of several locks.
    last_of_multi: BTreeSet<HoldId>,
    /// How long the client's session lives without a heartbeat.
    alive_ms: Option<u64>,
    /// Sessions that have begun.
    begun: BTreeSet<SessionId>,
    /// Results of inspections: the leader before, the last one, and whether the next inspection returns the one
    /// before.
    inspections: BTreeMap<Lock, (Inspection, Inspection, bool)>,
    /// Claims that are sent instead of others.
    aliases: BTreeMap<HoldId, Claim>,
    /// The last hold for which tokens were reserved, its tokens, and those of the hold before.
    blocks: BTreeMap<Lock, (HoldId, TokenBlock, Option<TokenBlock>)>,
    /// Holds that were cached.
    cached: BTreeSet<HoldId>,
    /// Holds whose release had a reply.
    released: BTreeSet<HoldId>,
}

impl MutantStore {
    pub(crate) fn new(inner: SimStore, mutant: Option<Mutant>) -> Self {
        Self { inner: Arc::new(inner), mutant, history: Arc::default() }
    }

    fn history(&self) -> MutexGuard<'_, CallHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, mutant: Mutant, lock: &Lock, op: &Op, within: Duration) -> Outcome {
        self.record_request(op);
        if self.skips(mutant, op) {
            let (found, holder, next) = (HoldStatus::Forgotten, None, None);
            return Outcome::Done(Reply::Release(Released {
                status: found,
                remaining_holds: 0,
                holder,
                next_waiter: None,
                next,
            }));
        }
        match (mutant, op) {
            (Mutant::PeriodHoldIsNotExtended, Op::Extend(_)) if self.is_of_period(lock) => {
                return Outcome::Done(Reply::Extend(Extended::Extended));
            }
            (Mutant::ExtendIsNotSent, Op::Extend(_)) => {
                return Outcome::Failed(Executed::No, fault(FaultKind::Unreachable));
            }
            _ => {}
        }
        let op_sent = self.mutate_op(mutant, lock, op);
        let sent_at = self.inner.world.now();
        let mut outcome = self.inner.execute(lock, &op_sent, within).await;
        self.record_outcome(lock, &op_sent, &outcome);
        let took = self.inner.world.now().since(sent_at);
        if mutant == Mutant::PollsWithoutPause {
            for _ in 0..100 {
                if !matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))) {
                    break;
                }
                outcome = self.inner.execute(lock, &op_sent, within).await;
            }
        }
        self.mutate_outcome(mutant, lock, &op_sent, took, outcome)
    }

    /// The outcome that the engine receives instead.
    fn mutate_outcome(
        &self,
        mutant: Mutant,
        lock: &Lock,
        op: &Op,
        took: Duration,
        mut outcome: Outcome,
    ) -> Outcome {
        match (mutant, &mut outcome, op) {
            (
                Mutant::ValidFromReply,
                Outcome::Done(Reply::Acquire(Acquired::Granted { remaining_ms, .. })),
                _,
            ) => {
                *remaining_ms += u64::try_from(took.as_millis()).unwrap_or(0);
            }
            (Mutant::NoDrift, Outcome::Done(Reply::Acquire(Acquired::Granted { remaining_ms, .. })), _) => {
                *remaining_ms += allowance_ms(*remaining_ms);
            }
            (
                Mutant::ObserverForgets | Mutant::InspectIsStale,
                Outcome::Done(Reply::Inspect(inspection)),
                Op::Inspect(inspect),
            ) if inspect.claim.is_none() => {
                self.make_stale(mutant, lock, inspection);
            }
            (Mutant::ContentionIsAnError, Outcome::Done(Reply::Acquire(Acquired::Taken { .. })), _) => {
                return Outcome::Failed(Executed::No, fault(FaultKind::Forbidden));
            }
            (Mutant::LostReleaseIsSuccess, Outcome::Done(Reply::Release(released)), _) => {
                released.status = HoldStatus::Held;
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
                let block = self.history().blocks.get(lock).map(|(_, block, _)| *block);
                let block = block.unwrap_or(TokenBlock::new(FencingToken::new(1), TokenBlock::MAX_LEN));
                return Outcome::Done(Reply::Extend(Extended::Reserved { block, others_wait: false }));
            }
            (
                Mutant::EarlierBlockIsUsed,
                Outcome::Done(Reply::Extend(Extended::Reserved { block, .. })),
                _,
            ) => {
                if let Some((_, _, Some(former))) = self.history().blocks.get(lock) {
                    *block = *former;
                }
            }
            (Mutant::UnknownAcquireIsYes, Outcome::Failed(Executed::Unknown, _), Op::Acquire(request)) => {
                let (fence, remaining_ms) = (FencingToken::new(1), request.lease_ms);
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

    /// Whether `once_per` uses the lock.
    fn is_of_period(&self, lock: &Lock) -> bool {
        let sim = &self.inner.world.sim;
        sim.period.is_some_and(|period| period.lock == sim.lock_id(lock))
    }

    /// Makes an inspection return an earlier result.
    fn make_stale(&self, mutant: Mutant, lock: &Lock, inspection: &mut Inspection) {
        let mut all = self.history();
        let (older, newest, is_stale) = all
            .inspections
            .entry(lock.clone())
            .or_insert_with(|| (inspection.clone(), inspection.clone(), false));
        let fence = |inspection: &Inspection| inspection.holder.as_ref().and_then(|holder| holder.fence);
        if mutant == Mutant::InspectIsStale {
            inspection.clone_from(older);
        } else if fence(inspection).is_some() {
            if fence(inspection) != fence(newest) {
                older.clone_from(newest);
                newest.clone_from(inspection);
            } else if mem::replace(is_stale, !*is_stale) {
                inspection.clone_from(older);
            }
        }
    }

    async fn acquire_multi(
        &self,
        requests: &[(Lock, Acquire)],
        within: Duration,
    ) -> Option<Outcome<Vec<MultiAcquired>>> {
        // The reply may be lost, or its caller dropped.
        let holds = || requests.iter().map(|(_, request)| request.claim.hold);
        self.history().unanswered_multi.extend(holds());
        let outcome = self.inner.acquire_all(requests, within).await?;
        let mut history = self.history();
        if let Outcome::Done(replies) = &outcome {
            let mut acquired =
                requests.iter().zip(replies).filter(|(_, reply)| matches!(reply, MultiAcquired::Acquired(_)));
            history.acquired.extend(acquired.clone().map(|((_, request), _)| request.claim.hold));
            history.last_of_multi.extend(acquired.next_back().map(|((_, request), _)| request.claim.hold));
            history.unanswered_multi.retain(|hold| holds().all(|answered| answered != *hold));
        }
        Some(outcome)
    }

    async fn heartbeat(
        &self,
        mutant: Mutant,
        heartbeat: &Heartbeat,
        within: Duration,
    ) -> Outcome<SessionReply> {
        let mut sent = heartbeat.clone();
        self.history().alive_ms = Some(heartbeat.alive_ms);
        match mutant {
            // The store records a shorter lifetime than the client assumes.
            Mutant::HoldsOutliveSession => sent.alive_ms /= 3,
            // Counting from the reply counts for longer than the store does: here by the duration of the last one.
            Mutant::SessionFromReply => {
                let took = self.history().heartbeat_took;
                sent.alive_ms =
                    sent.alive_ms.saturating_sub(u64::try_from(took.as_millis()).unwrap_or(0)).max(1);
            }
            Mutant::LapsedSessionReturns => drop(sent.begin.get_or_insert_default()),
            _ => {}
        }
        let (session, begins) = (sent.session, sent.begin.is_some());
        if mutant == Mutant::ForgottenSessionLapses && begins && self.history().begun.contains(&session) {
            return Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Lapsed));
        }
        let sent_at = self.inner.world.now();
        let outcome = self.inner.execute_session(Partition::ONLY, &SessionOp::Heartbeat(sent), within).await;
        if begins && matches!(outcome, Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive))) {
            self.history().begun.insert(session);
        }
        match (mutant, &outcome) {
            (Mutant::SessionFromReply, Outcome::Done(_)) => {
                self.history().heartbeat_took = self.inner.world.now().since(sent_at);
                outcome
            }
            (Mutant::HoldsOutliveSession, Outcome::Done(_))
            | (Mutant::UnknownHeartbeatIsYes, Outcome::Failed(Executed::Unknown, _)) => {
                Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive))
            }
            _ => outcome,
        }
    }

    /// Records a request of the engine.
    fn record_request(&self, op: &Op) {
        let queue = match op {
            Op::Acquire(request) => request.queue.as_ref(),
            Op::Release(release) => release.next.as_ref().and_then(|next| next.queue.as_ref()),
            _ => None,
        };
        if let Some(queue) = queue {
            self.history().last_nonce.insert(queue.nonce.index(), queue.nonce);
        }
    }

    /// Records the outcome that the engine receives.
    fn record_outcome(&self, lock: &Lock, op: &Op, outcome: &Outcome) {
        let mut history = self.history();
        match (op, outcome) {
            (Op::Acquire(request), Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))) => {
                history.acquired.insert(request.claim.hold);
            }
            (
                Op::Acquire(request),
                Outcome::Done(Reply::Acquire(Acquired::Taken { position: Some(_), .. })),
            ) => {
                history.queued.insert(request.claim.hold);
            }
            (Op::Extend(extend), outcome) => {
                let hold = extend.claim.hold;
                history.acquired.insert(hold);
                history.cached.extend(extend.reserve.filter(|reserve| reserve.notify_wanted).map(|_| hold));
                if let Outcome::Done(Reply::Extend(Extended::Reserved { block, .. })) = outcome {
                    let old = history.blocks.get(lock).copied();
                    let former =
                        old.and_then(|(of, old, former)| if of == hold { former } else { Some(old) });
                    history.blocks.insert(lock.clone(), (hold, *block, former));
                }
            }
            (Op::Release(release), Outcome::Done(_)) => {
                history.released.insert(release.claim.hold);
            }
            (Op::Release(release), Outcome::Failed(Executed::Unknown, _))
                if history.acquired.contains(&release.claim.hold) =>
            {
                history.unanswered_releases.insert(lock.clone(), release.claim.clone());
            }
            _ => {}
        }
    }

    /// Whether the mutant does not send the operation.
    fn skips(&self, mutant: Mutant, op: &Op) -> bool {
        let Op::Release(Release { claim, next: None, .. }) = op else { return false };
        let history = self.history();
        let (acquired, queued) =
            (history.acquired.contains(&claim.hold), history.queued.contains(&claim.hold));
        match mutant {
            Mutant::NoUndo => !acquired && !queued,
            Mutant::QueueEntryIsNotRemoved => !acquired && queued,
            // The keeper sends cleanups; a task sends its own release.
            Mutant::NoUndoOfMulti => !acquired && history.unanswered_multi.contains(&claim.hold),
            Mutant::MultiDropKeepsOne => {
                history.last_of_multi.contains(&claim.hold) && self.inner.link == self.inner.keeper_link
            }
            Mutant::DroppedGuardKeepsLock => acquired && self.inner.link == self.inner.keeper_link,
            Mutant::FailedReleaseIsLeft => {
                let is_unanswered = |other: &Claim| other.hold == claim.hold;
                self.inner.link == self.inner.keeper_link
                    && history.unanswered_releases.values().any(is_unanswered)
            }
            Mutant::RestoredHoldIsKept => history.released.contains(&claim.hold),
            Mutant::CachedHoldIsNotReleased => {
                history.cached.contains(&claim.hold) && self.inner.link == self.inner.keeper_link
            }
            _ => false,
        }
    }

    /// The operation that is sent instead.
    fn mutate_op(&self, mutant: Mutant, lock: &Lock, op: &Op) -> Op {
        let mut op = op.clone();
        match (mutant, &mut op) {
            (Mutant::PredecessorIsNotChecked, Op::Acquire(request)) => request.predecessor = None,
            // The store ends the hold when the client does, by whose clock it is later.
            (Mutant::NoDrift, Op::Acquire(request)) => request.lease_ms -= allowance_ms(request.lease_ms),
            (Mutant::RemoteOwnerBoundToSession, Op::Acquire(request)) => self.bind_to_session(request),
            (Mutant::RemoteOwnerBoundToSession, Op::Release(release)) => {
                if let Some(next) = &mut release.next {
                    self.bind_to_session(next);
                }
            }
            (Mutant::QueueEntryTooShort, Op::Acquire(request)) => {
                if let Some(queue) = &mut request.queue {
                    queue.ttl_ms /= 10;
                }
            }
            (Mutant::ReleasedHoldIsReused, Op::Acquire(request)) => {
                let mut history = self.history();
                if let Some(old) = history.unanswered_releases.remove(lock) {
                    history.aliases.insert(request.claim.hold, old);
                }
                request.claim = history.aliases.get(&request.claim.hold).unwrap_or(&request.claim).clone();
            }
            (Mutant::ReleasedHoldIsReused, Op::Release(release)) => {
                let history = self.history();
                release.claim = history.aliases.get(&release.claim.hold).unwrap_or(&release.claim).clone();
            }
            (Mutant::ReleasedHoldIsReused, Op::Extend(extend)) => {
                let history = self.history();
                extend.claim = history.aliases.get(&extend.claim.hold).unwrap_or(&extend.claim).clone();
            }
            _ => {}
        }
        op
    }

    /// Binds the hold to the client's session, if there is one.
    fn bind_to_session(&self, request: &mut Acquire) {
        if let Some(alive_ms) = self.history().alive_ms {
            request.liveness = Liveness::Session { alive_ms };
        }
    }

    fn renew_later(&self, lock: Lock, claim: Claim) {
        let (store, sim) = (self.inner.clone(), self.inner.world.sim.clone());
        let at = sim.scheduler.now() + Duration::from_millis(50);
        let wait = sim.scheduler.sleep_until(at);
        let renewal = async move {
            wait.await;
            let extend =
                Op::Extend(Extend { claim, lease_ms: 3_000, keep_record: false, reserve: None, fence: None });
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
        requests: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        match self.mutant {
            Some(_) => Box::pin(self.acquire_multi(requests, within)),
            None => self.inner.acquire_all(requests, within),
        }
    }

    fn open_mailbox(
        &self,
        partition: Partition,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        let sink: Arc<dyn NotificationSink> = match self.mutant {
            Some(mutant) => Arc::new(MutantSink { inner: sink, mutant, history: self.history.clone() }),
            None => sink,
        };
        self.inner.open_mailbox(partition, session, sink, within)
    }

    fn close_mailbox(&self, partition: Partition, session: SessionId) {
        self.inner.close_mailbox(partition, session);
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn execute_session<'a>(
        &'a self,
        partition: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        match (self.mutant, op) {
            (Some(mutant), SessionOp::Heartbeat(heartbeat)) => {
                Box::pin(self.heartbeat(mutant, heartbeat, within))
            }
            _ => self.inner.execute_session(partition, op, within),
        }
    }

    fn confirm<'a>(
        &'a self,
        lock: &'a Lock,
        claim: &'a Claim,
        fence: FencingToken,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        self.inner.confirm(lock, claim, fence, within)
    }

    fn fork(&self) -> Arc<dyn Store> {
        let fork = SimStore { link: self.inner.keeper_link, ..(*self.inner).clone() };
        Arc::new(Self { inner: Arc::new(fork), mutant: self.mutant, history: self.history.clone() })
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// A fault that no server has caused.
fn fault(kind: FaultKind) -> Fault {
    Fault::new(kind, Phase::Connect, "the simulated server")
}

/// A mailbox with a mutant.
struct MutantSink {
    inner: Arc<dyn NotificationSink>,
    mutant: Mutant,
    history: Arc<Mutex<CallHistory>>,
}

impl NotificationSink for MutantSink {
    fn deliver(&self, mut notification: Notification) {
        if self.mutant == Mutant::WantedIsIgnored && matches!(notification, Notification::Wanted { .. }) {
            return;
        }
        if self.mutant == Mutant::GrantCountsFromLastPoll {
            let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            if let Notification::Grant { nonce, .. } = &mut notification {
                *nonce = history.last_nonce.get(&nonce.index()).copied().unwrap_or(*nonce);
            }
        }
        self.inner.deliver(notification);
    }

    fn resubscribed(&self) {
        if self.mutant != Mutant::NoPollAfterSubscribing {
            self.inner.resubscribed();
        }
    }
}

/// What a client allows for the drift of clocks in such a time.
fn allowance_ms(ms: u64) -> u64 {
    u64::try_from(drift(Duration::from_millis(ms)).as_millis()).unwrap_or(0)
}
