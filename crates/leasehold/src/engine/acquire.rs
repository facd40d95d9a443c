//! Waiting for a lock: the one loop that does.

use super::gate::Step;
use super::keep_id::KeepId;
use super::patience::Patience;
use super::pursuit::{Missed, Pursuit};
use super::release::give_back;
use super::reservation::Call;
use super::seat::{Asker, Left, Seat, Turn, Way};
use super::{Engine, Hold, odd_reply};
use crate::store::{Fault, Listening, Outcome};
use leasehold_core::Executed;
use leasehold_core::contend::{Grant, Standing, Terms};
use leasehold_core::{Acquire, Acquired, Claim, Life, Moment, Nonce, Op, Reply};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A hold that was had just now. The keeper has to be told of it before this is dropped, and before anything is awaited.
pub(crate) struct Won<'a> {
    pub(crate) hold: Arc<Hold>,
    pub(crate) grant: Grant,
    /// Set if it was handed on: the keeper has it already.
    pub(crate) kept: Option<KeepId>,
    /// Keeps a shutdown waiting.
    pub(super) inside: Step<'a>,
}

impl<'a> Won<'a> {
    fn handed_on(hold: Arc<Hold>, keep: KeepId, inside: Step<'a>) -> Self {
        let (claim, fence, valid_until) = (hold.claim.clone(), hold.fence, hold.valid_until());
        let grant = Grant { claim, fence, valid_until, others_wait: false, entered: None };
        Self { hold, grant, kept: Some(keep), inside }
    }

    /// Nobody keeps it, since a shutdown has begun: it is given back. The seat may have gone before it was closed.
    pub(crate) fn give_back(self, engine: &Engine) {
        engine.keeper.give_back(&self.hold);
    }
}

/// Takes what the process has kept of a lock, if that is for whoever comes: nothing is asked, and nobody is waited for.
pub(crate) fn take_kept<'a>(
    engine: &'a Engine,
    seat: &Seat,
    life: Option<Life>,
    lease: Duration,
) -> Option<Won<'a>> {
    if !seat.lock.kind.is_handed_on() {
        return None;
    }
    let session = engine.sessions.present(seat.place);
    let inside = engine.gate.inside();
    let now = engine.world.now();
    let life = life.unwrap_or(session.life);
    let (hold, keep, call) = seat.take_kept(&session, life, lease, now)?;
    if let Some(call) = call {
        engine.keeper.call_for(keep, call);
    }
    Some(Won::handed_on(hold, keep, inside))
}

/// Acquires the lock of a seat.
pub(crate) async fn acquire<'a>(
    engine: &'a Engine,
    seat: &'a Arc<Seat>,
    pursuit: &'a Pursuit,
) -> Result<Won<'a>, Missed> {
    let line = InLine::join(engine, seat, pursuit.terms.clone());
    let (patience, hearing) = (Patience::new(engine, pursuit), Hearing::NotYet);
    Chase { engine, seat, pursuit, line, patience, tries: 0, hearing }.run().await
}

/// A task in line, which leaves it however it ends.
pub(super) struct InLine<'a> {
    engine: &'a Engine,
    pub(super) seat: &'a Arc<Seat>,
    pub(super) id: u64,
    /// Set once the lock was had: there is nothing to leave.
    pub(super) won: bool,
}

impl<'a> InLine<'a> {
    pub(super) fn join(engine: &'a Engine, seat: &'a Arc<Seat>, terms: Arc<Terms>) -> Self {
        Self { engine, seat, id: seat.join(terms), won: false }
    }

    /// The same in the lines of several locks. Of two tasks that do so the one stands before the other in all of
    /// them, so that one of them at least is kept from none by the other.
    pub(super) fn join_all(engine: &'a Engine, seats: &[&'a Arc<Seat>], terms: &Arc<Terms>) -> Vec<Self> {
        let ids = engine.seats.join_all(seats, terms);
        seats.iter().zip(ids).map(|(seat, id)| Self { engine, seat, id, won: false }).collect()
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let _inside = self.engine.gate.inside();
        if !self.won {
            let Left { claims, kept } = self.seat.leave(self.id);
            self.undo(claims);
            if let Some(kept) = kept {
                self.engine.keeper.part_with(kept);
            }
        }
    }
}

