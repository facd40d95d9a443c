//! The store of one process: its link to the server.

use crate::event::{Event, HostEvent};
use crate::mutants::Mutant;
use crate::world::Sim;
use crate::world::environment::ProcessEnvironment;
use crate::world::link::LinkId;
use crate::world::network::{Command, Response};
use futures_util::future::{BoxFuture, Either, select};
use leasehold::store::{
    Capabilities, Executed, Fault, FaultKind, Lock, NotificationSink, Op, Outcome, Phase, SessionOp,
    SessionReply, SessionTracking, Store,
};
use leasehold_core::{
    Acquire, Claim, Extend, Extended, FencingToken, Heartbeat, HeartbeatReply, KeyError, MultiAcquired,
    Partition, Reply, SessionId,
};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A process's store: its link to the server.
#[derive(Clone)]
pub(crate) struct SimStore {
    pub(crate) world: ProcessEnvironment,
    pub(crate) link: LinkId,
    /// The link of the keeper.
    pub(crate) keeper_link: LinkId,
    /// The link for confirmations, if it waits for the replica.
    pub(crate) confirming_link: Option<LinkId>,
}

/// The pause before a hold is confirmed again.
const RETRY_AFTER: Duration = Duration::from_millis(20);

impl SimStore {
    fn sim(&self) -> &Arc<Sim> {
        &self.world.sim
    }

    /// Whether it waits for the replica, unless this mutant prevents it.
    fn confirms(&self, unless: Mutant) -> bool {
        self.sim().fault_plan.replica_lag.is_some() && self.sim().mutant != Some(unless)
    }

    async fn call_lock(&self, lock: &Lock, op: &Op, within: Duration, is_confirmed: bool) -> Outcome {
        let command = Command::Lock(self.sim().lock_id(lock), op.clone());
        expect_kind(self.send(command, within, is_confirmed).await, |response| match response {
            Response::Lock(reply) => Some(*reply),
            _ => None,
        })
    }

    async fn call_session(
        &self,
        op: &SessionOp,
        within: Duration,
        is_confirmed: bool,
    ) -> Outcome<SessionReply> {
        let command = Command::Sessions(self.sim().scheduler.now(), op.clone());
        expect_kind(self.send(command, within, is_confirmed).await, |response| match response {
            Response::Sessions(reply) => Some(reply),
            _ => None,
        })
    }

    async fn send(&self, command: Command, within: Duration, is_confirmed: bool) -> Outcome<Response> {
        let (sim, host) = (self.sim(), self.world.host);
        let link = self.confirming_link.filter(|_| is_confirmed).unwrap_or(self.link);
        let until = self.world.shows_at(self.world.now() + within);
        let mut timeout = pin!(sim.scheduler.sleep_until(until));
        if let Either::Right(_) = select(pin!(sim.link_up(link)), &mut timeout).await {
            sim.record(&Event::Host(host, HostEvent::OperationFailed));
            return Outcome::Failed(Executed::No, unreachable());
        }
        let without_reply = match command {
            Command::Lock(..) => |host, message| Event::Answered { host, message, reply: None },
            Command::MultiAcquire(_) => |host, message| Event::MultiAnswered { host, message, replies: None },
            Command::Sessions(..) => |host, message| Event::SessionAnswered { host, message, reply: None },
        };
        let (message, call) = sim.send(link, command, until, is_confirmed);
        let fault = match select(pin!(call.outcome()), timeout).await {
            Either::Left((Ok(response), _)) => {
                sim.record(&match &response {
                    Response::Lock(reply) => Event::Answered { host, message, reply: Some(reply) },
                    Response::MultiAcquire(replies) => {
                        Event::MultiAnswered { host, message, replies: Some(replies) }
                    }
                    Response::Sessions(reply) => Event::SessionAnswered { host, message, reply: Some(reply) },
                });
                return Outcome::Done(response);
            }
            Either::Left((Err(_), _)) => FaultKind::Disconnected,
            Either::Right(_) => FaultKind::TimedOut,
        };
        sim.record(&without_reply(host, message));
        sim.record(&Event::Host(host, HostEvent::OperationFailed));
        Outcome::Failed(Executed::Unknown, Fault::new(fault, Phase::Reply, "the simulated server"))
    }
}

/// The fault of what too few replicas have.
fn unconfirmed() -> Fault {
    let kind = FaultKind::Unconfirmed { required: 1, confirmed: 0 };
    Fault::new(kind, Phase::Reply, "the simulated server")
}

fn unreachable() -> Fault {
    Fault::new(FaultKind::Unreachable, Phase::Connect, "the simulated server")
}

