//! Several locks at once: all of them or none, and nobody waits in here while he has any.
//!
//! 1. All are asked for in one step of the store, where it can; what could not be had with the rest is not had at all.
//! 2. Where something is in the way, it is said which: whoever wants them waits for that one as for any lock, and asks for
//!    the rest with that one in hand. How often he does so, and what he does then, is his.

use super::KeepId;
use super::acquire::{InLine, Won};
use super::patience::Patience;
use super::pursuit::{Missed, Pursuit};
use super::seat::{Asker, Seat, Turn};
use super::{Engine, Hold, Session};
use crate::store::{Executed, Fault, Outcome};
use leasehold_core::{Acquire, Acquired, Lock, Moment, Nonce, Op, Reply, Share};
use std::pin::pin;
use std::sync::Arc;

/// What keeps somebody from having all.
#[derive(Debug)]
pub(crate) struct InTheWay {
    /// Which of the locks it is.
    pub(crate) at: usize,
    /// As it would be for that lock alone. [`Missed::Taken`] is the usual one.
    pub(crate) missed: Missed,
}

/// Takes the locks of all these seats, or none. No two are of one lock. The keeper has to be told of all that are won before
/// anything is awaited.
pub(crate) async fn acquire_all<'a>(
    engine: &'a Engine,
    seats: &[&'a Arc<Seat>],
    pursuit: &'a Pursuit,
) -> Result<Vec<Won<'a>>, InTheWay> {
    let lines = InLine::join_all(engine, seats, &pursuit.terms);
    Grasp { engine, lines, patience: Patience::new(engine, pursuit) }.run().await
}

/// A task in the lines of several locks.
struct Grasp<'a> {
    engine: &'a Engine,
    lines: Vec<InLine<'a>>,
    patience: Patience<'a>,
}

/// The question for one of the locks.
struct Asked {
    asker: Asker,
    nonce: Nonce,
    ask: Acquire,
}

/// What is to be done next.
enum Next {
    /// Ask for all of these.
    Ask(Vec<Asked>),
    /// Wait until then.
    Sleep(Moment),
}

