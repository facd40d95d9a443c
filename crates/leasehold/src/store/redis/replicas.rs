//! What replicas have of a hold, where somebody has asked for that.
//!
//! Owns a connection of its own, on which nothing else is said: WAIT keeps whatever comes behind it waiting, and counts what
//! was written on its own connection alone.
//!
//! 1. A grant was written by whoever has released the lock. So the hold is looked for here, which says that this server has
//!    it; then something is written, which the server sends to its replicas behind the hold; and WAIT asks who has that.
//! 2. An extend that cannot lengthen anything is the look: what it answers compares the hold, for every kind of lock.

use super::link::{Link, Lost, Wire};
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

/// Pauses between two questions: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// What the answers to a question mean.
enum Judged {
    /// Enough of them have the hold.
    Had,
    /// They have not.
    Not(Fault),
    /// Another connection may lead to the server that has it.
    Elsewhere(Fault),
}

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

    /// Waits until enough of them have a hold. What was sent may be executed after this has failed; it changes nothing, so
    /// it is asked again for as long as there is time where the connection broke or led to another server.
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
        let mark = space.mark(keys);
        let mut pause = PAUSE.0;
        loop {
            let mut wire = self.link.wire(deadline).await?;
            let fault = match self.ask(&mut wire, &mark, &call, deadline).await {
                Ok(answers) => match self.judge(&look, &answers) {
                    Judged::Had => return Ok(()),
                    Judged::Not(fault) => return Err(fault),
                    Judged::Elsewhere(fault) => {
                        self.link.replace(&wire);
                        fault
                    }
                },
                Err(Lost::Broken(error)) => self.fault(FaultKind::Disconnected).because(error),
                // As a rule somebody else's question was before this one, and has not been answered either.
                Err(Lost::TimedOut) => return Err(self.fault(self.too_few(0))),
            };
            if Instant::now() + pause >= deadline {
                return Err(fault);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// What the answers to the look, the writing and the question say.
    fn judge(&self, look: &Op, answers: &[Value]) -> Judged {
        let malformed = || Judged::Not(self.fault(FaultKind::Failed(reply::Malformed.to_string())));
        let errors = answers.iter().filter_map(|answer| match answer {
            Value::ServerError(error) => Some(judge(error)),
            _ => None,
        });
        // A replica answers the look, and says only to the writing what it is.
        let mut errors: Vec<_> = errors.collect();
        if let Some(at) = errors.iter().position(|error| error.elsewhere) {
            return Judged::Elsewhere(self.fault(errors.swap_remove(at).kind));
        }
        if let Some(error) = errors.into_iter().next() {
            return Judged::Not(self.fault(error.kind));
        }
        let [looked, _, found] = answers else { return malformed() };
        match (reply::read(look, looked), found) {
            (Ok(Reply::Extend(Extended::Extended)), Value::Int(found)) => {
                match u32::try_from(*found).unwrap_or(0) {
                    found if found >= self.wanted => Judged::Had,
                    found => Judged::Not(self.fault(self.too_few(found))),
                }
            }
            // It has lost the hold, or this connection leads to another server than the one that has it.
            (Ok(Reply::Extend(Extended::NotHeld)), _) => Judged::Elsewhere(self.fault(self.too_few(0))),
            (Ok(Reply::Refused(refused)), _) => Judged::Not(self.fault(FaultKind::Meaningless(refused))),
            _ => malformed(),
        }
    }

    /// The answers to the look, the writing and the question. The script is sent along where the server does not know it.
    async fn ask(
        &self,
        wire: &mut Wire,
        mark: &str,
        call: &Call,
        deadline: Instant,
    ) -> Result<Vec<Value>, Lost> {
        let mut loaded = false;
        loop {
            let mut question = if loaded { call.with_load() } else { Pipeline::with_capacity(3) };
            if !loaded {
                question.add_command(call.cmd().clone());
            }
            question.cmd("SET").arg(mark).arg("").arg("PX").arg(MARK_MS);
            question.add_command(cmd("WAIT").arg(self.wanted).arg(waits_ms(deadline)).clone());
            let mut answers = self.link.call_all(wire, &question, deadline).await?;
            if loaded && !answers.is_empty() {
                answers.remove(0);
            }
            match answers.first() {
                Some(Value::ServerError(error)) if error.code() == "NOSCRIPT" && !loaded => loaded = true,
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
