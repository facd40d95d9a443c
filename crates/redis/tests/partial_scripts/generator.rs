//! Generates states of a lock: by random operations of several sessions, which begin, send heartbeats and end, some of them
//! late, twice or cut off; by clients of other libraries; with a clock that goes forward and back; with queues that are longer
//! than one script visits, or have become empty; and with fencing tokens near their limit.

use crate::Violation;
use crate::fixture::Fixture;
use crate::keyspace::Content;
use crate::tap::WHOLE;
use leasehold_core::model::{Content as Lies, LockState, Value};
use leasehold_core::{
    Acquire, Enqueue, FencingToken, Heartbeat, HeartbeatReply, Kind, Label, Liveness, LockMode, Op, Release,
    ReleaseAction, SessionOp, SessionReply,
};
use leasehold_testkit::conformance::{ForeignWrite, Workload, WorkloadStep};

const START_US: u64 = 1_762_000_000_123_456;
/// More than any script has commands.
const MANY: u64 = 12;

/// A lock of a fixture, its model, and the next events.
pub(crate) struct Generator<'a> {
    pub(crate) fixture: &'a mut Fixture,
    pub(crate) state: LockState,
    pub(crate) workload: Workload,
    pub(crate) now_us: u64,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(fixture: &'a mut Fixture, seed: u64) -> Self {
        fixture.begin_anew();
        let (state, workload) = (LockState::new(fixture.kind), Workload::of(fixture.kind, seed));
        let mut generator = Self { fixture, state, workload, now_us: 0 };
        generator.set_now_us(START_US);
        generator
    }

    /// Continues to a random state. With `cuts`, some of the operations are cut off.
    pub(crate) fn generate(&mut self, cuts: bool) -> Result<(), Violation> {
        match self.workload.random().below(48) {
            0 => self.long_queue()?,
            1..=6 => self.near_the_limit()?,
            7..=8 => self.empty_queue()?,
            // Rare among shared locks by chance: a waiter that the eviction of the holder admits, or one more permit.
            9..=10 if matches!(self.fixture.kind, Kind::Semaphore | Kind::RwLock) => {
                return self.dead_holder();
            }
            _ => {}
        }
        for _ in 0..self.workload.random().below(16) {
            self.step(cuts)?;
        }
        if self.workload.random().below(12) == 0 {
            self.write_as_foreigner(ForeignWrite::DeletesRecord)?;
        }
        // Expired state must be gone from the model before the two are compared.
        self.state.is_empty_at(self.now_us);
        Ok(())
    }

    /// One step, of the server and of the model.
    fn step(&mut self, cuts: bool) -> Result<(), Violation> {
        let by_us = self.workload.time_us(&self.state, &self.fixture.sessions()?, self.now_us);
        self.set_now_us(self.now_us.saturating_add_signed(by_us));
        if self.state.kind.is_shared() && self.workload.random().below(12) == 0 {
            self.break_index()?;
        }
        match self.workload.next_step(&self.state) {
            WorkloadStep::Sent(op) if cuts && self.workload.random().below(8) == 0 => self.cut(&op),
            WorkloadStep::Sent(op) => self.agree(&op),
            WorkloadStep::SentTwice(op) => self.agree(&op).and_then(|()| self.agree(&op)),
            WorkloadStep::SentSession(SessionOp::Heartbeat(heartbeat))
                if cuts && self.workload.random().below(8) == 0 =>
            {
                self.fixture.run_heartbeat(&heartbeat, self.few_commands()).map(drop)
            }
            WorkloadStep::SentSession(SessionOp::Heartbeat(heartbeat)) => self.heartbeat(&heartbeat),
            WorkloadStep::SentSession(SessionOp::End(session)) => self.fixture.end_session(session),
            // It reads, by commands of the client and not by a script.
            WorkloadStep::SentSession(_) => Ok(()),
            WorkloadStep::ForeignWrite(write) => self.write_as_foreigner(write),
        }
    }

    /// Makes the numbers and the index of a shared lock disagree with its holds: its index is lost, or a hold was released by the
    /// lock's key alone, while the slot moved. Holds that were extended by it have an earlier end in the index.
    fn break_index(&mut self) -> Result<(), Violation> {
        let ends = self.fixture.keys.ends();
        let Some(Value { content: Lies::SharedHolders(shared), expires_ms: Some(_) }) = &mut self.state.value
        else {
            return Ok(());
        };
        let hold = self.workload.random().pick(&shared.holds).hold.token();
        match self.workload.random().below(3) {
            0 => self.fixture.command(&["DEL", &ends])?,
            1 => self.fixture.command(&["ZADD", &ends, "XX", "1", &hold])?,
            _ => {
                self.fixture.command(&["HDEL", self.fixture.keys.name().to_owned().as_str(), &hold])?;
                shared.holds.retain(|held| held.hold.token() != hold);
                if shared.holds.is_empty() {
                    self.state.value = None;
                }
            }
        }
        self.compare()
    }

    /// Sends a heartbeat to both, and compares their states. The index, which the model does not have, is checked separately.
    pub(crate) fn heartbeat(&mut self, heartbeat: &Heartbeat) -> Result<(), Violation> {
        let mut sessions = self.fixture.sessions()?;
        let found = self.fixture.run_heartbeat(heartbeat, WHOLE)?;
        let expected = sessions.apply(self.now_us / 1000, &SessionOp::Heartbeat(heartbeat.clone()));
        if !matches!(&found, Some(Ok(found)) if SessionReply::Heartbeat(*found) == expected) {
            return Err(Violation(format!(
                "{heartbeat:?}\n  is answered {found:?},\n  by the model {expected:?}"
            )));
        }
        let after = self.fixture.sessions()?;
        if after != sessions {
            return Err(Violation(format!("{heartbeat:?}\n  makes {after:?},\n  in the model {sessions:?}")));
        }
        let lists = heartbeat.begin.is_some() || heartbeat.renew_listing;
        if lists && expected == SessionReply::Heartbeat(HeartbeatReply::Alive) {
            self.is_listed(heartbeat)
        } else {
            Ok(())
        }
    }

    /// Fails unless the index contains the session of this heartbeat for one lifetime longer than its record, and lasts as long.
    fn is_listed(&self, heartbeat: &Heartbeat) -> Result<(), Violation> {
        let (record, index) =
            (self.fixture.space.session(heartbeat.session), self.fixture.space.session_index());
        let [record, index] = [record, index].map(|key| self.fixture.redis.keys().entry(&key).cloned());
        let ends_ms = record.and_then(|record| record.expires_ms).map(|ends_ms| ends_ms + heartbeat.alive_ms);
        let listed = index.is_some_and(|index| match &index.content {
            Content::Sorted(members) => {
                members.get(heartbeat.session.to_string().as_bytes()).copied() == ends_ms
                    && index.expires_ms >= ends_ms
            }
            _ => false,
        });
        if listed {
            Ok(())
        } else {
            Err(Violation(format!("{heartbeat:?} is not in the index as it should be")))
        }
    }

    fn few_commands(&self) -> usize {
        usize::try_from(self.workload.random().below(MANY)).unwrap_or_default()
    }

    fn write_as_foreigner(&mut self, write: ForeignWrite) -> Result<(), Violation> {
        if write == ForeignWrite::RemovesExpiry && self.state.value.is_none() {
            // What a partial script left of a free lock keeps its expiry.
            return Ok(());
        }
        self.fixture.write_as_foreigner(write, &self.state)?;
        write.apply(&mut self.state, self.now_us);
        self.compare()
    }

    /// Sends an operation to both, and compares their states.
    fn agree(&mut self, op: &Op) -> Result<(), Violation> {
        self.fixture.agree(&mut self.state, self.now_us, op)?;
        self.compare()
    }

    fn compare(&mut self) -> Result<(), Violation> {
        self.state.is_empty_at(self.now_us);
        let found = self.fixture.state()?;
        if found == self.state {
            return Ok(());
        }
        Err(Violation(format!("the keys are {found:?},\n  in the model {:?}", self.state)))
    }

    /// An operation that is cut off. The model continues from the state that it leaves.
    fn cut(&mut self, op: &Op) -> Result<(), Violation> {
        self.fixture.run(op, self.few_commands())?;
        self.fixture.redis.take_messages();
        self.state = self.fixture.state()?;
        Ok(())
    }

    pub(crate) fn set_now_us(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.state.is_empty_at(now_us);
        self.fixture.redis.set_now_us(now_us);
    }

    /// A queue with more entries than one script visits; some of them, or all, are soon dead.
    fn long_queue(&mut self) -> Result<(), Violation> {
        let random = self.workload.random();
        let (entries, alive) = (60 + random.below(90), *random.pick(&[0, 1, 5, 20]));
        let claim = self.workload.fresh_claim(0);
        self.agree(&Op::Acquire(Acquire { claim: claim.clone(), ..self.request(0, 1) }))?;
        for n in 0..entries {
            let kept_ms = if self.workload.random().below(100) < alive { 7_200_000 } else { 50 };
            let ask = Op::Acquire(self.request(10 + u8::try_from(n).unwrap_or_default(), kept_ms));
            self.fixture.agree(&mut self.state, self.now_us, &ask)?;
        }
        self.compare()?;
        self.set_now_us(self.now_us + 51_000);
        if self.workload.random().below(2) == 0 {
            return Ok(());
        }
        self.agree(&Op::Release(Release { claim, action: ReleaseAction::Free, next: None, history: 0 }))
    }

    /// A lock whose holder is dead, and which another client waits for.
    fn dead_holder(&mut self) -> Result<(), Violation> {
        let waiter = match whole(self.fixture.kind) {
            LockMode::Permits { total, .. } => LockMode::Permits { count: 1, total },
            mode => mode,
        };
        self.agree(&Op::Acquire(self.request(0, 1)))?;
        self.agree(&Op::Acquire(Acquire { mode: waiter, ..self.request(1, 60_000) }))?;
        // Its session has no record, and counts as alive for 10 s.
        self.set_now_us(self.now_us + 11_000_000);
        Ok(())
    }

    /// A lock that its only waiter has been granted: the queue has no entry any more.
    fn empty_queue(&mut self) -> Result<(), Violation> {
        let claim = self.workload.fresh_claim(0);
        self.agree(&Op::Acquire(Acquire { claim: claim.clone(), ..self.request(0, 1) }))?;
        self.agree(&Op::Acquire(self.request(1, 60_000)))?;
        self.agree(&Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 }))
    }

    fn request(&self, n: u8, ttl_ms: u64) -> Acquire {
        let queue = Some(Enqueue { nonce: self.workload.nonce(), ttl_ms });
        let label = Label::new("test").expect("a plain text is a label");
        Acquire {
            claim: self.workload.fresh_claim(n),
            lease_ms: 30_000,
            label,
            queue,
            expire_foreign_ms: None,
            liveness: Liveness::Session { alive_ms: 10_000 },
            predecessor: None,
            mode: whole(self.fixture.kind),
        }
    }

    /// A lock whose last fencing token is one of the greatest.
    fn near_the_limit(&mut self) -> Result<(), Violation> {
        self.agree(&Op::Acquire(self.request(0, 1)))?;
        let last = FencingToken::MAX.as_u64() - self.workload.random().below(3);
        let record = self.fixture.keys.record().to_owned();
        match self.fixture.redis.keys().entry(&record).map(|entry| entry.content.clone()) {
            Some(Content::Text(text)) => {
                let (text, last) = (String::from_utf8_lossy(&text).into_owned(), last.to_string());
                let mut parts: Vec<_> = text.splitn(3, '\n').collect();
                parts[1] = &last;
                self.fixture.command(&["SET", &record, &parts.join("\n"), "KEEPTTL"])?;
            }
            _ => self.fixture.command(&["HSET", &record, "last", &last.to_string()])?,
        }
        if let Some(record) = &mut self.state.record {
            record.last_fence = Some(FencingToken::new(last));
        }
        self.compare()
    }
}

/// The lock mode that excludes most other holders, so that others wait for it.
fn whole(kind: Kind) -> LockMode {
    match kind {
        Kind::Semaphore => LockMode::Permits { count: 3, total: 3 },
        Kind::RwLock => LockMode::Write,
        Kind::Latch => LockMode::LatchWait { total: 3 },
        Kind::Barrier => LockMode::BarrierWait { total: 64 },
        _ => LockMode::Exclusive,
    }
}
