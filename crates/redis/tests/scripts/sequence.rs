//! One sequence on one lock: each operation goes to the server and to the model, and all its results must agree.

use crate::encoding::{fields, found_fields, history_lines, lines, messages, pairs, scores, session_fields};
use crate::fixture::{DUMP, Fixture, Found, START_US, WITHIN};
use leasehold_core::model::{Content, LockState, Sessions, Value as Stands, Watermark, all_alive};
use leasehold_core::{
    Extend, Extended, FenceRaised, FencingToken, Heartbeat, HeartbeatReply, HoldStatus, Inspect, Kind,
    LockKeys, Partition, Release, ReleaseAction, Released, SessionId,
};
use leasehold_store::{Lock, Op, Outcome, Reply, SessionOp, SessionReply, Store};
use leasehold_testkit::Value;
use leasehold_testkit::conformance::{
    Workload, execute_with_others, is_sent_with_others, leader_announcement, parse_rlock,
    parse_shared_holders,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One sequence on one lock.
pub(crate) struct Sequence<'a> {
    pub(crate) fixture: &'a mut Fixture,
    pub(crate) lock: Lock,
    pub(crate) keys: LockKeys,
    pub(crate) state: LockState,
    pub(crate) sessions: Sessions,
    pub(crate) index: Option<Index>,
    /// Whether the index of a shared lock is whole: it may expire once another client has removed the lock's expiry.
    pub(crate) has_index: bool,
    pub(crate) workload: Workload,
    pub(crate) trace: String,
}

/// The expected index of all sessions, which the model does not have because it needs none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) expires_ms: u64,
    pub(crate) members: BTreeMap<String, u64>,
}

impl Index {
    /// The index after a heartbeat of a session whose record expires at the given time.
    pub(crate) fn after(index: Option<Self>, now_ms: u64, heartbeat: &Heartbeat, expires_ms: u64) -> Self {
        let mut index = index.unwrap_or_else(|| Self { expires_ms: 0, members: BTreeMap::new() });
        // A lifetime more than the record, for the heartbeats that leave the index as it is.
        let expires_ms = expires_ms + heartbeat.alive_ms;
        index.expires_ms = index.expires_ms.max(expires_ms);
        index.members.insert(heartbeat.session.to_string(), expires_ms);
        index.members.retain(|_, expires_ms| *expires_ms >= now_ms);
        index
    }

    /// The index without a session.
    pub(crate) fn without(mut self, session: SessionId) -> Option<Self> {
        self.members.remove(&session.to_string());
        (!self.members.is_empty()).then_some(self)
    }
}

