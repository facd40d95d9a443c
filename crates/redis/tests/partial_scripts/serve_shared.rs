//! Continues after a partial script of a lock that several clients hold at once, until each has held it.
//!
//! 1. Every later script does what the model does from the same state: in its reply, its messages, and finally its keys.
//! 2. Waiters are granted the lock once its holders have released it: one by one, or, at a Latch and a Barrier, once enough
//!    clients have arrived. Or they get the reply that it is impossible, or over.
//! 3. In the end there is no holder and no queue entry, and the keys contain what the model contains.

use crate::Violation;
use crate::fixture::live;
use crate::generator::Generator;
use crate::serve::asked_in;
use leasehold_core::model::{LockState, SharedHold};
use leasehold_core::{
    Acquire, Acquired, Claim, Enqueue, HoldStatus, Kind, Label, Liveness, LockMode, Op, Release,
    ReleaseAction, Reply,
};
use std::collections::BTreeMap;

/// How many queue entries one script visits.
const MAX_VISITED: usize = 64;

/// The waiters and their lock modes, by the tokens of their holds.
type Waiting = BTreeMap<String, (Claim, LockMode)>;

impl Generator<'_> {
    /// Serves all waiters of `before`, all present waiters, and the requests in `op`.
    pub(crate) fn serve_all_parts(&mut self, before: &LockState, op: &Op) -> Result<(), Violation> {
        let mut waiting = self.waiters(before);
        waiting.extend(self.waiters(&self.state));
        let asked = asked_in(op).map(|ask| (ask.claim.hold.token(), (ask.claim.clone(), ask.mode)));
        waiting.extend(asked);
        let entries = self.state.record.as_ref().map_or(0, |record| record.entries.len());
        let mut rounds = 2 * waiting.len() + entries / MAX_VISITED + 2;
        while !waiting.is_empty() {
            if rounds == 0 {
                return Err(Violation(format!("{} are never let in: {waiting:?}", waiting.len())));
            }
            rounds -= 1;
            for (token, (claim, mode)) in waiting.clone() {
                match self.send(&self.poll_for(&claim, mode))? {
                    Reply::Acquire(Acquired::Granted { .. } | Acquired::AlreadyEnded(_))
                    | Reply::Refused(_) => {
                        waiting.remove(&token);
                    }
                    Reply::Acquire(Acquired::Taken { .. }) => {}
                    other => return Err(Violation(format!("a poll is answered {other:?}"))),
                }
            }
            self.admit_others()?;
            // Only the last few holders are remembered.
            for token in self.give_up_parts()? {
                waiting.remove(&token);
            }
        }
        self.leave_nothing(entries)
    }

    /// Lets as many more clients arrive at a Latch or a Barrier as it takes to open it.
    fn admit_others(&mut self) -> Result<(), Violation> {
        let total = self.state.record.as_ref().and_then(|record| record.limit).unwrap_or(1).max(1);
        let (comers, mode) = match self.fixture.kind {
            Kind::Latch => (1, LockMode::CountDown { count: total, total }),
            Kind::Barrier => (total - 1, LockMode::BarrierWait { total }),
            _ => return Ok(()),
        };
        for n in 0..comers {
            if self.waiters(&self.state).is_empty() {
                break;
            }
            let claim = self.workload.fresh_claim(100 + u8::try_from(n).unwrap_or_default());
            self.send(&self.poll_for(&claim, mode))?;
        }
        Ok(())
    }

    /// Releases all holds, also those that the releases grant. Returns their tokens.
    fn give_up_parts(&mut self) -> Result<Vec<String>, Violation> {
        let mut had = Vec::new();
        let mut times = self.parts().len() + self.waiters(&self.state).len();
        while let Some(part) = self.parts().first() {
            if times == 0 {
                return Err(Violation("parts are given up without end".to_owned()));
            }
            times -= 1;
            had.push(part.hold.token());
            let claim = Claim { hold: part.hold, value: part.owner.clone() };
            match self.give_up(claim)? {
                HoldStatus::Held => {}
                other => return Err(Violation(format!("the release of a part is answered {other:?}"))),
            }
        }
        // A key of another type belongs to another library.
        if live(&self.state, self.now_us).value.is_some() {
            let write = leasehold_testkit::conformance::ForeignWrite::DeletesLock;
            self.fixture.write_as_foreigner(write, &self.state)?;
            write.apply(&mut self.state, self.now_us);
        }
        Ok(had)
    }

    /// The remaining waiters leave, and releases by a client without a hold remove dead queue entries.
    fn leave_nothing(&mut self, entries: usize) -> Result<(), Violation> {
        for (claim, _) in self.waiters(&self.state).into_values() {
            self.give_up(claim)?;
        }
        for _ in 0..=entries / MAX_VISITED {
            self.give_up_parts()?;
            let foreign = self.workload.fresh_claim(9);
            self.give_up(foreign)?;
        }
        let found = self.fixture.state()?;
        let left = found.record.as_ref().map_or(0, |record| record.entries.len());
        if found != self.state || live(&found, self.now_us).value.is_some() || left > 0 {
            return Err(Violation(format!(
                "in the end there is {found:?},\n  in the model {:?}",
                self.state
            )));
        }
        Ok(())
    }

    fn give_up(&mut self, claim: Claim) -> Result<HoldStatus, Violation> {
        match self.send(&Op::Release(Release {
            claim,
            action: ReleaseAction::Grant,
            next: None,
            history: 0,
        }))? {
            Reply::Release(released) => Ok(released.status),
            other => Err(Violation(format!("a release is answered {other:?}"))),
        }
    }

    /// The holds that have not expired, the oldest first.
    fn parts(&self) -> Vec<SharedHold> {
        let state = live(&self.state, self.now_us);
        state
            .value
            .as_ref()
            .and_then(|value| value.content.shared_holders())
            .map_or_else(Vec::new, |parts| parts.holds.clone())
    }

    /// The queue entries that have not expired.
    fn waiters(&self, state: &LockState) -> Waiting {
        let entries = state.record.iter().flat_map(|record| record.entries.values());
        let live = entries.filter(|entry| entry.expires_ms >= self.now_us / 1000);
        live.map(|entry| (entry.claim.hold.token(), (entry.claim.clone(), entry.mode))).collect()
    }

    fn poll_for(&self, claim: &Claim, mode: LockMode) -> Op {
        let queue = Some(Enqueue { nonce: self.workload.nonce(), ttl_ms: 7_200_000 });
        let label = Label::new("test").expect("a plain text is a label");
        let liveness = Liveness::Session { alive_ms: 10_000 };
        let (claim, lease_ms) = (claim.clone(), 30_000);
        Op::Acquire(Acquire {
            claim,
            lease_ms,
            label,
            queue,
            expire_foreign_ms: None,
            liveness,
            predecessor: None,
            mode,
        })
    }
}
