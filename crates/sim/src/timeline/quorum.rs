//! Collects the time line of a world with a quorum.

use super::{
    Arrow, ArrowEnd, ArrowKind, Band, Bar, BarKind, Entry, EntryId, EntryKind, Lane, LaneId, Timeline,
};
use crate::event::{GuardId, LockId};
use crate::quorum::event::{ClientNo, Event, HoldNo, NODES, NodeNo};
use crate::world::time::Instant;
use leasehold_core::{Acquired, Extended, Op, Reply};
use std::collections::BTreeMap;
use std::time::Duration;

/// Collects a time line from the events of a run.
pub(crate) struct Collector {
    timeline: Timeline,
    clients: BTreeMap<ClientNo, LaneId>,
    /// The client of each hold and of each guard.
    holders: BTreeMap<HoldNo, ClientNo>,
    /// The bars that may change yet.
    guards: BTreeMap<GuardId, (ClientNo, usize)>,
    holds: BTreeMap<(NodeNo, HoldNo), usize>,
    /// The last time at which a node was away, or a client cut off from one.
    away: BTreeMap<(NodeNo, Option<ClientNo>), usize>,
}

/// How often a node that is away is seen, at least.
const SEEN_EVERY: Duration = Duration::from_millis(150);

impl Default for Collector {
    fn default() -> Self {
        let node = |number| Lane { name: NodeNo(number).to_string(), is_server: true };
        let timeline = Timeline { lanes: (0..NODES).map(node).collect(), ..Timeline::default() };
        Self {
            timeline,
            clients: BTreeMap::new(),
            holders: BTreeMap::new(),
            guards: BTreeMap::new(),
            holds: BTreeMap::new(),
            away: BTreeMap::new(),
        }
    }
}

impl Collector {
    /// Something happened.
    pub(crate) fn observe(&mut self, at: Instant, event: &Event<'_>) {
        let (lane, kind) = self.place(event);
        let entry = EntryId(self.timeline.entries.len());
        self.timeline.entries.push(Entry { at, lane, kind, text: event.to_string() });
        match event {
            Event::Requested { client, hold, .. } => drop(self.holders.insert(*hold, *client)),
            Event::Acquired { guard, new } => {
                let (lane, lock) = (self.client_lane(new.task.0), self.lock(new.lock));
                self.guards.insert(*guard, (new.task.0, self.timeline.bars.len()));
                self.timeline.bars.push(Bar {
                    lane,
                    lock,
                    kind: BarKind::Guard,
                    from: at,
                    until: Some(new.until.max(at)),
                    name: format!("{} {guard}", new.lock),
                    about: format!("guard {guard} of {} on {}, {}", new.task, new.lock, new.hold),
                    entries: vec![entry],
                });
            }
            Event::ValidUntil { guard, until } => {
                let bar = self.guards.get(guard).and_then(|(_, bar)| self.timeline.bars.get_mut(*bar));
                if let Some(bar) = bar {
                    // One that is known to be lost is valid until the world's beginning.
                    bar.until = Some((*until).max(at));
                    bar.entries.push(entry);
                }
            }
            Event::Lost { guard, .. } | Event::Releasing { guard } => {
                if let Some((_, bar)) = self.guards.get(guard) {
                    self.end_bar(*bar, at, entry);
                }
            }
            Event::Executed { client, node, lock, hold, op, reply, sent_at, .. } => {
                let from = self.client_lane(*client);
                let (to, end, kind) = (lane_of(*node), ArrowEnd::Arrived(at), ArrowKind::Request);
                let (sent_at, is_stale, entries) = (*sent_at, false, vec![entry]);
                self.timeline.arrows.push(Arrow { kind, from, sent_at, to, end, is_stale, entries });
                if let Some(hold) = hold {
                    self.executed(at, (*node, *hold), *lock, (op, reply), entry);
                }
            }
            Event::Replied { client, node, sent_at } => {
                let (from, to) = (lane_of(*node), self.client_lane(*client));
                let (kind, end, sent_at) = (ArrowKind::Reply, ArrowEnd::Arrived(at), *sent_at);
                let entries = vec![entry];
                self.timeline.arrows.push(Arrow { kind, from, sent_at, to, end, is_stale: false, entries });
            }
            Event::Fault { what, client, node } => self.fault(at, what, *client, *node, entry),
            Event::MessageLost { client, node, is_reply, sent_at } => {
                let (node, client) = (lane_of(*node), self.client_lane(*client));
                let (kind, from, to) = if *is_reply {
                    (ArrowKind::Reply, node, client)
                } else {
                    (ArrowKind::Request, client, node)
                };
                let (end, sent_at, entries) = (ArrowEnd::Lost(Some(at)), *sent_at, vec![entry]);
                self.timeline.arrows.push(Arrow { kind, from, sent_at, to, end, is_stale: false, entries });
            }
            Event::Forgot { node, .. } => {
                let keys: Vec<_> = self.holds.keys().filter(|key| key.0 == *node).copied().collect();
                for key in keys {
                    if let Some(bar) = self.holds.remove(&key) {
                        self.end_bar(bar, at, entry);
                    }
                }
            }
            _ => {}
        }
    }

    /// The time line of all that has been observed.
    pub(crate) fn finish(self) -> Timeline {
        self.timeline
    }

