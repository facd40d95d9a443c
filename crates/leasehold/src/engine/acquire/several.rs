//! Acquiring several locks at once: all of them or none. The caller never waits in here while it holds one of them.
//!
//! 1. All locks are requested in one step of the store, if it supports that. If one is not available, none is
//!    acquired.
//! 2. The result names the lock that was not available: the caller waits for that one as for any lock, then requests
//!    the rest while holding it. How often it does so, and what it does then, is up to the caller.

use super::deadline::AcquireDeadline;
use super::params::{AcquireFailure, AcquireParams};
use super::{AcquiredHold, QueuedWaiter};
use crate::engine::KeepId;
use crate::engine::local::lock_entry::{Asker, LockEntry, WaiterAction};
use crate::engine::{Engine, Hold, Session};
use crate::store::{Executed, Fault, Outcome};
use leasehold_core::{Acquire, Acquired, Lock, Moment, MultiAcquired, Nonce, Op, Reply};
use std::pin::pin;
use std::sync::Arc;

/// The lock that prevented acquiring all.
#[derive(Debug)]
pub(crate) struct MultiBlocked {
    /// Its index.
    pub(crate) at: usize,
    /// The result for that lock alone, usually [`AcquireFailure::Taken`].
    pub(crate) missed: AcquireFailure,
}

/// Acquires the locks of all these entries, or none. No two may be for the same lock. The caller must hand all holds
/// to the keeper before the next await.
pub(crate) async fn acquire_all<'a>(
    engine: &'a Engine,
    entries: &[&'a Arc<LockEntry>],
    pursuit: &'a AcquireParams,
) -> Result<Vec<AcquiredHold<'a>>, MultiBlocked> {
    let lines = QueuedWaiter::join_all(engine, entries, &pursuit.terms);
    MultiWaiter { engine, lines, patience: AcquireDeadline::new(engine, pursuit) }.run().await
}

/// A task in the queues of several locks.
struct MultiWaiter<'a> {
    engine: &'a Engine,
    lines: Vec<QueuedWaiter<'a>>,
    patience: AcquireDeadline<'a>,
}

/// The request for one of the locks.
struct Asked {
    asker: Asker,
    nonce: Nonce,
    ask: Acquire,
}

/// The next step.
enum HandoffDecision {
    /// Request all of these.
    Ask(Vec<Asked>),
    /// Wait until then.
    Sleep(Moment),
}

