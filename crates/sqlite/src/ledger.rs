//! The file itself: locks in rows, changed by the model in one transaction per operation.
//!
//! 1. A transaction takes the write lock first and reads the clock after that: no operation sees a time before that
//!    of an operation that it follows.
//! 2. Dead sessions are found inside the transaction, from their files ([`life`](super::life)), and recorded in it
//!    before their files are removed.
//! 3. An operation that fails before the COMMIT is sent was not executed; after that its outcome is unknown.

use super::busy::BusyHandler;
use super::format::{begin, connect, ended_ms, over_ms, signed};
use super::life::{Sessions, Sign};
use super::machine::Machine;
use super::register;
use super::site::Site;
use super::trouble::{Trouble, fault, is_busy};
use leasehold_core::model::{LockState, QueueEntryId, SessionStatus, Value};
use leasehold_core::{
    Acquire, Claim, Executed, FORMAT, Heartbeat, HeartbeatReply, Kind, Label, Lock, Moment, MultiAcquired,
    Notification, Op, ReleaseAction, Reply, SessionId, SessionOp, SessionReply,
};
use leasehold_store::{Fault, FaultKind, Phase};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The largest number of queued sessions that one operation checks.
const ASKED_AT_MOST: usize = 64;
/// The number of operations between two cleanups of the file, and how many rows one removes at most.
const TIDY_EVERY: u32 = 64;
const TIDIED_AT_MOST: i64 = 128;
/// The number of operations between two scans of the sessions' directory.
const SCAN_EVERY: u32 = 1024;
/// How long a cleanup waits for the file, which blocks other work of the thread.
const TIDY_WITHIN: Duration = Duration::from_millis(5);
/// By how many pages the log grows before it is written back.
const CHECKPOINT_EVERY: i32 = 1000;

/// A process's connection to the file.
pub(super) struct Ledger {
    connection: Connection,
    site: Site,
    sessions: Sessions,
    machine: Box<dyn Machine>,
    busy: BusyHandler,
    /// The length of the log after the last commit, in pages.
    log: Arc<AtomicI32>,
    written_back_at: i32,
    operations: u32,
    /// Where the scan of the register for orphaned rows has stopped.
    register_seen: String,
}

/// Why an operation has no reply, and whether it was executed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) executed: Executed,
    pub(super) fault: Fault,
}

impl Failure {
    fn not_executed(fault: Fault) -> Self {
        Self { executed: Executed::No, fault }
    }
}

/// What an operation leaves to be done after its commit.
struct Applied {
    reply: Reply,
    wakes: Vec<Notification>,
    /// Dead sessions whose files can be removed.
    buried: Vec<SessionId>,
}

impl Ledger {
    /// Opens the file, and initializes it if it is empty.
    pub(super) fn open(site: Site, machine: Box<dyn Machine>, deadline: Moment) -> Result<Self, Fault> {
        let sessions = Sessions::new(site.sessions()?);
        let busy = BusyHandler::until(deadline);
        let log = Arc::new(AtomicI32::new(0));
        let connection = connect(site.path(), &*machine, &busy, &log)
            .map_err(|trouble| fault(&site, Phase::Connect, trouble))?;
        site.check_in_place()?;
        let mut ledger = Self {
            connection,
            site,
            sessions,
            machine,
            busy,
            log,
            written_back_at: 0,
            operations: 0,
            register_seen: String::new(),
        };
        ledger.tidy();
        Ok(ledger)
    }

    /// The sessions' files.
    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The file.
    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    /// Executes one operation. Sessions for which `is_ours` is true belong to this process, and are alive.
    pub(super) fn execute(
        &mut self,
        lock: &Lock,
        op: &Op,
        deadline: Moment,
        is_ours: &dyn Fn(SessionId) -> bool,
    ) -> Result<(Reply, Vec<Notification>), Failure> {
        self.operations = self.operations.wrapping_add(1);
        let work = |scene: Scene<'_>| scene.execute(lock, op);
        let executed = self.transact(TransactionBehavior::Immediate, deadline, is_ours, work)?;
        for session in executed.buried {
            self.sessions.remove(session);
        }
        Ok((executed.reply, executed.wakes))
    }

    /// Acquires all of several locks, or none.
    pub(super) fn take_all(
        &mut self,
        asks: &[(Lock, Acquire)],
        deadline: Moment,
        is_ours: &dyn Fn(SessionId) -> bool,
    ) -> Result<Vec<MultiAcquired>, Failure> {
        self.operations = self.operations.wrapping_add(1);
        let work = |scene: Scene<'_>| scene.take_all(asks);
        let (shares, buried) = self.transact(TransactionBehavior::Immediate, deadline, is_ours, work)?;
        for session in buried {
            self.sessions.remove(session);
        }
        Ok(shares)
    }