    /// A node has executed an operation about a hold.
    fn executed(
        &mut self,
        at: Instant,
        key: (NodeNo, HoldNo),
        id: LockId,
        what: (&Op, &Reply),
        entry: EntryId,
    ) {
        let lease = match what {
            (Op::Acquire(acquire), Reply::Acquire(Acquired::Granted { .. })) => Some(acquire.lease_ms),
            (Op::Extend(extend), Reply::Extend(reply)) if *reply != Extended::NotHeld => {
                Some(extend.lease_ms)
            }
            _ => None,
        };
        if let (Op::Release(_), Some(bar)) = (what.0, self.holds.get(&key).copied()) {
            self.holds.remove(&key);
            return self.end_bar(bar, at, entry);
        }
        let Some(lease_ms) = lease else { return };
        // By true time: the clock of the node is not.
        let until = Some(at + Duration::from_millis(lease_ms));
        if let Some(bar) = self.holds.get(&key).and_then(|bar| self.timeline.bars.get_mut(*bar))
            && bar.until >= Some(at)
        {
            bar.until = bar.until.max(until);
            return bar.entries.push(entry);
        }
        let (node, hold) = key;
        let holder = self.holders.get(&hold).map_or_else(String::new, |client| format!(" {client}"));
        let (lane, lock, kind) = (lane_of(node), self.lock(id), BarKind::Hold);
        let (name, about) =
            (format!("{id}{holder} {hold}"), format!("{hold} of{holder} on {id} at {node}, by its lease"));
        self.holds.insert(key, self.timeline.bars.len());
        self.timeline.bars.push(Bar { lane, lock, kind, from: at, until, name, about, entries: vec![entry] });
    }

    /// A node or a connection is away, or something happened to a message.
    fn fault(&mut self, at: Instant, what: &str, client: Option<ClientNo>, node: NodeNo, entry: EntryId) {
        if !matches!(what, "is down" | "is silent" | "is away" | "is cut off" | "is cut off still") {
            return;
        }
        let known = self.away.get(&(node, client)).and_then(|band| self.timeline.bands.get_mut(*band));
        if let Some(band) = known.filter(|band| at.since(band.until.unwrap_or(band.from)) <= SEEN_EVERY) {
            band.until = Some(at);
            return band.entries.push(entry);
        }
        let name = match client {
            Some(client) => format!("{client} is cut off from {node}"),
            None => format!("{node} {what}"),
        };
        let (lane, entries) = (Some(lane_of(node)), vec![entry]);
        self.away.insert((node, client), self.timeline.bands.len());
        self.timeline.bands.push(Band { lane, from: at, until: Some(at), name, entries });
    }

    /// Where an event belongs, and what it is.
    fn place(&mut self, event: &Event<'_>) -> (Option<LaneId>, EntryKind) {
        match event {
            Event::Requested { client, .. } => (Some(self.client_lane(*client)), EntryKind::Sent),
            Event::Answered { hold, .. } => {
                let client = self.holders.get(hold).copied();
                (client.map(|client| self.client_lane(client)), EntryKind::Received)
            }
            Event::Acquired { new, .. } => (Some(self.client_lane(new.task.0)), EntryKind::Task),
            Event::ValidUntil { guard, .. }
            | Event::Lost { guard, .. }
            | Event::Releasing { guard }
            | Event::Released { guard }
            | Event::Seen { guard, .. } => {
                let client = self.guards.get(guard).map(|(client, _)| *client);
                (client.map(|client| self.client_lane(client)), EntryKind::Task)
            }
            Event::Executed { node, .. } => (Some(lane_of(*node)), EntryKind::Executed),
            Event::Replied { client, .. } => (Some(self.client_lane(*client)), EntryKind::Received),
            Event::MessageLost { client, is_reply: false, .. } => {
                (Some(self.client_lane(*client)), EntryKind::Fault)
            }
            Event::MessageLost { node, .. } | Event::Fault { node, .. } | Event::Forgot { node, .. } => {
                (Some(lane_of(*node)), EntryKind::Fault)
            }
            Event::SeenAtNode { node, .. } | Event::Remains { node, .. } => {
                (Some(lane_of(*node)), EntryKind::Other)
            }
            Event::Note { task, .. }
            | Event::TaskBegan(task)
            | Event::TaskFailed(task, _)
            | Event::TaskEnded(task) => (Some(self.client_lane(task.0)), EntryKind::Task),
            Event::FaultsEnded | Event::Tick => (None, EntryKind::Other),
        }
    }

    fn client_lane(&mut self, client: ClientNo) -> LaneId {
        let next = LaneId(self.timeline.lanes.len());
        let lane = *self.clients.entry(client).or_insert(next);
        if lane == next {
            self.timeline.lanes.push(Lane { name: client.to_string(), is_server: false });
        }
        lane
    }

    fn lock(&mut self, lock: LockId) -> usize {
        let index = usize::from(lock.0);
        for number in self.timeline.locks.len()..=index {
            self.timeline.locks.push(LockId(u8::try_from(number).unwrap_or(u8::MAX)).to_string());
        }
        index
    }

    fn end_bar(&mut self, bar: usize, at: Instant, entry: EntryId) {
        let Some(bar) = self.timeline.bars.get_mut(bar) else { return };
        bar.until = Some(bar.until.map_or(at, |until| until.min(at)));
        bar.entries.push(entry);
    }
}

const fn lane_of(node: NodeNo) -> LaneId {
    LaneId(node.0)
}
