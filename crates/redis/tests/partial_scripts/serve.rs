//! Continues after a partial script until each client has held the lock.
//!
//! 1. Every later script does what the model does from the same state: in its reply, its messages, and finally its keys.
//! 2. Only waiters are granted the lock. A client that was granted it finds it held when it releases it.
//! 3. Each grant has a greater fencing token than all granted or reserved before, up to the maximum; or the token of the
//!    owner's other holds.
//! 4. Each waiter is served after a bounded number of polls: one each, one more each to queue again, and one for every 64
//!    dead entries.
//! 5. In the end the queue is empty.

use crate::Violation;
use crate::fixture::live;
use crate::generator::Generator;
use leasehold_core::model::{LockState, ReentrantHold};
use leasehold_core::{
    Acquire, Acquired, Claim, Enqueue, FencingToken, HoldId, HoldStatus, Kind, Label, Liveness, LockMode, Op,
    Release, ReleaseAction, Reply,
};
use leasehold_testkit::conformance::ForeignWrite;
use std::collections::BTreeMap;

/// How many queue entries one script visits.
const MAX_VISITED: usize = 64;

impl Generator<'_> {
    /// Serves all waiters of `before`, all present waiters, and the requests in `op`.
    pub(crate) fn serve_all(&mut self, before: &LockState, op: &Op) -> Result<(), Violation> {
        if self.fixture.kind.is_shared() {
            return self.serve_all_parts(before, op);
        }
        let mut last = last(before).max(last(&self.state));
        let mut waiting = self.live(before);
        waiting.extend(self.live(&self.state));
        waiting.extend(asked_in(op).map(|ask| (ask.claim.hold.token(), ask.claim.clone())));
        let entries = self.state.record.as_ref().map_or(0, |record| record.entries.len());
        self.end_holds()?;
        let mut polls = 2 * waiting.len() + entries / MAX_VISITED + 1;
        while let Some(claim) = self.next_to_poll(&waiting)? {
            if polls == 0 {
                return Err(Violation(format!("{} are never served", waiting.len())));
            }
            polls -= 1;
            waiting.remove(&claim.hold.token());
            // All holds of an owner of a ReentrantMutex have one token: one of them may have been polled for before.
            let again = self.state.kind == Kind::Reentrant && self.holders().contains(&claim);
            match self.send(&self.poll(&claim))? {
                Reply::Acquire(Acquired::Granted { fence, .. }) => {
                    if fence <= last && fence != FencingToken::MAX && !(again && fence == last) {
                        return Err(Violation(format!("token {fence} after {last}")));
                    }
                    last = fence;
                    self.release(&claim)?;
                }
                // It held the lock before, and got that reply.
                Reply::Acquire(Acquired::AlreadyEnded(_)) => {}
                Reply::Acquire(Acquired::Taken { .. }) => {
                    waiting.insert(claim.hold.token(), claim);
                }
                other => return Err(Violation(format!("a poll is answered {other:?}"))),
            }
        }
        self.sweep(entries)
    }

    /// The holder releases each of its holds; a foreign holder deletes its key.
    fn end_holds(&mut self) -> Result<(), Violation> {
        for claim in self.holders() {
            // A Redisson client may have released one of them, and the last release has freed the lock.
            if self.holders().contains(&claim) {
                self.release(&claim)?;
            }
        }
        if self.holders().is_empty() && live(&self.state, self.now_us).value.is_some() {
            self.fixture.write_as_foreigner(ForeignWrite::DeletesLock, &self.state)?;
            ForeignWrite::DeletesLock.apply(&mut self.state, self.now_us);
        }
        Ok(())
    }

    /// The claims that hold the lock, if they are ours.
    fn holders(&self) -> Vec<Claim> {
        holders(&live(&self.state, self.now_us))
    }

    fn release(&mut self, claim: &Claim) -> Result<(), Violation> {
        let release = Op::Release(Release {
            claim: claim.clone(),
            action: ReleaseAction::Grant,
            next: None,
            history: 0,
        });
        match self.send(&release)? {
            Reply::Release(released) if released.status == HoldStatus::Held => Ok(()),
            other => Err(Violation(format!("the holder's release is answered {other:?}"))),
        }
    }

    /// The queue entries that have not expired.
    fn live(&self, state: &LockState) -> BTreeMap<String, Claim> {
        let entries = state.record.iter().flat_map(|record| record.entries.values());
        let live = entries.filter(|entry| entry.expires_ms >= self.now_us / 1000);
        live.map(|entry| (entry.claim.hold.token(), entry.claim.clone())).collect()
    }

    /// The holder, if it is among the waiters, as it was notified; otherwise any waiter.
    fn next_to_poll(&self, waiting: &BTreeMap<String, Claim>) -> Result<Option<Claim>, Violation> {
        match self.holders().pop() {
            Some(claim) if !waiting.contains_key(&claim.hold.token()) => {
                Err(Violation("the lock was given to a client that does not wait".to_owned()))
            }
            Some(claim) => Ok(Some(claim)),
            None => Ok(waiting.values().next().cloned()),
        }
    }

    fn poll(&self, claim: &Claim) -> Op {
        let queue = Some(Enqueue { nonce: self.workload.nonce(), ttl_ms: 7_200_000 });
        let label = Label::new("test").expect("a plain text is a label");
        Op::Acquire(Acquire {
            claim: claim.clone(),
            lease_ms: 30_000,
            label,
            queue,
            expire_foreign_ms: None,
            liveness: Liveness::Session { alive_ms: 10_000 },
            predecessor: None,
            mode: LockMode::Exclusive,
        })
    }

    pub(crate) fn send(&mut self, op: &Op) -> Result<Reply, Violation> {
        let reply = self.fixture.agree(&mut self.state, self.now_us, op)?;
        reply.ok_or_else(|| Violation("it was cut off without a reply".to_owned()))
    }

    /// Releases by a client without a hold remove dead queue entries.
    fn sweep(&mut self, entries: usize) -> Result<(), Violation> {
        let foreign = self.workload.fresh_claim(9);
        for _ in 0..=entries / MAX_VISITED {
            self.send(&Op::Release(Release {
                claim: foreign.clone(),
                action: ReleaseAction::Grant,
                next: None,
                history: 0,
            }))?;
        }
        let found = self.fixture.state()?;
        let left = found.record.as_ref().map_or(0, |record| record.entries.len());
        // Expired entries may remain until their key expires.
        let held = live(&found, self.now_us).value.is_some();
        if found != self.state || held || left > 0 {
            return Err(Violation(format!(
                "in the end there is {found:?},\n  in the model {:?}",
                self.state
            )));
        }
        Ok(())
    }
}

