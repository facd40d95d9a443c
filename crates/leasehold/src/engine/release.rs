//! Giving a lock back.
//!
//! 1. The keeper lets go of the hold first, and whatever it has in flight about it is awaited, so that
//!    nothing is sent about the hold after its release returned.
//! 2. If tasks of this process stand in line, the same operation asks for them, behind the others. If they give up
//!    what it asks for before it has come back, it is undone then: an undo that did not wait could be executed first.
//! 3. What the keeper gives back already, since it was lost by a cap, is left to it, and told as lost.
//! 4. So is everything once a shutdown has begun. One that comes while a release is on its way takes it over.
//! 5. A release that may have been executed before, without an answer, has perhaps released what it does not find any
//!    more: then nobody knows whether the hold was lost, unless the store says how it ended.
//! 6. A hold that the next in line may have without the store is not released there, but [handed on](super::seat::passing).

use super::keep_id::KeepId;
use super::keeper::Retired;
use super::loss::reason;
use super::seat::Asker;
use super::seat::passing::{Parting, Passed};
use super::{Answer, Engine, Hold, LostReason, Seat, Uncertain, odd_reply};
use crate::store::{Fault, FaultKind, Phase};
use leasehold_core::Executed;
use leasehold_core::{Acquire, Acquired, Ended, Fate, HoldId, Nonce, Op, Pass, Release, Released, Reply};
use std::pin::pin;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Why a hold was not released.
#[derive(Debug)]
pub(crate) enum NotReleased {
    /// It was not held any more.
    Lost(LostReason),
    /// The store did not answer, or refused: the hold ends with its lease.
    Fault { fault: Fault, executed: Executed },
}

/// Who hears what became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hearer {
    /// Whoever has asked for it.
    Caller,
    /// Nobody: where the store does not answer the keeper goes on.
    Nobody,
}

/// Releases a hold and passes it on. Says how often its owner has the lock yet.
pub(crate) async fn release(
    engine: &Engine,
    seat: &Arc<Seat>,
    hold: &Arc<Hold>,
    keep: KeepId,
    parting: Parting,
) -> Result<u64, NotReleased> {
    if engine.gate.is_closed() {
        engine.keeper.ended().await;
        return Err(NotReleased::Lost(hold.reason(engine.world.now())));
    }
    if pass_on(engine, seat, hold, keep, parting) {
        return Ok(0);
    }
    release_at_store(engine, seat, hold, keep, (parting.free_every, Hearer::Caller)).await
}

/// Keeps a hold in the process, for the next in line or for whoever comes (6). Nothing is awaited for it.
fn pass_on(engine: &Engine, seat: &Seat, hold: &Arc<Hold>, keep: KeepId, parting: Parting) -> bool {
    let _inside = engine.gate.inside();
    let Some(Passed { call, watch }) = seat.pass_on(hold, keep, parting, engine.world.now()) else {
        return false;
    };
    if let Some(call) = call {
        engine.keeper.call_for(keep, call);
    }
    if let Some(until) = watch {
        engine.keeper.watch_rest(keep, until);
    }
    true
}

/// Releases a hold that was kept in the process and that is not for whoever comes to the front. He asks for the lock in the
/// same step.
///
/// Cancel safety: if the future is dropped, the keeper goes on.
pub(super) async fn give_back(engine: &Engine, seat: &Arc<Seat>, hold: &Arc<Hold>, keep: KeepId) {
    // Nobody has it any more whom the outcome would concern.
    let _ = release_at_store(engine, seat, hold, keep, (None, Hearer::Nobody)).await;
}

