//! The file format: its tables, how an empty file becomes a store, and how a store begins a new boot.
//!
//! 1. Nothing is written to a file before it is known to be a store of a supported format.
//! 2. The store's time is `base` + the time since the boot. The wall clock determines `base`, once per boot, so that
//!    fencing tokens look alike in every store; it is not read again.
//! 3. A new boot ends every hold and every queue entry, since their processes are gone. Its `base` is chosen so that
//!    time is later than every fencing token in a row, granted or reserved, and than `latest_us`, by which every
//!    token of a removed row or of an idle lock was granted. So tokens grow, however wrong the wall clock is.
//!
//! The log is synced only now and then (`synchronous = NORMAL`): a loss of power may lose the last operations, but it
//! also ends every process that could hold a lock.

use super::busy::BusyHandler;
use super::error::{StoreError, is_busy};
use super::machine::Machine;
use leasehold_core::model::LockState;
use leasehold_core::{FORMAT, FencingToken, Kind, Label, SessionId};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// "LSHD", which identifies the files of this store.
const APPLICATION: i32 = 0x4c53_4844;
/// Lets the file shrink. It has an effect only on a file that has no tables yet.
///
/// It writes the first page in a transaction of its own. That one is not synced, because the change to a write-ahead
/// log, which follows at once, is: each sync makes the other processes that open the file wait for the disk.
const AUTO_VACUUM: &str = "PRAGMA synchronous = OFF; PRAGMA auto_vacuum = INCREMENTAL";
/// See the module.
const SYNCHRONOUS: &str = "PRAGMA synchronous = NORMAL";
const SCHEMA: &str = "
    CREATE TABLE meta (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        format INTEGER NOT NULL,
        boot TEXT NOT NULL,
        base_us INTEGER NOT NULL,
        latest_us INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE locks (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        ended_ms INTEGER NOT NULL,
        over_ms INTEGER NOT NULL,
        PRIMARY KEY (kind, name)
    ) STRICT;
    CREATE INDEX locks_by_end ON locks (ended_ms);
    CREATE INDEX locks_by_oblivion ON locks (over_ms);
    CREATE TABLE sessions (
        session TEXT PRIMARY KEY,
        metadata TEXT NOT NULL,
        activity TEXT NOT NULL DEFAULT ''
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE dead (
        session TEXT PRIMARY KEY,
        over_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
";
/// One row, as JSON: what the first files of this format lack.
const STATISTICS: &str = "
    CREATE TABLE IF NOT EXISTS statistics (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        state TEXT NOT NULL
    ) STRICT;
";

/// Opens the file, and initializes it if it is empty (1).
pub(super) fn connect(
    path: &Path,
    machine: &dyn Machine,
    busy: &BusyHandler,
    log: &Arc<AtomicI32>,
) -> Result<Connection, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(path, flags)?;
    let mut handler = busy.clone();
    connection.busy_handler(Some(move |times| handler.wait(times)))?;
    if is_new(&connection.transaction()?)? {
        connection.execute_batch(AUTO_VACUUM)?;
    }
    connection.execute_batch(SYNCHRONOUS)?;
    enable_wal(&mut connection, busy.clone(), log.clone())?;
    let transaction = begin(&mut connection)?;
    if is_new(&transaction)? {
        create(&transaction, machine)?;
    } else {
        let format = transaction.query_row("SELECT format FROM meta", [], |row| row.get(0))?;
        if format != i64::from(FORMAT) {
            return Err(StoreError::Format(format));
        }
        add_activity(&transaction)?;
        add_statistics(&transaction)?;
        let boot: String = transaction.query_row("SELECT boot FROM meta", [], |row| row.get(0))?;
        if boot != machine.boot_id() {
            begin_boot(&transaction, machine)?;
        }
    }
    transaction.commit()?;
    Ok(connection)
}

/// Turns on the write-ahead log, which readers and writers share, and reports its length in `log`.
fn enable_wal(
    connection: &mut Connection,
    mut busy: BusyHandler,
    log: Arc<AtomicI32>,
) -> Result<(), StoreError> {
    // SQLite does not always call the busy handler when it changes the mode.
    let mut times = 0;
    let mode: String = loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)) {
            Err(error) if is_busy(&error) && busy.wait(times) => times += 1,
            other => break other?,
        }
    };
    if mode != "wal" {
        return Err(StoreError::NoSharedMemory);
    }
    // Replaces SQLite's own hook, which would write the log back before the reply and the notifications are sent.
    connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
        log.store(pages, Ordering::Relaxed);
        Ok(())
    }))?;
    Ok(())
}

/// Whether the file is empty; fails if it belongs to another application.
fn is_new(sql: &Transaction<'_>) -> Result<bool, StoreError> {
    let application: i32 = sql.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let objects: i64 = sql.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, objects) {
        (APPLICATION, _) => Ok(false),
        (0, 0) => Ok(true),
        _ => Err(StoreError::Foreign),
    }
}

fn create(sql: &Transaction<'_>, machine: &dyn Machine) -> Result<(), StoreError> {
    sql.execute_batch(SCHEMA)?;
    sql.execute_batch(STATISTICS)?;
    sql.execute_batch(&format!("PRAGMA application_id = {APPLICATION}"))?;
    sql.execute(
        "INSERT INTO meta (id, format, boot, base_us, latest_us) VALUES (1, ?1, ?2, ?3, 0)",
        params![FORMAT, machine.boot_id(), base_us(machine, 0)],
    )?;
    Ok(())
}

