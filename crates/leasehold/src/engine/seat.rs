//! A seat: this process's place before one lock, and the tasks that stand in line for it.
//!
//! 1. Only the front of the line drives the contender, and only while no hold occupies the seat.
//! 2. Who waits in the store's queue stands before those that pause between two tries.
//! 3. A front that leaves wakes the next one; the last one gives the attempt up, and what it may have
//!    left at the store is the caller's to undo.
//! 4. Whoever empties the seat, or finds it empty, tells the front: it may sleep without a limit, since it
//!    came to the front when the one before it took the seat.
//! 5. What a release asks for is undone by nobody else while that release is on its way: who gave it up may
//!    be on another thread, and his undo would be there before the question.
//! 6. Whoever closes the seat takes what is in it: the hold that occupies it, and what was asked for. Nothing comes
//!    into it after that.

use super::line::Line;
use super::{Hold, Session};
use crate::sync::{Mutex, MutexGuard};
use leasehold_core::contend::{Contender, Executed, Grant, Random, Standing, Step, Terms};
use leasehold_core::{
    Acquire, Acquired, Claim, FencingToken, HoldId, Holder, Kind, Lock, Moment, Nonce, SessionId,
};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// This process's place before one lock.
pub(crate) struct Seat {
    pub(crate) lock: Lock,
    state: Mutex<State>,
    on_drop: Box<dyn Fn() + Send + Sync>,
}

struct State {
    contender: Contender,
    line: Line,
    occupant: Option<Arc<Hold>>,
    releases: u32,
    /// What releases on their way ask for, with its claim once it was given up (5).
    escorted: BTreeMap<HoldId, Option<Claim>>,
    /// Set once the client is shut down (6).
    closed: bool,
}

/// What the task at the front has to do, or what keeps another from it.
pub(super) enum Turn {
    /// Somebody of this process holds the lock, or stands before.
    Stand(Option<Moment>),
    /// The attempt that is on its way has other terms: this has to be released, and then polled again.
    Misfit(Option<Claim>),
    /// Ask the store.
    Ask(Nonce, Acquire),
    /// Wait for a signal, or for this moment.
    Sleep(Moment),
    /// The hold is this task's; it has left the line.
    Won(Arc<Hold>, Grant),
    /// The lease is shorter than the round trip.
    TooSlow,
    /// The client was shut down.
    Closed,
}

/// What was in a seat when it was closed.
pub(super) struct Cleared {
    pub(super) occupant: Option<Arc<Hold>>,
    /// What has to be released at the store once nothing more is sent for it.
    pub(super) claims: Vec<Claim>,
}