impl<'a> MultiWaiter<'a> {
    async fn run(mut self) -> Result<Vec<AcquiredHold<'a>>, MultiBlocked> {
        loop {
            let (sessions, now) = self.sessions().await?;
            match self.gather(&sessions, now)? {
                HandoffDecision::Sleep(until) => self.sleep(until, now).await?,
                HandoffDecision::Ask(asks) => {
                    if self.ask(&asks, now).await? {
                        return self.collect(&sessions);
                    }
                }
            }
        }
    }

    /// The session for each lock.
    async fn sessions(&mut self) -> Result<(Vec<Arc<Session>>, Moment), MultiBlocked> {
        let mut sessions = Vec::with_capacity(self.lines.len());
        for (at, line) in self.lines.iter().enumerate() {
            let session = self.patience.session(line.entry.place).await;
            sessions.push(session.map_err(|missed| MultiBlocked { at, missed })?.0);
        }
        Ok((sessions, self.engine.environment.now()))
    }

    /// The requests for all locks. Fails if this process holds one, or has another task ahead in its queue.
    fn gather(&mut self, sessions: &[Arc<Session>], now: Moment) -> Result<HandoffDecision, MultiBlocked> {
        let mut asks = Vec::with_capacity(self.lines.len());
        for (at, session) in sessions.iter().enumerate() {
            // Read first: once the lock is acquired here, the present holder is this process.
            let standing = self.standing(at, now);
            let missed = match self.turn(at, session, now) {
                WaiterAction::Ask(way, nonce, ask) => {
                    asks.push(Asked { asker: Asker { id: self.lines[at].id, way }, nonce, ask });
                    continue;
                }
                WaiterAction::Sleep(until) => {
                    self.withdraw(&asks);
                    return Ok(HandoffDecision::Sleep(until));
                }
                WaiterAction::AcquiredHold(hold, _, claims) => {
                    // It was granted for a task that has left since. It goes on to the next waiter.
                    self.lines[at].won = true;
                    self.lines[at].undo(claims);
                    self.hand_back(at, &hold);
                    AcquireFailure::Taken(Box::new(standing))
                }
                WaiterAction::HandedOn(hold, keep, _) => {
                    self.lines[at].won = true;
                    self.part_with(at, &hold, keep);
                    AcquireFailure::Taken(Box::new(standing))
                }
                WaiterAction::GiveBack(hold, keep) => {
                    self.part_with(at, &hold, keep);
                    AcquireFailure::Taken(Box::new(standing))
                }
                WaiterAction::Call(keep, call) => {
                    if let Some(call) = call {
                        self.engine.keeper.call_for(keep, call);
                    }
                    AcquireFailure::Taken(Box::new(standing))
                }
                WaiterAction::Stand(_) | WaiterAction::Misfit(_) => AcquireFailure::Taken(Box::new(standing)),
                WaiterAction::TooSlow => AcquireFailure::TooSlow,
                WaiterAction::Closed => AcquireFailure::Closed,
            };
            self.withdraw(&asks);
            return Err(MultiBlocked { at, missed });
        }
        Ok(HandoffDecision::Ask(asks))
    }

    fn turn(&self, at: usize, session: &Arc<Session>, now: Moment) -> WaiterAction {
        let line = &self.lines[at];
        let environment = &self.engine.environment;
        loop {
            let _inside = self.engine.gate.inside();
            match line.entry.turn(line.id, session, now, &mut || environment.random()) {
                WaiterAction::Misfit(claims) => line.undo(claims),
                turn => return turn,
            }
        }
    }

    /// Withdraws requests that were not sent.
    fn withdraw(&self, asks: &[Asked]) {
        for (line, asked) in self.lines.iter().zip(asks) {
            line.entry.unask(asked.asker, asked.nonce);
        }
    }

    fn answer(
        &self,
        line: &QueuedWaiter<'_>,
        asked: &Asked,
        answer: Result<&Acquired, Executed>,
        now: Moment,
    ) {
        let random = &mut || self.engine.environment.random();
        line.undo(line.entry.handle_answer(asked.asker, asked.nonce, answer, now, random));
    }

    /// Sends the requests. Returns whether all locks were acquired; fails if one was not, and if a retry is useless.
    async fn ask(&mut self, asks: &[Asked], now: Moment) -> Result<bool, MultiBlocked> {
        let Some(within) = self.patience.time_to_answer(now) else {
            self.withdraw(asks);
            return Err(self.time_is_up(now));
        };
        let named =
            self.lines.iter().zip(asks).map(|(line, asked)| (line.entry.lock.clone(), asked.ask.clone()));
        let named: Vec<_> = named.collect();
        let outcome = {
            let asked = pin!(async {
                match self.engine.store.acquire_all(&named, within).await {
                    Some(outcome) => outcome,
                    None => self.one_by_one(&named, within).await,
                }
            });
            self.engine.gate.pass(asked).await
        };
        let now = self.engine.environment.now();
        match outcome {
            None => Err(MultiBlocked { at: 0, missed: AcquireFailure::Closed }),
            Some(Outcome::Done(shares)) => {
                self.patience.answered();
                self.share(asks, &shares, now).map(|()| true)
            }
            Some(Outcome::Failed(executed, fault)) => self.fault(asks, fault, executed, now),
        }
    }

    /// Fallback for a store without a single step: one batch of separate requests. If one fails, the others are
    /// released.
    async fn one_by_one(
        &self,
        asks: &[(Lock, Acquire)],
        within: std::time::Duration,
    ) -> Outcome<Vec<MultiAcquired>> {
        let ops: Vec<_> = asks.iter().map(|(lock, ask)| (lock.clone(), Op::Acquire(ask.clone()))).collect();
        let mut shares = Vec::with_capacity(ops.len());
        for outcome in self.engine.store.execute_all(&ops, within).await {
            shares.push(match outcome {
                Outcome::Done(Reply::Acquire(granted @ Acquired::Granted { .. })) => {
                    MultiAcquired::Acquired(granted)
                }
                Outcome::Done(Reply::Acquire(other)) => MultiAcquired::Blocked(Ok(other)),
                Outcome::Done(Reply::Refused(refused)) => MultiAcquired::Blocked(Err(refused)),
                Outcome::Done(odd) => {
                    return Outcome::Failed(Executed::Unknown, Fault::unexpected_reply(odd));
                }
                Outcome::Failed(_, fault) => return Outcome::Failed(Executed::Unknown, fault),
            });
        }
        Outcome::Done(shares)
    }

    /// Passes the store's replies to all entries. Fails if a lock was not available.
    fn share(&self, asks: &[Asked], shares: &[MultiAcquired], now: Moment) -> Result<(), MultiBlocked> {
        let mut in_the_way = None;
        for (at, (line, (asked, share))) in self.lines.iter().zip(asks.iter().zip(shares)).enumerate() {
            let answer = match share {
                MultiAcquired::Acquired(acquired) | MultiAcquired::Blocked(Ok(acquired)) => {
                    Some(Ok(acquired))
                }
                MultiAcquired::Blocked(Err(_)) => Some(Err(Executed::No)),
                // An earlier attempt, whose reply was lost, acquired it.
                MultiAcquired::Held => Some(Err(Executed::Unknown)),
                MultiAcquired::Available => None,
            };
            match answer {
                Some(answer) => self.answer(line, asked, answer, now),
                // It was available, and the store did nothing.
                None => line.entry.unask(asked.asker, asked.nonce),
            }
            let missed = match share {
                MultiAcquired::Blocked(Err(refused)) => {
                    let fault = Fault::unexpected_reply(Reply::Refused(refused.clone()));
                    Some(AcquireFailure::Fault { fault, executed: Executed::No })
                }
                MultiAcquired::Blocked(Ok(_)) => {
                    Some(AcquireFailure::Taken(Box::new(self.standing(at, now))))
                }
                MultiAcquired::Acquired(_) | MultiAcquired::Available | MultiAcquired::Held => None,
            };
            in_the_way = in_the_way.or(missed.map(|missed| MultiBlocked { at, missed }));
        }
        in_the_way.map_or(Ok(()), Err)
    }

    /// Takes the acquired holds. If one of them is too old by the time its reply arrives, none is kept.
    fn collect(mut self, sessions: &[Arc<Session>]) -> Result<Vec<AcquiredHold<'a>>, MultiBlocked> {
        let mut all = Vec::with_capacity(self.lines.len());
        for (at, session) in sessions.iter().enumerate() {
            // A shutdown waits until the winner has registered its hold with the keeper or released it.
            let inside = self.engine.gate.inside();
            let now = self.engine.environment.now();
            match self.turn(at, session, now) {
                WaiterAction::AcquiredHold(hold, grant, claims) => {
                    self.lines[at].won = true;
                    self.lines[at].undo(claims);
                    all.push(AcquiredHold { hold, grant, kept: None, inside });
                }
                turn => {
                    let missed = match turn {
                        WaiterAction::Closed => AcquireFailure::Closed,
                        WaiterAction::TooSlow => AcquireFailure::TooSlow,
                        _ => AcquireFailure::Taken(Box::new(self.standing(at, now))),
                    };
                    for (at, won) in all.iter().enumerate() {
                        self.hand_back(at, &won.hold);
                    }
                    return Err(MultiBlocked { at, missed });
                }
            }
        }
        Ok(all)
    }

    /// Releases a hold that was kept here: a set is acquired as a whole, or not at all.
    fn part_with(&self, at: usize, hold: &Arc<Hold>, keep: KeepId) {
        self.lines[at].entry.vacate(hold);
        self.engine.keeper.part_with(keep);
    }

    /// Releases a hold that is of no use alone. Once a shutdown has begun, the shutdown releases it.
    fn hand_back(&self, at: usize, hold: &Arc<Hold>) {
        let _inside = self.engine.gate.inside();
        if !self.engine.gate.is_closed() {
            self.engine.keeper.give_back(hold);
            self.lines[at].entry.vacate(hold);
        }
    }

    fn fault(
        &mut self,
        asks: &[Asked],
        fault: Fault,
        executed: Executed,
        now: Moment,
    ) -> Result<bool, MultiBlocked> {
        tracing::debug!(%fault, locks = asks.len(), "no reply to a request for several locks");
        for (line, asked) in self.lines.iter().zip(asks) {
            self.answer(line, asked, Err(executed), now);
        }
        let silence = self.lines.iter().zip(asks).map(|(line, asked)| line.entry.silence(asked.asker, now));
        let silence = silence.max().unwrap_or_default();
        let fault = self.patience.fault(fault, executed, silence);
        fault.map(|()| false).map_err(|missed| MultiBlocked { at: 0, missed })
    }

    async fn sleep(&mut self, until: Moment, now: Moment) -> Result<(), MultiBlocked> {
        if self.patience.is_over(now) {
            return Err(self.time_is_up(now));
        }
        self.patience.sleep(Some(until)).await;
        Ok(())
    }

    fn time_is_up(&mut self, now: Moment) -> MultiBlocked {
        let (line, label) = (&self.lines[0], &self.engine.label);
        let missed = self.patience.time_is_up(|| line.entry.standing(line.id, label, now));
        MultiBlocked { at: 0, missed }
    }

    fn standing(&self, at: usize, now: Moment) -> leasehold_core::machine::contender::WaitStatus {
        self.lines[at].entry.standing(self.lines[at].id, &self.engine.label, now)
    }
}