/// Adds the column that the first files of this format lack. Programs that do not know it leave it as it is.
fn add_activity(sql: &Transaction<'_>) -> rusqlite::Result<()> {
    let query = "SELECT count(*) FROM pragma_table_info('sessions') WHERE name = 'activity'";
    if sql.query_row(query, [], |row| row.get::<_, i64>(0))? == 0 {
        sql.execute_batch("ALTER TABLE sessions ADD COLUMN activity TEXT NOT NULL DEFAULT ''")?;
    }
    Ok(())
}

/// Adds the table that the first files of this format lack. Programs that do not know it leave it as it is.
fn add_statistics(sql: &Transaction<'_>) -> rusqlite::Result<()> {
    let query = "SELECT count(*) FROM sqlite_schema WHERE name = 'statistics'";
    if sql.query_row(query, [], |row| row.get::<_, i64>(0))? == 0 {
        sql.execute_batch(STATISTICS)?;
    }
    Ok(())
}

/// Ends all holds and queue entries of an older boot, and restarts the clock (3).
///
/// The rows are read twice: the audit record of an ended hold has a time of the new clock, which must be later than
/// all tokens.
fn begin_boot(sql: &Transaction<'_>, machine: &dyn Machine) -> Result<(), StoreError> {
    let latest_us = latest_us(sql)?;
    let start_us = start_us(machine, latest_us);
    let mut rows = sql.prepare("SELECT rowid, state FROM locks")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let (id, text): (i64, String) = (row.get(0)?, row.get(1)?);
        let mut state = read_state_of_any_kind(&text)?;
        end_all(&mut state, start_us);
        if state.is_empty_at(start_us) {
            sql.prepare_cached("DELETE FROM locks WHERE rowid = ?1")?.execute(params![id])?;
            continue;
        }
        let write = "UPDATE locks SET state = ?2, ended_ms = ?3, over_ms = ?4 WHERE rowid = ?1";
        let text = serde_json::to_string(&state)?;
        sql.prepare_cached(write)?.execute(params![id, text, ended_ms(&state), over_ms(&state)])?;
    }
    sql.execute_batch("DELETE FROM dead; DELETE FROM sessions")?;
    sql.execute(
        "UPDATE meta SET boot = ?1, base_us = ?2, latest_us = ?3",
        params![machine.boot_id(), base_us(machine, latest_us), signed(latest_us)],
    )?;
    Ok(())
}

/// The time before which all fencing tokens were granted or reserved.
fn latest_us(sql: &Transaction<'_>) -> Result<u64, StoreError> {
    let stored: i64 = sql.query_row("SELECT latest_us FROM meta", [], |row| row.get(0))?;
    let mut latest_us = u64::try_from(stored).unwrap_or(0);
    let mut rows = sql.prepare("SELECT state FROM locks")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let state = read_state_of_any_kind(&row.get::<_, String>(0)?)?;
        let greatest = state.record.and_then(|record| record.greatest_fence());
        latest_us = latest_us.max(greatest.map_or(0, FencingToken::as_u64));
    }
    Ok(latest_us)
}

/// Ends all holds and queue entries of a lock.
fn end_all(state: &mut LockState, now_us: u64) {
    // Removes what had expired by then, so that the audit does not list it as evicted.
    state.is_empty_at(now_us);
    let sessions: Vec<SessionId> =
        state.holder_sessions().into_iter().chain(state.waiter_sessions()).collect();
    let actor = Label::new("a new boot").expect("a short text is a label");
    for session in sessions {
        state.evict_session(now_us, session, &actor);
    }
    // Holds without a session end as well: the clock of their leases ended with the boot.
    state.value = None;
    if let Some(record) = &mut state.record {
        record.tickets.clear();
        record.entries.clear();
        record.next_ticket = 0;
    }
}

/// The base for which the time is now that of the wall clock, or later than `latest_us`.
fn base_us(machine: &dyn Machine, latest_us: u64) -> i64 {
    signed(start_us(machine, latest_us)).saturating_sub(signed(machine.since_boot_us()))
}

/// The time at which a boot begins.
fn start_us(machine: &dyn Machine, latest_us: u64) -> u64 {
    machine.wall_us().max(latest_us.saturating_add(1))
}

/// Parses the state of a lock of that kind.
pub(super) fn read_state(kind: Kind, text: &str) -> Result<LockState, StoreError> {
    let state: LockState = serde_json::from_str(text)?;
    if state.is_plausible(kind) { Ok(state) } else { Err(StoreError::Implausible) }
}

/// The same for the kind that the state itself names.
fn read_state_of_any_kind(text: &str) -> Result<LockState, StoreError> {
    let state: LockState = serde_json::from_str(text)?;
    if state.is_plausible(state.kind) { Ok(state) } else { Err(StoreError::Implausible) }
}

/// When every hold and every queue entry of a lock has ended.
pub(super) fn ended_ms(state: &LockState) -> i64 {
    let value = state.value.as_ref().map(|value| value.expires_ms.unwrap_or(u64::MAX));
    let record = state.record.as_ref().map(|record| record.expires_ms);
    signed(value.max(record).unwrap_or(0))
}

/// When the row of a lock can be removed.
pub(super) fn over_ms(state: &LockState) -> i64 {
    ended_ms(state).max(state.audit.as_ref().map_or(0, |audit| signed(audit.expires_ms)))
}

/// A transaction that takes the write lock first.
pub(super) fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// SQLite's integers are signed; no time here reaches the last bit.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