    /// Executes one operation on the sessions. Sessions for which `is_ours` is true belong to this process, and are
    /// alive.
    pub(super) fn execute_session(
        &mut self,
        op: &SessionOp,
        deadline: Moment,
        is_ours: &dyn Fn(SessionId) -> bool,
    ) -> Result<SessionReply, Failure> {
        let (reading, writing) = (TransactionBehavior::Deferred, TransactionBehavior::Immediate);
        match op {
            SessionOp::Heartbeat(beat) => self.beat(beat, deadline, is_ours).map(SessionReply::Heartbeat),
            SessionOp::End(session) => {
                let work = |scene: Scene<'_>| Ok(register::forget(scene.sql, *session)?);
                self.transact(writing, deadline, is_ours, work).map(|()| SessionReply::End)
            }
            SessionOp::List => {
                let work = |scene: Scene<'_>| {
                    register::list(scene.sql, scene.now_us, &|session| scene.is_alive(session))
                };
                self.transact(reading, deadline, is_ours, work).map(SessionReply::List)
            }
            other => {
                let text = format!("this store does not know the operation {other:?}");
                Err(Failure::not_executed(self.site.fault(Phase::Send, FaultKind::Unusable(text))))
            }
        }
    }

    /// No heartbeat keeps a session alive here, nor does a missing one end it: its file decides.
    fn beat(
        &mut self,
        beat: &Heartbeat,
        deadline: Moment,
        is_ours: &dyn Fn(SessionId) -> bool,
    ) -> Result<HeartbeatReply, Failure> {
        if !is_ours(beat.session) && self.sessions.ask(beat.session) != Sign::Alive {
            return Ok(HeartbeatReply::Lapsed);
        }
        if let Some(about) = &beat.begin {
            let work = |scene: Scene<'_>| Ok(register::note(scene.sql, beat.session, about)?);
            self.transact(TransactionBehavior::Immediate, deadline, is_ours, work)?;
        }
        Ok(HeartbeatReply::Alive)
    }

    /// Removes the metadata of sessions that end in order. If that fails, a later scan removes it.
    pub(super) fn forget(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        let deadline = leasehold_store::clock::boottime() + TIDY_WITHIN;
        let work = |scene: Scene<'_>| {
            Ok(sessions.into_iter().try_for_each(|session| register::forget(scene.sql, session))?)
        };
        let forgotten = self.transact(TransactionBehavior::Immediate, deadline, &|_| false, work);
        if let Err(Failure { fault, .. }) = forgotten {
            tracing::debug!(%fault, "who was behind a session was not forgotten");
        }
    }

    /// Runs work in a transaction, at a time that is read inside it (1, 3).
    fn transact<T>(
        &mut self,
        behavior: TransactionBehavior,
        deadline: Moment,
        is_ours: &dyn Fn(SessionId) -> bool,
        work: impl FnOnce(Scene<'_>) -> Result<T, Trouble>,
    ) -> Result<T, Failure> {
        self.site.check_in_place().map_err(Failure::not_executed)?;
        self.busy.set(deadline);
        let site = &self.site;
        let not_executed = |trouble| Failure::not_executed(fault(site, Phase::Send, trouble));
        let transaction = self
            .connection
            .transaction_with_behavior(behavior)
            .map_err(|error| not_executed(error.into()))?;
        let now_us = now_us(&transaction, &*self.machine).map_err(not_executed)?;
        let scene = Scene { sql: &transaction, sessions: &self.sessions, now_us, is_ours };
        let done = work(scene).map_err(not_executed)?;
        transaction.commit().map_err(|error| {
            let executed = if is_busy(&error) { Executed::No } else { Executed::Unknown };
            Failure { executed, fault: fault(site, Phase::Reply, error.into()) }
        })?;
        Ok(done)
    }

    /// Whether it is time to [`tidy`](Self::tidy), which runs after the reply is sent.
    pub(super) fn is_untidy(&self) -> bool {
        self.operations.is_multiple_of(TIDY_EVERY) || self.log_growth() >= CHECKPOINT_EVERY
    }

    /// Removes a bounded number of expired rows, and writes the log back. It runs again later, so errors are only
    /// logged.
    pub(super) fn tidy(&mut self) {
        self.busy.set(leasehold_store::clock::boottime() + TIDY_WITHIN);
        let scans = self.operations.is_multiple_of(SCAN_EVERY);
        let dead = if scans { self.sessions.find_dead(ASKED_AT_MOST) } else { Vec::new() };
        if scans {
            self.sweep_the_register();
        }
        match sweep(&mut self.connection, &*self.machine, &dead) {
            Ok(()) => dead.into_iter().for_each(|session| self.sessions.remove(session)),
            Err(error) => tracing::debug!(%error, "cannot sweep the store"),
        }
        if self.log_growth() >= CHECKPOINT_EVERY {
            self.written_back_at = self.log.load(Ordering::Relaxed);
            let checkpoint = "PRAGMA wal_checkpoint(PASSIVE)";
            if let Err(error) = self.connection.query_row(checkpoint, [], |_| Ok(())) {
                tracing::debug!(%error, "cannot write the log back");
            }
        }
    }

    /// Removes some orphaned rows from the register.
    fn sweep_the_register(&mut self) {
        let (after, most) = (std::mem::take(&mut self.register_seen), TIDIED_AT_MOST);
        match register::left_behind(&self.connection, &self.sessions, &after, most) {
            Ok((left, seen)) => {
                self.register_seen = seen.unwrap_or_default();
                if !left.is_empty() {
                    self.forget(left);
                }
            }
            Err(error) => tracing::debug!(%error, "cannot scan the register"),
        }
    }

    fn log_growth(&self) -> i32 {
        let pages = self.log.load(Ordering::Relaxed);
        // A log that has become shorter was restarted.
        if pages < self.written_back_at { pages } else { pages - self.written_back_at }
    }
}