/// The claims that hold the lock, if they are ours: the oldest first.
fn holders(state: &LockState) -> Vec<Claim> {
    match state.value.as_ref().and_then(|value| value.content.reentrant_holds()) {
        Some(entries) => {
            let claim =
                |entry: &ReentrantHold| Claim { hold: entry.hold, value: Some(entries.owner.clone()) };
            entries.holds.iter().map(claim).collect()
        }
        None => holder(state).cloned().into_iter().collect(),
    }
}

/// The claim that holds a Mutex, if it is ours.
fn holder(state: &LockState) -> Option<&Claim> {
    let last_holder = state.record.as_ref()?.last_holder.as_ref()?;
    let stands = state.value.as_ref()?.content.token() == Some(&*state.kind.token(&last_holder.claim));
    let ended = |hold: &HoldId| {
        let record = state.record.as_ref();
        record.is_some_and(|record| record.ended.find(hold).is_some())
    };
    // A client of another library may use the same value as one of ours.
    let own = last_holder.claim.value.is_some() && ended(&last_holder.claim.hold);
    (stands && !own).then_some(&last_holder.claim)
}

/// The greatest token that was granted or reserved.
fn last(state: &LockState) -> FencingToken {
    let record = state.record.as_ref();
    let reserved = record.and_then(|record| record.reserved).map(|reserved| reserved.last_fence);
    record.and_then(|record| record.last_fence).max(reserved).unwrap_or(FencingToken::new(0))
}

/// The acquire requests of an operation.
pub(crate) fn asked_in(op: &Op) -> impl Iterator<Item = &Acquire> {
    match op {
        Op::Acquire(ask) => Some(ask),
        Op::Release(release) => release.next.as_ref(),
        _ => None,
    }
    .into_iter()
}
