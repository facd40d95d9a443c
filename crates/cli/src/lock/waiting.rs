//! What a user at a terminal sees while this process waits for a lock: which client has it, since when, and how many go first.
//!
//! 1. Nothing is shown for the first second, nor without a terminal unless the log is requested, nor with --quiet. Then nothing
//!    is requested from the store either.
//! 2. The lock is inspected every few seconds; in between only the time goes on.

use crate::lock::any_lock;
use crate::output::live_line::LiveLine;
use crate::output::log;
use crate::output::printable::printable;
use crate::output::session_report::SessionReport;
use crate::output::times::spoken;
use leasehold::inspect::FullStatus;
use leasehold::{Client, LockName};
use std::convert::Infallible;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{sleep, timeout};

/// When it begins (1).
const FIRST: Duration = Duration::from_secs(1);
/// How long an inspection may take.
const INSPECTION: Duration = Duration::from_secs(2);
/// How often the line is written.
const TICK: Duration = Duration::from_secs(1);
/// After how many ticks the lock is inspected again, for a terminal and for the log.
const TICKS: [u32; 2] = [5, 60];

/// Where it is shown.
enum Display {
    Terminal(LiveLine),
    Log,
}

impl Display {
    /// `None` if it is shown nowhere (1).
    fn new() -> Option<Self> {
        if log::is_quiet() {
            None
        } else if log::shows_info() {
            Some(Self::Log)
        } else if log::is_text() {
            LiveLine::new().map(Self::Terminal)
        } else {
            None
        }
    }

    const fn ticks(&self) -> u32 {
        match self {
            Self::Terminal(_) => TICKS[0],
            Self::Log => TICKS[1],
        }
    }
}

/// Awaits a future that waits for these locks, and shows what it waits for.
pub(crate) async fn shown<T>(client: &Client, names: &[LockName], waits: impl Future<Output = T>) -> T {
    // Boxed, as both are large.
    let waits = Box::pin(waits);
    let Some(display) = Display::new() else { return waits.await };
    tokio::select! {
        biased;
        output = waits => output,
        never = Box::pin(show(client, names, display)) => match never {},
    }
}

async fn show(client: &Client, names: &[LockName], display: Display) -> Infallible {
    let begun = Instant::now();
    sleep(FIRST).await;
    let mut logged = String::new();
    loop {
        let obstacle = Obstacle::find(client, names).await;
        for _ in 0..display.ticks() {
            match &display {
                Display::Terminal(line) => line.draw(&obstacle.text(names, begun)),
                Display::Log => {
                    let text = obstacle.text(names, begun);
                    let state = format!("{:?} {:?}", obstacle.holder, obstacle.place);
                    if logged != state {
                        logged = state;
                        tracing::info!("{text}");
                    }
                }
            }
            sleep(TICK).await;
        }
    }
}

/// What keeps this process from the lock, as far as it is known.
#[derive(Debug, Default)]
struct Obstacle {
    /// The name of the lock that is held.
    name: Option<LockName>,
    /// The holder, and if there are several, how many others there are.
    holder: Option<(String, usize)>,
    /// Since when it held the lock when it was inspected, and when that was.
    held_for: Option<(Duration, Instant)>,
    /// How many clients go first, or wait.
    place: Option<String>,
    /// Set if too few nodes of a quorum can grant it.
    is_blocked: bool,
}

impl Obstacle {
    /// Of several locks, the first that is held.
    async fn find(client: &Client, names: &[LockName]) -> Self {
        let mut last = Self::default();
        for name in names {
            if let Ok(Ok(found)) = timeout(INSPECTION, any_lock::find(client, name)).await {
                let is_held = found.details.status.held;
                last = Self::new(client, name, &found.details);
                if is_held {
                    break;
                }
            }
        }
        last
    }

    fn new(client: &Client, name: &LockName, details: &FullStatus) -> Self {
        let status = &details.status;
        let session = details.holder_session.as_ref().map(SessionReport::new);
        let process = session.as_ref().and_then(SessionReport::process);
        let label = || status.holder.as_deref().filter(|label| !label.is_empty()).map(printable);
        let holder = || process.or_else(label).unwrap_or_else(|| "a client without a label".to_owned());
        let since = status.since.filter(|_| status.held);
        let held_for = since.map(|since| SystemTime::now().duration_since(since).unwrap_or_default());
        let own = client.session_id();
        let place = match details.queue.iter().position(|waiter| waiter.session == own) {
            Some(0) => Some("you are next".to_owned()),
            Some(before) => Some(format!("{before} before you")),
            None if status.waiting > 0 => Some(format!("{} waiting", status.waiting)),
            None => None,
        };
        Self {
            name: Some(name.clone()),
            holder: status.held.then(|| (holder(), status.shared_holders.len().saturating_sub(1))),
            held_for: held_for.map(|time| (time, Instant::now())),
            place,
            is_blocked: !status.held && status.blocked.is_some(),
        }
    }

    fn text(&self, names: &[LockName], begun: Instant) -> String {
        let name = self.name.as_ref().or(names.first()).map(|name| printable(name.as_str()));
        let why = match (&self.holder, self.is_blocked) {
            (Some((holder, others)), _) => {
                let others = match others {
                    0 => String::new(),
                    1 => " and another".to_owned(),
                    others => format!(" and {others} others"),
                };
                let held_for = self.held_for.map(|(time, at)| whole_seconds(time + at.elapsed()));
                let held_for = held_for.map(|time| format!(" for {time}")).unwrap_or_default();
                format!(": held by {holder}{others}{held_for}")
            }
            (None, true) => ": too few nodes of the quorum can grant it".to_owned(),
            // Free for a moment, or not known.
            (None, false) => format!(" for {}", whole_seconds(begun.elapsed())),
        };
        let place = self.place.as_ref().map(|place| format!(", {place}")).unwrap_or_default();
        format!("waiting for {}{why}{place}", name.unwrap_or_default())
    }
}

fn whole_seconds(time: Duration) -> String {
    spoken(Duration::from_secs(time.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_holder_the_time_and_the_place() {
        let names = ["nightly", "weekly"].map(|name| LockName::new(name).expect("it is a name"));
        let now = Instant::now();
        let unknown = Obstacle::default();
        assert_eq!(unknown.text(&names, now), "waiting for nightly for 0s");
        let held = Obstacle {
            name: Some(names[1].clone()),
            holder: Some(("web-3/412 (./backup.sh)".to_owned(), 0)),
            held_for: Some((Duration::from_millis(192_300), now)),
            place: Some("2 before you".to_owned()),
            is_blocked: false,
        };
        let text = held.text(&names, now);
        assert_eq!(text, "waiting for weekly: held by web-3/412 (./backup.sh) for 3m12s, 2 before you");
        let shared = Obstacle { holder: Some(("a".to_owned(), 2)), held_for: None, ..held };
        assert_eq!(shared.text(&names, now), "waiting for weekly: held by a and 2 others, 2 before you");
    }
}