/// The view of an operation inside its transaction.
struct Scene<'a> {
    sql: &'a Transaction<'a>,
    sessions: &'a Sessions,
    /// The store's time.
    now_us: u64,
    is_ours: &'a dyn Fn(SessionId) -> bool,
}

impl Scene<'_> {
    fn execute(&self, lock: &Lock, op: &Op) -> Result<Applied, Trouble> {
        let now_us = self.now_us;
        let other = self.other(lock)?;
        let before = self.state(lock.kind, lock.name.as_str())?;
        let mut state = before.clone().unwrap_or_else(|| LockState::new(lock.kind));
        let mut buried = Vec::new();
        let dead = match named(op) {
            Some(named) if self.is_dead(named, &mut buried)? => Some(named),
            _ => None,
        };
        if concerns_the_living(op) {
            self.bury_the_dead(&mut state, op, &mut buried)?;
        }
        let alive = |session| {
            if Some(session) == dead { SessionStatus::Lapsed } else { SessionStatus::Alive(u64::MAX) }
        };
        let (reply, wakes) = match other {
            None => state.apply(now_us, op, &alive),
            Some(other) => state.apply_to_occupied_key(&other, now_us, op, &alive),
        };
        self.write(lock, before.as_ref(), &mut state)?;
        Ok(Applied { reply, wakes, buried })
    }

    /// Acquires all of several locks, or none.
    fn take_all(&self, asks: &[(Lock, Acquire)]) -> Result<(Vec<MultiAcquired>, Vec<SessionId>), Trouble> {
        let (mut earlier, mut states, mut buried) = (Vec::new(), Vec::new(), Vec::new());
        for (lock, ask) in asks {
            let before = self.state(lock.kind, lock.name.as_str())?;
            let mut state = before.clone().unwrap_or_else(|| LockState::new(lock.kind));
            self.bury_the_dead(&mut state, &Op::Acquire(ask.clone()), &mut buried)?;
            let other = self.other(lock)?;
            if let Some(other) = &other {
                state.value = Some(other.type_only());
            }
            earlier.push((before, other.is_some()));
            states.push(state);
        }
        let mut together: Vec<_> = states.iter_mut().zip(asks.iter().map(|(_, ask)| ask)).collect();
        let shares = LockState::acquire_all(&mut together, self.now_us);
        for (((lock, _), (before, beside_another)), state) in asks.iter().zip(&earlier).zip(&mut states) {
            if *beside_another {
                state.value = None;
            }
            self.write(lock, before.as_ref(), state)?;
        }
        Ok((shares, buried))
    }

    /// The value of another kind of lock with the same name, if any.
    fn other(&self, lock: &Lock) -> Result<Option<Value>, Trouble> {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != lock.kind) {
            let mut state = self.state(kind, lock.name.as_str())?;
            if let Some(value) = state.as_mut().and_then(|state| state.value_at(self.now_us)) {
                return Ok(Some(value.clone()));
            }
        }
        Ok(None)
    }

    /// Writes the new state of a lock.
    fn write(&self, lock: &Lock, before: Option<&LockState>, state: &mut LockState) -> Result<(), Trouble> {
        let (kind, name) = (lock.kind.as_str(), lock.name.as_str());
        if state.is_empty_at(self.now_us) {
            if before.is_some() {
                self.sql
                    .prepare_cached("DELETE FROM locks WHERE kind = ?1 AND name = ?2")?
                    .execute(params![kind, name])?;
                note_the_time(self.sql, self.now_us)?;
            }
        } else if before != Some(&*state) {
            let write = "INSERT INTO locks (kind, name, state, ended_ms, over_ms) VALUES (?1, ?2, ?3, ?4, ?5)
                ON CONFLICT DO UPDATE SET state = excluded.state, ended_ms = excluded.ended_ms,
                    over_ms = excluded.over_ms";
            let text = serde_json::to_string(&state)?;
            let (ended_ms, over_ms) = (ended_ms(state), over_ms(state));
            self.sql.prepare_cached(write)?.execute(params![kind, name, text, ended_ms, over_ms])?;
            if before.is_some_and(|before| before.record.is_some()) && state.record.is_none() {
                note_the_time(self.sql, self.now_us)?;
            }
        }
        Ok(())
    }

    /// The state of the lock with this kind and name.
    fn state(&self, kind: Kind, name: &str) -> Result<Option<LockState>, Trouble> {
        let mut row = self.sql.prepare_cached("SELECT state FROM locks WHERE kind = ?1 AND name = ?2")?;
        let text: Option<String> =
            row.query_row(params![kind.as_str(), name], |row| row.get(0)).optional()?;
        Ok(text.as_deref().map(serde_json::from_str).transpose()?)
    }

    /// Ends what dead sessions have at the front of a lock: its holds, and the queue entries before the first live
    /// one. What the operation itself takes from a session is left to it, so that its reply reports that.
    fn bury_the_dead(
        &self,
        state: &mut LockState,
        op: &Op,
        buried: &mut Vec<SessionId>,
    ) -> Result<(), Trouble> {
        let by = by(op, state);
        let (holders, waiters) =
            (state.holder_sessions(), state.waiter_sessions().take(ASKED_AT_MOST).collect::<Vec<_>>());
        let spared = |session: &SessionId| match op {
            Op::Evict(evict) => *session == evict.session,
            Op::ForceRelease(_) => holders.contains(session),
            _ => false,
        };
        for session in holders.iter().filter(|session| !spared(session)) {
            if self.is_dead(*session, buried)? {
                state.evict_session(self.now_us, *session, &by);
            }
        }
        for session in waiters.iter().filter(|session| !spared(session)) {
            if !self.is_dead(*session, buried)? {
                if state.kind == Kind::Barrier {
                    // Those behind it count as well.
                    continue;
                }
                break;
            }
            state.evict_session(self.now_us, *session, &by);
        }
        Ok(())
    }

    /// Whether a session is known to be alive.
    fn is_alive(&self, session: SessionId) -> bool {
        (self.is_ours)(session) || self.sessions.ask(session) == Sign::Alive
    }

    /// Whether a session is dead. Records its death if its file is what shows it (2).
    fn is_dead(&self, session: SessionId, buried: &mut Vec<SessionId>) -> Result<bool, Trouble> {
        if (self.is_ours)(session) {
            return Ok(false);
        }
        match self.sessions.ask(session) {
            Sign::Alive => Ok(false),
            Sign::Absent => {
                let mut written = self.sql.prepare_cached("SELECT 1 FROM dead WHERE session = ?1")?;
                Ok(written.exists(params![session.to_string()])?)
            }
            Sign::Dead => {
                write_down(self.sql, session)?;
                buried.push(session);
                Ok(true)
            }
        }
    }
}