/// Extracts a response of the expected kind. The server sends no other.
fn expect_kind<T>(outcome: Outcome<Response>, pick: impl FnOnce(Response) -> Option<T>) -> Outcome<T> {
    match outcome {
        Outcome::Done(response) => match pick(response) {
            Some(reply) => Outcome::Done(reply),
            None => Outcome::Failed(Executed::Unknown, unreachable()),
        },
        Outcome::Failed(executed, fault) => Outcome::Failed(executed, fault),
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimStore({})", self.world.host)
    }
}

impl Store for SimStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let until = self.world.now() + within;
            let outcome = self.call_lock(lock, op, within, false).await;
            let Op::Extend(extend) = op else { return outcome };
            // As in the store on Redis: a reservation of tokens does not lengthen the lease.
            let is_extended =
                matches!(&outcome, Outcome::Done(Reply::Extend(extended)) if *extended != Extended::NotHeld);
            if !self.confirms(Mutant::RenewalIsNotConfirmed) || !is_extended || extend.lease_ms <= 1 {
                return outcome;
            }
            let again = Extend { keep_record: false, reserve: None, ..extend.clone() };
            let left = until.since(self.world.now());
            match self.call_lock(lock, &Op::Extend(again), left, true).await {
                Outcome::Done(Reply::Extend(Extended::Extended)) => outcome,
                _ => Outcome::Failed(Executed::Unknown, unconfirmed()),
            }
        })
    }

    fn confirm<'a>(
        &'a self,
        lock: &'a Lock,
        claim: &'a Claim,
        fence: FencingToken,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            if !self.confirms(Mutant::AcquireIsNotConfirmed) {
                return Ok(());
            }
            let until = self.world.now() + within;
            let fence = self.confirms(Mutant::AnyGrantIsConfirmed).then_some(fence);
            let claim = claim.clone();
            let extend = Extend { claim, lease_ms: 1, keep_record: false, reserve: None, fence };
            let op = Op::Extend(extend);
            loop {
                let left = until.since(self.world.now());
                if let Outcome::Done(Reply::Extend(Extended::Extended)) =
                    self.call_lock(lock, &op, left, true).await
                {
                    return Ok(());
                }
                let next = self.world.now() + RETRY_AFTER;
                if next >= until {
                    return Err(unconfirmed());
                }
                self.sim().scheduler.sleep_until(self.world.shows_at(next)).await;
            }
        })
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(async move {
            if !self.sim().config.multi_acquires_in_one_step {
                return None;
            }
            let requests =
                requests.iter().map(|(lock, ask)| (self.sim().lock_id(lock), ask.clone())).collect();
            Some(expect_kind(self.send(Command::MultiAcquire(requests), within, false).await, |response| {
                match response {
                    Response::MultiAcquire(replies) => Some(replies),
                    _ => None,
                }
            }))
        })
    }

    fn open_mailbox(
        &self,
        partition: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let until = self.world.shows_at(self.world.now() + within);
            let timeout = self.sim().scheduler.sleep_until(until);
            match select(pin!(self.sim().subscribe(self.link, session, post)), timeout).await {
                Either::Left(_) => Ok(()),
                Either::Right(_) => {
                    self.close_mailbox(partition, session);
                    self.sim().record(&Event::Host(self.world.host, HostEvent::OperationFailed));
                    Err(unreachable())
                }
            }
        })
    }

    fn close_mailbox(&self, _place: Partition, session: SessionId) {
        if !self.sim().scheduler.is_dead(self.world.host) {
            self.sim().unsubscribe(self.link, session);
        }
    }

    fn capabilities(&self) -> Capabilities {
        let confirms = self.sim().fault_plan.replica_lag.is_some();
        Capabilities::default().sessions(SessionTracking::ByHeartbeat).confirmation(confirms)
    }

    fn execute_session<'a>(
        &'a self,
        _place: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        Box::pin(async move {
            let until = self.world.now() + within;
            let outcome = self.call_session(op, within, false).await;
            let SessionOp::Heartbeat(heartbeat) = op else { return outcome };
            let is_alive = matches!(outcome, Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)));
            if !self.confirms(Mutant::HeartbeatIsNotConfirmed) || !is_alive {
                return outcome;
            }
            let again = SessionOp::Heartbeat(Heartbeat { begin: None, ..heartbeat.clone() });
            match self.call_session(&again, until.since(self.world.now()), true).await {
                Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)) => outcome,
                _ => Outcome::Failed(Executed::Unknown, unconfirmed()),
            }
        })
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(Self { link: self.keeper_link, ..self.clone() })
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        Ok(())
    }
}
