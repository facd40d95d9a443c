//! Waiting for a lock: the only acquire loop.

pub(super) mod confirm;
pub(super) mod deadline;
pub(super) mod params;
pub(super) mod several;

use super::acquire::deadline::AcquireDeadline;
use super::acquire::params::{AcquireFailure, AcquireParams};
use super::keeper::keep_id::KeepId;
use super::local::lock_entry::{Asker, Left, LockEntry, WaiterAction, Way};
use super::local::reservation::Call;
use super::release::give_back;
use super::shutdown_gate::Step;
use super::{Engine, Hold, odd_reply};
use crate::store::{Fault, Outcome, Subscription};
use leasehold_core::Executed;
use leasehold_core::machine::contender::{AcquireTerms, Grant, WaitStatus};
use leasehold_core::{Acquire, Acquired, Claim, Liveness, Moment, Nonce, Op, Reply};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A newly acquired hold. The caller must hand it to the keeper before dropping this and before the next await.
pub(crate) struct AcquiredHold<'a> {
    pub(crate) hold: Arc<Hold>,
    pub(crate) grant: Grant,
    /// Set if it was handed on within the process: the keeper already tracks it.
    pub(crate) kept: Option<KeepId>,
    /// Delays a shutdown while this exists.
    pub(super) inside: Step<'a>,
}

impl<'a> AcquiredHold<'a> {
    fn handed_on(hold: Arc<Hold>, keep: KeepId, inside: Step<'a>) -> Self {
        let (claim, fence, valid_until) = (hold.claim.clone(), hold.fence, hold.valid_until());
        let grant = Grant { claim, fence, valid_until, others_wait: false, owner_holds: None };
        Self { hold, grant, kept: Some(keep), inside }
    }

    /// Releases the hold if a shutdown has begun, so that no keeper tracks it. The lock entry may be gone already.
    pub(crate) fn give_back(self, engine: &Engine) {
        engine.keeper.give_back(&self.hold);
    }
}

/// Takes a hold that the process has kept for later acquisitions, if there is one. Sends nothing and never waits.
pub(crate) fn take_kept<'a>(
    engine: &'a Engine,
    entry: &LockEntry,
    life: Option<Liveness>,
    lease: Duration,
) -> Option<AcquiredHold<'a>> {
    if !entry.lock.kind.supports_handoff() {
        return None;
    }
    let session = engine.sessions.present(entry.place);
    let inside = engine.gate.inside();
    let now = engine.environment.now();
    let life = life.unwrap_or(session.life);
    let (hold, keep, call) = entry.take_kept(&session, life, lease, now)?;
    if let Some(call) = call {
        engine.keeper.call_for(keep, call);
    }
    Some(AcquiredHold::handed_on(hold, keep, inside))
}

/// Acquires the lock of an entry.
pub(crate) async fn acquire<'a>(
    engine: &'a Engine,
    entry: &'a Arc<LockEntry>,
    pursuit: &'a AcquireParams,
) -> Result<AcquiredHold<'a>, AcquireFailure> {
    let line = QueuedWaiter::join(engine, entry, pursuit.terms.clone());
    let (patience, hearing) = (AcquireDeadline::new(engine, pursuit), ReleaseSubscription::NotYet);
    AcquireLoop { engine, entry, pursuit, line, patience, tries: 0, hearing }.run().await
}

/// A task in the local wait queue. Leaves it on drop.
pub(super) struct QueuedWaiter<'a> {
    engine: &'a Engine,
    pub(super) entry: &'a Arc<LockEntry>,
    pub(super) id: u64,
    /// Set once the lock is acquired and the task has left the queue.
    pub(super) won: bool,
}

impl<'a> QueuedWaiter<'a> {
    pub(super) fn join(engine: &'a Engine, entry: &'a Arc<LockEntry>, terms: Arc<AcquireTerms>) -> Self {
        Self { engine, entry, id: entry.join(terms), won: false }
    }

    /// Joins the queues of several locks. Two tasks that do so have the same order in each, so at least one of the
    /// two never waits behind the other.
    pub(super) fn join_all(
        engine: &'a Engine,
        entries: &[&'a Arc<LockEntry>],
        terms: &Arc<AcquireTerms>,
    ) -> Vec<Self> {
        let ids = engine.locks.join_all(entries, terms);
        entries.iter().zip(ids).map(|(entry, id)| Self { engine, entry, id, won: false }).collect()
    }
}

impl Drop for QueuedWaiter<'_> {
    fn drop(&mut self) {
        let _inside = self.engine.gate.inside();
        if !self.won {
            let Left { claims, kept } = self.entry.leave(self.id);
            self.undo(claims);
            if let Some(kept) = kept {
                self.engine.keeper.part_with(kept);
            }
        }
    }
}