impl<'a> Grasp<'a> {
    async fn run(mut self) -> Result<Vec<Won<'a>>, InTheWay> {
        loop {
            let (sessions, now) = self.sessions().await?;
            match self.gather(&sessions, now)? {
                Next::Sleep(until) => self.sleep(until, now).await?,
                Next::Ask(asks) => {
                    if self.ask(&asks, now).await? {
                        return self.collect(&sessions);
                    }
                }
            }
        }
    }

    /// In whose name to ask for each of the locks.
    async fn sessions(&mut self) -> Result<(Vec<Arc<Session>>, Moment), InTheWay> {
        let mut sessions = Vec::with_capacity(self.lines.len());
        for (at, line) in self.lines.iter().enumerate() {
            let session = self.patience.session(line.seat.place).await;
            sessions.push(session.map_err(|missed| InTheWay { at, missed })?.0);
        }
        Ok((sessions, self.engine.world.now()))
    }

    /// The questions for all locks; fails where one is this process's, or somebody of it stands before.
    fn gather(&mut self, sessions: &[Arc<Session>], now: Moment) -> Result<Next, InTheWay> {
        let mut asks = Vec::with_capacity(self.lines.len());
        for (at, session) in sessions.iter().enumerate() {
            // Once it is won here, it is our own hold that stands in the way.
            let standing = self.standing(at, now);
            let missed = match self.turn(at, session, now) {
                Turn::Ask(way, nonce, ask) => {
                    asks.push(Asked { asker: Asker { id: self.lines[at].id, way }, nonce, ask });
                    continue;
                }
                Turn::Sleep(until) => {
                    self.withdraw(&asks);
                    return Ok(Next::Sleep(until));
                }
                Turn::Won(hold, _, claims) => {
                    // It was granted to somebody who has gone since. It goes on to the next.
                    self.lines[at].won = true;
                    self.lines[at].undo(claims);
                    self.hand_back(at, &hold);
                    Missed::Taken(Box::new(standing))
                }
                Turn::HandedOn(hold, keep, _) => {
                    self.lines[at].won = true;
                    self.part_with(at, &hold, keep);
                    Missed::Taken(Box::new(standing))
                }
                Turn::GiveBack(hold, keep) => {
                    self.part_with(at, &hold, keep);
                    Missed::Taken(Box::new(standing))
                }
                Turn::Call(keep, call) => {
                    if let Some(call) = call {
                        self.engine.keeper.call_for(keep, call);
                    }
                    Missed::Taken(Box::new(standing))
                }
                Turn::Stand(_) | Turn::Misfit(_) => Missed::Taken(Box::new(standing)),
                Turn::TooSlow => Missed::TooSlow,
                Turn::Closed => Missed::Closed,
            };
            self.withdraw(&asks);
            return Err(InTheWay { at, missed });
        }
        Ok(Next::Ask(asks))
    }

    fn turn(&self, at: usize, session: &Arc<Session>, now: Moment) -> Turn {
        let line = &self.lines[at];
        let world = &self.engine.world;
        loop {
            let _inside = self.engine.gate.inside();
            match line.seat.turn(line.id, session, now, &mut || world.random()) {
                Turn::Misfit(claims) => line.undo(claims),
                turn => return turn,
            }
        }
    }

    /// What was to be asked is not asked.
    fn withdraw(&self, asks: &[Asked]) {
        for (line, asked) in self.lines.iter().zip(asks) {
            line.seat.unask(asked.asker, asked.nonce);
        }
    }

    fn answer(&self, line: &InLine<'_>, asked: &Asked, answer: Result<&Acquired, Executed>, now: Moment) {
        let random = &mut || self.engine.world.random();
        line.undo(line.seat.handle_answer(asked.asker, asked.nonce, answer, now, random));
    }

    /// Asks the store for all, and says whether they were had; fails where one was not, and where it is no use to ask
    /// again.
    async fn ask(&mut self, asks: &[Asked], now: Moment) -> Result<bool, InTheWay> {
        let Some(within) = self.patience.time_to_answer(now) else {
            self.withdraw(asks);
            return Err(self.time_is_up(now));
        };
        let named =
            self.lines.iter().zip(asks).map(|(line, asked)| (line.seat.lock.clone(), asked.ask.clone()));
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
        let now = self.engine.world.now();
        match outcome {
            None => Err(InTheWay { at: 0, missed: Missed::Closed }),
            Some(Outcome::Done(shares)) => {
                self.patience.answered();
                self.share(asks, &shares, now).map(|()| true)
            }
            Some(Outcome::Failed(executed, fault)) => self.fault(asks, fault, executed, now),
        }
    }

    /// Where the store cannot do it in one step: each is tried by itself, all in one go. What was had though another was
    /// not is given back.
    async fn one_by_one(&self, asks: &[(Lock, Acquire)], within: std::time::Duration) -> Outcome<Vec<Share>> {
        let ops: Vec<_> = asks.iter().map(|(lock, ask)| (lock.clone(), Op::Acquire(ask.clone()))).collect();
        let mut shares = Vec::with_capacity(ops.len());
        for outcome in self.engine.store.execute_all(&ops, within).await {
            shares.push(match outcome {
                Outcome::Done(Reply::Acquire(granted @ Acquired::Granted { .. })) => Share::Had(granted),
                Outcome::Done(Reply::Acquire(other)) => Share::InTheWay(Ok(other)),
                Outcome::Done(Reply::Refused(refused)) => Share::InTheWay(Err(refused)),
                Outcome::Done(odd) => return Outcome::Failed(Executed::Unknown, Fault::odd_reply(odd)),
                Outcome::Failed(_, fault) => return Outcome::Failed(Executed::Unknown, fault),
            });
        }
        Outcome::Done(shares)
    }

    /// Tells all seats what the store has said; fails where something is in the way.
    fn share(&self, asks: &[Asked], shares: &[Share], now: Moment) -> Result<(), InTheWay> {
        let mut in_the_way = None;
        for (at, (line, (asked, share))) in self.lines.iter().zip(asks.iter().zip(shares)).enumerate() {
            let answer = match share {
                Share::Had(acquired) | Share::InTheWay(Ok(acquired)) => Some(Ok(acquired)),
                Share::InTheWay(Err(_)) => Some(Err(Executed::No)),
                // From an earlier sending, whose answer was lost.
                Share::Held => Some(Err(Executed::Unknown)),
                Share::Open => None,
            };
            match answer {
                Some(answer) => self.answer(line, asked, answer, now),
                // It could have been had, and nothing was done.
                None => line.seat.unask(asked.asker, asked.nonce),
            }
            let missed = match share {
                Share::InTheWay(Err(refused)) => {
                    let fault = Fault::odd_reply(Reply::Refused(refused.clone()));
                    Some(Missed::Fault { fault, executed: Executed::No })
                }
                Share::InTheWay(Ok(_)) => Some(Missed::Taken(Box::new(self.standing(at, now)))),
                Share::Had(_) | Share::Open | Share::Held => None,
            };
            in_the_way = in_the_way.or(missed.map(|missed| InTheWay { at, missed }));
        }
        in_the_way.map_or(Ok(()), Err)
    }

    /// Takes what was had. Where one is too old by the time that its news have come, none is kept.
    fn collect(mut self, sessions: &[Arc<Session>]) -> Result<Vec<Won<'a>>, InTheWay> {
        let mut all = Vec::with_capacity(self.lines.len());
        for (at, session) in sessions.iter().enumerate() {
            // Whoever has won has said so to the keeper, or has given the lock back, before a shutdown goes on.
            let inside = self.engine.gate.inside();
            let now = self.engine.world.now();
            match self.turn(at, session, now) {
                Turn::Won(hold, grant, claims) => {
                    self.lines[at].won = true;
                    self.lines[at].undo(claims);
                    all.push(Won { hold, grant, kept: None, inside });
                }
                turn => {
                    let missed = match turn {
                        Turn::Closed => Missed::Closed,
                        Turn::TooSlow => Missed::TooSlow,
                        _ => Missed::Taken(Box::new(self.standing(at, now))),
                    };
                    for (at, won) in all.iter().enumerate() {
                        self.hand_back(at, &won.hold);
                    }
                    return Err(InTheWay { at, missed });
                }
            }
        }
        Ok(all)
    }

    /// Gives back what was kept here: a set is taken as a whole, or not at all.
    fn part_with(&self, at: usize, hold: &Arc<Hold>, keep: KeepId) {
        self.lines[at].seat.vacate(hold);
        self.engine.keeper.part_with(keep);
    }

    /// Gives back what was had, and is of no use alone. Once a shutdown has begun it is among what that gives back.
    fn hand_back(&self, at: usize, hold: &Arc<Hold>) {
        let _inside = self.engine.gate.inside();
        if !self.engine.gate.is_closed() {
            self.engine.keeper.give_back(hold);
            self.lines[at].seat.vacate(hold);
        }
    }

    fn fault(
        &mut self,
        asks: &[Asked],
        fault: Fault,
        executed: Executed,
        now: Moment,
    ) -> Result<bool, InTheWay> {
        tracing::debug!(%fault, locks = asks.len(), "no answer about any of them");
        for (line, asked) in self.lines.iter().zip(asks) {
            self.answer(line, asked, Err(executed), now);
        }
        let silence = self.lines.iter().zip(asks).map(|(line, asked)| line.seat.silence(asked.asker, now));
        let silence = silence.max().unwrap_or_default();
        let fault = self.patience.fault(fault, executed, silence);
        fault.map(|()| false).map_err(|missed| InTheWay { at: 0, missed })
    }

    async fn sleep(&mut self, until: Moment, now: Moment) -> Result<(), InTheWay> {
        if self.patience.is_over(now) {
            return Err(self.time_is_up(now));
        }
        self.patience.sleep(Some(until)).await;
        Ok(())
    }

    fn time_is_up(&mut self, now: Moment) -> InTheWay {
        let (line, label) = (&self.lines[0], &self.engine.label);
        let missed = self.patience.time_is_up(|| line.seat.standing(line.id, label, now));
        InTheWay { at: 0, missed }
    }

    fn standing(&self, at: usize, now: Moment) -> leasehold_core::contend::Standing {
        self.lines[at].seat.standing(self.lines[at].id, &self.engine.label, now)
    }
}
