//! Sending operations: alone, with others, in batches of the caller, and as plain commands.
//!
//! Owns the building of calls, what is sent again, and the conversion of replies to outcomes. In a cluster, the
//! [`cluster`](crate::cluster) module sends the calls, and [`fanout`](super::fanout) the batches.
//!
//! 1. An operation is sent once. It is sent again, together with its script, only if the server reports that it does
//!    not know the script, so that nothing was executed; or alone, if it got no reply of its own in a call with others
//!    ([`batches`](crate::conn::batches)).
//! 2. Every call ends at its own deadline, which counts from the start of the call.
//! 3. In a cluster, each lock belongs to a slot. While a slot migrates and some keys of a lock have already moved, the
//!    store executes as much of an operation as the remaining keys allow: a holder can still renew and release.

use super::call_target::CallTarget;
use super::{Backend, RedisStore, SessionOutcome};
use crate::cluster::OnTryAgain;
use crate::conn::batches::{Sending, SharedParts};
use crate::conn::link::NoReply;
use crate::error_map::{classify, is_try_again, is_unknown_script};
use crate::script::batch::{Batchable, BatchedOp};
use crate::script::reply::{self, Malformed};
use crate::script::{Call, extends_by_token, inspects_together};
use futures_util::future::{BoxFuture, join_all};
use leasehold_core::{Acquire, Extend, KeyError, Kind, Lock, LockKeys, MultiAcquired, Op, Partition, Reply};
use leasehold_store::{Executed, Fault, FaultKind, Outcome, Phase};
use redis::{Pipeline, Value};
use std::ops::Range;
use tokio::time::Instant;
/// How many times one operation is sent at most, for a server whose scripts are flushed continually (1).
const MAX_SENDS: u32 = 4;
/// Limits of extends and of inspections in one call: a server executes one call at a time, so all other requests wait for it.
pub(crate) const MAX_EXTENDS_PER_CALL: usize = 64;
const MAX_INSPECTIONS_PER_CALL: usize = 32;

impl RedisStore {
    pub(crate) fn call(&self, lock: &Lock, op: &Op) -> Result<(LockKeys, Call), Fault> {
        let keys = self.lock_keys(lock)?;
        let call = self.call_on(&keys, lock, op)?;
        Ok((keys, call))
    }

    fn call_on(&self, keys: &LockKeys, lock: &Lock, op: &Op) -> Result<Call, Fault> {
        let unusable = |text| self.fault(FaultKind::Unusable(text), Phase::Send);
        if let Some(refused) = op.refusal_for(lock.kind) {
            return Err(unusable(refused.to_string()));
        }
        let call = Call::new(op, lock.kind, &self.session_keys(keys), keys);
        call.ok_or_else(|| unusable("this operation has no script".to_owned()))
    }

    fn lock_keys(&self, lock: &Lock) -> Result<LockKeys, Fault> {
        let unusable = |error: KeyError| self.fault(FaultKind::Unusable(error.to_string()), Phase::Send);
        self.keys.lock(lock).map_err(unusable)
    }

