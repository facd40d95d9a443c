//! Operations of [`RedisStore`] on several primaries of a cluster at once: batches, listings and diagnoses.
//!
//! Owns the grouping by slot and by primary. An operation that a node does not execute at once is sent again by
//! [`send`](super::send), one by one.

use super::call_target::CallTarget;
use super::send::{MAX_EXTENDS_PER_CALL, refused};
use super::sessions::RECORDS_PER_REQUEST;
use super::{RedisStore, SessionOutcome};
use crate::cluster::{Cluster, Node, OnTryAgain};
use crate::config::address::Address;
use crate::error_map::{is_try_again, is_unknown_script};
use crate::script::Call;
use crate::script::reply;
use futures_util::future::{join, join_all};
use leasehold_core::{Lock, LockKeys, Op, Partition, SessionId, SessionList, SessionOp, SessionReply};
use leasehold_store::{Diagnosis, Executed, FaultKind, Outcome, Phase};
use redis::{Pipeline, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// How many slots one request queries for their session index.
const SLOTS_PER_REQUEST: usize = 1024;

/// Operations on one slot that share a call.
struct Group {
    /// Their positions in the batch.
    of: Vec<usize>,
    slot: u16,
    call: Call,
}

impl Group {
    fn ops<'a>(&self, all: &'a [(Lock, Op)]) -> Vec<&'a Op> {
        self.of.iter().map(|at| &all[*at].1).collect()
    }

    /// Each outcome with the position of its operation.
    fn with(&self, outcomes: Vec<Outcome>) -> impl Iterator<Item = (usize, Outcome)> + use<'_> {
        self.of.iter().copied().zip(outcomes)
    }
}