impl QueuedWaiter<'_> {
    pub(super) fn undo(&self, claims: Vec<Claim>) {
        for claim in claims {
            self.engine.keeper.undo(&self.engine.store, &self.entry.lock, claim);
        }
    }
}

struct AcquireLoop<'a> {
    engine: &'a Engine,
    entry: &'a Arc<LockEntry>,
    pursuit: &'a AcquireParams,
    line: QueuedWaiter<'a>,
    patience: AcquireDeadline<'a>,
    tries: u32,
    hearing: ReleaseSubscription,
}

/// Whether a waiter receives releases by clients of other libraries.
enum ReleaseSubscription {
    /// Not subscribed.
    NotYet,
    /// Subscribed.
    Since(Subscription),
    /// Subscribing is not possible: the waiter polls often instead.
    Never,
}

impl<'a> AcquireLoop<'a> {
    async fn run(mut self) -> Result<AcquiredHold<'a>, AcquireFailure> {
        loop {
            let environment = &self.engine.environment;
            let (session, now) = self.patience.session(self.entry.place).await?;
            // Until the winner has registered the hold with the keeper, or released it, a shutdown waits.
            let inside = self.engine.gate.inside();
            let turn = self.entry.turn(self.line.id, &session, now, &mut || environment.random());
            if let WaiterAction::AcquiredHold(hold, grant, claims) = turn {
                self.line.won = true;
                self.line.undo(claims);
                return Ok(AcquiredHold { hold, grant, kept: None, inside });
            }
            if let WaiterAction::HandedOn(hold, keep, call) = turn {
                self.line.won = true;
                self.call(keep, call);
                return Ok(AcquiredHold::handed_on(hold, keep, inside));
            }
            drop(inside);
            match turn {
                WaiterAction::AcquiredHold(..) | WaiterAction::HandedOn(..) => {}
                WaiterAction::Call(keep, call) => {
                    self.call(keep, call);
                    // A single attempt waits for this reply, too: it shows whether the lock is held.
                    self.sleep(None, now).await?;
                }
                WaiterAction::GiveBack(hold, keep) => give_back(self.engine, self.entry, &hold, keep).await,
                WaiterAction::TooSlow => return Err(AcquireFailure::TooSlow),
                WaiterAction::Closed => return Err(AcquireFailure::Closed),
                WaiterAction::Misfit(claims) => self.line.undo(claims),
                WaiterAction::Stand(until) => {
                    if self.pursuit.once {
                        return Err(AcquireFailure::Taken(Box::new(self.standing(now))));
                    }
                    // A polling task also polls while this process holds the lock.
                    if self.paused(now).await? {
                        self.entry.ask_again(self.line.id, environment.now());
                    } else {
                        self.sleep(until, now).await?;
                    }
                }
                WaiterAction::Sleep(until) => self.sleep(Some(until), now).await?,
                WaiterAction::Ask(way, nonce, ask) => self.ask(way, nonce, ask, now).await?,
            }
        }
    }

    fn call(&self, keep: KeepId, call: Option<Call>) {
        if let Some(call) = call {
            self.engine.keeper.call_for(keep, call);
        }
    }

    /// Sends the acquire request and handles its reply or fault. A grant message that arrives earlier ends the wait.
    async fn ask(&mut self, way: Way, nonce: Nonce, ask: Acquire, now: Moment) -> Result<(), AcquireFailure> {
        let Some(within) = self.patience.time_to_answer(now) else { return Err(self.time_is_up(now)) };
        let op = Op::Acquire(ask);
        let outcome = {
            let asked = pin!(async { self.engine.store.execute(&self.entry.lock, &op, within).await });
            let mut reply = pin!(self.engine.gate.pass(asked));
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut reply => match outcome {
                        Some(outcome) => break outcome,
                        None => return Err(AcquireFailure::Closed),
                    },
                    () = self.entry.signaled(self.line.id) => {
                        if way == Way::Queue && self.entry.is_won(self.engine.environment.now()) {
                            return Ok(());
                        }
                    }
                }
            }
        };
        let environment = &self.engine.environment;
        let now = environment.now();
        match outcome {
            Outcome::Done(Reply::Acquire(reply)) => {
                self.patience.answered();
                self.answered(way, nonce, Ok(&reply), now);
                if matches!(reply, Acquired::Taken { .. }) { self.taken(way, now).await } else { Ok(()) }
            }
            Outcome::Done(reply) => {
                let (fault, executed) = odd_reply(reply);
                self.fault(way, nonce, fault, executed, now)
            }
            Outcome::Failed(executed, fault) => self.fault(way, nonce, fault, executed, now),
        }
    }

    /// Another client holds the lock: a single attempt fails, and a polling task pauses.
    async fn taken(&mut self, way: Way, now: Moment) -> Result<(), AcquireFailure> {
        if self.pursuit.once {
            return Err(AcquireFailure::Taken(Box::new(self.standing(now))));
        }
        if way == Way::Queue && self.pursuit.retry.is_none() {
            self.hear(now).await?;
        }
        if self.paused(now).await? {
            self.entry.ask_again(self.line.id, self.engine.environment.now());
        }
        Ok(())
    }

    /// Subscribes to release notifications where the holder will not grant to this waiter: a client of another
    /// library, or any holder in a store without a queue. Then re-checks, as the lock may have been released before.
    async fn hear(&mut self, now: Moment) -> Result<(), AcquireFailure> {
        if self.engine.store.capabilities().queue && !self.entry.waits_for_stranger(self.line.id) {
            // The next holder is checked anew.
            self.hearing = ReleaseSubscription::NotYet;
            self.entry.hear(self.line.id, false);
            return Ok(());
        }
        let within = self.patience.time_to_answer(now);
        let Some(within) = within.filter(|_| matches!(self.hearing, ReleaseSubscription::NotYet)) else {
            return Ok(());
        };
        let (engine, entry) = (self.engine, self.entry);
        let listening = pin!(async { engine.store.subscribe(&entry.lock, within).await });
        self.hearing = match engine.gate.pass(listening).await {
            None => return Err(AcquireFailure::Closed),
            Some(Ok(Some(listening))) => ReleaseSubscription::Since(listening),
            Some(Ok(None)) => ReleaseSubscription::Never,
            Some(Err(fault)) => {
                tracing::debug!(lock = %entry.lock, %fault, "cannot subscribe to releases; polling often");
                ReleaseSubscription::Never
            }
        };
        if matches!(self.hearing, ReleaseSubscription::Since(_)) {
            entry.hear(self.line.id, true);
            entry.ask_again(self.line.id, engine.environment.now());
        }
        Ok(())
    }

    /// The pause of a polling task after an attempt. Fails after the last attempt.
    async fn paused(&mut self, now: Moment) -> Result<bool, AcquireFailure> {
        let Some(retry) = &self.pursuit.retry else { return Ok(false) };
        self.tries += 1;
        match retry.backoff_after(self.tries, self.engine.environment.random()) {
            None => Err(AcquireFailure::Taken(Box::new(self.standing(now)))),
            Some(pause) => {
                self.entry.step_aside(self.line.id);
                self.sleep(Some(now + pause), now).await?;
                Ok(true)
            }
        }
    }

    fn answered(&self, way: Way, nonce: Nonce, answer: Result<&Acquired, Executed>, now: Moment) {
        let (asker, environment) = (self.asker(way), &self.engine.environment);
        self.line.undo(self.entry.handle_answer(asker, nonce, answer, now, &mut || environment.random()));
    }

    fn asker(&self, way: Way) -> Asker {
        Asker { id: self.line.id, way }
    }

    fn fault(
        &mut self,
        way: Way,
        nonce: Nonce,
        fault: Fault,
        executed: Executed,
        now: Moment,
    ) -> Result<(), AcquireFailure> {
        tracing::debug!(lock = %self.entry.lock, %fault, "no answer");
        self.answered(way, nonce, Err(executed), now);
        self.patience.fault(fault, executed, self.entry.silence(self.asker(way), now))
    }

    /// Sleeps until a signal or `until`. Fails at the deadline.
    async fn sleep(&mut self, until: Option<Moment>, now: Moment) -> Result<(), AcquireFailure> {
        if self.patience.is_over(now) {
            return Err(self.time_is_up(now));
        }
        let (environment, hearing) = (&self.engine.environment, &mut self.hearing);
        let heard = async {
            match hearing {
                ReleaseSubscription::Since(listening) => listening.notified().await,
                ReleaseSubscription::NotYet | ReleaseSubscription::Never => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.entry.signaled(self.line.id) => {}
            () = heard => self.entry.ask_again(self.line.id, environment.now()),
            () = self.patience.sleep(until) => {}
        }
        Ok(())
    }

    /// The deadline has passed: reports whether the lock was held or the store did not answer.
    fn time_is_up(&mut self, now: Moment) -> AcquireFailure {
        let (entry, line, label) = (self.entry, &self.line, &self.engine.label);
        self.patience.time_is_up(|| entry.standing(line.id, label, now))
    }

    fn standing(&self, now: Moment) -> WaitStatus {
        self.entry.standing(self.line.id, &self.engine.label, now)
    }
}