    /// Returns a connection to the node that serves `slot`; outside a cluster the slot is ignored.
    async fn target(&self, slot: u16, deadline: Instant) -> Result<CallTarget<'_>, Fault> {
        match &*self.backend {
            Backend::Link(link) => Ok(CallTarget::Link(link, link.connection(deadline).await?)),
            Backend::Borrowed(borrowed) => Ok(CallTarget::Borrowed(borrowed)),
            Backend::Cluster(cluster) => {
                let (node, connection) = cluster.connection(slot, deadline).await?;
                Ok(CallTarget::Node(node, Some(connection)))
            }
        }
    }

    /// Sends an operation, alone or with others.
    pub(crate) async fn send(&self, lock: &Lock, op: &Op, deadline: Instant) -> Outcome {
        let keys = match self.lock_keys(lock) {
            Ok(keys) => keys,
            Err(fault) => return refused(fault),
        };
        let Some(batchable) = Batchable::of(lock, op) else {
            return self.send_alone(keys, lock, op, deadline).await;
        };
        let target = match self.target(keys.slot(), deadline).await {
            Ok(target) => target,
            Err(fault) => return refused(fault),
        };
        let slot = self.cluster().map_or(0, |_| keys.slot());
        let shared = |keys: &LockKeys| {
            let session_keys = self.session_keys(keys);
            SharedParts {
                watermark: session_keys.watermark(keys).into_owned(),
                mailboxes: session_keys.mailbox_prefix().into_owned(),
            }
        };
        // Others that begin meanwhile share a call.
        let sending = target.join(slot, deadline, keys, |keys| BatchedOp::new(keys, batchable), shared);
        let (keys, _in_flight) = match sending {
            Sending::Together(reply) => match target.receive(reply, deadline).await {
                Ok(Some(value)) => return self.outcome(op, &value, &target),
                Ok(None) => match self.lock_keys(lock) {
                    Ok(keys) => (keys, None),
                    Err(fault) => return refused(fault),
                },
                Err(no_reply) => return self.no_batch(no_reply, &target),
            },
            Sending::Alone(keys, in_flight) => (keys, in_flight),
        };
        self.send_alone(keys, lock, op, deadline).await
    }

    /// In a box, because it is large, and most operations of a busy client are sent with others.
    fn send_alone<'a>(
        &'a self,
        keys: LockKeys,
        lock: &'a Lock,
        op: &'a Op,
        deadline: Instant,
    ) -> BoxFuture<'a, Outcome> {
        Box::pin(self.send_alone_unboxed(keys, lock, op, deadline))
    }

    async fn send_alone_unboxed(&self, keys: LockKeys, lock: &Lock, op: &Op, deadline: Instant) -> Outcome {
        let call = match self.call_on(&keys, lock, op) {
            Ok(call) => call,
            Err(fault) => return Outcome::Failed(Executed::No, fault),
        };
        match self.reply(keys.slot(), &call, false, OnTryAgain::Report, deadline).await {
            Ok((value, _)) if self.cluster().is_some() && is_try_again(&value) => {}
            Ok((value, target)) => return self.outcome(op, &value, &target),
            Err(outcome) => return outcome,
        }
        // Some of the keys have already migrated (3), or do not exist.
        if let Some(call) = Call::without_rare_keys(op, lock.kind, &self.session_keys(&keys), &keys) {
            match self.reply(keys.slot(), &call, false, OnTryAgain::Report, deadline).await {
                Ok((value, _)) if is_try_again(&value) => {}
                Ok((value, target)) => return self.outcome(op, &value, &target),
                Err(outcome) => return outcome,
            }
        }
        if let Some(reduced) = Call::reduced(op, lock.kind, &self.session_keys(&keys), &keys)
            && let Some(outcome) = self.send_reduced(op, keys.slot(), &reduced, deadline).await
        {
            return outcome;
        }
        match self.reply(keys.slot(), &call, false, OnTryAgain::Retry, deadline).await {
            Ok((value, target)) => self.outcome(op, &value, &target),
            Err(outcome) => outcome,
        }
    }

    /// Sends the reduced form of an operation. `None` if only the full form can execute it.
    async fn send_reduced(&self, op: &Op, slot: u16, reduced: &Call, deadline: Instant) -> Option<Outcome> {
        let (value, target) = match self.reply(slot, reduced, false, OnTryAgain::Report, deadline).await {
            Ok(reply) => reply,
            Err(outcome) => return Some(outcome),
        };
        if !matches!(op, Op::Release(_)) && !is_try_again(&value) {
            return Some(self.outcome(op, &value, &target));
        }
        if matches!(value, Value::ServerError(_)) {
            return None;
        }
        match self.well_formed(reply::release_by_token(&value)) {
            Ok(released) => released.map(|released| Outcome::Done(Reply::Release(released))),
            Err(outcome) => Some(outcome),
        }
    }

    /// Sends a script call, and returns the server's reply and the connection it came on. Set `with_script` if the
    /// server is known to lack the script.
    pub(crate) async fn reply<T>(
        &self,
        slot: u16,
        call: &Call,
        mut with_script: bool,
        on_try_again: OnTryAgain,
        deadline: Instant,
    ) -> Result<(Value, CallTarget<'_>), Outcome<T>> {
        if let Backend::Cluster(cluster) = &*self.backend {
            // In a box, because it is large, and a client of a single server does not need it.
            let reply = Box::pin(cluster.reply(slot, call, with_script, on_try_again, deadline));
            let (value, node) = reply.await?;
            return Ok((value, CallTarget::Node(node, None)));
        }
        for _ in 0..MAX_SENDS {
            let mut target = self.target(slot, deadline).await.map_err(refused)?;
            if let Some(kind) = target.refusal(call) {
                return Err(Outcome::Failed(Executed::No, self.fault(kind, Phase::Send)));
            }
            let value = if with_script {
                target.send_all(&call.with_load(), deadline).await.map(last_reply)
            } else {
                target.send(call, deadline).await
            };
            match value {
                Ok(value) if is_unknown_script(&value) => with_script = true,
                Ok(value) => return Ok((value, target)),
                Err(no_reply) => return Err(no_reply.outcome(self.node())),
            }
        }
        let text = "its scripts are flushed all the time".to_owned();
        Err(Outcome::Failed(Executed::No, self.fault(FaultKind::Failed(text), Phase::Reply)))
    }

    /// Sends several operations in one pipeline. A call whose script the server does not know is sent again after the
    /// others. That is rare: it happens at the first use of a script after the server has started or flushed its scripts.
    pub(super) async fn send_all(&self, ops: &[(Lock, Op)], deadline: Instant) -> Vec<Outcome> {
        if let Backend::Cluster(cluster) = &*self.backend {
            return self.send_all_in(cluster, ops, deadline).await;
        }
        let calls = self.calls(ops);
        let mut target = match self.target(0, deadline).await {
            Ok(target) => target,
            Err(fault) => return same_outcome(&calls, &Outcome::Failed(Executed::No, fault)),
        };
        // A node of a quorum may not grant locks yet.
        let refusal = |call: Call| match target.refusal(&call) {
            Some(kind) => Err(self.fault(kind, Phase::Send)),
            None => Ok(call),
        };
        let calls: Vec<_> = calls.into_iter().map(|(of, call)| (of, call.and_then(refusal))).collect();
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls.iter().filter_map(|(_, call)| call.as_ref().ok()) {
            pipeline.add_command(call.cmd().clone());
        }
        let mut values = match target.send_all(&pipeline, deadline).await {
            Ok(values) => values.into_iter(),
            Err(no_reply) => return same_outcome(&calls, &no_reply.outcome(self.node())),
        };
        let target = &target;
        let outcomes = calls.into_iter().map(|(of, call)| {
            let answer = call.map(|call| (call, values.next()));
            let ops = &ops[of];
            async move {
                match answer {
                    Ok((call, Some(value))) if is_unknown_script(&value) => {
                        match self.reply(0, &call, true, OnTryAgain::Retry, deadline).await {
                            Ok((value, target)) => self.answered(ops, value, &target, deadline).await,
                            Err(outcome) => vec![outcome; ops.len()],
                        }
                    }
                    Ok((_, Some(value))) => self.answered(ops, value, target, deadline).await,
                    Ok((_, None)) => {
                        let fault = self.fault(FaultKind::Disconnected, Phase::Reply);
                        vec![Outcome::Failed(Executed::Unknown, fault); ops.len()]
                    }
                    Err(fault) => vec![Outcome::Failed(Executed::No, fault); ops.len()],
                }
            }
        });
        join_all(outcomes).await.into_iter().flatten().collect()
    }

    /// Builds the calls of these operations, in order, each with the range of operations it covers. Consecutive
    /// extends share one call, and so do consecutive inspections of locks of one kind.
    fn calls(&self, ops: &[(Lock, Op)]) -> Vec<(Range<usize>, Result<Call, Fault>)> {
        let mut calls = Vec::new();
        let mut from = 0;
        while let Some((lock, op)) = ops.get(from) {
            let extends: Vec<_> =
                ops[from..].iter().take(MAX_EXTENDS_PER_CALL).map_while(|op| self.extend(op)).collect();
            let inspected: Vec<_> = ops[from..]
                .iter()
                .take(MAX_INSPECTIONS_PER_CALL)
                .map_while(|op| self.inspected(lock.kind, op))
                .collect();
            let together = match (&extends[..], &inspected[..]) {
                ([_, _, ..], _) => Some(Call::extends(&extends)),
                (_, [_, _, ..]) => Call::inspects(lock.kind, &inspected),
                _ => None,
            };
            let to = from + together.as_ref().map_or(1, |_| extends.len().max(inspected.len()));
            let call = together.map_or_else(|| self.call(lock, op).map(|(_, call)| call), Ok);
            calls.push((from..to, call));
            from = to;
        }
        calls
    }

    /// Returns an extend that can share a call with others, with the keys of its lock.
    pub(super) fn extend<'a>(&self, (lock, op): &'a (Lock, Op)) -> Option<(LockKeys, Kind, &'a Extend)> {
        match op {
            Op::Extend(extend) if extends_by_token(lock.kind, extend) => {
                Some((self.keys.lock(lock).ok()?, lock.kind, extend))
            }
            _ => None,
        }
    }

    /// Returns the keys of a lock of this kind whose inspection can share a call with others.
    fn inspected(&self, kind: Kind, (lock, op): &(Lock, Op)) -> Option<LockKeys> {
        match op {
            Op::Inspect(inspect) if lock.kind == kind && inspects_together(kind, inspect) => {
                self.keys.lock(lock).ok()
            }
            _ => None,
        }
    }

    /// Outcomes of the operations that one call on a server covers. An inspection that has no reply of its own is sent alone, so
    /// that a lock that the server refuses, or cannot read, fails none of the others.
    async fn answered(
        &self,
        ops: &[(Lock, Op)],
        value: Value,
        target: &CallTarget<'_>,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let values = match (ops, value) {
            ([(_, Op::Inspect(_)), _, ..], Value::Array(values)) if values.len() == ops.len() => values,
            ([(_, Op::Inspect(_)), _, ..], Value::ServerError(error)) if error.code() == "NOPERM" => {
                vec![Value::Nil; ops.len()]
            }
            (ops, value) => {
                let ops: Vec<_> = ops.iter().map(|(_, op)| op).collect();
                return self.outcomes(&ops, &value, target);
            }
        };
        let outcomes = ops.iter().zip(values).map(async |((lock, op), value)| match value {
            Value::Nil => match self.lock_keys(lock) {
                Ok(keys) => self.send_alone(keys, lock, op, deadline).await,
                Err(fault) => Outcome::Failed(Executed::No, fault),
            },
            value => self.outcome(op, &value, target),
        });
        join_all(outcomes).await
    }

    /// Outcomes of the operations that one call covers.
    pub(crate) fn outcomes(&self, ops: &[&Op], value: &Value, target: &CallTarget<'_>) -> Vec<Outcome> {
        match (ops, value) {
            ([op], value) => vec![self.outcome(op, value, target)],
            (ops, Value::Array(values)) if values.len() == ops.len() => {
                ops.iter().zip(values).map(|(op, value)| self.outcome(op, value, target)).collect()
            }
            (ops, value) => {
                // An error applies to all operations. Any other reply that is not a list is malformed.
                let value = if matches!(value, Value::ServerError(_)) { value } else { &Value::Nil };
                ops.iter().map(|op| self.outcome(op, value, target)).collect()
            }
        }
    }

    fn outcome(&self, op: &Op, value: &Value, target: &CallTarget<'_>) -> Outcome {
        if let Err(outcome) = self.check_error(value, target) {
            return outcome;
        }
        self.well_formed(reply::read(op, value)).map_or_else(|outcome| outcome, Outcome::Done)
    }

    /// Converts an error reply to its outcome.
    pub(crate) fn check_error<T>(&self, value: &Value, target: &CallTarget<'_>) -> Result<(), Outcome<T>> {
        let Value::ServerError(error) = value else { return Ok(()) };
        let mut meaning = classify(error);
        let node = match target {
            CallTarget::Link(link, connection) if meaning.elsewhere => {
                meaning.kind = link.config().kind_with_provider(meaning.kind);
                link.replace(connection);
                link.node()
            }
            CallTarget::Node(node, connection) => {
                // The slot was migrating until the deadline.
                if matches!(error.code(), "MOVED" | "ASK") {
                    meaning.kind = FaultKind::Busy;
                }
                meaning.kind = node.link.config().kind_with_provider(meaning.kind);
                if let (true, Some(connection)) = (meaning.elsewhere, connection) {
                    node.link.replace(connection);
                }
                node.name()
            }
            CallTarget::Link(..) | CallTarget::Borrowed(_) => self.node(),
        };
        Err(meaning.outcome(node))
    }

    pub(crate) fn well_formed<T, U>(&self, read: Result<T, Malformed>) -> Result<T, Outcome<U>> {
        let fault = |malformed: Malformed| self.fault(FaultKind::Failed(malformed.to_string()), Phase::Reply);
        read.map_err(|malformed| Outcome::Failed(Executed::Unknown, fault(malformed)))
    }

    pub(super) async fn send_acquire_all(
        &self,
        requests: &[(Lock, Acquire)],
        deadline: Instant,
    ) -> Result<Vec<MultiAcquired>, Outcome<Vec<MultiAcquired>>> {
        let unusable = |error: KeyError| {
            Outcome::Failed(Executed::No, self.fault(FaultKind::Unusable(error.to_string()), Phase::Send))
        };
        let requests = requests.iter().map(|(lock, request)| Ok((self.keys.lock(lock)?, request)));
        let requests = requests.collect::<Result<Vec<_>, _>>().map_err(unusable)?;
        let slot = requests.first().map_or(0, |(keys, _)| keys.slot());
        let call = Call::acquire_all(&requests, &self.session_keys_at(Partition::new(slot)));
        let (value, target) = self.reply(slot, &call, false, OnTryAgain::Retry, deadline).await?;
        self.check_error(&value, &target)?;
        self.well_formed(reply::multi_acquired(requests.len(), &value))
    }

    /// Sends plain commands, without scripts. `is_acceptable` gets the index of a command and its reply, and decides
    /// whether an error is acceptable.
    pub(crate) async fn send_commands(
        &self,
        slot: u16,
        pipeline: &Pipeline,
        is_acceptable: fn(usize, &Value) -> bool,
        deadline: Instant,
    ) -> Result<Vec<Value>, SessionOutcome> {
        let mut target = self.target(slot, deadline).await.map_err(refused)?;
        let values =
            target.send_all(pipeline, deadline).await.map_err(|no_reply| no_reply.outcome(self.node()))?;
        let serious = values.iter().enumerate().filter(|(at, value)| !is_acceptable(*at, value));
        serious.map(|(_, value)| value).try_for_each(|value| self.check_error(value, &target))?;
        Ok(values)
    }

    /// The outcome of operations that were sent together.
    fn no_batch(&self, no_reply: NoReply, target: &CallTarget<'_>) -> Outcome {
        match (target, self.cluster()) {
            (CallTarget::Node(node, _), Some(cluster)) => {
                cluster.mark_stale();
                no_reply.outcome(node.name())
            }
            _ => no_reply.outcome(self.node()),
        }
    }
}

/// The same outcome for all operations, except for those whose call could not be built.
fn same_outcome(calls: &[(Range<usize>, Result<Call, Fault>)], outcome: &Outcome) -> Vec<Outcome> {
    let each = calls.iter().flat_map(|(of, call)| {
        let outcome = call
            .as_ref()
            .err()
            .map_or_else(|| outcome.clone(), |fault| Outcome::Failed(Executed::No, fault.clone()));
        vec![outcome; of.len()]
    });
    each.collect()
}

/// The reply of the operation, which follows that of `SCRIPT LOAD`. If loading failed, for example for lack of
/// permission, returns that error.
fn last_reply(values: Vec<Value>) -> Value {
    let mut values = values.into_iter();
    match (values.next(), values.next()) {
        (Some(loading @ Value::ServerError(_)), Some(value)) if is_unknown_script(&value) => loading,
        (_, Some(value)) => value,
        (loading, None) => loading.unwrap_or_default(),
    }
}

/// The outcome of an operation that was not sent.
pub(crate) const fn refused<T>(fault: Fault) -> Outcome<T> {
    Outcome::Failed(Executed::No, fault)
}