impl RedisStore {
    /// Sends several operations, in one pipeline to each primary. Operations whose slot has moved are sent again,
    /// slot by slot; a call that cannot be executed as a whole because its slot migrates is split into single
    /// operations.
    pub(crate) async fn send_all_in(
        &self,
        cluster: &Cluster,
        ops: &[(Lock, Op)],
        deadline: Instant,
    ) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; ops.len()];
        let map = match cluster.map(deadline).await {
            Ok(map) => map,
            Err(fault) => return vec![Outcome::Failed(Executed::No, fault); ops.len()],
        };
        let mut by_node: BTreeMap<Option<&Address>, Vec<Group>> = BTreeMap::new();
        for group in self.groups(ops, &mut outcomes) {
            by_node.entry(map.primary(group.slot)).or_default().push(group);
        }
        let sent = by_node.values().map(|groups| self.send_groups(cluster, ops, groups, deadline));
        for (at, outcome) in join_all(sent).await.into_iter().flatten() {
            outcomes[at] = Some(outcome);
        }
        let lost = || Outcome::Failed(Executed::No, self.fault(FaultKind::Unreachable, Phase::Send));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect()
    }

    /// Sends several operations on sessions, and the heartbeats among them in one pipeline to each primary. One that a node
    /// does not execute at once is sent again by itself, which has the same effect as sending it once.
    pub(super) async fn send_session_ops_in(
        &self,
        cluster: &Cluster,
        ops: &[(Partition, SessionOp)],
        deadline: Instant,
    ) -> Vec<SessionOutcome> {
        let map = match cluster.map(deadline).await {
            Ok(map) => map,
            Err(fault) => return vec![Outcome::Failed(Executed::No, fault); ops.len()],
        };
        let mut by_node: BTreeMap<Option<&Address>, Vec<usize>> = BTreeMap::new();
        let mut others = Vec::new();
        for (at, (partition, op)) in ops.iter().enumerate() {
            match op {
                SessionOp::Heartbeat(_) => {
                    by_node.entry(map.primary(partition.as_u16())).or_default().push(at);
                }
                _ => others.push(at),
            }
        }
        let sent = by_node.values().map(|of| self.send_heartbeats(cluster, ops, of, deadline));
        let others = others.into_iter().map(async |at| {
            let (partition, op) = &ops[at];
            (at, self.send_session_op(*partition, op, deadline).await)
        });
        let (sent, others) = join(join_all(sent), join_all(others)).await;
        let mut outcomes: Vec<_> = sent.into_iter().flatten().chain(others).collect();
        outcomes.sort_unstable_by_key(|(at, _)| *at);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// Sends the heartbeats of one primary, and returns the outcome of each.
    async fn send_heartbeats(
        &self,
        cluster: &Cluster,
        ops: &[(Partition, SessionOp)],
        of: &[usize],
        deadline: Instant,
    ) -> Vec<(usize, SessionOutcome)> {
        let mut pipeline = Pipeline::with_capacity(of.len());
        for at in of {
            if let (partition, SessionOp::Heartbeat(heartbeat)) = &ops[*at] {
                let call = Call::heartbeat(heartbeat, &self.session_keys_at(*partition));
                pipeline.add_command(call.into_cmd());
            }
        }
        let Some(first) = of.first() else { return Vec::new() };
        let (node, target, values) =
            match send_to_node(cluster, ops[*first].0.as_u16(), &pipeline, deadline).await {
                Ok(replies) => replies,
                Err(outcome) => return of.iter().map(|at| (*at, outcome.clone())).collect(),
            };
        let mut values = values.into_iter();
        let (mut outcomes, mut again) = (Vec::with_capacity(of.len()), Vec::new());
        for at in of {
            let outcome = match values.next() {
                Some(value) if is_unknown_script(&value) || node.redirect(&value).is_some() => {
                    again.push(*at);
                    continue;
                }
                Some(value) => {
                    self.heartbeat_reply(&value, &target).map_or_else(|outcome| outcome, Outcome::Done)
                }
                None => {
                    let fault = self.fault(FaultKind::Disconnected, Phase::Reply);
                    Outcome::Failed(Executed::Unknown, fault)
                }
            };
            outcomes.push((*at, outcome));
        }
        let again = again.into_iter().map(async |at| {
            let (partition, op) = &ops[at];
            (at, self.send_session_op(*partition, op, deadline).await)
        });
        outcomes.extend(join_all(again).await);
        outcomes
    }

    /// Groups the operations: extends in one slot share a call. An operation whose call cannot be built gets its
    /// outcome here.
    fn groups(&self, ops: &[(Lock, Op)], outcomes: &mut [Option<Outcome>]) -> Vec<Group> {
        let mut extends: BTreeMap<u16, Vec<(usize, LockKeys)>> = BTreeMap::new();
        let mut groups = Vec::new();
        for (at, (lock, op)) in ops.iter().enumerate() {
            if let Some((keys, ..)) = self.extend(&ops[at]) {
                extends.entry(keys.slot()).or_default().push((at, keys));
                continue;
            }
            match self.call(lock, op) {
                Ok((keys, call)) => groups.push(Group { of: vec![at], slot: keys.slot(), call }),
                Err(fault) => outcomes[at] = Some(Outcome::Failed(Executed::No, fault)),
            }
        }
        for (slot, extends) in extends {
            for some in extends.chunks(MAX_EXTENDS_PER_CALL) {
                let mut calls = Vec::with_capacity(some.len());
                for (at, keys) in some {
                    if let (lock, Op::Extend(extend)) = &ops[*at] {
                        calls.push((keys, lock.kind, extend));
                    }
                }
                let call = Call::extends(&calls);
                groups.push(Group { of: some.iter().map(|(at, _)| *at).collect(), slot, call });
            }
        }
        groups
    }

    /// Sends the groups of one primary, and returns the outcome of each operation.
    async fn send_groups(
        &self,
        cluster: &Cluster,
        ops: &[(Lock, Op)],
        groups: &[Group],
        deadline: Instant,
    ) -> Vec<(usize, Outcome)> {
        let all = |outcome: &Outcome| {
            groups.iter().flat_map(|group| &group.of).map(|at| (*at, outcome.clone())).collect()
        };
        let Some(first) = groups.first() else { return Vec::new() };
        let mut pipeline = Pipeline::with_capacity(groups.len());
        for group in groups {
            pipeline.add_command(group.call.cmd().clone());
        }
        let (node, target, values) = match send_to_node(cluster, first.slot, &pipeline, deadline).await {
            Ok(replies) => replies,
            Err(outcome) => return all(&outcome),
        };
        let (mut outcomes, mut again) = (Vec::with_capacity(groups.len()), Vec::new());
        for (group, value) in groups.iter().zip(values) {
            if is_try_again(&value) || is_unknown_script(&value) || node.redirect(&value).is_some() {
                again.push((group, value));
            } else {
                outcomes.extend(group.with(self.outcomes(&group.ops(ops), &value, &target)));
            }
        }
        let again = again.into_iter().map(async |(group, value)| {
            group.with(if is_try_again(&value) {
                self.send_each(ops, group, deadline).await
            } else {
                self.send_group(ops, group, deadline).await
            })
        });
        outcomes.extend(join_all(again).await.into_iter().flatten());
        outcomes
    }

    /// Sends one group to the node that serves its slot. Splits it if some of its keys have migrated.
    async fn send_group(&self, ops: &[(Lock, Op)], group: &Group, deadline: Instant) -> Vec<Outcome> {
        if group.of.len() == 1 {
            return self.send_each(ops, group, deadline).await;
        }
        match self.reply(group.slot, &group.call, false, OnTryAgain::Report, deadline).await {
            Ok((value, _)) if is_try_again(&value) => self.send_each(ops, group, deadline).await,
            Ok((value, target)) => self.outcomes(&group.ops(ops), &value, &target),
            Err(outcome) => vec![outcome; group.of.len()],
        }
    }

    /// Sends each operation of a group by itself.
    async fn send_each(&self, ops: &[(Lock, Op)], group: &Group, deadline: Instant) -> Vec<Outcome> {
        join_all(group.of.iter().map(|at| self.send(&ops[*at].0, &ops[*at].1, deadline))).await
    }

    /// Reads the indexes of all slots, then the records they name.
    pub(crate) async fn list_in(
        &self,
        cluster: &Cluster,
        deadline: Instant,
    ) -> Result<SessionReply, SessionOutcome> {
        let map = cluster.map(deadline).await.map_err(refused)?;
        let lists = map.primaries().iter().map(|primary| {
            let slots = map.slots_of(primary);
            async move { self.list_at(&slots, deadline).await }
        });
        let mut list = SessionList::default();
        for of_primary in join_all(lists).await {
            let SessionList { entries, skipped } = of_primary?;
            list.entries.extend(entries);
            list.skipped.merge(skipped);
        }
        Ok(SessionReply::List(list))
    }

    /// The sessions in these slots, all of one primary.
    async fn list_at(&self, slots: &[u16], deadline: Instant) -> Result<SessionList, SessionOutcome> {
        let (mut found, mut list) = (Vec::new(), SessionList::default());
        for some in slots.chunks(SLOTS_PER_REQUEST) {
            let index = |slot: &u16| {
                let sessions = self.session_keys_at(Partition::new(*slot)).sessions();
                (*slot, Call::session_list(&sessions))
            };
            for (slot, value) in self.query_slots(some.iter().map(index).collect(), deadline).await? {
                let (sessions, skipped) = self.well_formed(reply::sessions(&value))?;
                found.extend(sessions.into_iter().map(|session| (slot, session)));
                list.skipped.merge(skipped);
            }
        }
        for some in found.chunks(RECORDS_PER_REQUEST) {
            let record = |(slot, session): &(u16, SessionId)| {
                let record = self.session_keys_at(Partition::new(*slot)).session(*session);
                (*slot, Call::session_read([&*record]))
            };
            let answers = self.query_slots(some.iter().map(record).collect(), deadline).await?;
            for ((_, session), (_, value)) in some.iter().zip(answers) {
                self.well_formed(reply::session_records(&[*session], &value, &mut list))?;
            }
        }
        Ok(list)
    }

    /// Sends calls of one script that change nothing, each on one slot, in one pipeline to the primary of the first. A call
    /// that is redirected is sent again by itself.
    async fn query_slots(
        &self,
        calls: Vec<(u16, Call)>,
        deadline: Instant,
    ) -> Result<Vec<(u16, Value)>, SessionOutcome> {
        let (Some((first, call)), Some(cluster)) = (calls.first(), self.cluster()) else {
            return Ok(Vec::new());
        };
        let mut pipeline = Pipeline::with_capacity(1 + calls.len());
        pipeline.add_command(call.load());
        for (_, call) in &calls {
            pipeline.add_command(call.cmd().clone());
        }
        let (node, mut connection) = cluster.connection(*first, deadline).await.map_err(refused)?;
        let values = node.link.call_all(&mut connection, &pipeline, deadline).await;
        let values =
            values.map_err(|no_reply| Outcome::Failed(Executed::Unknown, node.no_reply(no_reply)))?;
        let mut answers = Vec::with_capacity(calls.len());
        for ((slot, call), value) in calls.into_iter().zip(values.into_iter().skip(1)) {
            let (value, target) = if node.redirect(&value).is_some() || is_unknown_script(&value) {
                self.reply(slot, &call, false, OnTryAgain::Retry, deadline).await?
            } else {
                (value, CallTarget::Node(Arc::clone(&node), None))
            };
            self.check_error(&value, &target)?;
            answers.push((slot, value));
        }
        Ok(answers)
    }

    /// The diagnosis of each primary; an unreachable one is a finding.
    pub(crate) async fn diagnose_all(
        &self,
        cluster: &Cluster,
        deadline: Instant,
    ) -> Result<Vec<Diagnosis>, SessionOutcome> {
        let map = cluster.map(deadline).await.map_err(refused)?;
        let each = map.primaries().iter().filter_map(|primary| {
            let slot = map.slots_of(primary).first().copied()?;
            Some(async move {
                let node = primary.to_string();
                match self.diagnose_node(slot, deadline).await {
                    Ok(mut found) => {
                        found.node = node;
                        Ok(found)
                    }
                    Err(Outcome::Failed(_, fault)) => Ok(Diagnosis::unreachable(node, &fault)),
                    Err(odd) => Err(odd),
                }
            })
        });
        join_all(each).await.into_iter().collect()
    }
}

/// Sends a pipeline to the primary of this slot. Returns the node, the connection and the replies; an outcome that applies to
/// all commands if there are none.
async fn send_to_node<T>(
    cluster: &Cluster,
    slot: u16,
    pipeline: &Pipeline,
    deadline: Instant,
) -> Result<(Arc<Node>, CallTarget<'static>, Vec<Value>), Outcome<T>> {
    let (node, mut connection) = cluster.connection(slot, deadline).await.map_err(refused)?;
    match node.link.call_all(&mut connection, pipeline, deadline).await {
        Ok(values) => Ok((Arc::clone(&node), CallTarget::Node(node, Some(connection)), values)),
        Err(no_reply) => {
            cluster.mark_stale();
            Err(Outcome::Failed(Executed::Unknown, node.no_reply(no_reply)))
        }
    }
}
