//! One operation inside its transaction: what it reads, what the model makes of it, and what it writes.
//!
//! Owns the rows of `locks` and `dead` while an operation runs. [`database`](super::database) begins and commits the
//! transaction.
//!
//! 1. Dead sessions are found inside the transaction, from their files ([`session_files`](super::session_files)), and
//!    recorded in it. Their files are removed only after the commit.
//! 2. The clock is read after the transaction has begun, so no operation sees a time before that of an operation that
//!    it follows.

use super::error::StoreError;
use super::format::{ended_ms, over_ms, read_state, signed};
use super::machine::Machine;
use super::session_files::{SessionFiles, SessionState};
use leasehold_core::model::{LockState, QueueEntryId, Record, SessionStatus, Value, Watermark};
use leasehold_core::{
    Acquire, Claim, FORMAT, FencingToken, Kind, Label, Lock, MultiAcquired, Notification, Op, ReleaseAction,
    Reply, SessionId,
};
use rusqlite::{OptionalExtension, Transaction, params};

/// The largest number of queued sessions that one operation checks.
pub(super) const MAX_CHECKED: usize = 64;

/// The result of an operation, and what is left to do after its commit.
pub(super) struct Applied {
    pub(super) reply: Reply,
    pub(super) notifications: Vec<Notification>,
    /// Sessions that this operation found dead. Their files can be removed.
    pub(super) newly_dead: Vec<SessionId>,
}

/// A transaction, as an operation sees it.
pub(super) struct OpTransaction<'a> {
    pub(super) sql: &'a Transaction<'a>,
    pub(super) sessions: &'a SessionFiles,
    /// The store's time.
    pub(super) now_us: u64,
    /// Whether a session belongs to this process, and is therefore alive.
    pub(super) is_ours: &'a dyn Fn(SessionId) -> bool,
}

