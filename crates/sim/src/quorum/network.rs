//! Delivers messages: in the order of their arrival, and of their connections where that is the same.
//!
//! Tokio wakes the tasks of one ballot in an order that no seed decides. They send to different nodes, over connections with
//! random choices of their own. So what they send is the same in each run, and this gives it an order.

use crate::quorum::event::{ClientNo, Event};
use crate::quorum::node::{Node, hold_of};
use crate::quorum::world::World;
use crate::world::time::Instant;
use futures_util::future::select;
use leasehold::store::{Executed, Fault, FaultKind, Lock, Op, Outcome, Phase};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

/// All messages under way.
pub(crate) struct Network {
    world: Arc<World>,
    messages: Mutex<Messages>,
    /// Notified of each new message.
    sent: Notify,
}

#[derive(Default)]
struct Messages {
    /// By when they arrive, over which connection, and their number.
    by_arrival: BTreeMap<(Instant, u32, u64), Message>,
    next: u64,
    connections: u32,
}

/// What the connections of a client to a node share.
pub(crate) struct Link {
    pub(crate) client: ClientNo,
    pub(crate) node: Arc<Node>,
    pub(crate) network: Arc<Network>,
    /// Until when it carries nothing.
    cut_until: Mutex<Instant>,
}

/// What becomes of a message, drawn when its request is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    pub(crate) delay: Duration,
    pub(crate) is_late: bool,
    pub(crate) is_lost: bool,
}

/// A message under way.
pub(crate) enum Message {
    Request {
        link: Arc<Link>,
        lock: Lock,
        op: Op,
        sent_at: Instant,
        fate: Fate,
        of_reply: Fate,
        reply: oneshot::Sender<Outcome>,
    },
    Reply {
        link: Arc<Link>,
        outcome: Outcome,
        sent_at: Instant,
        fate: Fate,
        reply: oneshot::Sender<Outcome>,
    },
    /// The node refuses the connection.
    Refusal {
        link: Arc<Link>,
        reply: oneshot::Sender<Outcome>,
    },
    /// Only the fault.
    Reconnect {
        link: Arc<Link>,
    },
}

impl Link {
    pub(crate) fn new(client: ClientNo, node: Arc<Node>, network: Arc<Network>) -> Self {
        Self { client, node, network, cut_until: Mutex::default() }
    }

    pub(crate) fn cut(&self, lasts: Duration) {
        let until = self.node.world.now() + lasts;
        *self.cut_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    pub(crate) fn is_cut(&self) -> bool {
        *self.cut_until.lock().unwrap_or_else(PoisonError::into_inner) > self.node.world.now()
    }

    fn fault(&self, what: &str) {
        let (client, node) = (Some(self.client), self.node.number);
        self.node.world.record(&Event::Fault { what, client, node });
    }

    fn loses(&self, is_reply: bool, sent_at: Instant) {
        let (client, node) = (self.client, self.node.number);
        self.node.world.record(&Event::MessageLost { client, node, is_reply, sent_at });
    }

    pub(crate) fn failed(&self, executed: Executed, kind: FaultKind) -> Outcome {
        let node: Arc<str> = self.node.number.to_string().into();
        Outcome::Failed(executed, Fault::new(kind, Phase::Reply, node))
    }

    /// A message about a hold is sent, or has arrived.
    fn under_way(&self, op: &Op, by: i32) {
        let Some(hold) = hold_of(op) else { return };
        self.node.world.holds(|holds| {
            if let Some(hold) = holds.get_mut(hold) {
                hold.messages = hold.messages.saturating_add_signed(by);
            }
        });
    }
}

impl Network {
    pub(crate) fn new(world: Arc<World>) -> Arc<Self> {
        Arc::new(Self { world, messages: Mutex::default(), sent: Notify::new() })
    }

    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new connection.
    pub(crate) fn connect(&self) -> u32 {
        let mut messages = self.messages();
        messages.connections += 1;
        messages.connections
    }

    pub(crate) fn send(&self, connection: u32, at: Instant, message: Message) {
        if let Message::Request { link, op, .. } = &message {
            link.under_way(op, 1);
        }
        let mut messages = self.messages();
        let number = messages.next;
        messages.next += 1;
        messages.by_arrival.insert((at, connection, number), message);
        drop(messages);
        self.sent.notify_one();
    }

    /// Delivers messages for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            while let Some((connection, message)) = self.next_arrived() {
                self.deliver(connection, message);
            }
            let next = self.messages().by_arrival.first_key_value().map(|((at, ..), _)| *at);
            match next {
                Some(at) => {
                    let arrives = pin!(sleep(at.since(self.world.now())));
                    select(arrives, pin!(self.sent.notified())).await;
                }
                None => self.sent.notified().await,
            }
        }
    }

    fn next_arrived(&self) -> Option<(u32, Message)> {
        let mut messages = self.messages();
        let first = messages.by_arrival.first_entry()?;
        let (at, connection, _) = *first.key();
        (at <= self.world.now()).then(|| (connection, first.remove()))
    }

    fn deliver(&self, connection: u32, message: Message) {
        match message {
            Message::Request { link, lock, op, sent_at, fate, of_reply, reply } => {
                link.under_way(&op, -1);
                if fate.is_lost || link.is_cut() || link.node.is_away() {
                    return link.loses(false, sent_at);
                }
                if fate.is_late {
                    link.fault("was late for a request");
                }
                let outcome = Outcome::Done(link.node.execute(link.client, &lock, &op, sent_at));
                let (sent_at, fate) = (self.world.now(), of_reply);
                let at = sent_at + fate.delay;
                self.send(connection, at, Message::Reply { link, outcome, sent_at, fate, reply });
            }
            Message::Reply { link, sent_at, fate: Fate { is_lost: true, .. }, .. } => {
                link.loses(true, sent_at);
            }
            Message::Reply { link, sent_at, .. } if link.is_cut() => link.loses(true, sent_at),
            Message::Reply { link, outcome, sent_at, fate, reply } => {
                if fate.is_late {
                    link.fault("was late for a reply");
                }
                let (client, node) = (link.client, link.node.number);
                self.world.record(&Event::Replied { client, node, sent_at });
                // The client may not wait any more.
                let _ = reply.send(outcome);
            }
            Message::Refusal { link, reply } => {
                link.fault("refuses a connection");
                let _ = reply.send(link.failed(Executed::No, FaultKind::Unreachable));
            }
            Message::Reconnect { link } => link.fault("has a new connection"),
        }
    }
}
