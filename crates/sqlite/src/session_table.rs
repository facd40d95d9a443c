//! Session metadata for listings: the table `sessions`.
//!
//! Nothing is decided from this table: [`session_files`](super::session_files) shows which sessions are alive.
//!
//! 1. A row is written while the session's file is locked. It is removed before that file, together with the
//!    record of a death, or by a scan that finds neither file nor record. So no row stays forever.
//! 2. Which locks a session holds is read from the locks themselves, so it is never out of date.

use super::error::StoreError;
use super::format::read_state;
use super::session_files::{SessionFiles, SessionState};
use leasehold_core::{Kind, Lock, LockName, SessionEntry, SessionId, SessionList, Skipped};
use rusqlite::{Connection, Transaction, params};
use std::collections::BTreeMap;

/// Writes the metadata of a session.
pub(super) fn insert(sql: &Transaction<'_>, session: SessionId, metadata: &str) -> rusqlite::Result<()> {
    sql.prepare_cached("INSERT OR REPLACE INTO sessions (session, metadata) VALUES (?1, ?2)")?
        .execute(params![session.to_string(), metadata])?;
    Ok(())
}

/// Replaces the activity of a session that has metadata.
pub(super) fn set_activity(
    sql: &Transaction<'_>,
    session: SessionId,
    activity: &str,
) -> rusqlite::Result<()> {
    sql.prepare_cached("UPDATE sessions SET activity = ?2 WHERE session = ?1")?
        .execute(params![session.to_string(), activity])?;
    Ok(())
}

/// Removes the metadata of a session.
pub(super) fn delete(sql: &Connection, session: SessionId) -> rusqlite::Result<()> {
    sql.prepare_cached("DELETE FROM sessions WHERE session = ?1")?.execute(params![session.to_string()])?;
    Ok(())
}

/// Finds orphaned rows (1) among at most `most` rows after the session `after`. Also returns the last session that was
/// checked; `None` at the end of the table.
pub(super) fn find_orphans(
    sql: &Connection,
    sessions: &SessionFiles,
    after: &str,
    most: i64,
) -> rusqlite::Result<(Vec<SessionId>, Option<String>)> {
    let query =
        "SELECT session, EXISTS (SELECT 1 FROM dead WHERE dead.session = sessions.session) FROM sessions
        WHERE session > ?1 ORDER BY session LIMIT ?2";
    let mut rows = sql.prepare_cached(query)?;
    let mut rows = rows.query(params![after, most])?;
    let (mut orphans, mut last, mut count) = (Vec::new(), None, 0);
    while let Some(row) = rows.next()? {
        let (text, is_dead): (String, bool) = (row.get(0)?, row.get(1)?);
        if let Ok(session) = text.parse()
            && !is_dead
            && sessions.state(session) == SessionState::Absent
        {
            orphans.push(session);
        }
        last = Some(text);
        count += 1;
    }
    Ok((orphans, last.filter(|_| count == most)))
}

/// What is known about one session.
#[derive(Default)]
struct Known {
    metadata: Option<String>,
    activity: String,
    held: Vec<Lock>,
    is_waiting: bool,
}

/// All sessions that are alive, or that hold or wait for a lock (2).
pub(super) fn list(
    sql: &Transaction<'_>,
    now_us: u64,
    is_alive: &dyn Fn(SessionId) -> bool,
) -> Result<SessionList, StoreError> {
    let mut known: BTreeMap<SessionId, Known> = BTreeMap::new();
    let mut skipped = Skipped::default();
    let mut rows = sql.prepare_cached("SELECT session, metadata, activity FROM sessions")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        if let Ok(session) = row.get::<_, String>(0)?.parse() {
            let known: &mut Known = known.entry(session).or_default();
            (known.metadata, known.activity) = (Some(row.get(1)?), row.get(2)?);
        }
    }
    let mut rows = sql.prepare_cached("SELECT kind, name, state FROM locks ORDER BY name, kind")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, name, text): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let (Some(kind), Ok(name)) = (Kind::parse(&kind), name.parse::<LockName>()) else {
            skipped.add(|| "a row of the locks has no kind or name of a lock".to_owned());
            continue;
        };
        let Ok(mut state) = read_state(kind, &text) else {
            skipped.add(|| format!("the lock `{name}`: its record cannot be read"));
            continue;
        };
        let lock = Lock { kind, name };
        for session in state.holders_at(now_us) {
            known.entry(session).or_default().held.push(lock.clone());
        }
        let entries = state.record.iter().flat_map(|record| &record.entries);
        for (id, _) in entries.filter(|(_, entry)| entry.expires_ms >= now_us / 1000) {
            known.entry(id.session()).or_default().is_waiting = true;
        }
    }
    let entry = |(session, known): (SessionId, Known)| {
        let alive = is_alive(session);
        let listed = (alive && known.metadata.is_some()) || known.is_waiting || !known.held.is_empty();
        let alive_ms = alive.then_some(u64::MAX);
        let Known { metadata, activity, held, is_waiting: _ } = known;
        let metadata = metadata.unwrap_or_default();
        listed.then_some(SessionEntry { session, alive_ms, metadata, held, activity })
    };
    Ok(SessionList { entries: known.into_iter().filter_map(entry).collect(), skipped })
}
