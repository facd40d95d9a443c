//! Session operations: heartbeats, the end of a session, listings, and statistics.

use super::call_target::CallTarget;
use super::{Backend, RedisStore, SessionOutcome};
use crate::cluster::OnTryAgain;
use crate::error_map::is_try_again;
use crate::script::Call;
use crate::script::reply;
use crate::session_keys::SessionKeys;
use futures_util::future::join_all;
use leasehold_core::{
    Heartbeat, MergeStatistics, Partition, SessionId, SessionList, SessionOp, SessionReply,
};
use leasehold_store::{Executed, FaultKind, Outcome, Phase};
use redis::{Pipeline, Value};
use tokio::time::Instant;
/// Number of session records read in one request: other requests wait while the server answers it.
pub(crate) const RECORDS_PER_REQUEST: usize = 256;

impl RedisStore {
    pub(crate) async fn send_session_op(
        &self,
        partition: Partition,
        op: &SessionOp,
        deadline: Instant,
    ) -> Outcome<SessionReply> {
        let result = match op {
            SessionOp::Heartbeat(heartbeat) => {
                self.heartbeat(&self.session_keys_at(partition), heartbeat, deadline).await
            }
            SessionOp::End(session) => self.end(&self.session_keys_at(partition), *session, deadline).await,
            SessionOp::List => self.list(deadline).await,
            SessionOp::Find(sessions) => {
                self.find(&self.session_keys_at(partition), sessions, deadline).await
            }
            SessionOp::MergeStatistics(merge) => {
                self.merge_statistics(&self.session_keys_at(partition), merge, deadline).await
            }
            SessionOp::ListStatistics => {
                self.list_statistics(&self.session_keys_at(partition), deadline).await
            }
            _ => {
                let text = "this version of the store does not know it".to_owned();
                Err(Outcome::Failed(Executed::No, self.fault(FaultKind::Unusable(text), Phase::Send)))
            }
        };
        result.map_or_else(|outcome| outcome, Outcome::Done)
    }

    pub(super) async fn send_session_ops(
        &self,
        ops: &[(Partition, SessionOp)],
        deadline: Instant,
    ) -> Vec<Outcome<SessionReply>> {
        if let (Backend::Cluster(cluster), [_, _, ..]) = (&*self.backend, ops) {
            return self.send_session_ops_in(cluster, ops, deadline).await;
        }
        join_all(ops.iter().map(|(partition, op)| self.send_session_op(*partition, op, deadline))).await
    }

    async fn heartbeat(
        &self,
        session_keys: &SessionKeys<'_>,
        heartbeat: &Heartbeat,
        deadline: Instant,
    ) -> Result<SessionReply, SessionOutcome> {
        let slot = session_keys.slot.unwrap_or(0);
        let call = Call::heartbeat(heartbeat, session_keys);
        let (mut value, mut target) = self.reply(slot, &call, false, OnTryAgain::Report, deadline).await?;
        if session_keys.slot.is_some() && is_try_again(&value) {
            // The index only serves listings, so the heartbeat may skip it while the slot migrates.
            let call = Call::reduced_heartbeat(heartbeat, session_keys);
            (value, target) = self.reply(slot, &call, false, OnTryAgain::Retry, deadline).await?;
        }
        self.heartbeat_reply(&value, &target)
    }

    /// Converts the reply to a heartbeat.
    pub(super) fn heartbeat_reply(
        &self,
        value: &Value,
        target: &CallTarget<'_>,
    ) -> Result<SessionReply, SessionOutcome> {
        self.check_error(value, target)?;
        let reply = self.well_formed(reply::heartbeat(value))?.map_err(|refused| {
            Outcome::Failed(Executed::No, self.fault(FaultKind::Unusable(refused.to_string()), Phase::Reply))
        });
        reply.map(SessionReply::Heartbeat)
    }