impl OpTransaction<'_> {
    /// Executes one operation.
    pub(super) fn execute(&self, lock: &Lock, op: &Op) -> Result<Applied, StoreError> {
        let now_us = self.now_us;
        let occupant = self.occupant(lock)?;
        let before = self.state(lock.kind, lock.name.as_str())?;
        let mut state = before.clone().unwrap_or_else(|| LockState::new(lock.kind));
        let mut newly_dead = Vec::new();
        let dead = match inspected_session(op) {
            Some(session) if self.is_dead(session, &mut newly_dead)? => Some(session),
            _ => None,
        };
        if needs_liveness(op) {
            self.evict_dead_sessions(&mut state, op, &mut newly_dead)?;
        }
        let alive = |session| {
            if Some(session) == dead { SessionStatus::Lapsed } else { SessionStatus::Alive(u64::MAX) }
        };
        state.watermark = watermark(self.sql)?;
        let (reply, notifications) = match occupant {
            None => state.apply(now_us, op, &alive),
            Some(occupant) => state.apply_to_occupied_key(&occupant, now_us, op, &alive),
        };
        self.write(lock, before.as_ref(), &mut state)?;
        Ok(Applied { reply, notifications, newly_dead })
    }

    /// Acquires all of several locks, or none. Also returns the sessions that it found dead.
    pub(super) fn acquire_all(
        &self,
        requests: &[(Lock, Acquire)],
    ) -> Result<(Vec<MultiAcquired>, Vec<SessionId>), StoreError> {
        let (mut earlier, mut states, mut newly_dead) = (Vec::new(), Vec::new(), Vec::new());
        for (lock, request) in requests {
            let before = self.state(lock.kind, lock.name.as_str())?;
            let mut state = before.clone().unwrap_or_else(|| LockState::new(lock.kind));
            self.evict_dead_sessions(&mut state, &Op::Acquire(request.clone()), &mut newly_dead)?;
            let occupant = self.occupant(lock)?;
            if let Some(occupant) = &occupant {
                state.value = Some(occupant.type_only());
            }
            state.watermark = watermark(self.sql)?;
            earlier.push((before, occupant.is_some()));
            states.push(state);
        }
        let mut together: Vec<_> =
            states.iter_mut().zip(requests.iter().map(|(_, request)| request)).collect();
        let results = LockState::acquire_all(&mut together, self.now_us);
        for (((lock, _), (before, is_occupied)), state) in requests.iter().zip(&earlier).zip(&mut states) {
            if *is_occupied {
                state.value = None;
            }
            self.write(lock, before.as_ref(), state)?;
        }
        Ok((results, newly_dead))
    }

    /// The value of another kind of lock with the same name, if any.
    fn occupant(&self, lock: &Lock) -> Result<Option<Value>, StoreError> {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != lock.kind) {
            let mut state = self.state(kind, lock.name.as_str())?;
            if let Some(value) = state.as_mut().and_then(|state| state.value_at(self.now_us)) {
                return Ok(Some(value.clone()));
            }
        }
        Ok(None)
    }

    /// Writes the new state of a lock.
    fn write(
        &self,
        lock: &Lock,
        before: Option<&LockState>,
        state: &mut LockState,
    ) -> Result<(), StoreError> {
        let (kind, name) = (lock.kind.as_str(), lock.name.as_str());
        state.watermark = Watermark::default();
        let greatest = |record: &Option<Record>| record.as_ref().and_then(Record::greatest_fence);
        let was_greatest = before.and_then(|before| greatest(&before.record));
        if let Some(fence) = was_greatest.filter(|_| greatest(&state.record).is_none()) {
            record_latest(self.sql, fence.as_u64())?;
        }
        if state.is_empty_at(self.now_us) {
            if before.is_some() {
                self.sql
                    .prepare_cached("DELETE FROM locks WHERE kind = ?1 AND name = ?2")?
                    .execute(params![kind, name])?;
            }
        } else if before != Some(&*state) {
            let write = "INSERT INTO locks (kind, name, state, ended_ms, over_ms) VALUES (?1, ?2, ?3, ?4, ?5)
                ON CONFLICT DO UPDATE SET state = excluded.state, ended_ms = excluded.ended_ms,
                    over_ms = excluded.over_ms";
            let text = serde_json::to_string(&state)?;
            let (ended_ms, over_ms) = (ended_ms(state), over_ms(state));
            self.sql.prepare_cached(write)?.execute(params![kind, name, text, ended_ms, over_ms])?;
        }
        Ok(())
    }

    /// The state of the lock with this kind and name.
    fn state(&self, kind: Kind, name: &str) -> Result<Option<LockState>, StoreError> {
        let mut row = self.sql.prepare_cached("SELECT state FROM locks WHERE kind = ?1 AND name = ?2")?;
        let text: Option<String> =
            row.query_row(params![kind.as_str(), name], |row| row.get(0)).optional()?;
        text.as_deref().map(|text| read_state(kind, text)).transpose()
    }

    /// Ends the holds of dead sessions, and their queue entries before the first live one. Skips the session that the
    /// operation itself evicts or releases by force, so that the reply reports it.
    fn evict_dead_sessions(
        &self,
        state: &mut LockState,
        op: &Op,
        newly_dead: &mut Vec<SessionId>,
    ) -> Result<(), StoreError> {
        let actor = actor(op, state);
        let (holders, waiters) =
            (state.holder_sessions(), state.waiter_sessions().take(MAX_CHECKED).collect::<Vec<_>>());
        let is_skipped = |session: &SessionId| match op {
            Op::Evict(evict) => *session == evict.session,
            Op::ForceRelease(_) => holders.contains(session),
            _ => false,
        };
        for session in holders.iter().filter(|session| !is_skipped(session)) {
            if self.is_dead(*session, newly_dead)? {
                state.evict_session(self.now_us, *session, &actor);
            }
        }
        for session in waiters.iter().filter(|session| !is_skipped(session)) {
            if !self.is_dead(*session, newly_dead)? {
                if state.kind == Kind::Barrier {
                    // The parties of a Barrier are admitted together, so the entries behind count as well.
                    continue;
                }
                break;
            }
            state.evict_session(self.now_us, *session, &actor);
        }
        Ok(())
    }

    /// Whether a session is known to be alive.
    pub(super) fn is_alive(&self, session: SessionId) -> bool {
        (self.is_ours)(session) || self.sessions.state(session) == SessionState::Alive
    }

    /// Whether a session is dead. Records its death if only its file shows it (1).
    fn is_dead(&self, session: SessionId, newly_dead: &mut Vec<SessionId>) -> Result<bool, StoreError> {
        if (self.is_ours)(session) {
            return Ok(false);
        }
        match self.sessions.state(session) {
            SessionState::Alive => Ok(false),
            SessionState::Absent => {
                let mut recorded = self.sql.prepare_cached("SELECT 1 FROM dead WHERE session = ?1")?;
                Ok(recorded.exists(params![session.to_string()])?)
            }
            SessionState::Dead => {
                record_death(self.sql, session)?;
                newly_dead.push(session);
                Ok(true)
            }
        }
    }
}

