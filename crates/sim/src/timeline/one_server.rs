//! Collects the time line of a world with one server, or with two primaries.

use super::{
    Arrow, ArrowEnd, ArrowKind, Band, Bar, BarKind, Entry, EntryId, EntryKind, Lane, LaneId, Timeline,
};
use crate::event::{
    Event, Execution, GuardId, HostEvent, LockId, MessageFault, ServerEvent, TaskEvent, TaskId, holds,
};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{HoldId, LockMode, Notification, SessionId, SessionOp};
use std::collections::BTreeMap;
use std::mem;

/// A fault that has begun: it ends by another event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lasting {
    Stopped(HostId),
    LinkDown(HostId, bool),
    ServerDown,
    Partition,
}

/// A request, from its sending to its reply.
struct Message {
    host: HostId,
    sent_at: Instant,
    sent: Vec<EntryId>,
    /// Where and when it was executed, and by which arrow it came there. The last flag is set for a duplicate.
    executions: Vec<(LaneId, Instant, usize, bool)>,
    /// When its sender stopped to wait, and whether there was a reply.
    answered: Option<(Instant, bool)>,
    is_request_lost: bool,
    is_reply_lost: bool,
    faults: Vec<EntryId>,
}

/// A notification that has not arrived.
struct Pending {
    notification: Notification,
    from: LaneId,
    sent_at: Instant,
    entry: EntryId,
}

/// Collects a time line from the events of a run.
#[derive(Default)]
pub(crate) struct Collector {
    timeline: Timeline,
    hosts: BTreeMap<HostId, LaneId>,
    servers: BTreeMap<u32, LaneId>,
    /// The processes that have ended.
    ended: BTreeMap<HostId, Instant>,
    sessions: BTreeMap<SessionId, HostId>,
    messages: BTreeMap<u64, Message>,
    pending: Vec<Pending>,
    /// The bars that may change yet.
    guards: BTreeMap<GuardId, usize>,
    holds: BTreeMap<(u32, LockId, HoldId), usize>,
    foreign: BTreeMap<LockId, usize>,
    lasting: BTreeMap<Lasting, usize>,
    /// The present primary.
    primary: u32,
}

impl Collector {
    /// Something happened.
    pub(crate) fn observe(&mut self, at: Instant, event: &Event<'_>) {
        if self.servers.is_empty() {
            self.server_lane(0);
        }
        let (lane, kind) = self.place(event);
        let entry = EntryId(self.timeline.entries.len());
        self.timeline.entries.push(Entry { at, lane, kind, text: event.to_string() });
        match event {
            Event::Started(host, session) => drop(self.sessions.insert(*session, *host)),
            Event::Sent { host, message, .. } => self.sent(at, *host, *message, entry),
            Event::SessionSent { host, message, op, .. } => {
                if let SessionOp::Heartbeat(heartbeat) = op {
                    self.sessions.insert(heartbeat.session, *host);
                }
                self.sent(at, *host, *message, entry);
            }
            Event::MessageFault { message, what } => self.message_fault(*message, *what, entry),
            Event::Executed(done) => self.executed(at, done, entry),
            Event::MultiExecuted(done) => {
                self.arrived(at, done.server, done.message, (false, done.is_copy), entry);
            }
            Event::SessionExecuted(done) => {
                self.arrived(at, done.server, done.message, (done.is_stale, done.is_copy), entry);
            }
            Event::Answered { message, reply, .. } => self.answered(at, *message, reply.is_some(), entry),
            Event::MultiAnswered { message, replies, .. } => {
                self.answered(at, *message, replies.is_some(), entry);
            }
            Event::SessionAnswered { message, reply, .. } => {
                self.answered(at, *message, reply.is_some(), entry);
            }
            Event::Notified(host, notification) => self.notified(at, *host, *notification, entry),
            Event::Foreign(lock, until) => self.foreign(at, *lock, *until, entry),
            Event::Task(task, lock, what) => self.task(at, *task, *lock, *what, entry),
            Event::Host(host, what) => self.host(at, *host, *what, entry),
            Event::Server(what) => self.server(at, *what, entry),
            Event::Owner(..) | Event::Observer(..) | Event::Period(..) | Event::FaultsEnded => {}
        }
    }

