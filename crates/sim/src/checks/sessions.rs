//! A session that has lapsed is over, at the store and for its process; and none lapses without a cause.

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

/// The longest time that a question may wait for a connection, and the drift of the clock that counts it.
const CALL: Duration = Duration::from_millis(2200);

/// A lapsed session never returns, and a session with timely heartbeats is alive. A process begins each session once,
/// sends no request before the store has acknowledged it, and none after it has learned of the lapse. Without faults
/// no session lapses.
#[derive(Debug, Default)]
pub struct SessionLiveness {
    /// The records that the store must have.
    records: BTreeMap<SessionId, Record>,
    /// Sessions that the store may know after a data loss or a failover.
    unknown: BTreeSet<SessionId>,
    /// Heartbeats without a reply: the session and the requested lifetime.
    asked: BTreeMap<u64, (SessionId, Duration)>,
    begun: BTreeSet<SessionId>,
    acknowledged: BTreeSet<SessionId>,
    /// Sessions whose lapse their process has learned of, and when.
    lapsed: BTreeMap<SessionId, Instant>,
    /// The session that a process is in, and how long that lives without a beat.
    present: BTreeMap<HostId, (SessionId, Duration)>,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    /// Until when it is alive, in the store's milliseconds.
    until_ms: u64,
    /// When the store may forget it.
    expires_ms: u64,
}

impl SessionLiveness {
    fn attended(&mut self, at: Instant, done: &SessionExecution<'_>) -> CheckResult {
        match (done.op, done.reply) {
            (SessionOp::Heartbeat(beat), SessionReply::Heartbeat(beaten)) => {
                self.beaten(at, done, beat, *beaten)
            }
            (SessionOp::End(session), _) => {
                self.records.remove(session);
                self.unknown.remove(session);
                if done.sessions.records.contains_key(session) {
                    return Err(format!("{session} has ended, and the store knows it still"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn beaten(
        &mut self,
        at: Instant,
        done: &SessionExecution<'_>,
        beat: &Heartbeat,
        beaten: HeartbeatReply,
    ) -> CheckResult {
        let (session, now_ms) = (beat.session, done.clock.reading_us(at) / 1000);
        let was_unknown = self.unknown.remove(&session);
        let old = self.records.get(&session).copied();
        let begins = beat.begin.is_some();
        // A late beginning reaches a store that has forgotten the session. No process uses it any more.
        let is_ghost = begins && done.out_of_time;
        match (old, beaten) {
            _ if was_unknown => {}
            (Some(old), HeartbeatReply::Alive)
                if old.until_ms < now_ms && !(is_ghost && old.expires_ms < now_ms) =>
            {
                let ago_ms = now_ms - old.until_ms;
                return Err(format!("{session} is alive again, {ago_ms} ms after it lapsed"));
            }
            (Some(old), HeartbeatReply::Lapsed) if old.until_ms >= now_ms => {
                return Err(format!(
                    "{session} is said to have lapsed, and has {} ms",
                    old.until_ms - now_ms
                ));
            }
            (None, HeartbeatReply::Alive) if !begins => {
                return Err(format!("{session} is alive by a beat, and has not begun"));
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
        if beaten == HeartbeatReply::Lapsed {
            if after.is_some_and(|record| record.alive_until_ms >= now_ms) {
                return Err(format!("{session} is said to have lapsed, and is alive"));
            }
            if let Some(after) = after {
                self.records.insert(session, known(after));
            }
            return Ok(());
        }
        let Some(after) = after else {
            return Err(format!("{session} is said to be alive, and is not known"));
        };
        let until_ms = old.map_or(0, |old| old.until_ms).max(now_ms + beat.alive_ms);
        if after.alive_until_ms != until_ms && !was_unknown {
            return Err(format!(
                "{session} lives until {} by its record, not {until_ms}",
                after.alive_until_ms
            ));
        }
        self.records.insert(session, known(after));
        Ok(())
    }

    /// A process heartbeats, or begins a session.
    fn heartbeats(
        &mut self,
        at: Instant,
        host: HostId,
        message: u64,
        beat: &Heartbeat,
        context: &CheckContext,
    ) -> CheckResult {
        let session = beat.session;
        self.asked.insert(message, (session, Duration::from_millis(beat.alive_ms)));
        if self.lapsed.contains_key(&session) {
            return Err(format!("{host} heartbeats for {session}, and was told that it has lapsed"));
        }
        if beat.begin.is_none() {
            return Ok(());
        }
        if !self.begun.insert(session) {
            return Err(format!("{host} begins {session} for the second time"));
        }
        let Some((old, lived)) = self.present.remove(&host) else { return Ok(()) };
        let since = context.health(host).and_then(Health::stirs_since);
        let cause = context.upset_at.max(since);
        // A session sends four heartbeats in that time, so one lost message is no cause.
        if since.is_some() && cause.is_none_or(|cause| cause + lived * 5 / 4 + BEGINS_WITHIN < at) {
            return Err(format!("{old} of {host} has lapsed, and nothing has gone wrong since {cause:?}"));
        }
        Ok(())
    }

    fn heard(&mut self, at: Instant, host: HostId, message: u64, reply: Option<&SessionReply>) {
        let Some((session, alive)) = self.asked.remove(&message) else { return };
        match reply {
            Some(SessionReply::Heartbeat(HeartbeatReply::Alive)) => {
                self.acknowledged.insert(session);
                self.present.insert(host, (session, alive));
            }
            Some(SessionReply::Heartbeat(HeartbeatReply::Lapsed)) => drop(self.lapsed.insert(session, at)),
            _ => {}
        }
    }

    fn asks(&self, at: Instant, host: HostId, ask: &Acquire) -> CheckResult {
        let session = ask.claim.hold.session();
        if ask.liveness.ends_with_session() && !self.acknowledged.contains(&session) {
            return Err(format!("{host} asks for a lock in {session}, which the store has not acknowledged"));
        }
        // A request that waited for a connection may have been issued before.
        if self.lapsed.get(&session).is_some_and(|lapsed| at > *lapsed + CALL) {
            return Err(format!("{host} asks for a lock in {session}, and was told that it has lapsed"));
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
            Event::SessionExecuted(done) => return self.attended(at, done),
            Event::SessionSent { host, message, op: SessionOp::Heartbeat(beat), .. } => {
                return self.heartbeats(at, host, message, beat, context);
            }
            Event::SessionAnswered { host, message, reply } => self.heard(at, host, message, reply),
            Event::Sent { host, op: Op::Acquire(ask), .. } => return self.asks(at, host, ask),
            Event::Host(host, HostEvent::Crashed | HostEvent::Ended) => drop(self.present.remove(&host)),
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
