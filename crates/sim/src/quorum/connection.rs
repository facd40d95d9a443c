//! The connection of a client to a node: messages take time, keep their order, and can be lost.

use crate::mutants::Mutant;
use crate::quorum::config::MessageFaults;
use crate::quorum::network::{Fate, Link, Message};
use crate::quorum::node::hold_of;
use crate::world::time::Instant;
use futures_util::future::{BoxFuture, pending, ready};
use leasehold::store::{Executed, Fault, FaultKind, Lock, NotificationSink, Op, Outcome, Reply, Store};
use leasehold_core::{Acquired, FenceRaised, FencingToken, KeyError, Partition, SessionId};
use leasehold_testkit::Random;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A connection. Its requests arrive in order.
pub(crate) struct Connection {
    link: Arc<Link>,
    faults: MessageFaults,
    random: Random,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    number: u32,
    /// When the last request arrives.
    last_at: Instant,
}

impl Connection {
    pub(crate) fn new(link: Arc<Link>, faults: MessageFaults, random: Random) -> Self {
        let state = Mutex::new(State { number: link.network.connect(), last_at: Instant(0) });
        Self { link, faults, random, state }
    }

    /// Draws what becomes of a message.
    fn fate(&self, now: Instant) -> Fate {
        let chance = |often| self.random.chance(often) && self.faults.are_active(now);
        let (is_late, is_lost) = (chance(self.faults.late), chance(self.faults.lost));
        let late = Duration::from_millis(self.random.between(20, 400));
        let delay = Duration::from_micros(self.random.between(0, self.faults.latency_us));
        Fate { delay: if is_late { late } else { delay }, is_late, is_lost }
    }

    /// Sends a request. It arrives whether or not its reply is awaited.
    fn send(&self, lock: &Lock, op: &Op) -> oneshot::Receiver<Outcome> {
        let (link, network, now) = (&self.link, &self.link.network, self.link.node.world.now());
        let (fate, of_reply) = (self.fate(now), self.fate(now));
        let reconnects = self.random.chance(self.faults.reconnects) && self.faults.are_active(now);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (reply, received) = oneshot::channel();
        if link.node.refuses_connections() {
            network.send(state.number, now, Message::Refusal { link: link.clone(), reply });
            return received;
        }
        if reconnects {
            // What is in the former connection arrives all the same, perhaps later than what follows.
            network.send(state.number, now, Message::Reconnect { link: link.clone() });
            *state = State { number: network.connect(), last_at: now };
        }
        state.last_at = state.last_at.max(now + fate.delay);
        let (link, lock, op) = (link.clone(), lock.clone(), op.clone());
        let request = Message::Request { link, lock, op, sent_at: now, fate, of_reply, reply };
        network.send(state.number, state.last_at, request);
        received
    }

    /// The reply that a mutant makes up.
    fn made_up(&self, op: &Op) -> Outcome {
        let node = &self.link.node;
        match op {
            Op::Acquire(acquire) => Outcome::Done(Reply::Acquire(Acquired::Granted {
                fence: FencingToken::new(node.world.reading_us(node.number)),
                remaining_ms: acquire.lease_ms,
                others_wait: false,
                owner_holds: None,
            })),
            Op::RaiseFence(_) => Outcome::Done(Reply::RaiseFence(FenceRaised::Raised)),
            _ => self.link.failed(Executed::Unknown, FaultKind::TimedOut),
        }
    }

    /// Whether it gives a hold that the quorum has granted before to a node that lacks it.
    fn is_repair(&self, op: &Op) -> bool {
        let known = hold_of(op).and_then(|hold| self.link.node.world.number(hold));
        matches!(op, Op::Acquire(_)) && known.is_some_and(|(_, is_granted)| is_granted)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({} to {})", self.link.client, self.link.node.number)
    }
}

impl Store for Connection {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let mutant = self.link.node.world.mutant;
            if mutant == Some(Mutant::RepairIsNotSent) && self.is_repair(op) {
                return self.link.failed(Executed::No, FaultKind::Unreachable);
            }
            let reply = self.send(lock, op);
            let reply = async {
                match reply.await {
                    Ok(reply) => reply,
                    // It was lost.
                    Err(_) => pending().await,
                }
            };
            match timeout(within, reply).await {
                Ok(reply) => reply,
                Err(_) if mutant == Some(Mutant::MissingVoteIsYes) => self.made_up(op),
                Err(_) => self.link.failed(Executed::Unknown, FaultKind::TimedOut),
            }
        })
    }

    fn open_mailbox(
        &self,
        _partition: Partition,
        _session: SessionId,
        _sink: Arc<dyn NotificationSink>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(ready(Ok(())))
    }

    fn close_mailbox(&self, _partition: Partition, _session: SessionId) {}

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(Self::new(self.link.clone(), self.faults, self.random.branch()))
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        Ok(())
    }
}