/// Whether liveness matters to an operation: it may grant the lock, or reports its holder.
fn concerns_the_living(op: &Op) -> bool {
    match op {
        Op::Acquire(_) | Op::Inspect(_) | Op::Evict(_) | Op::ForceRelease(_) | Op::Resize(_) => true,
        Op::Release(release) => release.next.is_some() || release.action != ReleaseAction::Free,
        _ => false,
    }
}

/// The session whose death an operation asks about.
fn named(op: &Op) -> Option<SessionId> {
    match op {
        Op::Acquire(ask) => ask.predecessor,
        Op::Evict(evict) => Some(evict.session),
        _ => None,
    }
}

/// The label of the client whose operation finds a dead session.
fn by(op: &Op, state: &LockState) -> Label {
    let plain = |text| Label::new(text).expect("a short text is a label");
    match op {
        Op::Acquire(ask) => ask.label.clone(),
        Op::Evict(evict) => evict.actor.clone(),
        Op::ForceRelease(free) => free.actor.clone(),
        Op::Release(release) => {
            let next = release.next.as_ref().map(|next| next.label.clone());
            next.or_else(|| known_as(&release.claim, state)).unwrap_or_else(|| plain("a release"))
        }
        _ => plain("an inspection"),
    }
}

/// The label of a claim's session as a holder or waiter.
fn known_as(claim: &Claim, state: &LockState) -> Option<Label> {
    let record = state.record.as_ref()?;
    let session = claim.hold.session();
    let tenant = record.last_holder.as_ref().filter(|tenant| tenant.claim.hold.session() == session);
    let parts = state.value.as_ref().and_then(|value| value.content.shared_holders());
    let part = || parts?.find(&claim.hold).map(|part| part.label.clone());
    let id = QueueEntryId::of(state.kind, &claim.hold);
    let place = || record.entries.get(&id).map(|place| place.label.clone());
    tenant.map(|tenant| tenant.label.clone()).or_else(part).or_else(place)
}

