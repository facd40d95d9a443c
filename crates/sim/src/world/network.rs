//! The network between processes and the server.
//!
//! A process has two links to the server, as a client of Redis has two connections: its own, which also carries its
//! mailboxes, and the keeper's. With replicas to wait for, it has one for that as well. This module decides when operations arrive, how often, and whether the client
//! receives the reply.
//!
//! 1. A link that breaks gets a new generation. Messages in flight on the old one are lost, or arrive later than
//!    those sent on the new one, and their replies are dropped.
//! 2. A link is up once its mailboxes are subscribed again, and their sinks know that they may have missed messages.

use crate::checks::POLL_INTERVAL;
use crate::event::{Event, Execution, HostEvent, LockId, MessageFault, MultiExecution, SessionExecution};
use crate::world::Sim;
use crate::world::link::LinkId;
use crate::world::partition::IsolatedPrimary;
use crate::world::scheduler::HostId;
use crate::world::server::Server;
use crate::world::time::Instant;
use leasehold::store::NotificationSink;
use leasehold_core::{Acquire, MultiAcquired, Notification, Op, Reply, SessionId, SessionOp, SessionReply};
use leasehold_testkit::Random;
use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// A message that takes longer counts as late.
const LATE_AFTER: Duration = Duration::from_millis(10);

pub(crate) struct Net {
    pub(crate) random: Random,
    links: Vec<Link>,
    last_message: u64,
    /// The primary.
    pub(crate) server: Server,
    /// A former primary, while it is cut off from the present one with some of the processes.
    pub(crate) isolated: Option<IsolatedPrimary>,
    /// Set until faults end.
    pub(crate) is_faulty: bool,
}

pub(crate) struct Link {
    pub(crate) host: HostId,
    keeper: bool,
    /// Whether only confirmations go over it. Nothing depends on when it is up.
    pub(crate) confirming: bool,
    generation: u64,
    is_up: bool,
    cut_off_until: Instant,
    calls: BTreeMap<u64, Arc<PendingCall>>,
    wakers: Vec<Waker>,
    sinks: BTreeMap<SessionId, Arc<dyn NotificationSink>>,
    /// The last of its requests that was executed. Earlier ones were overtaken.
    record_execution: u64,
    /// When the last message in each direction arrives.
    to_server: Instant,
    to_client: Instant,
}

/// A request to the server.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    Lock(LockId, Op),
    /// All of several locks, in their order.
    MultiAcquire(Vec<(LockId, Acquire)>),
    /// With the time at which the client issued it.
    Sessions(Instant, SessionOp),
}

/// A reply of the server.
#[derive(Debug)]
pub(crate) enum Response {
    Lock(Box<Reply>),
    MultiAcquire(Vec<MultiAcquired>),
    Sessions(SessionReply),
}

/// A call without an outcome yet.
#[derive(Default)]
pub(crate) struct PendingCall {
    state: Mutex<CallState>,
}

#[derive(Default)]
struct CallState {
    outcome: Option<Result<Response, ConnectionLost>>,
    waker: Option<Waker>,
}

/// The connection broke before there was a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLost;