impl Seat {
    pub(super) fn new(
        lock: Lock,
        session: SessionId,
        slot: u32,
        on_drop: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            contender: Contender::new(session, slot),
            line: Line::default(),
            occupant: None,
            releases: 0,
            escorted: BTreeMap::new(),
            closed: false,
        };
        Self { lock, state: Mutex::new(state), on_drop: Box::new(on_drop) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics while it holds the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands in line.
    pub(super) fn join(&self, terms: Arc<Terms>) -> u64 {
        let mut state = self.state();
        let id = state.line.join(terms);
        if state.line.is_front(id) {
            // The pause, if there is one, is that of a task that stands aside.
            state.contender.handle_news(Moment::ZERO);
        }
        id
    }

    /// Leaves the line without the lock. What is returned has to be released at the store.
    pub(super) fn leave(&self, id: u64) -> Option<Claim> {
        let mut state = self.state();
        let was_front = state.line.is_front(id);
        let queued = state.line.front().is_some_and(|front| front.queue);
        state.line.remove(id);
        if !was_front {
            return None;
        }
        if state.line.front().is_none() {
            return state.give_up();
        }
        state.bring_forward(queued);
        None
    }

    /// A task that polls pauses for as long as it likes: until it goes on, the others go first.
    pub(super) fn step_aside(&self, id: u64) {
        let mut state = self.state();
        let was_front = state.line.is_front(id);
        state.line.set_aside(id, true);
        if was_front && !state.line.is_front(id) {
            state.bring_forward(false);
        }
    }

    /// What this task has to do now.
    pub(super) fn turn(
        self: &Arc<Self>,
        id: u64,
        session: &Arc<Session>,
        now: Moment,
        random: Random<'_>,
    ) -> Turn {
        let mut state = self.state();
        if state.closed {
            return Turn::Closed;
        }
        let State { contender, line, occupant, .. } = &mut *state;
        if let Some(hold) = occupant {
            let until = hold.valid_until();
            if now < until {
                return Turn::Stand(Some(until));
            }
            *occupant = None;
            // Whoever declares the loss may be late (4).
            line.signal_front();
        }
        if !line.is_front(id) {
            return Turn::Stand(None);
        }
        line.set_aside(id, false);
        line.quiet(id);
        let Some(terms) = line.front() else { return Turn::Stand(None) };
        if contender.session() != session.id {
            // What another session has asked for is not believed, whatever comes of it.
            let claim = state.give_up();
            state.contender.change_session(session.id);
            return Turn::Misfit(claim);
        }
        if !contender.suits(terms) {
            return Turn::Misfit(state.give_up());
        }
        match contender.poll(now, terms, random) {
            Step::Ask(nonce, ask) => Turn::Ask(nonce, ask),
            Step::Sleep(until) => Turn::Sleep(until),
            Step::TooSlow => Turn::TooSlow,
            Step::Granted(_) => match contender.take() {
                Some(grant) => {
                    line.remove(id);
                    let (claim, until) = (grant.claim.clone(), grant.valid_until);
                    let seat = Arc::downgrade(self);
                    let (lock, session) = (self.lock.clone(), session.clone());
                    let hold = Arc::new(Hold::new(lock, claim, grant.fence, until, session, seat));
                    *occupant = Some(hold.clone());
                    Turn::Won(hold, grant)
                }
                None => Turn::Sleep(now),
            },
        }
    }

    /// Waits until something has happened that concerns this task.
    pub(super) async fn signaled(&self, id: u64) {
        poll_fn(|cx| self.state().line.poll_signaled(id, cx.waker())).await;
    }

    /// Whether the lock has been granted to this process and waits to be taken.
    pub(super) fn is_won(&self, now: Moment) -> bool {
        self.state().contender.is_won(now)
    }

    /// The store's answer to a question, or that there was none.
    pub(super) fn handle_answer(
        &self,
        nonce: Nonce,
        answer: Result<&Acquired, Executed>,
        now: Moment,
        random: Random<'_>,
    ) {
        let mut state = self.state();
        match answer {
            Ok(reply) => state.contender.handle_reply(nonce, reply, now, random),
            Err(executed) => state.contender.handle_fault(nonce, executed, now, random),
        }
    }

    /// For how long the store has not answered whoever was at the front.
    pub(super) fn silence(&self, now: Moment) -> Duration {
        self.state().contender.silence(now)
    }

    /// A grant's message for this seat.
    pub(super) fn handle_grant(&self, nonce: Nonce, fence: FencingToken, now: Moment) {
        let mut state = self.state();
        state.contender.handle_wake(nonce, fence, now);
        state.signal_front();
    }

    /// A pause between two tries is over: the front asks again.
    pub(super) fn ask_again(&self, id: u64, now: Moment) {
        let mut state = self.state();
        if state.line.is_front(id) {
            state.contender.handle_news(now);
        }
    }

    /// Messages may have been missed.
    pub(super) fn handle_news(&self, now: Moment) {
        let mut state = self.state();
        state.contender.handle_news(now);
        state.signal_front();
    }

    /// The question that goes with the release of this seat's hold, if tasks stand in line; and
    /// whether this release should leave the lock free for clients that do not queue.
    pub(super) fn depart(
        &self,
        hold: &Hold,
        free_every: Option<u32>,
        session: &Session,
        now: Moment,
        random: Random<'_>,
    ) -> (bool, Option<(Nonce, Acquire)>) {
        let mut state = self.state();
        if !state.is_occupied_by(hold) {
            // It was lost, and whoever stands in line asks for himself since.
            return (false, None);
        }
        state.releases = state.releases.wrapping_add(1);
        let free = free_every.is_some_and(|every| state.releases.is_multiple_of(every.max(1)));
        let terms = state.line.front().filter(|front| front.queue && !state.closed).cloned();
        let next = terms
            .filter(|_| state.contender.session() == session.id && now < session.alive_until())
            .filter(|terms| state.contender.suits(terms))
            .map(|terms| state.contender.ask(now, &terms, random));
        if let Some((_, ask)) = &next {
            state.escorted.insert(ask.claim.hold, None);
        }
        (free, next)
    }

    /// The release that asked for a hold is not on its way any more. What is returned was given up since, and has to
    /// be released at the store.
    pub(super) fn arrived(&self, asked: HoldId) -> Option<Claim> {
        self.state().escorted.remove(&asked).flatten()
    }

    /// A hold that came from elsewhere is this process's from now on. The store has just said that it is there, so
    /// whatever else occupies the seat is gone.
    pub(super) fn occupy(&self, hold: &Arc<Hold>) {
        self.state().occupant = Some(hold.clone());
    }

    /// The hold is gone: the front of the line may go on.
    pub(super) fn vacate(&self, hold: &Hold) {
        let mut state = self.state();
        if state.is_occupied_by(hold) {
            state.occupant = None;
        }
        // Also where it had lapsed before: its release may have come back with the lock for the next (4).
        state.signal_front();
    }

    /// Sends all tasks away, and hands over what was in the seat (6).
    pub(super) fn close(&self) -> Cleared {
        let mut state = self.state();
        state.closed = true;
        let mut claims: Vec<_> = std::mem::take(&mut state.escorted).into_values().flatten().collect();
        claims.extend(state.contender.give_up());
        state.line.signal_all();
        Cleared { occupant: state.occupant.clone(), claims }
    }

    /// Whether a task of this process holds the lock.
    pub(crate) fn is_occupied(&self, now: Moment) -> bool {
        self.state().occupant.as_ref().is_some_and(|hold| now < hold.valid_until())
    }

    /// Who stands in the way, as far as this process knows.
    pub(super) fn standing(&self, label: &leasehold_core::Label, now: Moment) -> Standing {
        let state = self.state();
        let Some(hold) = &state.occupant else { return state.contender.standing().clone() };
        let remaining = hold.valid_until().since(now).as_millis();
        let holder = Holder {
            label: Some(label.clone()),
            owner: hold.claim.value.clone().filter(|_| hold.lock.kind == Kind::Reentrant),
            count: 1,
            remaining_ms: Some(u64::try_from(remaining).unwrap_or(u64::MAX)),
            fence: Some(hold.fence),
            since_ms: None,
            session: None,
        };
        Standing { holder: Some(holder), position: None, ahead: None, as_of: Some(now) }
    }
}

impl State {
    fn is_occupied_by(&self, hold: &Hold) -> bool {
        self.occupant.as_ref().is_some_and(|occupant| occupant.claim.hold == hold.claim.hold)
    }

