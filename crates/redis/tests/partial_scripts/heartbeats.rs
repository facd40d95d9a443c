//! Heartbeats that end after each of their commands.
//!
//! A partial heartbeat leaves each field of its own session as it was or as the whole heartbeat sets it: the end of its life,
//! the expiry of its record, its process, and the locks it holds. A new session exists once it is alive, and its
//! record has an expiry from the first command on. Other sessions and locks are unchanged. The next heartbeat gets the
//! reply of the model, and the next one that renews the listing repairs the index.

use crate::Violation;
use crate::generator::Generator;
use crate::tap::WHOLE;
use leasehold_core::model::{SessionRecord, Sessions};
use leasehold_core::{Heartbeat, SessionOp};

impl Generator<'_> {
    /// Cuts off a heartbeat of some sessions after each of its commands.
    pub(crate) fn cut_off_heartbeats(&mut self) -> Result<(), Violation> {
        for _ in 0..4 {
            let SessionOp::Heartbeat(heartbeat) = self.workload.session_op() else { continue };
            let before = self.fixture.redis.keyspace();
            for commands in 0.. {
                let whole = self.cut_off_heartbeat(&heartbeat, commands).map_err(|Violation(what)| {
                    let sessions = self.fixture.sessions();
                    Violation(format!(
                        "{heartbeat:?},\n  cut off after {commands} commands:\n  {what}\n  {sessions:?}"
                    ))
                })?;
                self.fixture.redis.load(before.clone());
                if whole {
                    break;
                }
            }
        }
        self.damage_session()
    }

    /// A key that is not a session's record stays as it is, wherever a heartbeat is cut off.
    fn damage_session(&mut self) -> Result<(), Violation> {
        let SessionOp::Heartbeat(heartbeat) = self.workload.session_op() else { return Ok(()) };
        let record = self.fixture.space.session(heartbeat.session);
        self.fixture.command(&["DEL", &record])?;
        match self.workload.random().below(3) {
            0 => self.fixture.command(&["LPUSH", &record, "x"]),
            1 => self.fixture.command(&["SET", &record, "x"]),
            _ => self.fixture.command(&["HSET", &record, "format", "2"]),
        }?;
        let before = self.fixture.redis.keyspace();
        for commands in [0, 1, WHOLE] {
            let reply = self.fixture.run_heartbeat(&heartbeat, commands)?;
            let refused = match &reply {
                None => true,
                Some(Err(fault)) => fault.to_string().contains("format"),
                Some(Ok(_)) => false,
            };
            if !refused || self.fixture.redis.keyspace() != before {
                return Err(Violation(format!("{heartbeat:?} of what is no session is answered {reply:?}")));
            }
        }
        self.fixture.command(&["DEL", &record])
    }

    /// Cuts a heartbeat off, checks what is left, and sends it again. Returns whether it ended before it was cut off.
    fn cut_off_heartbeat(&mut self, heartbeat: &Heartbeat, commands: usize) -> Result<bool, Violation> {
        let (before, locks) = (self.fixture.sessions()?, self.fixture.state()?);
        let whole = self.fixture.run_heartbeat(heartbeat, commands)?.is_some();
        self.check_expiries(&locks)?;
        let left = self.fixture.sessions()?;
        let mut after = before.clone();
        after.apply(self.now_us / 1000, &SessionOp::Heartbeat(heartbeat.clone()));
        if whole && left != after
            || self.fixture.state()? != locks
            || !is_on_the_way(heartbeat, &before, &after, &left)
        {
            return Err(Violation(format!("it left {left:?},\n  and makes {after:?}")));
        }
        self.heartbeat(&Heartbeat { renew_listing: true, ..heartbeat.clone() })?;
        Ok(whole)
    }
}

/// Whether a heartbeat that changes `before` into `after` may leave `left`.
fn is_on_the_way(heartbeat: &Heartbeat, before: &Sessions, after: &Sessions, left: &Sessions) -> bool {
    let others = |sessions: &Sessions| {
        let mut sessions = sessions.clone();
        sessions.records.remove(&heartbeat.session);
        sessions
    };
    let [was, is, found] = [before, after, left].map(|sessions| sessions.records.get(&heartbeat.session));
    let fits = match (was, is, found) {
        (None, _, None) => true,
        (_, Some(is), Some(found)) => {
            // The locks that it reported or still reports: none of a session that did not exist.
            let had = |lock| was.is_some_and(|was| was.held.contains(lock));
            let keeps = |lock| had(lock) && !heartbeat.released.contains(lock);
            let was = was.unwrap_or(is);
            let either = |field: fn(&SessionRecord) -> u64| [field(was), field(is)].contains(&field(found));
            either(|record| record.alive_until_ms)
                && either(|record| record.expires_ms)
                && [&was.metadata, &is.metadata].contains(&&found.metadata)
                && [&was.activity, &is.activity].contains(&&found.activity)
                && found.held.iter().all(|lock| had(lock) || is.held.contains(lock))
                && is.held.iter().all(|lock| !keeps(lock) || found.held.contains(lock))
        }
        _ => false,
    };
    fits && others(before) == others(left)
}