impl PendingCall {
    fn resolve(&self, outcome: Result<Response, ConnectionLost>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.outcome.get_or_insert(outcome);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) async fn outcome(&self) -> Result<Response, ConnectionLost> {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(outcome) = state.outcome.take() {
                return Poll::Ready(outcome);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// A request in flight.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all of them can be true")]
struct Request {
    link: LinkId,
    generation: u64,
    host: HostId,
    message: u64,
    command: Arc<Command>,
    /// When its sender stops waiting.
    until: Instant,
    is_stale: bool,
    /// Set if it may arrive after its connection broke.
    is_ghost: bool,
    /// Set if it is a duplicate.
    is_copy: bool,
    /// Set if the reply waits until the replica has what it wrote.
    is_confirmed: bool,
}

impl Net {
    pub(crate) fn new(random: Random, server: Server) -> Self {
        Self { random, links: Vec::new(), last_message: 0, server, isolated: None, is_faulty: true }
    }

    /// The server that a link leads to.
    fn server_of(&self, link: LinkId) -> &Server {
        let link = &self.links[link.0];
        let isolated = self.isolated.as_ref().filter(|isolated| isolated.has(link.host, link.confirming));
        isolated.map_or(&self.server, |isolated| &isolated.server)
    }

    fn server_of_mut(&mut self, link: LinkId) -> &mut Server {
        let link = &self.links[link.0];
        let isolated = self.isolated.as_mut().filter(|isolated| isolated.has(link.host, link.confirming));
        match isolated {
            Some(isolated) => &mut isolated.server,
            None => &mut self.server,
        }
    }

    /// The links of a process: its own, the keeper's, and perhaps one for confirmations.
    fn add_links(&mut self, host: HostId, confirms: bool) -> Vec<LinkId> {
        let links = [(false, false), (true, false), (true, true)].into_iter();
        let links = links.take(if confirms { 3 } else { 2 });
        let add = |(keeper, confirming)| {
            self.links.push(Link {
                host,
                keeper,
                confirming,
                generation: 0,
                is_up: false,
                cut_off_until: Instant::default(),
                calls: BTreeMap::new(),
                wakers: Vec::new(),
                sinks: BTreeMap::new(),
                record_execution: 0,
                to_server: Instant::default(),
                to_client: Instant::default(),
            });
            LinkId(self.links.len() - 1)
        };
        links.map(add).collect()
    }

    fn link(&mut self, link: LinkId) -> &mut Link {
        &mut self.links[link.0]
    }

    fn links_of(&self, host: HostId) -> Vec<LinkId> {
        self.links_where(|link| link.host == host)
    }

    pub(crate) fn links_where(&self, is_one: impl Fn(&Link) -> bool) -> Vec<LinkId> {
        let links = self.links.iter().enumerate();
        links.filter(|(_, link)| is_one(link)).map(|(index, _)| LinkId(index)).collect()
    }

    fn occurs(&self, per_mille: u64) -> bool {
        self.is_faulty && per_mille > 0 && self.random.chance(per_mille)
    }
}

impl Sim {
    fn latency(&self, net: &Net) -> Duration {
        let (least, most) = self.fault_plan.latency_us;
        Duration::from_micros(net.random.between(least, most))
    }

    /// When a message that is sent now arrives, with the given additional delay.
    fn arrival(&self, net: &mut Net, link: LinkId, to_server: bool, delay: Duration) -> Instant {
        let now = self.scheduler.now();
        let mut at = now + self.latency(net) + delay;
        let link = net.link(link);
        let last = if to_server { &mut link.to_server } else { &mut link.to_client };
        if self.fault_plan.in_order {
            at = at.max(*last + Duration::from_micros(1));
            *last = at;
        }
        at
    }

    fn extra_delay(&self, net: &Net) -> Duration {
        if net.occurs(self.fault_plan.delayed) {
            Duration::from_micros(net.random.between(10_000, 5_000_000))
        } else {
            Duration::ZERO
        }
    }

    /// Adds the links of a process, which connect as soon as possible.
    pub(crate) fn add_links(self: &Arc<Self>, host: HostId) -> Vec<LinkId> {
        let links = self.net().add_links(host, self.fault_plan.replica_lag.is_some());
        for link in &links {
            self.connect_after(Duration::ZERO, *link);
        }
        links
    }

    /// Waits until a link is up. Returns its generation.
    pub(crate) async fn link_up(self: &Arc<Self>, link: LinkId) -> u64 {
        std::future::poll_fn(|cx| {
            let mut net = self.net();
            let link = net.link(link);
            if link.is_up {
                return Poll::Ready(link.generation);
            }
            link.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Sends a request on a link that is up.
    pub(crate) fn send(
        self: &Arc<Self>,
        link: LinkId,
        command: Command,
        until: Instant,
        is_confirmed: bool,
    ) -> (u64, Arc<PendingCall>) {
        let mut net = self.net();
        net.last_message += 1;
        let message = net.last_message;
        let call = Arc::new(PendingCall::default());
        let (host, generation) = (net.link(link).host, net.link(link).generation);
        net.link(link).calls.insert(message, call.clone());
        match &command {
            Command::Lock(lock, op) => self.record(&Event::Sent { host, message, lock: *lock, op }),
            Command::MultiAcquire(acquires) => {
                for (lock, request) in acquires {
                    let op = &Op::Acquire(request.clone());
                    self.record(&Event::Sent { host, message, lock: *lock, op });
                }
            }
            Command::Sessions(asked_at, op) => {
                self.record(&Event::SessionSent { host, message, asked_at: *asked_at, op });
            }
        }
        if net.occurs(self.fault_plan.lost) {
            self.record(&Event::MessageFault { message, what: MessageFault::RequestLost });
            self.record(&Event::Host(host, HostEvent::Delayed(until)));
            return (message, call);
        }
        let is_ghost = net.random.chance(500);
        let request = Request {
            link,
            generation,
            host,
            message,
            command: Arc::new(command),
            until,
            is_stale: false,
            is_ghost,
            is_copy: false,
            is_confirmed,
        };
        if net.occurs(self.fault_plan.duplicated) {
            let at = self.scheduler.now() + Duration::from_micros(net.random.between(100, 6_000_000));
            self.record(&Event::MessageFault { message, what: MessageFault::RequestDuplicated(at) });
            let copy = Request { is_stale: true, is_copy: true, ..request.clone() };
            self.deliver_request(at, copy);
        }
        let delay = self.extra_delay(&net);
        let at = self.arrival(&mut net, link, true, delay);
        let is_stale = at.since(self.scheduler.now()) > LATE_AFTER;
        if is_stale {
            self.record(&Event::MessageFault { message, what: MessageFault::RequestDelayed(at) });
            self.record(&Event::Host(host, HostEvent::Delayed(at.min(until))));
        }
        self.deliver_request(at, Request { is_stale, ..request });
        (message, call)
    }

    fn deliver_request(self: &Arc<Self>, at: Instant, request: Request) {
        let sim = self.clone();
        self.scheduler.at(at, None, move || sim.arrive(request));
    }

    /// A request arrives at the server.
    fn arrive(self: &Arc<Self>, mut request: Request) {
        let mut net = self.net();
        let is_old = net.link(request.link).generation != request.generation;
        if is_old && !request.is_copy {
            if request.is_ghost {
                // Its bytes remain in a buffer (1).
                let at = self.scheduler.now() + Duration::from_micros(net.random.between(100, 5_000_000));
                self.record(&Event::MessageFault {
                    message: request.message,
                    what: MessageFault::ArrivedAfterBreak(at),
                });
                request.is_stale = true;
                request.is_copy = true;
                self.deliver_request(at, request);
            }
            return;
        }
        if !net.server_of(request.link).is_up {
            return;
        }
        let (now, net) = (self.scheduler.now(), &mut *net);
        let record_execution = &mut net.link(request.link).record_execution;
        request.is_stale |= request.message < *record_execution;
        *record_execution = request.message.max(*record_execution);
        let answer = match &*request.command {
            Command::Lock(lock, op) => Response::Lock(Box::new(self.execute(net, now, &request, *lock, op))),
            Command::MultiAcquire(acquires) => {
                Response::MultiAcquire(self.acquire_all(net, now, &request, acquires))
            }
            Command::Sessions(_, op) => Response::Sessions(self.execute_session(net, now, &request, op)),
        };
        if request.is_copy {
            return;
        }
        match self.fault_plan.replica_lag {
            Some(lag) if request.is_confirmed && !self.confirms_too_early() => {
                self.reply_once_replicated(net, request, answer, lag);
            }
            _ => self.reply(net, &request, answer),
        }
    }

    fn execute(
        self: &Arc<Self>,
        net: &mut Net,
        now: Instant,
        request: &Request,
        lock: LockId,
        op: &Op,
    ) -> Reply {
        let (reply, notifications) = net.server_of_mut(request.link).execute(now, lock, op, self.mutant);
        self.record_execution(net, request, lock, (op, &reply, &notifications), false);
        for notification in notifications {
            self.publish(net, request.link, notification);
        }
        reply
    }

    /// Records an executed operation, by itself or as part of a multi-acquire.
    fn record_execution(
        &self,
        net: &Net,
        request: &Request,
        lock: LockId,
        what: (&Op, &Reply, &[Notification]),
        in_multi_acquire: bool,
    ) {
        let (op, reply, notifications) = what;
        let server = net.server_of(request.link);
        let Some(state) = server.locks.get(&lock) else { return };
        self.record(&Event::Executed(&Execution {
            host: request.host,
            message: request.message,
            server: server.number,
            is_copy: request.is_copy,
            is_stale: request.is_stale,
            in_multi_acquire,
            lock,
            op,
            reply,
            notifications,
            state,
            sessions: &server.sessions,
            clock: &server.clock,
        }));
    }

    /// Acquires several locks. Records an execution for each.
    fn acquire_all(
        &self,
        net: &mut Net,
        now: Instant,
        request: &Request,
        acquires: &[(LockId, Acquire)],
    ) -> Vec<MultiAcquired> {
        let replies = net.server_of_mut(request.link).acquire_all(now, acquires, self.mutant);
        let server = net.server_of(request.link);
        let each = acquires.iter().zip(&replies);
        let each = each
            .filter_map(|((lock, acquire), reply)| Some((*lock, acquire, reply, server.locks.get(lock)?)));
        let (host, message, clock) = (request.host, request.message, &server.clock);
        self.record(&Event::MultiExecuted(&MultiExecution {
            host,
            message,
            server: server.number,
            is_copy: request.is_copy,
            replies: &each.collect::<Vec<_>>(),
            clock,
        }));
        for ((lock, acquire), reply) in acquires.iter().zip(&replies) {
            if let MultiAcquired::Acquired(acquired) | MultiAcquired::Blocked(Ok(acquired)) = reply {
                let (op, reply) = (Op::Acquire(acquire.clone()), Reply::Acquire(acquired.clone()));
                self.record_execution(net, request, *lock, (&op, &reply, &[]), true);
            }
        }
        replies
    }

    fn execute_session(
        &self,
        net: &mut Net,
        now: Instant,
        request: &Request,
        op: &SessionOp,
    ) -> SessionReply {
        let reply = net.server_of_mut(request.link).execute_session(now, op, self.mutant);
        let server = net.server_of(request.link);
        self.record(&Event::SessionExecuted(&SessionExecution {
            host: request.host,
            message: request.message,
            server: server.number,
            is_copy: request.is_copy,
            is_stale: request.is_stale,
            op,
            reply: &reply,
            sessions: &server.sessions,
            clock: &server.clock,
        }));
        reply
    }

    /// Replies once the replica has all that the server has now. It never has if the server is cut off by then.
    fn reply_once_replicated(self: &Arc<Self>, net: &Net, request: Request, answer: Response, lag: Duration) {
        let (sim, number) = (self.clone(), net.server_of(request.link).number);
        self.scheduler.at(self.scheduler.now() + lag, None, move || {
            let mut net = sim.net();
            let server = net.server_of(request.link);
            if server.is_up && server.number == number && server.has_replica() {
                sim.reply(&mut net, &request, answer);
            }
        });
    }

    fn reply(self: &Arc<Self>, net: &mut Net, request: &Request, answer: Response) {
        let Request { link, generation, host, message, until, .. } = *request;
        if net.occurs(self.fault_plan.lost) {
            self.record(&Event::MessageFault { message, what: MessageFault::ReplyLost });
            self.record(&Event::Host(host, HostEvent::Delayed(until)));
            return;
        }
        let delay = self.extra_delay(net);
        let at = self.arrival(net, link, false, delay);
        if at.since(self.scheduler.now()) > LATE_AFTER {
            self.record(&Event::Host(host, HostEvent::Delayed(at.min(until))));
        }
        let sim = self.clone();
        self.scheduler.at(at, Some(host), move || {
            let mut net = sim.net();
            let link = net.link(link);
            let call = link.calls.remove(&message).filter(|_| link.generation == generation);
            drop(net);
            if let Some(call) = call {
                call.resolve(Ok(answer));
            }
        });
    }

    /// Publishes a notification at the server that this link leads to.
    fn publish(self: &Arc<Self>, net: &mut Net, from: LinkId, notification: Notification) {
        let subscription = net.server_of(from).subscriptions.get(&notification.to()).copied();
        let Some((link, generation)) = subscription else { return };
        let host = net.link(link).host;
        let message = net.last_message;
        if net.occurs(self.fault_plan.lost) {
            self.record(&Event::MessageFault { message, what: MessageFault::NotificationLost });
            self.record(&Event::Host(host, HostEvent::Delayed(self.scheduler.now() + POLL_INTERVAL)));
            return;
        }
        let delay = self.extra_delay(net);
        let at = self.arrival(net, link, false, delay);
        if at.since(self.scheduler.now()) > LATE_AFTER {
            self.record(&Event::MessageFault { message, what: MessageFault::NotificationDelayed(at) });
            self.record(&Event::Host(host, HostEvent::Delayed(at)));
        }
        let sim = self.clone();
        self.scheduler.at(at, Some(host), move || {
            let mut net = sim.net();
            let link = net.link(link);
            let sink = link.sinks.get(&notification.to()).filter(|_| link.generation == generation).cloned();
            drop(net);
            if let Some(sink) = sink {
                sim.record(&Event::Notified(host, notification));
                sink.deliver(notification);
            }
        });
    }

    /// Subscribes a mailbox. Retries if the link breaks meanwhile.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        link: LinkId,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
    ) {
        // Registered before the connection is up, so that a connection attempt in progress finds it.
        self.net().link(link).sinks.insert(session, sink);
        loop {
            let generation = self.link_up(link).await;
            let latency = self.latency(&self.net());
            self.scheduler.sleep_until(self.scheduler.now() + latency).await;
            if !self.subscription_arrives(link, generation, session) {
                continue;
            }
            self.scheduler.sleep_until(self.scheduler.now() + latency).await;
            if self.net().link(link).generation == generation {
                return;
            }
        }
    }

    /// A subscription reaches the server, if its connection is still there.
    fn subscription_arrives(&self, link: LinkId, generation: u64, session: SessionId) -> bool {
        let mut net = self.net();
        let arrives = net.link(link).generation == generation && net.server_of(link).is_up;
        if arrives {
            net.server_of_mut(link).subscriptions.insert(session, (link, generation));
        }
        arrives
    }

    pub(crate) fn unsubscribe(&self, link: LinkId, session: SessionId) {
        let mut net = self.net();
        net.link(link).sinks.remove(&session);
        net.server_of_mut(link).subscriptions.remove(&session);
    }

    /// Breaks a link, which reconnects as soon as possible.
    fn break_link(self: &Arc<Self>, id: LinkId) {
        let mut net = self.net();
        let link = net.link(id);
        link.generation += 1;
        let was_up = mem::replace(&mut link.is_up, false);
        let (host, keeper, confirming) = (link.host, link.keeper, link.confirming);
        let calls = mem::take(&mut link.calls);
        net.server_of_mut(id).subscriptions.retain(|_, (link, _)| *link != id);
        let pause = Duration::from_micros(net.random.between(1_000, 300_000));
        drop(net);
        if was_up && !confirming {
            self.record(&Event::Host(host, HostEvent::LinkDown { keeper }));
        }
        self.scheduler.at(self.scheduler.now(), Some(host), move || {
            for call in calls.into_values() {
                call.resolve(Err(ConnectionLost));
            }
        });
        self.connect_after(pause, id);
    }

    fn connect_after(self: &Arc<Self>, pause: Duration, id: LinkId) {
        let (host, generation) = {
            let mut net = self.net();
            let link = net.link(id);
            (link.host, link.generation)
        };
        let sim = self.clone();
        self.scheduler.at(self.scheduler.now() + pause, Some(host), move || sim.connect(id, generation));
    }

    /// One attempt to reconnect a link.
    fn connect(self: &Arc<Self>, id: LinkId, generation: u64) {
        let now = self.scheduler.now();
        let mut net = self.net();
        if net.link(id).generation != generation || net.link(id).is_up {
            return;
        }
        if !net.server_of(id).is_up || net.link(id).cut_off_until > now {
            let pause = Duration::from_micros(net.random.between(20_000, 500_000));
            drop(net);
            return self.connect_after(pause, id);
        }
        let (latency, host) = (self.latency(&net), net.link(id).host);
        drop(net);
        let sim = self.clone();
        self.scheduler.at(now + latency * 2, None, move || {
            let mut net = sim.net();
            if net.link(id).generation != generation || !net.server_of(id).is_up {
                // It broke during the attempt, and the break has scheduled another one.
                return;
            }
            let sessions: Vec<_> = net.link(id).sinks.keys().copied().collect();
            for session in sessions {
                net.server_of_mut(id).subscriptions.insert(session, (id, generation));
            }
            drop(net);
            let this = sim.clone();
            sim.scheduler.at(now + latency * 3, Some(host), move || this.connected(id, generation));
        });
    }

    fn connected(self: &Arc<Self>, id: LinkId, generation: u64) {
        let mut net = self.net();
        let link = net.link(id);
        if link.generation != generation || link.is_up {
            return;
        }
        link.is_up = true;
        let (host, keeper, confirming) = (link.host, link.keeper, link.confirming);
        let wakers = mem::take(&mut link.wakers);
        let sinks: Vec<_> = link.sinks.values().cloned().collect();
        drop(net);
        if !confirming {
            self.record(&Event::Host(host, HostEvent::LinkUp { keeper }));
        }
        for waker in wakers {
            waker.wake();
        }
        // Messages may have been missed (2).
        for sink in sinks {
            sink.resubscribed();
        }
    }

    pub(crate) fn break_links(self: &Arc<Self>, host: HostId, keeper: Option<bool>) {
        let links = self.net().links_of(host);
        for link in links {
            if keeper.is_none_or(|keeper| self.net().link(link).keeper == keeper) {
                self.break_link(link);
            }
        }
    }

    /// Cuts a process off from the server for that long.
    pub(crate) fn isolate(self: &Arc<Self>, host: HostId, lasts: Duration) {
        let until = self.scheduler.now() + lasts;
        let links = self.net().links_of(host);
        for link in links {
            self.net().link(link).cut_off_until = until;
            self.break_link(link);
        }
    }

    /// Closes the links of a crashed process. Messages in flight may still arrive.
    pub(crate) fn close_links(&self, host: HostId) {
        let mut net = self.net();
        for id in net.links_of(host) {
            let link = net.link(id);
            link.generation += 1;
            link.is_up = false;
            let left = (mem::take(&mut link.calls), mem::take(&mut link.sinks), mem::take(&mut link.wakers));
            net.server_of_mut(id).subscriptions.retain(|_, (link, _)| *link != id);
            drop(left);
        }
    }

    /// Breaks the links of all running processes.
    pub(crate) fn break_all_links(self: &Arc<Self>) {
        let all = self.net().links_where(|_| true);
        self.break_links_of(all);
    }

    /// Breaks those of these links whose processes run.
    pub(crate) fn break_links_of(self: &Arc<Self>, links: Vec<LinkId>) {
        for link in links {
            let host = self.net().link(link).host;
            if !self.scheduler.is_dead(host) {
                self.break_link(link);
            }
        }
    }
}