    /// The time line of all that has been observed.
    pub(crate) fn finish(mut self) -> Timeline {
        for message in mem::take(&mut self.messages).into_values() {
            self.unfinished(message);
        }
        for Pending { notification, from, sent_at, entry } in mem::take(&mut self.pending) {
            // A session that no process has named: that of a detached hold.
            let Some(host) = self.sessions.get(&notification.to()).copied() else { continue };
            let (kind, to) = (ArrowKind::Notification, self.host_lane(host));
            let (end, entries) = (ArrowEnd::Lost(None), vec![entry]);
            self.timeline.arrows.push(Arrow { kind, from, sent_at, to, end, is_stale: false, entries });
        }
        self.timeline
    }

    /// A request without a reply, and a reply that no client received.
    fn unfinished(&mut self, message: Message) {
        let Message { host, sent_at, sent, executions, answered, is_request_lost, is_reply_lost, faults } =
            message;
        let is_over = answered.is_some() || self.ended.contains_key(&host);
        let (lane, primary) = (self.host_lane(host), self.server_lane(self.primary));
        let mut entries = sent;
        entries.extend(faults);
        if executions.is_empty() {
            let end = if is_request_lost || is_over { ArrowEnd::Lost(None) } else { ArrowEnd::InFlight };
            let (kind, is_stale) = (ArrowKind::Request, false);
            let request = Arrow { kind, from: lane, sent_at, to: primary, end, is_stale, entries };
            return self.timeline.arrows.push(request);
        }
        let is_received = matches!(answered, Some((_, true)));
        let Some((server, at, ..)) = executions.iter().find(|(.., is_copy)| !is_copy).copied() else {
            return;
        };
        // No client waits for the reply to a request that came too late.
        let is_awaited = answered.is_none_or(|(until, _)| at < until);
        if !is_received && is_awaited {
            let end = if is_reply_lost || is_over { ArrowEnd::Lost(None) } else { ArrowEnd::InFlight };
            let (kind, is_stale) = (ArrowKind::Reply, false);
            let reply = Arrow { kind, from: server, sent_at: at, to: lane, end, is_stale, entries };
            self.timeline.arrows.push(reply);
        }
    }

    /// Where an event belongs, and what it is.
    fn place(&mut self, event: &Event<'_>) -> (Option<LaneId>, EntryKind) {
        match event {
            Event::Sent { host, .. } | Event::SessionSent { host, .. } => {
                (Some(self.host_lane(*host)), EntryKind::Sent)
            }
            Event::Executed(done) => (Some(self.server_lane(done.server)), EntryKind::Executed),
            Event::MultiExecuted(done) => (Some(self.server_lane(done.server)), EntryKind::Executed),
            Event::SessionExecuted(done) => (Some(self.server_lane(done.server)), EntryKind::Executed),
            Event::Answered { host, .. }
            | Event::MultiAnswered { host, .. }
            | Event::SessionAnswered { host, .. }
            | Event::Notified(host, _) => (Some(self.host_lane(*host)), EntryKind::Received),
            Event::MessageFault { message, .. } => {
                let host = self.messages.get(message).map(|message| message.host);
                (host.map(|host| self.host_lane(host)), EntryKind::Fault)
            }
            Event::Started(host, _) | Event::Host(host, HostEvent::Ended) => {
                (Some(self.host_lane(*host)), EntryKind::Other)
            }
            Event::Host(host, _) => (Some(self.host_lane(*host)), EntryKind::Fault),
            Event::Server(_) => (Some(self.server_lane(self.primary)), EntryKind::Fault),
            Event::Foreign(..) => (Some(self.server_lane(self.primary)), EntryKind::Task),
            Event::Task(task, ..) | Event::Observer(task, ..) | Event::Period(task, ..) => {
                (Some(self.host_lane(task.host)), EntryKind::Task)
            }
            Event::Owner(..) | Event::FaultsEnded => (None, EntryKind::Other),
        }
    }

    fn host_lane(&mut self, host: HostId) -> LaneId {
        let next = LaneId(self.timeline.lanes.len());
        let lane = *self.hosts.entry(host).or_insert(next);
        if lane == next {
            self.timeline.lanes.push(Lane { name: host.to_string(), is_server: false });
        }
        lane
    }