    /// Ends the attempt. What is returned has to be released at the store.
    fn give_up(&mut self) -> Option<Claim> {
        let claim = self.contender.give_up()?;
        match self.escorted.get_mut(&claim.hold) {
            Some(given_up) => {
                *given_up = Some(claim);
                None
            }
            None => Some(claim),
        }
    }

    /// Another has come to the front, behind one who queued or did not.
    fn bring_forward(&mut self, queued: bool) {
        if !queued && self.line.front().is_some_and(|front| front.queue) {
            // The pause is that of one who has no place in the queue.
            self.contender.handle_news(Moment::ZERO);
        }
        self.signal_front();
    }

    fn signal_front(&mut self) {
        self.line.signal_front();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        (self.on_drop)();
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("lock", &self.lock).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Label, Life};

    fn seat() -> Arc<Seat> {
        let lock = Lock::mutex("job".parse().expect("a good name"));
        Arc::new(Seat::new(lock, SessionId::from_random([1; 12]), 0, || {}))
    }

    fn session() -> Arc<Session> {
        Arc::new(Session::new(SessionId::from_random([1; 12]), Life::Session { alive_ms: 10_000 }, at(100)))
    }

    fn terms() -> Arc<Terms> {
        let label = Label::new("").expect("an empty label is a label");
        let lease = Duration::from_secs(1);
        Arc::new(Terms {
            lease,
            label,
            value: None,
            adopt: None,
            life: Life::Session { alive_ms: 10_000 },
            queue: true,
            look_often: false,
        })
    }

