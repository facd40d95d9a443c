//! What replicas have of a hold, where somebody has asked for that.
//!
//! Owns a connection of its own, on which nothing else is said: WAIT keeps whatever comes behind it waiting, and counts what
//! was written on its own connection alone.
//!
//! 1. A grant was written by whoever has released the lock. So the hold is looked for here, which says that this server has
//!    it; then something is written, which the server sends to its replicas behind the hold; and WAIT asks who has that.
//! 2. An extend that cannot lengthen anything is the look: what it answers compares the hold, for every kind of lock.

use super::link::{Link, Lost};
use super::reply;
use super::script::Call;
use super::verdict::judge;
use crate::store::{Fault, FaultKind, Phase};
use leasehold_core::{Claim, Extend, Extended, KeySpace, Lock, LockKeys, Op, Reply};
use redis::{Pipeline, Value, cmd};
use std::time::Duration;
use tokio::time::Instant;

/// How late the server may notice that its time is over: it looks ten times a second where it has nothing else to do.
const LATE: Duration = Duration::from_millis(150);
/// How long the mark is there that is written (1).
const MARK_MS: u64 = 1000;

/// Asks the replicas of a server.
#[derive(Debug)]
pub(super) struct Replicas {
    link: Link,
    wanted: u32,
}

impl Replicas {
    /// So many of them, over a link that nobody else has.
    pub(super) const fn new(link: Link, wanted: u32) -> Self {
        Self { link, wanted }
    }

    /// Waits until enough of them have a hold. What was sent may be executed after this has failed; it changes nothing.
    pub(super) async fn confirm(
        &self,
        space: &KeySpace,
        lock: &Lock,
        keys: &LockKeys,
        claim: &Claim,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let look =
            Op::Extend(Extend { claim: claim.clone(), lease_ms: 1, keep_record: false, reserve: None });
        let unusable = || self.fault(FaultKind::Unusable("there is no script for this".to_owned()));
        let call =
            Call::new(&look, lock.kind, space, keys, self.link.mailboxes().prefix()).ok_or_else(unusable)?;
        let answers = self.ask(space, keys, &call, deadline).await?;
        let (Some(looked), Some(marked), Some(found)) = (answers.first(), answers.get(1), answers.get(2))
        else {
            return Err(self.fault(FaultKind::Disconnected));
        };
        for answer in [looked, marked, found] {
            if let Value::ServerError(error) = answer {
                return Err(self.fault(judge(error).kind));
            }
        }
        match reply::read(&look, looked) {
            Ok(Reply::Extend(Extended::Extended)) => {}
            Ok(Reply::Extend(Extended::NotHeld)) => {
                let text =
                    "it does not have the hold that it is to confirm: it has lost it, or is another server";
                return Err(self.fault(FaultKind::Failed(text.to_owned())));
            }
            Ok(Reply::Refused(refused)) => return Err(self.fault(FaultKind::Meaningless(refused))),
            Ok(_) => return Err(self.fault(FaultKind::Failed(reply::Malformed.to_string()))),
            Err(malformed) => return Err(self.fault(FaultKind::Failed(malformed.to_string()))),
        }
        match found {
            Value::Int(found) => match u32::try_from(*found).unwrap_or(0) {
                found if found >= self.wanted => Ok(()),
                found => Err(self.fault(self.too_few(found))),
            },
            _ => Err(self.fault(FaultKind::Failed(reply::Malformed.to_string()))),
        }
    }

    /// The answers to the look, the writing and the question. The script is sent along where the server does not know it.
    async fn ask(
        &self,
        space: &KeySpace,
        keys: &LockKeys,
        call: &Call,
        deadline: Instant,
    ) -> Result<Vec<Value>, Fault> {
        let mut wire = self.link.wire(deadline).await?;
        let mut loaded = false;
        loop {
            let mut question = if loaded { call.with_load() } else { Pipeline::with_capacity(3) };
            if !loaded {
                question.add_command(call.cmd().clone());
            }
            question.cmd("SET").arg(space.mark(keys)).arg("").arg("PX").arg(MARK_MS);
            question.add_command(cmd("WAIT").arg(self.wanted).arg(waits_ms(deadline)).clone());
            let mut answers =
                self.link.call_all(&mut wire, &question, deadline).await.map_err(|lost| match lost {
                    Lost::Broken(error) => self.fault(FaultKind::Disconnected).because(error),
                    // As a rule somebody else's question was before this one, and has not been answered either.
                    Lost::TimedOut => self.fault(self.too_few(0)),
                })?;
            if loaded && !answers.is_empty() {
                answers.remove(0);
            }
            match answers.first() {
                Some(Value::ServerError(error)) if error.code() == "NOSCRIPT" && !loaded => loaded = true,
                Some(Value::ServerError(error)) if judge(error).elsewhere => {
                    self.link.replace(&wire);
                    return Ok(answers);
                }
                _ => return Ok(answers),
            }
        }
    }

    const fn too_few(&self, found: u32) -> FaultKind {
        FaultKind::Unconfirmed { wanted: self.wanted, found }
    }

    fn fault(&self, kind: FaultKind) -> Fault {
        Fault::new(kind, Phase::Reply, self.link.node().clone())
    }
}

/// How long the server may wait: not for ever, which is what 0 would be, and so that its answer comes in time.
fn waits_ms(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    let in_time = left.saturating_sub(LATE.min(left / 2));
    u64::try_from(in_time.as_millis()).unwrap_or(u64::MAX).max(1)
}