    fn server_lane(&mut self, number: u32) -> LaneId {
        let next = LaneId(self.timeline.lanes.len());
        let lane = *self.servers.entry(number).or_insert(next);
        if lane == next {
            let name = if number == 0 { "server".to_owned() } else { format!("server {}", number + 1) };
            self.timeline.lanes.push(Lane { name, is_server: true });
        }
        lane
    }

    /// The index of a lock.
    fn lock(&mut self, lock: LockId) -> usize {
        let index = usize::from(lock.0);
        for number in self.timeline.locks.len()..=index {
            self.timeline.locks.push(LockId(u8::try_from(number).unwrap_or(u8::MAX)).to_string());
        }
        index
    }

    fn sent(&mut self, at: Instant, host: HostId, message: u64, entry: EntryId) {
        let new = || Message {
            host,
            sent_at: at,
            sent: Vec::new(),
            executions: Vec::new(),
            answered: None,
            is_request_lost: false,
            is_reply_lost: false,
            faults: Vec::new(),
        };
        // An acquire of several locks is one message, with an event for each lock.
        self.messages.entry(message).or_insert_with(new).sent.push(entry);
    }

    fn message_fault(&mut self, message: u64, what: MessageFault, entry: EntryId) {
        // A notification has no number of its own.
        if matches!(what, MessageFault::NotificationLost | MessageFault::NotificationDelayed(_)) {
            return;
        }
        let Some(message) = self.messages.get_mut(&message) else { return };
        message.faults.push(entry);
        message.is_request_lost |= what == MessageFault::RequestLost;
        message.is_reply_lost |= what == MessageFault::ReplyLost;
    }

    /// A request has arrived and was executed.
    fn arrived(&mut self, at: Instant, server: u32, message: u64, flags: (bool, bool), entry: EntryId) {
        let (to, (is_stale, is_copy)) = (self.server_lane(server), flags);
        let Some(host) = self.messages.get(&message).map(|message| message.host) else { return };
        let from = self.host_lane(host);
        let Some(message) = self.messages.get_mut(&message) else { return };
        if let Some((.., arrow, _)) =
            message.executions.iter().find(|(lane, then, ..)| (*lane, *then) == (to, at))
        {
            // One of several locks.
            if let Some(arrow) = self.timeline.arrows.get_mut(*arrow) {
                arrow.entries.push(entry);
            }
            return;
        }
        message.executions.push((to, at, self.timeline.arrows.len(), is_copy));
        let mut entries = message.sent.clone();
        entries.extend(&message.faults);
        entries.push(entry);
        let (kind, sent_at) = (ArrowKind::Request, message.sent_at);
        let end = ArrowEnd::Arrived(at);
        self.timeline.arrows.push(Arrow { kind, from, sent_at, to, end, is_stale, entries });
    }

    fn executed(&mut self, at: Instant, done: &Execution<'_>, entry: EntryId) {
        self.arrived(at, done.server, done.message, (done.is_stale, done.is_copy), entry);
        let from = self.server_lane(done.server);
        for notification in done.notifications {
            self.pending.push(Pending { notification: *notification, from, sent_at: at, entry });
        }
        let lock = self.lock(done.lock);
        self.timeline.locks[lock] = format!("{} {:?}", done.lock, done.state.kind);
        if done.state.value.is_none() {
            self.end_foreign(at, done.lock, entry);
        }
        self.holds_are(at, done, lock, entry);
    }

    /// The holds on a lock after an operation.
    fn holds_are(&mut self, at: Instant, done: &Execution<'_>, lock: usize, entry: EntryId) {
        let mut held = holds(done.state, done.clock);
        held.retain(|held| held.lasts(at));
        let is_of = |key: &(u32, LockId, HoldId)| (key.0, key.1) == (done.server, done.lock);
        let known: Vec<_> = self.holds.keys().filter(|key| is_of(key)).copied().collect();
        for key in known.into_iter().filter(|key| held.iter().all(|held| held.hold != key.2)) {
            if let Some(bar) = self.holds.remove(&key) {
                self.end_bar(bar, at, Some(entry));
            }
        }
        for held in held {
            let key = (done.server, done.lock, held.hold);
            if let Some(bar) = self.holds.get(&key).and_then(|bar| self.timeline.bars.get_mut(*bar)) {
                if bar.until != held.until {
                    bar.until = held.until;
                    bar.entries.push(entry);
                }
                continue;
            }
            let holder = self
                .sessions
                .get(&held.hold.session())
                .map_or_else(|| "a session".to_owned(), ToString::to_string);
            let mode = mode(held.mode);
            let name = format!("{} {holder}{mode}", done.lock);
            let about = format!("hold of {holder} on {}{mode}, token {}", done.lock, held.fence);
            self.holds.insert(key, self.timeline.bars.len());
            let lane = self.server_lane(done.server);
            let (kind, entries) = (BarKind::Hold, vec![entry]);
            let bar = Bar { lane, lock, kind, from: at, until: held.until, name, about, entries };
            self.timeline.bars.push(bar);
        }
    }