/// The store's time (1). Fails if the file has been taken over by another format or boot since it was opened.
fn now_us(sql: &Transaction<'_>, machine: &dyn Machine) -> Result<u64, Trouble> {
    let mut meta = sql.prepare_cached("SELECT format, boot = ?1, base_us FROM meta WHERE id = 1")?;
    let (format, same_boot, base_us): (i64, bool, i64) =
        meta.query_row(params![machine.boot_id()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if format != i64::from(FORMAT) {
        return Err(Trouble::Format(format));
    }
    if !same_boot {
        return Err(Trouble::Boot);
    }
    Ok(machine.since_boot_us().saturating_add_signed(base_us))
}

/// Records that all tokens of removed rows were granted before now; see [`format`](super::format).
fn note_the_time(sql: &Transaction<'_>, now_us: u64) -> rusqlite::Result<()> {
    sql.prepare_cached("UPDATE meta SET latest_us = max(latest_us, ?1) WHERE id = 1")?
        .execute(params![signed(now_us)])?;
    Ok(())
}

/// Records a death until everything that the session can have has ended by itself: no hold or queue entry outlives
/// the row that contains it.
fn write_down(sql: &Transaction<'_>, session: SessionId) -> rusqlite::Result<()> {
    let write = "INSERT OR IGNORE INTO dead (session, over_ms)
        VALUES (?1, (SELECT coalesce(max(ended_ms), 0) FROM locks))";
    sql.prepare_cached(write)?.execute(params![session.to_string()])?;
    Ok(())
}

/// Removes expired rows, and records the deaths of `dead`.
fn sweep(connection: &mut Connection, machine: &dyn Machine, dead: &[SessionId]) -> Result<(), Trouble> {
    // Checks before taking the write lock, which is rarely needed.
    let looking = connection.transaction()?;
    let now_ms = signed(now_us(&looking, machine)? / 1000);
    let over = "SELECT 1 FROM locks WHERE over_ms < ?1 UNION ALL SELECT 1 FROM dead WHERE over_ms < ?1";
    let any = looking.prepare_cached(over)?.exists(params![now_ms])?;
    looking.commit()?;
    if !any && dead.is_empty() {
        return Ok(());
    }
    let transaction = begin(connection)?;
    let now_us = now_us(&transaction, machine)?;
    let bounds = params![signed(now_us / 1000), TIDIED_AT_MOST];
    let locks = "DELETE FROM locks WHERE rowid IN (SELECT rowid FROM locks WHERE over_ms < ?1 LIMIT ?2)";
    if transaction.prepare_cached(locks)?.execute(bounds)? > 0 {
        note_the_time(&transaction, now_us)?;
    }
    // The register row is removed with the record of the death: both statements select the same sessions, by the
    // order.
    for table in ["sessions", "dead"] {
        let graves = "SELECT session FROM dead WHERE over_ms < ?1 ORDER BY session LIMIT ?2";
        let removed = format!("DELETE FROM {table} WHERE session IN ({graves})");
        transaction.prepare_cached(&removed)?.execute(bounds)?;
    }
    for session in dead {
        write_down(&transaction, *session)?;
    }
    Ok(transaction.commit()?)
}