async fn release_at_store(
    engine: &Engine,
    seat: &Arc<Seat>,
    hold: &Arc<Hold>,
    keep: KeepId,
    (free_every, hearer): (Option<u32>, Hearer),
) -> Result<u64, NotReleased> {
    let Retired { in_flight, giving_back } = engine.keeper.retire(keep);
    if let (Some(in_flight), Some(stop)) = (&in_flight, giving_back) {
        engine.keeper.forget(keep);
        return Err(given_up(engine, hold, in_flight, &stop).await);
    }
    let begun_in_time = engine.world.now() < hold.valid_until();
    let mut departure =
        Departure { engine, seat, hold, keep, done: false, cut: false, next: None, asked: None };
    let result = departure.run(free_every).await;
    if let (Some(Err(NotReleased::Fault { .. })), Hearer::Nobody) = (&result, hearer) {
        carry_on(engine, hold);
    }
    drop(departure);
    let result = match result {
        Some(result) => result,
        None => match engine.keeper.verdict(hold).await {
            Ok(released) => read_release(released, begun_in_time, Some(cut_off())),
            Err(reason) => Err(NotReleased::Lost(reason)),
        },
    };
    let lost = match &result {
        Err(NotReleased::Lost(reason)) => Some(reason.clone()),
        _ => hold.is_doubted().then_some(LostReason::Expired),
    };
    if let Some(reason) = lost {
        // Work that is spread over tasks may go on and listen to the signal. This also ends the keeper's asking why, if
        // that is what is in flight.
        hold.lose(reason);
    }
    if let Some(in_flight) = in_flight {
        in_flight.cancelled().await;
    }
    if engine.gate.is_closed() {
        // A shutdown that has begun meanwhile may release it once more.
        engine.keeper.ended().await;
    }
    result
}

/// Waits until the keeper has given a hold back that has reached its cap, for as long as a release may take (3).
///
/// Cancel safety: if the future is dropped, the keeper goes on.
async fn given_up(
    engine: &Engine,
    hold: &Hold,
    in_flight: &CancellationToken,
    stop: &CancellationToken,
) -> NotReleased {
    // The keeper says so, too, but perhaps not yet.
    hold.lose(LostReason::Capped);
    let until = engine.world.now() + engine.timings.call;
    tokio::select! {
        biased;
        () = in_flight.cancelled() => {}
        () = engine.world.sleep_until(until) => {
            stop.cancel();
            in_flight.cancelled().await;
        }
    }
    NotReleased::Lost(hold.reason(engine.world.now()))
}

/// A guard was dropped: the keeper releases what it held, as soon as it can.
pub(crate) fn abandon(engine: &Engine, seat: &Seat, hold: &Arc<Hold>, keep: KeepId, parting: Parting) {
    let _inside = engine.gate.inside();
    // A shutdown gives it back (4).
    if !engine.gate.is_closed() && !pass_on(engine, seat, hold, keep, parting) {
        if engine.keeper.retire(keep).giving_back.is_none() {
            engine.keeper.give_back(hold);
        }
        seat.vacate(hold);
        engine.keeper.forget(keep);
    }
}

/// A release has failed of which nobody was told that it has returned: the keeper goes on with it.
pub(crate) fn carry_on(engine: &Engine, hold: &Hold) {
    let _inside = engine.gate.inside();
    // A shutdown has cut it off otherwise, and knows of it (4).
    if !engine.gate.is_closed() {
        engine.keeper.give_back(hold);
    }
}

/// A release on its way. If it is dropped before its end, the keeper carries on.
struct Departure<'a> {
    engine: &'a Engine,
    seat: &'a Arc<Seat>,
    hold: &'a Arc<Hold>,
    keep: KeepId,
    done: bool,
    /// Set if a shutdown has taken it over (4).
    cut: bool,
    /// The question that went with it.
    next: Option<Nonce>,
    /// The hold that it asked for.
    asked: Option<HoldId>,
}

