//! The file itself: locks in rows, changed by the model inside one transaction an operation.
//!
//! 1. A transaction takes the write lock first and reads the clock after: no operation sees a time before
//!    that of an operation that it follows.
//! 2. The dead are found inside the transaction, from what their files say ([`life`](super::life)), and
//!    written down in it, before their files go.
//! 3. Before the COMMIT is sent an operation that fails was not executed; after that nobody knows.

use super::super::{Fault, Phase};
use super::format::{begin, connect, over_ms, signed};
use super::life::{Sessions, Sign};
use super::machine::Machine;
use super::patience::Patience;
use super::site::Site;
use super::trouble::{Trouble, fault, is_busy};
use leasehold_core::model::{MutexState, everybody};
use leasehold_core::{FORMAT, Kind, Label, Lock, Moment, Op, Pass, Refused, Reply, SessionId, Wake};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// How many sessions of a queue one operation asks about.
const ASKED_AT_MOST: usize = 64;
/// After how many operations the file is tidied up, and how many rows that removes at most.
const TIDY_EVERY: u32 = 64;
const TIDIED_AT_MOST: i64 = 128;
/// After how many operations the directory of the sessions is looked through.
const SCAN_EVERY: u32 = 1024;
/// How long tidying waits for the file: others have work to do.
const TIDY_WITHIN: Duration = Duration::from_millis(5);
/// How many pages the log grows by before it is written back.
const CHECKPOINT_EVERY: i32 = 1000;

/// One process's connection to the file.
pub(super) struct Ledger {
    connection: Connection,
    site: Site,
    sessions: Sessions,
    machine: Box<dyn Machine>,
    patience: Patience,
    /// The length of the log after the last commit, in pages.
    log: Arc<AtomicI32>,
    written_back_at: i32,
    operations: u32,
}

/// Why an operation has no reply.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was not executed.
    NotExecuted(Fault),
    /// Nobody knows.
    Unknown(Fault),
}

/// What an operation leaves to be done after its commit.
struct Executed {
    reply: Reply,
    wakes: Vec<Wake>,
    /// Whose files can go.
    buried: Vec<SessionId>,
}

impl Ledger {
    /// Opens the file, and makes it a store if it is empty.
    pub(super) fn open(site: Site, machine: Box<dyn Machine>, deadline: Moment) -> Result<Self, Fault> {
        let sessions = Sessions::new(site.sessions()?);
        let patience = Patience::until(deadline);
        let log = Arc::new(AtomicI32::new(0));
        let connection = connect(site.path(), &*machine, &patience, &log)
            .map_err(|trouble| fault(&site, Phase::Connect, trouble))?;
        site.check_in_place()?;
        let mut ledger =
            Self { connection, site, sessions, machine, patience, log, written_back_at: 0, operations: 0 };
        ledger.tidy();
        Ok(ledger)
    }

    /// The sessions beside the file.
    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The file.
    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    /// Executes one operation. The sessions that `is_ours` are alive: they are this process's.
    pub(super) fn execute(
        &mut self,
        lock: &Lock,
        op: &Op,
        deadline: Moment,
        is_ours: &dyn Fn(SessionId) -> bool,
    ) -> Result<(Reply, Vec<Wake>), Failure> {
        self.site.check_in_place().map_err(Failure::NotExecuted)?;
        self.patience.set(deadline);
        self.operations = self.operations.wrapping_add(1);
        let (site, phase) = (&self.site, Phase::Send);
        let not_executed = |trouble| Failure::NotExecuted(fault(site, phase, trouble));
        let transaction = begin(&mut self.connection).map_err(|error| not_executed(error.into()))?;
        let scene = Scene { sql: &transaction, sessions: &self.sessions, machine: &*self.machine, is_ours };
        let executed = scene.execute(lock, op).map_err(not_executed)?;
        transaction.commit().map_err(|error| {
            let busy = is_busy(&error);
            let fault = fault(site, Phase::Reply, error.into());
            if busy { Failure::NotExecuted(fault) } else { Failure::Unknown(fault) }
        })?;
        for session in executed.buried {
            self.sessions.remove(session);
        }
        Ok((executed.reply, executed.wakes))
    }

    /// Whether it is time to [`tidy`](Self::tidy), which nobody should have to wait for.
    pub(super) fn is_untidy(&self) -> bool {
        self.operations.is_multiple_of(TIDY_EVERY) || self.log_growth() >= CHECKPOINT_EVERY
    }

    /// Removes a bounded number of what is over, and writes the log back. It is tried again, so nothing
    /// is said if it fails.
    pub(super) fn tidy(&mut self) {
        self.patience.set(crate::clock::boottime() + TIDY_WITHIN);
        let dead = if self.operations.is_multiple_of(SCAN_EVERY) {
            self.sessions.find_dead(ASKED_AT_MOST)
        } else {
            Vec::new()
        };
        match sweep(&mut self.connection, &*self.machine, &dead) {
            Ok(()) => dead.into_iter().for_each(|session| self.sessions.remove(session)),
            Err(error) => tracing::debug!(%error, "the store was not swept"),
        }
        if self.log_growth() >= CHECKPOINT_EVERY {
            self.written_back_at = self.log.load(Ordering::Relaxed);
            let checkpoint = "PRAGMA wal_checkpoint(PASSIVE)";
            if let Err(error) = self.connection.query_row(checkpoint, [], |_| Ok(())) {
                tracing::debug!(%error, "the log was not written back");
            }
        }
    }

