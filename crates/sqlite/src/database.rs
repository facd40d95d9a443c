//! The connection to the file: one transaction per operation, and the cleanup of the file.
//!
//! [`transaction`](super::transaction) owns what an operation does inside its transaction.
//!
//! 1. A transaction that may write acquires the write lock first, and reads the clock after that.
//! 2. The file of a dead session is removed after the commit of the transaction that recorded the death.
//! 3. An operation that fails before the COMMIT is sent was not executed; after that its outcome is unknown.
//! 4. On a full disk the log may be what fills it, and would stay: it is written back only when it has grown. An operation
//!    that is executed twice has the effect of one, so it may follow a COMMIT that failed.

use super::busy::BusyHandler;
use super::error::{StoreError, fault, is_busy, is_full};
use super::format::{begin, connect, signed};
use super::location::StoreLocation;
use super::machine::Machine;
use super::session_files::{SessionFiles, SessionState};
use super::session_table;
use super::statistics_table;
use super::transaction::{MAX_CHECKED, OpTransaction, now_us, record_death, record_latest};
use leasehold_core::{
    Acquire, Executed, Heartbeat, HeartbeatReply, Lock, Moment, MultiAcquired, Notification, Op, Reply,
    SessionId, SessionList, SessionOp, SessionReply,
};
use leasehold_store::clock::boottime;
use leasehold_store::{Fault, FaultKind, Phase};
use rusqlite::{Connection, TransactionBehavior, params};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The number of operations between two cleanups of the file.
const CLEANUP_EVERY: u32 = 64;
/// The largest number of rows that one cleanup removes.
const ROWS_PER_CLEANUP: i64 = 128;
/// The file shrinks once more pages than that are free, and more than half of all pages.
const MIN_FREE_PAGES: i64 = 256;
/// The largest number of pages by which one cleanup shrinks the file.
const PAGES_PER_CLEANUP: i64 = 128;
/// The number of operations between two scans of the sessions' directory.
const SCAN_EVERY: u32 = 1024;
/// How long a cleanup waits for the file, which blocks other work of the thread.
const CLEANUP_TIMEOUT: Duration = Duration::from_millis(5);
/// By how many pages the log grows before it is written back.
const CHECKPOINT_EVERY: i32 = 1000;

/// A process's connection to the file.
pub(super) struct Database {
    connection: Connection,
    location: StoreLocation,
    sessions: SessionFiles,
    machine: Box<dyn Machine>,
    busy: BusyHandler,
    /// The length of the log after the last commit, in pages.
    log: Arc<AtomicI32>,
    /// Its length when it was last written back.
    written_back_at: i32,
    /// The number of operations so far, which paces cleanups.
    operations: u32,
    /// The last session that the scan for orphaned rows has checked.
    scanned_to: String,
}

/// Why an operation has no reply, and whether it was executed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) executed: Executed,
    pub(super) fault: Fault,
}

/// Why a transaction failed, and whether its operation was executed.
struct FailedTransaction {
    executed: Executed,
    phase: Phase,
    error: StoreError,
}

impl Failure {
    fn not_executed(fault: Fault) -> Self {
        Self { executed: Executed::No, fault }
    }
}

impl Database {
    /// Opens the file, and initializes it if it is empty.
    pub(super) fn open(
        location: StoreLocation,
        machine: Box<dyn Machine>,
        deadline: Moment,
    ) -> Result<Self, Fault> {
        let sessions = SessionFiles::new(location.sessions()?);
        let busy = BusyHandler::new(deadline);
        let log = Arc::new(AtomicI32::new(0));
        let connection = connect(location.path(), &*machine, &busy, &log)
            .map_err(|error| fault(&location, Phase::Connect, error))?;
        location.check_in_place()?;
        let mut database = Self {
            connection,
            location,
            sessions,
            machine,
            busy,
            log,
            written_back_at: 0,
            operations: 0,
            scanned_to: String::new(),
        };
        database.clean_up();
        Ok(database)
    }