    fn at(s: u64) -> Moment {
        Moment::from_micros(s * 1_000_000)
    }

    fn granted() -> Acquired {
        Acquired::Granted {
            fence: FencingToken::new(1),
            remaining_ms: 1_000,
            others_wait: false,
            entered: None,
        }
    }

    fn asked(turn: &Turn) -> Nonce {
        let Turn::Ask(nonce, _) = turn else { panic!("the front asks") };
        *nonce
    }

    fn is_signaled(seat: &Seat, id: u64) -> bool {
        seat.state().line.poll_signaled(id, std::task::Waker::noop()).is_ready()
    }

    /// A seat whose hold ends at two seconds, and the front of its line, which sleeps without a limit.
    fn taken() -> (Arc<Seat>, Arc<Hold>, u64) {
        let (seat, random) = (seat(), &mut || 7);
        let (holder, front) = (seat.join(terms()), seat.join(terms()));
        let nonce = asked(&seat.turn(holder, &session(), at(1), random));
        assert!(matches!(seat.turn(front, &session(), at(1), random), Turn::Stand(None)));
        seat.handle_answer(nonce, Ok(&granted()), at(1), random);
        let Turn::Won(hold, _) = seat.turn(holder, &session(), at(1), random) else {
            panic!("it was granted")
        };
        assert!(!is_signaled(&seat, front));
        (seat, hold, front)
    }

    #[test]
    fn whoever_finds_the_seat_empty_tells_the_front() {
        let (seat, _hold, front) = taken();
        let (last, random) = (seat.join(terms()), &mut || 7);
        assert!(
            matches!(seat.turn(last, &session(), at(1), random), Turn::Stand(Some(_))),
            "until the hold ends"
        );
        assert!(matches!(seat.turn(last, &session(), at(3), random), Turn::Stand(None)));
        assert!(is_signaled(&seat, front), "or it would sleep for ever");
    }

    #[test]
    fn a_release_that_comes_back_with_the_lock_tells_the_front_also_where_the_hold_had_lapsed() {
        let (seat, hold, front) = taken();
        let random = &mut || 7;
        let (_, next) = seat.depart(&hold, None, &session(), at(1), random);
        let (with_release, _) = next.expect("somebody stands in line");
        // The release takes long. The front asks by itself meanwhile, and is told that the lock is taken.
        let own = asked(&seat.turn(front, &session(), at(3), random));
        seat.handle_answer(
            own,
            Ok(&Acquired::Taken { holder: None, position: Some(0), ahead: None }),
            at(3),
            random,
        );
        assert!(matches!(seat.turn(front, &session(), at(3), random), Turn::Sleep(_)));
        seat.handle_answer(with_release, Ok(&granted()), at(1), random);
        seat.vacate(&hold);
        assert!(is_signaled(&seat, front));
        assert!(matches!(seat.turn(front, &session(), at(1), random), Turn::Won(..)));
    }
}