impl InLine<'_> {
    pub(super) fn undo(&self, claims: Vec<Claim>) {
        for claim in claims {
            self.engine.keeper.undo(&self.engine.store, &self.seat.lock, claim);
        }
    }
}

struct Chase<'a> {
    engine: &'a Engine,
    seat: &'a Arc<Seat>,
    pursuit: &'a Pursuit,
    line: InLine<'a>,
    patience: Patience<'a>,
    tries: u32,
    hearing: Hearing,
}

/// Whether a task hears it when a client of another library releases the lock.
enum Hearing {
    /// It has had no reason to.
    NotYet,
    /// It does.
    Since(Listening),
    /// It cannot: it looks often.
    Never,
}

impl<'a> Chase<'a> {
    async fn run(mut self) -> Result<Won<'a>, Missed> {
        loop {
            let world = &self.engine.world;
            let (session, now) = self.patience.session(self.seat.place).await?;
            // Whoever has won has said so to the keeper, or has given the lock back, before a shutdown goes on.
            let inside = self.engine.gate.inside();
            let turn = self.seat.turn(self.line.id, &session, now, &mut || world.random());
            if let Turn::Won(hold, grant, claims) = turn {
                self.line.won = true;
                self.line.undo(claims);
                return Ok(Won { hold, grant, kept: None, inside });
            }
            if let Turn::HandedOn(hold, keep, call) = turn {
                self.line.won = true;
                self.call(keep, call);
                return Ok(Won::handed_on(hold, keep, inside));
            }
            drop(inside);
            match turn {
                Turn::Won(..) | Turn::HandedOn(..) => {}
                Turn::Call(keep, call) => {
                    self.call(keep, call);
                    // Until the answer, also where a single try is made: it tells whether the lock is taken.
                    self.sleep(None, now).await?;
                }
                Turn::GiveBack(hold, keep) => give_back(self.engine, self.seat, &hold, keep).await,
                Turn::TooSlow => return Err(Missed::TooSlow),
                Turn::Closed => return Err(Missed::Closed),
                Turn::Misfit(claims) => self.line.undo(claims),
                Turn::Stand(until) => {
                    if self.pursuit.once {
                        return Err(Missed::Taken(Box::new(self.standing(now))));
                    }
                    // Who polls, polls also where it is this process that has the lock.
                    if self.paused(now).await? {
                        self.seat.ask_again(self.line.id, world.now());
                    } else {
                        self.sleep(until, now).await?;
                    }
                }
                Turn::Sleep(until) => self.sleep(Some(until), now).await?,
                Turn::Ask(way, nonce, ask) => self.ask(way, nonce, ask, now).await?,
            }
        }
    }

    fn call(&self, keep: KeepId, call: Option<Call>) {
        if let Some(call) = call {
            self.engine.keeper.call_for(keep, call);
        }
    }

    /// Asks the store, and gives up where the answer, or the lack of one, says so. A grant that comes
    /// by message in the meantime ends it early.
    async fn ask(&mut self, way: Way, nonce: Nonce, ask: Acquire, now: Moment) -> Result<(), Missed> {
        let Some(within) = self.patience.time_to_answer(now) else { return Err(self.time_is_up(now)) };
        let op = Op::Acquire(ask);
        let outcome = {
            let asked = pin!(async { self.engine.store.execute(&self.seat.lock, &op, within).await });
            let mut reply = pin!(self.engine.gate.pass(asked));
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut reply => match outcome {
                        Some(outcome) => break outcome,
                        None => return Err(Missed::Closed),
                    },
                    () = self.seat.signaled(self.line.id) => {
                        if way == Way::Queue && self.seat.is_won(self.engine.world.now()) {
                            return Ok(());
                        }
                    }
                }
            }
        };
        let world = &self.engine.world;
        let now = world.now();
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

    /// The lock is taken: a single try ends here, and one who polls pauses.
    async fn taken(&mut self, way: Way, now: Moment) -> Result<(), Missed> {
        if self.pursuit.once {
            return Err(Missed::Taken(Box::new(self.standing(now))));
        }
        if way == Way::Queue && self.pursuit.retry.is_none() {
            self.hear(now).await?;
        }
        if self.paused(now).await? {
            self.seat.ask_again(self.line.id, self.engine.world.now());
        }
        Ok(())
    }

    /// Hears from now on when the lock is released, where whoever has it will grant it to nobody: a stranger, or anybody where
    /// there is no queue. Looks then, since it may have been released before.
    async fn hear(&mut self, now: Moment) -> Result<(), Missed> {
        if self.engine.store.capabilities().queue && !self.seat.waits_for_stranger(self.line.id) {
            // Whoever has it next is looked after anew.
            self.hearing = Hearing::NotYet;
            self.seat.hear(self.line.id, false);
            return Ok(());
        }
        let within = self.patience.time_to_answer(now);
        let Some(within) = within.filter(|_| matches!(self.hearing, Hearing::NotYet)) else {
            return Ok(());
        };
        let (engine, seat) = (self.engine, self.seat);
        let listening = pin!(async { engine.store.listen(&seat.lock, within).await });
        self.hearing = match engine.gate.pass(listening).await {
            None => return Err(Missed::Closed),
            Some(Ok(Some(listening))) => Hearing::Since(listening),
            Some(Ok(None)) => Hearing::Never,
            Some(Err(fault)) => {
                tracing::debug!(lock = %seat.lock, %fault, "not heard when others release it: looking often");
                Hearing::Never
            }
        };
        if matches!(self.hearing, Hearing::Since(_)) {
            seat.hear(self.line.id, true);
            seat.ask_again(self.line.id, engine.world.now());
        }
        Ok(())
    }

    /// The pause after a try, for one who polls; fails after the last one.
    async fn paused(&mut self, now: Moment) -> Result<bool, Missed> {
        let Some(retry) = &self.pursuit.retry else { return Ok(false) };
        self.tries += 1;
        match retry.pause_after(self.tries, self.engine.world.random()) {
            None => Err(Missed::Taken(Box::new(self.standing(now)))),
            Some(pause) => {
                self.seat.step_aside(self.line.id);
                self.sleep(Some(now + pause), now).await?;
                Ok(true)
            }
        }
    }

    fn answered(&self, way: Way, nonce: Nonce, answer: Result<&Acquired, Executed>, now: Moment) {
        let (asker, world) = (self.asker(way), &self.engine.world);
        self.line.undo(self.seat.handle_answer(asker, nonce, answer, now, &mut || world.random()));
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
    ) -> Result<(), Missed> {
        tracing::debug!(lock = %self.seat.lock, %fault, "no answer");
        self.answered(way, nonce, Err(executed), now);
        self.patience.fault(fault, executed, self.seat.silence(self.asker(way), now))
    }

    /// Sleeps until a signal, `until`, or the limit, where it fails.
    async fn sleep(&mut self, until: Option<Moment>, now: Moment) -> Result<(), Missed> {
        if self.patience.is_over(now) {
            return Err(self.time_is_up(now));
        }
        let (world, hearing) = (&self.engine.world, &mut self.hearing);
        let heard = async {
            match hearing {
                Hearing::Since(listening) => listening.heard().await,
                Hearing::NotYet | Hearing::Never => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.seat.signaled(self.line.id) => {}
            () = heard => self.seat.ask_again(self.line.id, world.now()),
            () = self.patience.sleep(until) => {}
        }
        Ok(())
    }

    /// The time is up: says whether it was for the lock, or for the store.
    fn time_is_up(&mut self, now: Moment) -> Missed {
        let (seat, line, label) = (self.seat, &self.line, &self.engine.label);
        self.patience.time_is_up(|| seat.standing(line.id, label, now))
    }

    fn standing(&self, now: Moment) -> Standing {
        self.seat.standing(self.line.id, &self.engine.label, now)
    }
}