    pub(super) async fn end(
        &self,
        session_keys: &SessionKeys<'_>,
        session: SessionId,
        deadline: Instant,
    ) -> Result<SessionReply, SessionOutcome> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("DEL").arg(session_keys.session(session));
        pipeline.cmd("ZREM").arg(session_keys.sessions()).arg(session.to_string());
        if let (Backend::Cluster(cluster), Some(slot)) = (&*self.backend, session_keys.slot) {
            for (at, command) in pipeline.cmd_iter().enumerate() {
                let (value, node) = cluster.command(slot, command, deadline).await?;
                if at == 0 {
                    self.check_error(&value, &CallTarget::Node(node, None))?;
                }
            }
            return Ok(SessionReply::End);
        }
        // The index only serves listings. If its update fails, the start of the next session repairs it.
        let values = self.send_commands(0, &pipeline, |at, _| at > 0, deadline).await?;
        // A connection that is lent inside MULTI only queues the command.
        let deleted = matches!(values.first(), Some(Value::Int(_)));
        self.well_formed(if deleted { Ok(SessionReply::End) } else { Err(reply::Malformed) })
    }

    /// Lists the sessions: reads the index, then the records it names, in chunks. It never scans all keys of a
    /// server. What cannot be read is counted.
    pub(super) async fn list(&self, deadline: Instant) -> Result<SessionReply, SessionOutcome> {
        if let Backend::Cluster(cluster) = &*self.backend {
            return self.list_in(cluster, deadline).await;
        }
        let call = Call::session_list(&self.keys.session_index());
        let value = self.checked_reply(0, &call, deadline).await?;
        let (mut sessions, skipped) = self.well_formed(reply::sessions(&value))?;
        sessions.sort_unstable();
        let mut list = SessionList { entries: Vec::with_capacity(sessions.len()), skipped };
        self.read_sessions(&self.session_keys_at(Partition::ONLY), &sessions, &mut list, deadline).await?;
        Ok(SessionReply::List(list))
    }

    /// Looks some sessions of a partition up, without the index.
    async fn find(
        &self,
        session_keys: &SessionKeys<'_>,
        sessions: &[SessionId],
        deadline: Instant,
    ) -> Result<SessionReply, SessionOutcome> {
        let mut list = SessionList::default();
        self.read_sessions(session_keys, sessions, &mut list, deadline).await?;
        Ok(SessionReply::List(list))
    }

    /// Adds the records of sessions of one partition to a list.
    async fn read_sessions(
        &self,
        session_keys: &SessionKeys<'_>,
        sessions: &[SessionId],
        list: &mut SessionList,
        deadline: Instant,
    ) -> Result<(), SessionOutcome> {
        let mut rest = sessions;
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(RECORDS_PER_REQUEST)];
            let keys: Vec<_> = some.iter().map(|session| session_keys.session(*session)).collect();
            let call = Call::session_read(keys.iter().map(|key| &**key));
            let value = self.checked_reply(session_keys.slot.unwrap_or(0), &call, deadline).await?;
            rest = &rest[self.well_formed(reply::session_records(some, &value, list))?..];
        }
        Ok(())
    }

    /// Adds what a client has counted to the statistics of its partition.
    async fn merge_statistics(
        &self,
        session_keys: &SessionKeys<'_>,
        merge: &MergeStatistics,
        deadline: Instant,
    ) -> Result<SessionReply, SessionOutcome> {
        let call = Call::merge_statistics(merge, &session_keys.statistics());
        let slot = session_keys.slot.unwrap_or(0);
        let (value, target) = self.reply(slot, &call, false, OnTryAgain::Retry, deadline).await?;
        self.check_error(&value, &target)?;
        match self.well_formed(reply::statistics_merged(&value))? {
            Ok(()) => Ok(SessionReply::MergeStatistics),
            Err(refused) => {
                let kind = FaultKind::Unusable(format!("the statistics: {refused}"));
                Err(Outcome::Failed(Executed::No, self.fault(kind, Phase::Reply)))
            }
        }
    }

    async fn list_statistics(
        &self,
        session_keys: &SessionKeys<'_>,
        deadline: Instant,
    ) -> Result<SessionReply, SessionOutcome> {
        let call = Call::list_statistics(&session_keys.statistics());
        let value = self.checked_reply(session_keys.slot.unwrap_or(0), &call, deadline).await?;
        Ok(SessionReply::Statistics(self.well_formed(reply::statistics(&value))?))
    }

    /// The reply to a call that changes nothing.
    async fn checked_reply(
        &self,
        slot: u16,
        call: &Call,
        deadline: Instant,
    ) -> Result<Value, SessionOutcome> {
        let (value, target) = self.reply(slot, call, false, OnTryAgain::Retry, deadline).await?;
        self.check_error(&value, &target)?;
        Ok(value)
    }
}
