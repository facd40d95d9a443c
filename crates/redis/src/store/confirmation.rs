//! Extends and heartbeats that count only once replicas, or the disk, have them.

use super::RedisStore;
use crate::confirm::Unconfirmed;
use leasehold_core::{
    Executed, Extended, HeartbeatReply, Lock, Op, Partition, Reply, SessionOp, SessionReply,
};
use leasehold_store::Outcome;
use tokio::time::Instant;

impl RedisStore {
    /// As [`confirm_extends`](Self::confirm_extends), for one operation.
    pub(super) async fn confirm_extend(
        &self,
        lock: &Lock,
        op: &Op,
        mut outcome: Outcome,
        deadline: Instant,
    ) -> Outcome {
        if let Some(extend) = self.unconfirmed_extend(lock, op, &outcome) {
            self.confirm_all([(&mut outcome, extend)], deadline).await;
        }
        outcome
    }

    /// Has the extends confirmed that were executed. Those that are not confirmed are as if they had no reply: the holder must
    /// not rely on what only this server has, or only its memory.
    pub(super) async fn confirm_extends(
        &self,
        ops: &[(Lock, Op)],
        mut outcomes: Vec<Outcome>,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let extends = ops.iter().zip(&mut outcomes).filter_map(|((lock, op), outcome)| {
            let extend = self.unconfirmed_extend(lock, op, outcome)?;
            Some((outcome, extend))
        });
        self.confirm_all(extends, deadline).await;
        outcomes
    }

    /// As [`confirm_heartbeats`](Self::confirm_heartbeats), for one operation.
    pub(super) async fn confirm_heartbeat(
        &self,
        partition: Partition,
        op: &SessionOp,
        mut outcome: Outcome<SessionReply>,
        deadline: Instant,
    ) -> Outcome<SessionReply> {
        if let Some(heartbeat) = self.unconfirmed_heartbeat(partition, op, &outcome) {
            self.confirm_all([(&mut outcome, heartbeat)], deadline).await;
        }
        outcome
    }

    /// The same for heartbeats: a promoted replica must not take a session for dead whose client relies on it.
    pub(super) async fn confirm_heartbeats(
        &self,
        ops: &[(Partition, SessionOp)],
        mut outcomes: Vec<Outcome<SessionReply>>,
        deadline: Instant,
    ) -> Vec<Outcome<SessionReply>> {
        let heartbeats = ops.iter().zip(&mut outcomes).filter_map(|((partition, op), outcome)| {
            let heartbeat = self.unconfirmed_heartbeat(*partition, op, outcome)?;
            Some((outcome, heartbeat))
        });
        self.confirm_all(heartbeats, deadline).await;
        outcomes
    }

    /// The extend to confirm, if it was executed.
    fn unconfirmed_extend<'a>(
        &'a self,
        lock: &'a Lock,
        op: &Op,
        outcome: &Outcome,
    ) -> Option<Unconfirmed<'a>> {
        let (Some(_), Op::Extend(extend)) = (&self.confirmer, op) else { return None };
        let Outcome::Done(Reply::Extend(extended)) = outcome else { return None };
        // A reservation of tokens does not lengthen the lease.
        if *extended == Extended::NotHeld || extend.lease_ms <= 1 {
            return None;
        }
        let keys = self.keys.lock(lock).ok()?;
        let session_keys = self.session_keys(&keys);
        Some(Unconfirmed::extend(lock, keys, session_keys, &extend.claim, extend.lease_ms))
    }

    /// The heartbeat to confirm, if the session is alive.
    fn unconfirmed_heartbeat(
        &self,
        partition: Partition,
        op: &SessionOp,
        outcome: &Outcome<SessionReply>,
    ) -> Option<Unconfirmed<'_>> {
        let (Some(_), SessionOp::Heartbeat(heartbeat)) = (&self.confirmer, op) else { return None };
        let Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)) = outcome else { return None };
        Some(Unconfirmed::heartbeat(self.session_keys_at(partition), heartbeat))
    }

    /// Has confirmed what these outcomes report. What is not confirmed becomes unknown.
    async fn confirm_all<'a, T: 'a>(
        &self,
        done: impl IntoIterator<Item = (&'a mut Outcome<T>, Unconfirmed<'a>)>,
        deadline: Instant,
    ) {
        let Some(confirmer) = &self.confirmer else { return };
        let (outcomes, unconfirmed): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        if unconfirmed.is_empty() {
            return;
        }
        let results = confirmer.confirm_all(self.cluster(), &unconfirmed, deadline).await;
        for (outcome, result) in outcomes.into_iter().zip(results) {
            if let Err(fault) = result {
                *outcome = Outcome::Failed(Executed::Unknown, fault);
            }
        }
    }
}
