//! The register: session metadata, and what the sessions hold, for operators.
//!
//! It owns the table `sessions`. It queries [`life`](super::life) for liveness, and decides nothing.
//!
//! 1. A row is written while the session's life file is locked. It is removed before that file, together with the
//!    record of a death, or by a scan that finds neither file nor record. So no row stays forever.
//! 2. Which locks a session holds is read from the locks themselves, so it is never out of date.

use super::life::{Sessions, Sign};
use super::trouble::Trouble;
use leasehold_core::model::LockState;
use leasehold_core::{Kind, Lock, SessionEntry, SessionId};
use rusqlite::{Connection, Transaction, params};
use std::collections::BTreeMap;

/// Writes the metadata of a session.
pub(super) fn note(sql: &Transaction<'_>, session: SessionId, about: &str) -> rusqlite::Result<()> {
    sql.prepare_cached("INSERT OR REPLACE INTO sessions (session, about) VALUES (?1, ?2)")?
        .execute(params![session.to_string(), about])?;
    Ok(())
}

/// Removes the metadata of a session.
pub(super) fn forget(sql: &Connection, session: SessionId) -> rusqlite::Result<()> {
    sql.prepare_cached("DELETE FROM sessions WHERE session = ?1")?.execute(params![session.to_string()])?;
    Ok(())
}

/// At most `most` orphaned rows after `after` (1), and how far the scan came; `None` at its end.
pub(super) fn left_behind(
    sql: &Connection,
    sessions: &Sessions,
    after: &str,
    most: i64,
) -> rusqlite::Result<(Vec<SessionId>, Option<String>)> {
    let looking =
        "SELECT session, EXISTS (SELECT 1 FROM dead WHERE dead.session = sessions.session) FROM sessions
        WHERE session > ?1 ORDER BY session LIMIT ?2";
    let mut rows = sql.prepare_cached(looking)?;
    let mut rows = rows.query(params![after, most])?;
    let (mut left, mut last, mut seen) = (Vec::new(), None, 0);
    while let Some(row) = rows.next()? {
        let (text, buried): (String, bool) = (row.get(0)?, row.get(1)?);
        if let Ok(session) = text.parse()
            && !buried
            && sessions.ask(session) == Sign::Absent
        {
            left.push(session);
        }
        last = Some(text);
        seen += 1;
    }
    Ok((left, last.filter(|_| seen == most)))
}

/// What is known about one session.
#[derive(Default)]
struct Known {
    about: Option<String>,
    held: Vec<Lock>,
    waits: bool,
}

/// All sessions that are alive, or that hold or wait for a lock (2).
pub(super) fn list(
    sql: &Transaction<'_>,
    now_us: u64,
    is_alive: &dyn Fn(SessionId) -> bool,
) -> Result<Vec<SessionEntry>, Trouble> {
    let mut known: BTreeMap<SessionId, Known> = BTreeMap::new();
    let mut rows = sql.prepare_cached("SELECT session, about FROM sessions")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        if let Ok(session) = row.get::<_, String>(0)?.parse() {
            known.entry(session).or_default().about = Some(row.get(1)?);
        }
    }
    let mut rows = sql.prepare_cached("SELECT kind, name, state FROM locks ORDER BY name, kind")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, name, text): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let mut state: LockState = serde_json::from_str(&text)?;
        let (Some(kind), Ok(name)) = (Kind::parse(&kind), name.parse()) else { continue };
        let lock = Lock { kind, name };
        for session in state.holders_at(now_us) {
            known.entry(session).or_default().held.push(lock.clone());
        }
        let places = state.record.iter().flat_map(|record| &record.entries);
        for (id, _) in places.filter(|(_, place)| place.expires_ms >= now_us / 1000) {
            known.entry(id.session()).or_default().waits = true;
        }
    }
    let entry = |(session, known): (SessionId, Known)| {
        let alive = is_alive(session);
        let listed = (alive && known.about.is_some()) || known.waits || !known.held.is_empty();
        let alive_ms = alive.then_some(u64::MAX);
        let metadata = known.about.unwrap_or_default();
        listed.then_some(SessionEntry { session, alive_ms, metadata, held: known.held })
    };
    Ok(known.into_iter().filter_map(entry).collect())
}
