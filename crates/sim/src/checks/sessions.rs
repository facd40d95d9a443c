//! A lapsed session is over, at the store and in its process; none lapses without a cause.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{Event, HostEvent, ServerEvent, SessionExecution};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::model::SessionRecord;
use leasehold_core::{Acquire, Heartbeat, HeartbeatReply, Op, SessionId, SessionOp, SessionReply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a process may take from the lapse of its session to the beginning of the next: it first opens a mailbox.
const BEGINS_WITHIN: Duration = Duration::from_millis(100);

/// How long a request may wait for a connection, and the drift of the clock that measures it.
const CALL_TIMEOUT: Duration = Duration::from_millis(2200);

/// A lapsed session never returns while the store remembers it, and a session with timely heartbeats is alive. A process
/// begins each session once, and again only if the store has forgotten it. It sends no request before the store has
/// acknowledged it, and none after it has learned of the lapse. Without faults no session lapses.
#[derive(Debug, Default)]
pub struct SessionLiveness {
    /// The records that the store must have.
    records: BTreeMap<SessionId, Record>,
    /// Sessions that the store may know after a data loss or a failover.
    unknown: BTreeSet<SessionId>,
    /// Heartbeats without a reply: the session, the requested lifetime, and whether it begins the session.
    requested: BTreeMap<u64, (SessionId, Duration, bool)>,
    begun: BTreeSet<SessionId>,
    /// Sessions that the store did not know when they sent a heartbeat: they may begin again.
    forgotten: BTreeSet<SessionId>,
    acknowledged: BTreeSet<SessionId>,
    /// Sessions whose lapse their process has learned of, and when.
    lapsed: BTreeMap<SessionId, Instant>,
    /// The session of a process, and how long it lives without a heartbeat.
    current: BTreeMap<HostId, (SessionId, Duration)>,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    /// Until when it is alive, in the store's milliseconds.
    until_ms: u64,
    /// When the store may forget it.
    expires_ms: u64,
}

impl SessionLiveness {
    fn session_executed(&mut self, at: Instant, done: &SessionExecution<'_>) -> CheckResult {
        match (done.op, done.reply) {
            (SessionOp::Heartbeat(heartbeat), SessionReply::Heartbeat(heartbeat_executed)) => {
                self.heartbeat_executed(at, done, heartbeat, *heartbeat_executed)
            }
            (SessionOp::End(session), _) => {
                self.records.remove(session);
                self.unknown.remove(session);
                if done.sessions.records.contains_key(session) {
                    return Err(format!("{session} has ended, and the store still has its record"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn heartbeat_executed(
        &mut self,
        at: Instant,
        done: &SessionExecution<'_>,
        heartbeat: &Heartbeat,
        heartbeat_executed: HeartbeatReply,
    ) -> CheckResult {
        let (session, now_ms) = (heartbeat.session, done.clock.reading_us(at) / 1000);
        let was_unknown = self.unknown.remove(&session);
        let old = self.records.get(&session).copied();
        let begins = heartbeat.begin.is_some();
        // A heartbeat that begins a session may reach a store that has forgotten its lapse: a late one, which no process
        // relies on any more, or one after a jump of the clock. Each hold is judged by itself then.
        match (old, heartbeat_executed) {
            _ if was_unknown => {}
            (Some(old), HeartbeatReply::Alive)
                if old.until_ms < now_ms && !(begins && old.expires_ms < now_ms) =>
            {
                let ago_ms = now_ms - old.until_ms;
                return Err(format!("{session} is alive again, {ago_ms} ms after it lapsed"));
            }
            (Some(old), HeartbeatReply::Lapsed) if old.until_ms >= now_ms => {
                return Err(format!(
                    "{session} is reported as lapsed, and lives for {} ms",
                    old.until_ms - now_ms
                ));
            }
            (None, HeartbeatReply::Alive) if !begins => {
                return Err(format!("{session} is alive by a heartbeat, and has not begun"));
            }
            (None, HeartbeatReply::Lapsed) if begins => {
                return Err(format!("{session} could not begin"));
            }
            _ => {}
        }
        let after = done.sessions.records.get(&session);
        let known = |record: &SessionRecord| Record {
            until_ms: record.alive_until_ms,
            expires_ms: record.expires_ms.max(old.map_or(0, |old| old.expires_ms)),
        };
        if heartbeat_executed == HeartbeatReply::Lapsed {
            if after.is_some_and(|record| record.alive_until_ms >= now_ms) {
                return Err(format!("{session} is reported as lapsed, and is alive"));
            }
            if let Some(after) = after {
                self.records.insert(session, known(after));
            }
            return Ok(());
        }
        let Some(after) = after else {
            return Err(format!("{session} is reported as alive, and has no record"));
        };
        let until_ms = old.map_or(0, |old| old.until_ms).max(now_ms + heartbeat.alive_ms);
        if after.alive_until_ms != until_ms && !was_unknown {
            return Err(format!(
                "the record of {session} lasts until {}, not {until_ms}",
                after.alive_until_ms
            ));
        }
        self.records.insert(session, known(after));
        Ok(())
    }

    /// A process sends a heartbeat, which may begin a session.
    fn heartbeat_sent(
        &mut self,
        at: Instant,
        host: HostId,
        message: u64,
        heartbeat: &Heartbeat,
        context: &CheckContext,
    ) -> CheckResult {
        let session = heartbeat.session;
        let begins = heartbeat.begin.is_some();
        self.requested.insert(message, (session, Duration::from_millis(heartbeat.alive_ms), begins));
        if self.lapsed.contains_key(&session) {
            return Err(format!("{host} sends a heartbeat for {session}, and knows that it has lapsed"));
        }
        if !begins || self.forgotten.contains(&session) {
            return Ok(());
        }
        if !self.begun.insert(session) {
            return Err(format!("{host} begins {session} for the second time"));
        }
        let Some((old, lived)) = self.current.remove(&host) else { return Ok(()) };
        let since = context.health(host).and_then(Health::background_healthy_since);
        let cause = context.last_server_event.max(since);
        // A session sends four heartbeats in that time, so one lost message is no cause.
        if since.is_some() && cause.is_none_or(|cause| cause + lived * 5 / 4 + BEGINS_WITHIN < at) {
            return Err(format!("{old} of {host} has lapsed, and the last fault was at {cause:?}"));
        }
        Ok(())
    }

    fn session_answered(&mut self, at: Instant, host: HostId, message: u64, reply: Option<&SessionReply>) {
        let Some((session, alive, begins)) = self.requested.remove(&message) else { return };
        match reply {
            Some(SessionReply::Heartbeat(HeartbeatReply::Alive)) => {
                self.acknowledged.insert(session);
                self.forgotten.remove(&session);
                self.current.insert(host, (session, alive));
            }
            Some(SessionReply::Heartbeat(HeartbeatReply::Lapsed)) if begins => {
                self.lapsed.insert(session, at);
            }
            Some(SessionReply::Heartbeat(HeartbeatReply::Lapsed)) => drop(self.forgotten.insert(session)),
            _ => {}
        }
    }

    fn acquire_sent(
        &self,
        at: Instant,
        host: HostId,
        request: &Acquire,
        context: &CheckContext,
    ) -> CheckResult {
        let session = request.claim.hold.session();
        if request.liveness.ends_with_session() && !self.acknowledged.contains(&session) {
            return Err(format!("{host} requests a lock in {session}, which the store has not acknowledged"));
        }
        // A request that waited for a connection may have been issued before.
        let is_late = self.lapsed.get(&session).is_some_and(|lapsed| at > *lapsed + CALL_TIMEOUT);
        if is_late && !context.is_resuming(host, at) {
            return Err(format!("{host} requests a lock in {session}, and knows that it has lapsed"));
        }
        Ok(())
    }
}

impl Check for SessionLiveness {
    fn name(&self) -> &'static str {
        "sessions"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::SessionExecuted(done) => return self.session_executed(at, done),
            Event::SessionSent { host, message, op: SessionOp::Heartbeat(heartbeat), .. } => {
                return self.heartbeat_sent(at, host, message, heartbeat, context);
            }
            Event::SessionAnswered { host, message, reply } => {
                self.session_answered(at, host, message, reply);
            }
            Event::Sent { host, op: Op::Acquire(request), .. } => {
                return self.acquire_sent(at, host, request, context);
            }
            Event::Host(host, HostEvent::Crashed | HostEvent::Ended) => drop(self.current.remove(&host)),
            Event::Server(ServerEvent::Up { with_data: false }) => {
                self.records.clear();
                self.unknown.clear();
            }
            // A replica may lack or restore sessions, and another clock changes which are alive.
            Event::Server(ServerEvent::FailedOver | ServerEvent::Jumped(_)) => {
                self.unknown.extend(&self.begun);
                self.records.clear();
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::{HOST, LOCK, acquire, context, hold};
    use leasehold_core::{Claim, Kind, LockMode};

    #[test]
    fn a_request_that_has_waited_for_a_connection_may_be_sent_when_its_process_is_resumed() {
        let (mut check, mut context) = (SessionLiveness::default(), context(Kind::Mutex));
        let claim = Claim { hold: hold(1), value: None };
        check.lapsed.insert(claim.hold.session(), Instant(0));
        let op = Op::Acquire(acquire(claim, LockMode::Exclusive));
        let (early, late, later) = (Instant(2_000_000), Instant(3_000_000), Instant(3_000_001));
        let mut send = |at, context: &CheckContext| {
            check.observe(at, &Event::Sent { host: HOST, message: 1, lock: LOCK, op: &op }, context)
        };
        send(early, &context).expect("its time limit has not passed");
        send(late, &context).expect_err("it has");
        context.observe(late, &Event::Host(HOST, HostEvent::Resumed));
        send(late, &context).expect("a stopped process has no time limit");
        send(later, &context).expect_err("it runs again");
    }
}