    /// The sessions' files.
    pub(super) fn sessions(&self) -> &SessionFiles {
        &self.sessions
    }

    /// The file.
    pub(super) fn location(&self) -> &StoreLocation {
        &self.location
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
        let work = |transaction: OpTransaction<'_>| transaction.execute(lock, op);
        let applied = self.transact(TransactionBehavior::Immediate, deadline, is_ours, work)?;
        for session in applied.newly_dead {
            self.sessions.remove(session);
        }
        Ok((applied.reply, applied.notifications))
    }

    /// Acquires all of several locks, or none.
    pub(super) fn acquire_all(
        &mut self,
        requests: &[(Lock, Acquire)],
        deadline: Moment,
        is_ours: &dyn Fn(SessionId) -> bool,
    ) -> Result<Vec<MultiAcquired>, Failure> {
        self.operations = self.operations.wrapping_add(1);
        let work = |transaction: OpTransaction<'_>| transaction.acquire_all(requests);
        let (results, newly_dead) = self.transact(TransactionBehavior::Immediate, deadline, is_ours, work)?;
        for session in newly_dead {
            self.sessions.remove(session);
        }
        Ok(results)
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
            SessionOp::Heartbeat(heartbeat) => {
                self.heartbeat(heartbeat, deadline, is_ours).map(SessionReply::Heartbeat)
            }
            SessionOp::End(session) => {
                let work =
                    |transaction: OpTransaction<'_>| Ok(session_table::delete(transaction.sql, *session)?);
                self.transact(writing, deadline, is_ours, work).map(|()| SessionReply::End)
            }
            SessionOp::List => {
                let work = |transaction: OpTransaction<'_>| {
                    let is_alive = |session| transaction.is_alive(session);
                    session_table::list(transaction.sql, transaction.now_us, &is_alive)
                };
                self.transact(reading, deadline, is_ours, work).map(SessionReply::List)
            }
            SessionOp::Find(sessions) => {
                let SessionReply::List(mut list) =
                    self.execute_session(&SessionOp::List, deadline, is_ours)?
                else {
                    return Ok(SessionReply::List(SessionList::default()));
                };
                list.entries.retain(|entry| sessions.contains(&entry.session));
                Ok(SessionReply::List(list))
            }
            SessionOp::MergeStatistics(merge) => {
                let work = |transaction: OpTransaction<'_>| {
                    statistics_table::merge(transaction.sql, transaction.now_us / 1000, merge)
                };
                self.transact(writing, deadline, is_ours, work).map(|()| SessionReply::MergeStatistics)
            }
            SessionOp::ListStatistics => {
                let work = |transaction: OpTransaction<'_>| {
                    statistics_table::list(transaction.sql, transaction.now_us / 1000)
                };
                self.transact(reading, deadline, is_ours, work).map(SessionReply::Statistics)
            }
            other => {
                let text = format!("this store does not know the operation {other:?}");
                Err(Failure::not_executed(self.location.fault(Phase::Send, FaultKind::Unusable(text))))
            }
        }
    }

    /// Heartbeats do not keep a session alive here, because its file decides that. The first one stores its metadata, and
    /// any may store its activity.
    fn heartbeat(
        &mut self,
        heartbeat: &Heartbeat,
        deadline: Moment,
        is_ours: &dyn Fn(SessionId) -> bool,
    ) -> Result<HeartbeatReply, Failure> {
        if !is_ours(heartbeat.session) && self.sessions.state(heartbeat.session) != SessionState::Alive {
            return Ok(HeartbeatReply::Lapsed);
        }
        let Heartbeat { session, begin, activity, .. } = heartbeat;
        if begin.is_some() || activity.is_some() {
            let work = |transaction: OpTransaction<'_>| {
                if let Some(metadata) = begin {
                    session_table::insert(transaction.sql, *session, metadata)?;
                }
                if let Some(activity) = activity {
                    session_table::set_activity(transaction.sql, *session, activity)?;
                }
                Ok(())
            };
            self.transact(TransactionBehavior::Immediate, deadline, is_ours, work)?;
        }
        Ok(HeartbeatReply::Alive)
    }

    /// Removes the metadata of sessions that were closed. If that fails, a later scan removes it.
    pub(super) fn delete_metadata(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        let deadline = boottime() + CLEANUP_TIMEOUT;
        let sessions: Vec<_> = sessions.into_iter().collect();
        let work = |transaction: OpTransaction<'_>| {
            let mut sessions = sessions.iter();
            Ok(sessions.try_for_each(|session| session_table::delete(transaction.sql, *session))?)
        };
        let deleted = self.transact(TransactionBehavior::Immediate, deadline, &|_| false, work);
        if let Err(Failure { fault, .. }) = deleted {
            tracing::debug!(%fault, "cannot delete the metadata of a session");
        }
    }

    /// Runs work in a transaction, at a time that is read inside it (1, 3). If the disk is full, shortens the log and tries
    /// once more (4).
    fn transact<T>(
        &mut self,
        behavior: TransactionBehavior,
        deadline: Moment,
        is_ours: &dyn Fn(SessionId) -> bool,
        work: impl Fn(OpTransaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, Failure> {
        self.location.check_in_place().map_err(Failure::not_executed)?;
        self.busy.set(deadline);
        let mut result = self.try_transact(behavior, is_ours, &work);
        if result.as_ref().is_err_and(|failed| is_full(&failed.error)) && self.shorten_log() {
            result = self.try_transact(behavior, is_ours, &work);
        }
        result.map_err(|FailedTransaction { executed, phase, error }| Failure {
            executed,
            fault: fault(&self.location, phase, error),
        })
    }

    fn try_transact<T>(
        &mut self,
        behavior: TransactionBehavior,
        is_ours: &dyn Fn(SessionId) -> bool,
        work: &impl Fn(OpTransaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, FailedTransaction> {
        let not_executed = |error| FailedTransaction { executed: Executed::No, phase: Phase::Send, error };
        let transaction = self
            .connection
            .transaction_with_behavior(behavior)
            .map_err(|error| not_executed(error.into()))?;
        let now_us = now_us(&transaction, &*self.machine).map_err(not_executed)?;
        let operation = OpTransaction { sql: &transaction, sessions: &self.sessions, now_us, is_ours };
        let result = work(operation).map_err(not_executed)?;
        transaction.commit().map_err(|error| {
            let executed = if is_busy(&error) { Executed::No } else { Executed::Unknown };
            FailedTransaction { executed, phase: Phase::Reply, error: error.into() }
        })?;
        Ok(result)
    }

    /// Writes the log back and truncates it, which frees up to 4 MB. Returns whether that worked.
    fn shorten_log(&mut self) -> bool {
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: rusqlite::Result<i64> = self.connection.query_row(checkpoint, [], |row| row.get(0));
        match is_busy {
            Ok(0) => {
                tracing::info!("the disk is full: the log was written back and truncated");
                self.log.store(0, Ordering::Relaxed);
                self.written_back_at = 0;
                true
            }
            Ok(_) => false,
            Err(error) => {
                tracing::debug!(%error, "cannot truncate the log");
                false
            }
        }
    }

    /// Whether it is time to [`clean_up`](Self::clean_up), which runs after the reply is sent.
    pub(super) fn needs_cleanup(&self) -> bool {
        self.operations.is_multiple_of(CLEANUP_EVERY) || self.log_growth() >= CHECKPOINT_EVERY
    }

    /// Removes a bounded number of expired rows, and writes the log back. It runs again later, so errors are only
    /// logged.
    pub(super) fn clean_up(&mut self) {
        self.busy.set(boottime() + CLEANUP_TIMEOUT);
        let scans = self.operations.is_multiple_of(SCAN_EVERY);
        let dead = if scans { self.sessions.find_dead(MAX_CHECKED) } else { Vec::new() };
        if scans {
            self.remove_orphans();
        }
        match remove_expired(&mut self.connection, &*self.machine, &dead) {
            Ok(()) => dead.into_iter().for_each(|session| self.sessions.remove(session)),
            Err(error) => tracing::debug!(%error, "cannot remove expired rows"),
        }
        if let Err(error) = shrink(&self.connection) {
            tracing::debug!(%error, "cannot shrink the file");
        }
        if self.log_growth() >= CHECKPOINT_EVERY {
            self.written_back_at = self.log.load(Ordering::Relaxed);
            let checkpoint = "PRAGMA wal_checkpoint(PASSIVE)";
            if let Err(error) = self.connection.query_row(checkpoint, [], |_| Ok(())) {
                tracing::debug!(%error, "cannot write the log back");
            }
        }
    }

    /// Removes some orphaned rows from the table of sessions.
    fn remove_orphans(&mut self) {
        let after = std::mem::take(&mut self.scanned_to);
        match session_table::find_orphans(&self.connection, &self.sessions, &after, ROWS_PER_CLEANUP) {
            Ok((orphans, scanned_to)) => {
                self.scanned_to = scanned_to.unwrap_or_default();
                if !orphans.is_empty() {
                    self.delete_metadata(orphans);
                }
            }
            Err(error) => tracing::debug!(%error, "cannot scan the table of sessions"),
        }
    }

    fn log_growth(&self) -> i32 {
        let pages = self.log.load(Ordering::Relaxed);
        // SQLite restarts the log after it has been written back, which makes it shorter.
        if pages < self.written_back_at { pages } else { pages - self.written_back_at }
    }
}

/// Gives some free pages of the file back if most of it is free. Until then, new rows use them.
fn shrink(connection: &Connection) -> rusqlite::Result<()> {
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let free = number("PRAGMA freelist_count")?;
    // A file from before it could shrink keeps its size.
    let can_shrink = || Ok::<_, rusqlite::Error>(number("PRAGMA auto_vacuum")? != 0);
    if free > MIN_FREE_PAGES && free > number("PRAGMA page_count")? / 2 && can_shrink()? {
        let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES_PER_CLEANUP})"))?;
        let mut rows = vacuum.query([])?;
        while rows.next()?.is_some() {}
    }
    Ok(())
}

/// Removes expired rows, and records the deaths of `dead`.
fn remove_expired(
    connection: &mut Connection,
    machine: &dyn Machine,
    dead: &[SessionId],
) -> Result<(), StoreError> {
    // Checks before taking the write lock, which is rarely needed.
    let reading = connection.transaction()?;
    let now_ms = signed(now_us(&reading, machine)? / 1000);
    let over = "SELECT 1 FROM locks WHERE over_ms < ?1 UNION ALL SELECT 1 FROM dead WHERE over_ms < ?1";
    let any = reading.prepare_cached(over)?.exists(params![now_ms])?;
    reading.commit()?;
    if !any && dead.is_empty() {
        return Ok(());
    }
    let transaction = begin(connection)?;
    let now_us = now_us(&transaction, machine)?;
    let bounds = params![signed(now_us / 1000), ROWS_PER_CLEANUP];
    let locks = "DELETE FROM locks WHERE rowid IN (SELECT rowid FROM locks WHERE over_ms < ?1 LIMIT ?2)";
    if transaction.prepare_cached(locks)?.execute(bounds)? > 0 {
        // Whatever has expired was granted before.
        record_latest(&transaction, now_us.saturating_sub(1))?;
    }
    // Removes the metadata together with the record of the death. Both statements select the same sessions, because
    // they order them.
    for table in ["sessions", "dead"] {
        let expired = "SELECT session FROM dead WHERE over_ms < ?1 ORDER BY session LIMIT ?2";
        let removed = format!("DELETE FROM {table} WHERE session IN ({expired})");
        transaction.prepare_cached(&removed)?.execute(bounds)?;
    }
    for session in dead {
        record_death(&transaction, *session)?;
    }
    Ok(transaction.commit()?)
}
