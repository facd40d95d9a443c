//! Session operations: heartbeats, the end of a session, and listings.

use super::call_target::CallTarget;
use super::send::is_wrong_type;
use super::{Backend, RedisStore, SessionOutcome};
use crate::cluster::OnTryAgain;
use crate::error_map::is_try_again;
use crate::script::Call;
use crate::script::reply::{self, Malformed};
use crate::session_keys::SessionKeys;
use futures_util::future::join_all;
use leasehold_core::{Heartbeat, Partition, SessionEntry, SessionId, SessionOp, SessionReply};
use leasehold_store::{Executed, FaultKind, Outcome, Phase};
use redis::{Pipeline, Value, cmd};
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
        self.send_commands(0, &pipeline, |at, _| at > 0, deadline).await.map(|_| SessionReply::End)
    }

    /// Lists the sessions: reads the index, then the records it names, in chunks. It never scans all keys of a
    /// server. Skips keys that are not session records.
    pub(super) async fn list(&self, deadline: Instant) -> Result<SessionReply, SessionOutcome> {
        if let Backend::Cluster(cluster) = &*self.backend {
            return self.list_in(cluster, deadline).await;
        }
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.add_command(cmd("ZRANGE").arg(self.keys.session_index()).arg(0).arg(-1).clone());
        let values = self.send_commands(0, &pipeline, |_, _| false, deadline).await?;
        let mut sessions = self.well_formed(values.first().ok_or(Malformed).and_then(reply::sessions))?;
        sessions.sort_unstable();
        let mut entries: Vec<SessionEntry> = Vec::with_capacity(sessions.len());
        for some in sessions.chunks(RECORDS_PER_REQUEST) {
            let mut pipeline = Pipeline::with_capacity(1 + some.len());
            pipeline.cmd("TIME");
            for session in some {
                pipeline.cmd("HGETALL").arg(self.keys.session(*session));
            }
            let values = self.send_commands(0, &pipeline, |_, value| is_wrong_type(value), deadline).await?;
            let now_ms = self.well_formed(values.first().ok_or(Malformed).and_then(reply::now_ms))?;
            for (session, value) in some.iter().zip(&values[1..]) {
                if !is_wrong_type(value) {
                    entries.extend(self.well_formed(reply::session_entry(*session, now_ms, value))?);
                }
            }
        }
        Ok(SessionReply::List(entries))
    }
}