/// Whether liveness matters to an operation: it may grant the lock, or reports its holder.
fn needs_liveness(op: &Op) -> bool {
    match op {
        Op::Acquire(_) | Op::Inspect(_) | Op::Evict(_) | Op::ForceRelease(_) | Op::Resize(_) => true,
        Op::Release(release) => release.next.is_some() || release.action != ReleaseAction::Free,
        _ => false,
    }
}

/// The session whose liveness an operation asks for.
fn inspected_session(op: &Op) -> Option<SessionId> {
    match op {
        Op::Acquire(request) => request.predecessor,
        Op::Evict(evict) => Some(evict.session),
        _ => None,
    }
}

/// The client that the audit names for the eviction of a dead session.
fn actor(op: &Op, state: &LockState) -> Label {
    let plain = |text| Label::new(text).expect("a short text is a label");
    match op {
        Op::Acquire(request) => request.label.clone(),
        Op::Evict(evict) => evict.actor.clone(),
        Op::ForceRelease(free) => free.actor.clone(),
        Op::Release(release) => {
            let next = release.next.as_ref().map(|next| next.label.clone());
            next.or_else(|| label_of(&release.claim, state)).unwrap_or_else(|| plain("a release"))
        }
        _ => plain("an inspection"),
    }
}

/// The label of a claim's session as a holder or waiter.
fn label_of(claim: &Claim, state: &LockState) -> Option<Label> {
    let record = state.record.as_ref()?;
    let session = claim.hold.session();
    let holder = record.last_holder.as_ref().filter(|holder| holder.claim.hold.session() == session);
    let shared = state.value.as_ref().and_then(|value| value.content.shared_holders());
    let shared = || shared?.find(&claim.hold).map(|hold| hold.label.clone());
    let id = QueueEntryId::of(state.kind, &claim.hold);
    let queued = || record.entries.get(&id).map(|entry| entry.label.clone());
    holder.map(|holder| holder.label.clone()).or_else(shared).or_else(queued)
}

/// The store's time (2). Fails if the file has been taken over by another format or boot since it was opened.
pub(super) fn now_us(sql: &Transaction<'_>, machine: &dyn Machine) -> Result<u64, StoreError> {
    let mut meta = sql.prepare_cached("SELECT format, boot = ?1, base_us FROM meta WHERE id = 1")?;
    let (format, same_boot, base_us): (i64, bool, i64) =
        meta.query_row(params![machine.boot_id()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if format != i64::from(FORMAT) {
        return Err(StoreError::Format(format));
    }
    if !same_boot {
        return Err(StoreError::Boot);
    }
    Ok(machine.since_boot_us().saturating_add_signed(base_us))
}

/// The greatest fencing token of idle locks and of removed rows.
fn watermark(sql: &Transaction<'_>) -> rusqlite::Result<Watermark> {
    let mut meta = sql.prepare_cached("SELECT latest_us FROM meta WHERE id = 1")?;
    let latest_us: i64 = meta.query_row([], |row| row.get(0))?;
    let fence = u64::try_from(latest_us).ok().filter(|latest_us| *latest_us > 0).map(FencingToken::new);
    // The clock never goes back, so it does not matter how long it is remembered.
    Ok(Watermark { fence, expires_ms: u64::MAX })
}

/// Records the greatest fencing token of removed rows and of idle locks, or a later time; see [`format`](super::format).
pub(super) fn record_latest(sql: &Transaction<'_>, now_us: u64) -> rusqlite::Result<()> {
    sql.prepare_cached("UPDATE meta SET latest_us = max(latest_us, ?1) WHERE id = 1")?
        .execute(params![signed(now_us)])?;
    Ok(())
}

/// Records a death for as long as a row can contain a hold or queue entry of the session.
pub(super) fn record_death(sql: &Transaction<'_>, session: SessionId) -> rusqlite::Result<()> {
    let write = "INSERT OR IGNORE INTO dead (session, over_ms)
        VALUES (?1, (SELECT coalesce(max(ended_ms), 0) FROM locks))";
    sql.prepare_cached(write)?.execute(params![session.to_string()])?;
    Ok(())
}