    fn answered(&mut self, at: Instant, number: u64, has_reply: bool, entry: EntryId) {
        let Some(message) = self.messages.get_mut(&number) else { return };
        if message.answered.is_some() {
            return;
        }
        message.answered = Some((at, has_reply));
        message.faults.push(entry);
        // The one that was no duplicate.
        let execution = message.executions.iter().find(|(.., is_copy)| !is_copy).copied();
        let Some((from, sent_at, ..)) = execution.filter(|_| has_reply) else { return };
        let (host, mut entries) = (message.host, message.sent.clone());
        entries.extend(&message.faults);
        let (kind, to, end) = (ArrowKind::Reply, self.host_lane(host), ArrowEnd::Arrived(at));
        self.timeline.arrows.push(Arrow { kind, from, sent_at, to, end, is_stale: false, entries });
    }

    fn notified(&mut self, at: Instant, host: HostId, notification: Notification, entry: EntryId) {
        let Some(sent) = self.pending.iter().position(|pending| pending.notification == notification) else {
            return;
        };
        let Pending { from, sent_at, entry: executed, .. } = self.pending.remove(sent);
        let (kind, to, end) = (ArrowKind::Notification, self.host_lane(host), ArrowEnd::Arrived(at));
        let entries = vec![executed, entry];
        self.timeline.arrows.push(Arrow { kind, from, sent_at, to, end, is_stale: false, entries });
    }

    fn foreign(&mut self, at: Instant, id: LockId, until: Option<Instant>, entry: EntryId) {
        self.end_foreign(at, id, entry);
        if until.is_none() {
            return;
        }
        let (lane, lock, kind) = (self.server_lane(self.primary), self.lock(id), BarKind::Foreign);
        let (name, about) = (format!("{id} foreign"), format!("hold of another library's client on {id}"));
        self.foreign.insert(id, self.timeline.bars.len());
        self.timeline.bars.push(Bar { lane, lock, kind, from: at, until, name, about, entries: vec![entry] });
    }

    fn end_foreign(&mut self, at: Instant, lock: LockId, entry: EntryId) {
        if let Some(bar) = self.foreign.remove(&lock) {
            self.end_bar(bar, at, Some(entry));
        }
    }

    /// A hold is over, unless it was before.
    fn end_bar(&mut self, bar: usize, at: Instant, entry: Option<EntryId>) {
        let Some(bar) = self.timeline.bars.get_mut(bar) else { return };
        bar.until = Some(bar.until.map_or(at, |until| until.min(at)));
        bar.entries.extend(entry);
    }

    fn task(&mut self, at: Instant, task: TaskId, id: LockId, what: TaskEvent, entry: EntryId) {
        match what {
            TaskEvent::Acquired(guard, new) => {
                let (lane, lock, kind) = (self.host_lane(task.host), self.lock(id), BarKind::Guard);
                let mode = mode(new.mode);
                let (name, until) = (format!("{id} {guard}{mode}"), Some(new.validity.until.max(at)));
                let about = format!("guard {guard} of {task} on {id}{mode}, token {}", new.fence);
                self.guards.insert(guard, self.timeline.bars.len());
                let entries = vec![entry];
                self.timeline.bars.push(Bar { lane, lock, kind, from: at, until, name, about, entries });
            }
            TaskEvent::ValidityChanged(guard, validity) => {
                let bar = self.guards.get(&guard).and_then(|bar| self.timeline.bars.get_mut(*bar));
                if let Some(bar) = bar {
                    // A hold that is known to be lost is valid until the world's beginning.
                    bar.until = Some(validity.until.max(at));
                    bar.entries.push(entry);
                }
            }
            TaskEvent::Releasing(guard, _) | TaskEvent::LossReported(guard, _) => {
                if let Some(bar) = self.guards.remove(&guard) {
                    self.end_bar(bar, at, Some(entry));
                }
            }
            _ => {}
        }
    }