impl Departure<'_> {
    /// Sends the release; gives nothing where a shutdown has cut it off.
    async fn run(&mut self, free_every: Option<u32>) -> Option<Result<u64, NotReleased>> {
        let world = &self.engine.world;
        let (begun, valid_until) = (world.now(), self.hold.valid_until());
        let session = self.engine.sessions.present(self.seat.place);
        let random = &mut || world.random();
        let (free, next) = self.seat.depart(self.hold, free_every, &session, world.now(), random);
        let (nonce, next): (Option<Nonce>, Option<Acquire>) = next.unzip();
        self.next = nonce;
        self.asked = next.as_ref().map(|next| next.claim.hold);
        let pass = if free { Pass::Free } else { Pass::Grant };
        let op = Op::Release(Release { claim: self.hold.claim.clone(), pass, next });
        let reply = pin!(self.engine.ask(&self.hold.lock, &op, self.engine.timings.call));
        let reply = self.engine.gate.pass(reply).await;
        self.done = true;
        self.cut = reply.is_none();
        Some(match reply? {
            Ok(Answer { reply: Reply::Release(released), unanswered }) => {
                self.take_next(&released);
                let sent_by = if unanswered.is_some() { begun } else { self.engine.world.now() };
                read_release(released, sent_by < valid_until, unanswered)
            }
            Ok(Answer { reply, .. }) => {
                let (fault, executed) = odd_reply(reply);
                Err(NotReleased::Fault { fault, executed })
            }
            Err(Uncertain { fault, executed }) => Err(NotReleased::Fault { fault, executed }),
        })
    }

    /// Takes in what became of the question that went with it.
    fn take_next(&mut self, released: &Released) {
        if let (Some(nonce), Some(Ok(reply))) = (self.next, &released.next) {
            self.next = None;
            self.answered(nonce, Ok(reply));
        }
    }

    fn answered(&self, nonce: Nonce, answer: Result<&Acquired, Executed>) {
        let world = &self.engine.world;
        let random = &mut || world.random();
        for claim in self.seat.handle_answer(Asker::RELEASE, nonce, answer, world.now(), random) {
            self.engine.keeper.undo(&self.engine.store, &self.hold.lock, claim);
        }
    }
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        let _inside = self.engine.gate.inside();
        if self.cut {
            // The shutdown finds the hold with the keeper, and the question in the seat, now or in a moment.
            return;
        }
        let world = &self.engine.world;
        if let Some(nonce) = self.next.take() {
            if self.done {
                self.answered(nonce, Err(Executed::Unknown));
            } else {
                // No store has failed, but the lock may come with a reply that nobody waits for any more: the front
                // looks, also where it has asked by itself in the meantime.
                self.seat.handle_news(world.now());
            }
        }
        if let Some(claim) = self.asked.and_then(|asked| self.seat.arrived(asked)) {
            self.engine.keeper.undo(&self.engine.store, &self.hold.lock, claim);
        }
        if !self.done {
            self.engine.keeper.give_back(self.hold);
        }
        // In this order: what is in a seat and not with the keeper would be taken for a hold that was just won.
        self.seat.vacate(self.hold);
        self.engine.keeper.forget(self.keep);
    }
}

/// What the reply to a release says: how often the owner has the lock yet, if the hold is over by this release or by an
/// earlier sending of it, or else why it was over before. `unanswered` is why an earlier sending had no answer, if one may
/// have been executed (5). `in_time` says that by the holder's own clock its lease had not ended: when the reply came, or
/// else when the first of them was sent.
pub(super) fn read_release(
    released: Released,
    in_time: bool,
    unanswered: Option<Fault>,
) -> Result<u64, NotReleased> {
    let Released { found, left, holder, .. } = released;
    match (found, unanswered.filter(|_| in_time)) {
        (Fate::Held | Fate::Ended(Ended::Released), _) => Ok(left),
        (Fate::Vanished | Fate::Superseded, Some(fault)) => {
            Err(NotReleased::Fault { fault, executed: Executed::Unknown })
        }
        (other, _) => Err(NotReleased::Lost(reason(other, holder, in_time))),
    }
}

/// Why the answer to a release is not known that a shutdown has taken over.
fn cut_off() -> Fault {
    let text = "the client was shut down before the answer came".to_owned();
    Fault::new(FaultKind::Unusable(text), Phase::Reply, "the client")
}
