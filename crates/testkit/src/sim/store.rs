//! The store as one process sees it: what goes over its link.

use super::Sim;
use super::event::{Event, HostEvent};
use super::net::LinkId;
use super::world::SimWorld;
use futures_util::future::{BoxFuture, Either, select};
use leasehold::store::{Fault, FaultKind, Lock, Op, Outcome, Phase, Postbox, Store};
use leasehold_core::{KeyError, SessionId};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A process's way to the server.
#[derive(Clone)]
pub(super) struct SimStore {
    pub(super) world: SimWorld,
    pub(super) link: LinkId,
    /// The link of the keeper.
    pub(super) other: LinkId,
}

impl SimStore {
    fn sim(&self) -> &Arc<Sim> {
        &self.world.sim
    }

    async fn call(&self, lock: &Lock, op: &Op, within: Duration) -> Outcome {
        let (sim, host) = (self.sim(), self.world.host);
        let until = self.world.shows_at(self.world.now() + within);
        let mut time_up = pin!(sim.kernel.sleep_until(until));
        if let Either::Right(_) = select(pin!(sim.link_up(self.link)), &mut time_up).await {
            sim.note(&Event::Host(host, HostEvent::Rebuffed));
            return Outcome::Refused(Fault::new(
                FaultKind::Unreachable,
                Phase::Connect,
                "the simulated server",
            ));
        }
        let (message, slot) = sim.send(self.link, sim.lock_id(lock), op, until);
        let fault = match select(pin!(slot.outcome()), time_up).await {
            Either::Left((Ok(reply), _)) => {
                sim.note(&Event::Answered { host, message, reply: Some(&reply) });
                return Outcome::Done(reply);
            }
            Either::Left((Err(_), _)) => FaultKind::Disconnected,
            Either::Right(_) => FaultKind::TimedOut,
        };
        sim.note(&Event::Answered { host, message, reply: None });
        sim.note(&Event::Host(host, HostEvent::Rebuffed));
        Outcome::Unknown(Fault::new(fault, Phase::Reply, "the simulated server"))
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimStore({})", self.world.host)
    }
}

impl Store for SimStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(self.call(lock, op, within))
    }

    fn open_mailbox(
        &self,
        session: SessionId,
        post: Arc<dyn Postbox>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            self.sim().subscribe(self.link, session, post).await;
            Ok(())
        })
    }

    fn close_mailbox(&self, session: SessionId) {
        if !self.sim().kernel.is_dead(self.world.host) {
            self.sim().unsubscribe(self.link, session);
        }
    }

    fn sibling(&self) -> Arc<dyn Store> {
        Arc::new(Self { world: self.world.clone(), link: self.other, other: self.other })
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        Ok(())
    }
}