    fn log_growth(&self) -> i32 {
        let pages = self.log.load(Ordering::Relaxed);
        // A log that has become shorter has begun anew.
        if pages < self.written_back_at { pages } else { pages - self.written_back_at }
    }
}

/// What an operation sees inside its transaction.
struct Scene<'a> {
    sql: &'a Transaction<'a>,
    sessions: &'a Sessions,
    machine: &'a dyn Machine,
    is_ours: &'a dyn Fn(SessionId) -> bool,
}

impl Scene<'_> {
    fn execute(&self, lock: &Lock, op: &Op) -> Result<Executed, Trouble> {
        let Kind::Mutex = lock.kind else {
            let refused = Refused::WrongKind { found: "another kind".into() };
            return Ok(Executed { reply: Reply::Refused(refused), wakes: Vec::new(), buried: Vec::new() });
        };
        let (kind, name) = ("mutex", lock.name.as_str());
        let now_us = now_us(self.sql, self.machine)?;
        let found: Option<String> = self
            .sql
            .prepare_cached("SELECT state FROM locks WHERE kind = ?1 AND name = ?2")?
            .query_row(params![kind, name], |row| row.get(0))
            .optional()?;
        let before: MutexState = found.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default();
        let mut state = before.clone();
        let buried = if concerns_the_living(op) {
            self.bury_the_dead(now_us, &mut state, &by(op))?
        } else {
            Vec::new()
        };
        let (reply, wakes) = state.apply(now_us, op, &everybody);
        if state.is_over(now_us) {
            if found.is_some() {
                self.sql
                    .prepare_cached("DELETE FROM locks WHERE kind = ?1 AND name = ?2")?
                    .execute(params![kind, name])?;
                note_the_time(self.sql, now_us)?;
            }
        } else if state != before {
            let write = "INSERT INTO locks (kind, name, state, over_ms) VALUES (?1, ?2, ?3, ?4)
                ON CONFLICT DO UPDATE SET state = excluded.state, over_ms = excluded.over_ms";
            let text = serde_json::to_string(&state)?;
            self.sql.prepare_cached(write)?.execute(params![kind, name, text, over_ms(&state)])?;
        }
        Ok(Executed { reply, wakes, buried })
    }

    /// Ends what the dead have at the front of a lock: its holder, and the places before the first live
    /// one. Gives those whose files can go.
    fn bury_the_dead(
        &self,
        now_us: u64,
        state: &mut MutexState,
        by: &Label,
    ) -> Result<Vec<SessionId>, Trouble> {
        let front: Vec<_> = state.sessions_at_the_front().take(ASKED_AT_MOST).collect();
        let holder = state.record.as_ref().and_then(|record| record.tenant.as_ref());
        let places_from = usize::from(holder.is_some());
        let mut buried = Vec::new();
        for (at, session) in front.into_iter().enumerate() {
            if self.is_dead(session, &mut buried)? {
                state.bury(now_us, session, by);
            } else if at >= places_from {
                break;
            }
        }
        Ok(buried)
    }

    /// Whether a session is dead; writes it down where its file is what says so (2).
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

/// Whether it matters to an operation who is alive: it may give the lock to somebody, or tells who has it.
fn concerns_the_living(op: &Op) -> bool {
    match op {
        Op::Acquire(_) | Op::Inspect(_) | Op::Evict(_) | Op::Free(_) => true,
        Op::Release(release) => release.next.is_some() || release.pass == Pass::Grant,
        _ => false,
    }
}

/// Who finds out that somebody is dead, by an operation of his.
fn by(op: &Op) -> Label {
    match op {
        Op::Acquire(ask) => ask.label.clone(),
        Op::Evict(evict) => evict.by.clone(),
        Op::Free(free) => free.by.clone(),
        _ => Label::new("").expect("an empty label is a label"),
    }
}

/// The store's time (1). Fails if the file has come into other hands since it was opened.
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

/// Notes that all tokens of removed rows were given before now, see [`format`](super::format).
fn note_the_time(sql: &Transaction<'_>, now_us: u64) -> rusqlite::Result<()> {
    sql.prepare_cached("UPDATE meta SET latest_us = max(latest_us, ?1) WHERE id = 1")?
        .execute(params![signed(now_us)])?;
    Ok(())
}

/// Writes a death down, until all that the dead can have has ended by itself: no hold or place outlives
/// the row that it is in.
fn write_down(sql: &Transaction<'_>, session: SessionId) -> rusqlite::Result<()> {
    let write = "INSERT OR IGNORE INTO dead (session, over_ms)
        VALUES (?1, (SELECT coalesce(max(over_ms), 0) FROM locks))";
    sql.prepare_cached(write)?.execute(params![session.to_string()])?;
    Ok(())
}

/// Removes rows that are over, and writes the deaths of `dead` down.
fn sweep(connection: &mut Connection, machine: &dyn Machine, dead: &[SessionId]) -> Result<(), Trouble> {
    // Looks before it takes the write lock, which it seldom has to.
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
    let graves = "DELETE FROM dead WHERE session IN (SELECT session FROM dead WHERE over_ms < ?1 LIMIT ?2)";
    transaction.prepare_cached(graves)?.execute(bounds)?;
    for session in dead {
        write_down(&transaction, *session)?;
    }
    Ok(transaction.commit()?)
}