impl Sequence<'_> {
    /// Sends one operation to both, and compares the results.
    pub(crate) fn check(&mut self, op: &Op) -> Reply {
        self.note(&format!("{op:?}"));
        if self.fixture.flush_scripts {
            self.raw(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        let outcome = self.outcome(op);
        let now_us = self.fixture.now_us;
        let before = self.state.clone();
        let was_held = is_held(&before, now_us);
        let alive = |session| self.sessions.status(now_us / 1000, session);
        let (expected, notifications) = self.state.apply(now_us, op, &alive);
        let Outcome::Done(reply) = outcome else { panic!("{outcome:?}\n{}", self.trace) };
        assert_eq!(reply, expected, "replies\n{}", self.trace);
        self.note(&format!("    {reply:?}"));
        self.compare_keys();
        let mut expected = messages(&notifications);
        if self.lock.kind == Kind::Reentrant && was_held && self.state.value.is_none() {
            // No waiter was granted the lock, so Redisson clients are notified that it is free.
            expected.push((self.keys.redisson_channel(), "0".to_owned()));
            *self.fixture.seen.entry("published free").or_default() += 1;
        }
        let announces = matches!(op, Op::Release(Release { action: ReleaseAction::FreeAndPublish, .. }))
            && self.lock.kind == Kind::Mutex;
        if announces && matches!(&reply, Reply::Release(Released { status: HoldStatus::Held, .. })) {
            expected.push((self.fixture.keys.release_channel(&self.keys), "free".to_owned()));
            *self.fixture.seen.entry("notified: free").or_default() += 1;
        }
        if let Some(text) = leader_announcement(&before, &self.state, now_us) {
            expected.push((self.fixture.keys.leader_channel(&self.keys), text));
            *self.fixture.seen.entry("published leader").or_default() += 1;
        }
        assert_eq!(self.take_messages(), expected, "messages\n{}", self.trace);
        if let Reply::RaiseFence(raised) = &reply {
            let greater = self.state.record.as_ref().map(|record| record.last_fence)
                != before.record.as_ref().map(|record| record.last_fence);
            let seen = if *raised == FenceRaised::Raised && greater { "raised" } else { "not raised" };
            *self.fixture.seen.entry(seen).or_default() += 1;
        }
        self.count(&reply, &notifications);
        self.count_entries(&before, op, &reply);
        self.count_cooldowns(&reply);
        self.count_reserved(&before, op, &reply);
        self.count_parts(&before, op, &reply, &notifications);
        let audit = |state: &LockState| state.audit.as_ref().map(|audit| audit.entries.clone());
        if matches!(op, Op::Acquire(_)) && audit(&self.state) != audit(&before) {
            *self.fixture.seen.entry("the dead ahead buried").or_default() += 1;
        }
        reply
    }

    /// Sends one operation to the server. An extend goes alone or in a batch: twice in the batch, unless it would
    /// reserve tokens again, and beside extends of free locks.
    pub(crate) fn outcome(&mut self, op: &Op) -> Outcome {
        let among = matches!(op, Op::Extend(_)) && self.workload.random().below(2) == 0;
        let with_others = is_sent_with_others(self.lock.kind, op) && self.workload.random().below(2) == 0;
        let Fixture { runtime, store, seen, .. } = &mut *self.fixture;
        if with_others {
            *seen.entry("sent with others").or_default() += 1;
            let (outcome, others) = runtime.block_on(execute_with_others(store, &self.lock, op, WITHIN));
            for other in others {
                let is_idle = matches!(&other, Outcome::Done(Reply::Release(released)) if released.status == HoldStatus::Forgotten);
                assert!(is_idle, "{other:?}");
            }
            return outcome;
        }
        if !among {
            return runtime.block_on(store.execute(&self.lock, op, WITHIN));
        }
        *seen.entry("extended together").or_default() += 1;
        let free = Lock { kind: self.lock.kind, name: "free".parse().unwrap() };
        let reserves = matches!(op, Op::Extend(Extend { reserve: Some(_), .. }));
        let times = if reserves { 1 } else { 2 };
        let locks = [&[&free][..], &vec![&self.lock; times], &[&free]].concat();
        let ops: Vec<_> = locks.into_iter().map(|lock| (lock.clone(), op.clone())).collect();
        let mut outcomes = runtime.block_on(store.execute_all(&ops, WITHIN));
        assert_eq!(outcomes.len(), ops.len());
        for nobodys in [outcomes.pop(), Some(outcomes.remove(0))] {
            let free = matches!(nobodys, Some(Outcome::Done(Reply::Extend(Extended::NotHeld))));
            assert!(free, "{nobodys:?}\n{}", self.trace);
        }
        let first = outcomes.remove(0);
        for again in &outcomes {
            let same =
                matches!((&first, again), (Outcome::Done(first), Outcome::Done(again)) if first == again);
            assert!(same, "{first:?}, {again:?}\n{}", self.trace);
        }
        first
    }

    /// Sends one session operation to both, and compares the results.
    pub(crate) fn execute_session(&mut self, op: &SessionOp) -> SessionReply {
        self.note(&format!("{op:?}"));
        if self.fixture.flush_scripts {
            self.raw(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        let outcome =
            self.fixture.runtime.block_on(self.fixture.store.execute_session(Partition::ONLY, op, WITHIN));
        let now_ms = self.fixture.now_us / 1000;
        let mut expected = self.sessions.apply(now_ms, op);
        if let SessionReply::List(list) = &mut expected {
            // Not every heartbeat renews the place of its session in the index.
            let index = self.index.as_ref().filter(|index| now_ms <= index.expires_ms);
            let is_listed = |session: SessionId| {
                index.is_some_and(|index| index.members.contains_key(&session.to_string()))
            };
            list.entries.retain(|entry| is_listed(entry.session));
        }
        let Outcome::Done(reply) = outcome else { panic!("{outcome:?}\n{}", self.trace) };
        assert_eq!(reply, expected, "replies\n{}", self.trace);
        self.note(&format!("    {reply:?}"));
        let index = self.index.take().filter(|index| now_ms <= index.expires_ms);
        self.index = match (op, &reply) {
            (SessionOp::Heartbeat(heartbeat), SessionReply::Heartbeat(HeartbeatReply::Alive))
                if heartbeat.begin.is_some() || heartbeat.renew_listing =>
            {
                let expires_ms = self.sessions.records[&heartbeat.session].expires_ms;
                Some(Index::after(index, now_ms, heartbeat, expires_ms))
            }
            (SessionOp::End(session), _) => index.and_then(|index| index.without(*session)),
            _ => index,
        };
        self.compare_keys();
        assert_eq!(self.take_messages(), [], "messages\n{}", self.trace);
        self.count_session(op, &reply);
        reply
    }

    pub(crate) fn note(&mut self, what: &str) {
        writeln!(self.trace, "{:>12} us: {what}", self.fixture.now_us.cast_signed() - START_US.cast_signed())
            .unwrap();
    }

    pub(crate) fn compare_keys(&mut self) {
        let now_ms = self.fixture.now_us / 1000;
        let dump = self.dump();
        let [lock, record, audit, history, ends, watermark, index, sessions @ ..] = dump.elements() else {
            panic!("{dump:?}")
        };
        let [lock, record, audit, history, ends, watermark, index] =
            [lock, record, audit, history, ends, watermark, index].map(|key| Found::of(key, now_ms));
        let lasts_as_long =
            |lock: &Found| ends.as_ref().is_some_and(|ends| ends.expires_ms >= lock.expires_ms);
        let holds = ends.as_ref().map(|ends| scores(&ends.content)).unwrap_or_default();
        if let (Some(lock), Some(Content::SharedHolders(_))) =
            (&lock, self.state.value.as_ref().map(|value| &value.content))
        {
            let lasts = !self.has_index || lasts_as_long(lock);
            assert!(lasts, "the index ends before the lock\n{}", self.trace);
        }
        let found = lock.and_then(|Found { kind, content, expires_ms }| {
            let content = match (kind.as_str(), self.lock.kind) {
                ("string", _) => Content::Token(content.text().unwrap().to_owned()),
                ("hash", kind) if kind.is_shared() => {
                    parse_shared_holders(kind, &pairs(&content), &holds, self.has_index)
                        .unwrap_or_else(|what| panic!("{what}\n{}", self.trace))?
                }
                ("hash", Kind::Reentrant) => {
                    parse_rlock(&pairs(&content)).unwrap_or_else(|what| panic!("{what}\n{}", self.trace))?
                }
                _ => Content::Other(kind),
            };
            Some(Stands { content, expires_ms })
        });
        assert_eq!(found, self.state.value, "the lock\n{}", self.trace);
        let expected = self.state.record.as_ref().map(|record| (fields(record), Some(record.expires_ms)));
        let found = record.map(|found| (found_fields(self.lock.kind, &found), found.expires_ms));
        assert_eq!(found, expected, "the record\n{}", self.trace);
        let Watermark { fence, expires_ms } = self.state.watermark;
        let expected = fence.map(|fence| (fence.to_string(), Some(expires_ms)));
        let found = watermark.map(|found| (found.content.text().unwrap().to_owned(), found.expires_ms));
        assert_eq!(found, expected, "the watermark\n{}", self.trace);
        let expected = self.state.audit.as_ref().map(|audit| (lines(audit), Some(audit.expires_ms)));
        let found = audit.map(|found| (found.content.text().unwrap().to_owned(), found.expires_ms));
        assert_eq!(found, expected, "the audit\n{}", self.trace);
        let expected = self.state.history.as_ref();
        let expected = expected.map(|history| (history_lines(history), Some(history.expires_ms)));
        let found = history.map(|found| (found.content.text().unwrap().to_owned(), found.expires_ms));
        assert_eq!(found, expected, "the history\n{}", self.trace);
        let found = index.map(|found| Index {
            expires_ms: found.expires_ms.expect("the index always expires"),
            members: scores(&found.content),
        });
        assert_eq!(found, self.index, "the index\n{}", self.trace);
        for (session, found) in Workload::sessions().zip(sessions) {
            let found = Found::of(found, now_ms).map(|found| (pairs(&found.content), found.expires_ms));
            let expected = self.sessions.records.get(&session);
            let expected = expected.map(|record| (session_fields(record), Some(record.expires_ms)));
            assert_eq!(found, expected, "session {session}\n{}", self.trace);
        }
    }

    /// The lock's keys, the watermark, the index, and the session records.
    pub(crate) fn all_keys(&self) -> Vec<String> {
        let (name, record) = (self.keys.name().to_owned(), self.keys.record().to_owned());
        let (audit, history, ends) = (self.keys.audit(), self.keys.history(), self.keys.ends());
        let lock = [name, record, audit, history, ends, self.fixture.keys.watermark().to_owned()];
        let sessions = Workload::sessions().map(|session| self.fixture.keys.session(session));
        lock.into_iter().chain([self.fixture.keys.session_index()]).chain(sessions).collect()
    }

    /// Reads all keys, so that the server deletes expired ones even where no operation reads them before the clock
    /// moves back.
    pub(crate) fn dump(&mut self) -> Value {
        let now_ms = self.fixture.now_us / 1000;
        self.state.is_empty_at(self.fixture.now_us);
        self.sessions.records.retain(|_, record| now_ms <= record.expires_ms);
        self.index.take_if(|index| now_ms > index.expires_ms);
        if self.fixture.flush_scripts {
            self.raw(&["SCRIPT", "LOAD", DUMP]);
        }
        let keys = self.all_keys();
        let call = ["EVALSHA".to_owned(), self.fixture.dump.clone(), keys.len().to_string()];
        self.raw(&[&call[..], &keys].concat())
    }

    pub(crate) fn field(&mut self, field: &str) -> String {
        let record = Found::of(&self.dump().elements()[1], 0).expect("a record");
        found_fields(self.lock.kind, &record)[field].clone()
    }

    /// All messages since the last call: those published before the PING arrive before its reply.
    pub(crate) fn take_messages(&mut self) -> Vec<(String, String)> {
        self.fixture.subscriber.send(&["PING"]).unwrap();
        let mut received = Vec::new();
        loop {
            let message = self.fixture.subscriber.receive().unwrap();
            match message.elements() {
                [kind, _, channel, text] if kind.text() == Some("pmessage") => {
                    received.push((channel.text().unwrap().to_owned(), text.text().unwrap().to_owned()));
                }
                _ => return received,
            }
        }
    }

    pub(crate) fn raw(&mut self, command: &[impl AsRef<[u8]>]) -> Value {
        self.fixture.reader.call(command).unwrap().ok().unwrap()
    }

    pub(crate) fn step_us(&mut self, by_us: i64) {
        if by_us != 0 {
            self.fixture.now_us = self.fixture.now_us.checked_add_signed(by_us).unwrap();
            self.fixture.clock.set_us(self.fixture.now_us.cast_signed()).unwrap();
        }
    }

    pub(crate) fn set_last(&mut self, last: u64) {
        let record = self.keys.record().to_owned();
        let text = self.raw(&["GET", &record]).text().expect("a record without a queue").to_owned();
        let mut parts: Vec<_> = text.splitn(3, '\n').collect();
        let last_text = last.to_string();
        parts[1] = &last_text;
        self.raw(&["SET", &record, &parts.join("\n"), "KEEPTTL"]);
        self.state.record.as_mut().unwrap().last_fence = Some(FencingToken::new(last));
    }
}

/// Whether the lock of this kind is held.
pub(crate) fn is_held(state: &LockState, now_us: u64) -> bool {
    let inspect = Op::Inspect(Inspect { claim: None, details: false });
    let (reply, _) = state.clone().apply(now_us, &inspect, &all_alive);
    matches!(reply, Reply::Inspect(seen) if seen.holder.is_some())
}