    fn host(&mut self, at: Instant, host: HostId, what: HostEvent, entry: EntryId) {
        match what {
            HostEvent::Stopped => {
                self.begin(at, Lasting::Stopped(host), Some(host), "stopped", entry);
            }
            HostEvent::Resumed => self.end(at, Lasting::Stopped(host), entry),
            HostEvent::LinkDown { keeper } => {
                let name = if keeper { "the keeper's connection is down" } else { "its connection is down" };
                self.begin(at, Lasting::LinkDown(host, keeper), Some(host), name, entry);
            }
            HostEvent::LinkUp { keeper } => self.end(at, Lasting::LinkDown(host, keeper), entry),
            HostEvent::Crashed | HostEvent::Ended => {
                self.ended.insert(host, at);
                for lasting in
                    [Lasting::Stopped(host), Lasting::LinkDown(host, false), Lasting::LinkDown(host, true)]
                {
                    self.end(at, lasting, entry);
                }
                let lane = self.host_lane(host);
                let guards = mem::take(&mut self.guards);
                for (guard, bar) in guards {
                    if self.timeline.bars.get(bar).is_some_and(|bar| bar.lane == lane) {
                        self.end_bar(bar, at, Some(entry));
                    } else {
                        self.guards.insert(guard, bar);
                    }
                }
            }
            HostEvent::Delayed(_) | HostEvent::OperationFailed => {}
        }
    }

    fn server(&mut self, at: Instant, what: ServerEvent, entry: EntryId) {
        match what {
            ServerEvent::Down => self.begin(at, Lasting::ServerDown, None, "the server is down", entry),
            ServerEvent::Up { with_data } => {
                self.end(at, Lasting::ServerDown, entry);
                if !with_data {
                    self.end_holds(at, None, entry);
                }
            }
            ServerEvent::FailedOver => self.end_holds(at, None, entry),
            ServerEvent::Isolated => {
                self.begin(at, Lasting::Partition, None, "the first server is isolated", entry);
            }
            ServerEvent::Promoted => self.primary += 1,
            ServerEvent::Rejoined => {
                self.end(at, Lasting::Partition, entry);
                let former = self.primary.saturating_sub(1);
                let keys: Vec<_> = self.holds.keys().filter(|key| key.0 == former).copied().collect();
                for key in keys {
                    if let Some(bar) = self.holds.remove(&key) {
                        self.end_bar(bar, at, Some(entry));
                    }
                }
            }
            ServerEvent::Deleted(lock) => {
                self.end_holds(at, Some(lock), entry);
                self.end_foreign(at, lock, entry);
            }
            ServerEvent::Jumped(_) => {}
        }
    }

    /// The server has no hold any more, or none on one lock.
    fn end_holds(&mut self, at: Instant, lock: Option<LockId>, entry: EntryId) {
        let is_of = |key: &(u32, LockId, HoldId)| lock.is_none_or(|lock| key.1 == lock);
        let keys: Vec<_> = self.holds.keys().filter(|key| is_of(key)).copied().collect();
        for key in keys {
            if let Some(bar) = self.holds.remove(&key) {
                self.end_bar(bar, at, Some(entry));
            }
        }
    }

    fn begin(&mut self, from: Instant, what: Lasting, host: Option<HostId>, name: &str, entry: EntryId) {
        let lane = match host {
            Some(host) => self.host_lane(host),
            None => self.server_lane(self.primary),
        };
        self.lasting.insert(what, self.timeline.bands.len());
        let (lane, name) = (Some(lane), name.to_owned());
        self.timeline.bands.push(Band { lane, from, until: None, name, entries: vec![entry] });
    }

    fn end(&mut self, at: Instant, what: Lasting, entry: EntryId) {
        let band = self.lasting.remove(&what).and_then(|band| self.timeline.bands.get_mut(band));
        if let Some(band) = band {
            band.until = Some(at);
            band.entries.push(entry);
        }
    }
}

/// How a mode is written behind a name: nothing for an exclusive one.
fn mode(mode: LockMode) -> String {
    match mode {
        LockMode::Exclusive => String::new(),
        LockMode::Permits { .. } => format!(" ×{}", mode.count()),
        other => format!(" {other:?}").to_lowercase(),
    }
}
