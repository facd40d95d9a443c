//! The task that reads a fleet again and again.
//!
//! 1. One request at a time, each followed by its [pause](pace). So a slow server is asked less often, and not more.
//! 2. There are four [parts](Part), and the one that is due for the longest comes next. A part that was read is due again after its
//!    pause and its interval, so what is due by then comes before it: in a fleet of any size each of them has its turn.
//! 3. A store that does not answer is reported, and asked again. What one part has read does not hide the trouble of another.

use super::known::{Known, Part};
use super::{Fleet, pace};
use crate::output::failure::Failure;
use leasehold::Client;
use leasehold::core::Lock;
use leasehold::error::InspectError;
use leasehold::inspect::WaitGraph;
use leasehold::store::FaultKind;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// The shortest time between two lists of the sessions, and two readings of the graph.
const LIST_EVERY: Duration = Duration::from_secs(2);
/// The same between two looks at the locks on a screen, and at each other lock.
const SCREEN_EVERY: Duration = Duration::from_millis(250);
const OTHERS_EVERY: Duration = Duration::from_secs(5);
/// The pause when all other locks were looked at.
const OTHERS_IDLE: Duration = Duration::from_secs(1);
/// How many locks are looked at in one request.
const MOST: usize = 32;
/// How many locks on a screen are followed.
const MOST_ON_SCREEN: usize = 200;
/// The pause after a request without a reply.
const RETRY: Duration = Duration::from_secs(1);

/// A fleet that is being read. The reading ends when this is dropped.
pub(crate) struct FleetWatch {
    fleet: Receiver<Arc<Fleet>>,
    wishes: Sender<Wishes>,
    task: AbortHandle,
}

/// What is wanted of the reader.
#[derive(Debug, Clone, Default)]
struct Wishes {
    on_screen: Arc<[Lock]>,
    is_paused: bool,
}

impl FleetWatch {
    /// What is known now.
    pub(crate) fn fleet(&self) -> Arc<Fleet> {
        Arc::clone(&self.fleet.borrow())
    }

    /// Waits until more is known. Cancel safety: nothing is missed.
    pub(crate) async fn changed(&mut self) -> Arc<Fleet> {
        if self.fleet.changed().await.is_err() {
            // The task has ended with the runtime.
            std::future::pending::<()>().await;
        }
        Arc::clone(&self.fleet.borrow_and_update())
    }

    /// Another receiver of the same: for a server with many connections.
    pub(crate) fn subscribe(&self) -> Receiver<Arc<Fleet>> {
        self.fleet.clone()
    }

    /// Sets which locks are looked at twice a second. Of more than 200, the first.
    pub(crate) fn look_at(&self, locks: impl IntoIterator<Item = Lock>) {
        let on_screen = locks.into_iter().take(MOST_ON_SCREEN).collect();
        self.wishes.send_modify(|wishes| wishes.on_screen = on_screen);
    }

    /// Stops and continues the reading.
    pub(crate) fn pause(&self, is_paused: bool) {
        self.wishes.send_modify(|wishes| wishes.is_paused = is_paused);
    }
}

impl Drop for FleetWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads the sessions, and begins to follow the fleet. Fails if the store keeps no sessions, or does not answer.
pub(crate) async fn watch(client: Client) -> Result<FleetWatch, Failure> {
    let mut known = Known::default();
    let list = client.sessions().await.map_err(not_readable)?;
    known.set_sessions(list, SystemTime::now(), &HashSet::new());
    let (reader, fleet, wishes) = Reader::new(client, known);
    let task = tokio::spawn(reader.run()).abort_handle();
    Ok(FleetWatch { fleet, wishes, task })
}

fn not_readable(error: InspectError) -> Failure {
    // A quorum, for example. It never will.
    let is_unusable = matches!(error.fault().kind, FaultKind::Unusable(_));
    let error = anyhow::Error::new(error).context("failed to list the sessions");
    if is_unusable { Failure::usage(error) } else { Failure::unavailable(error) }
}

struct Reader {
    client: Client,
    known: Known,
    send: Sender<Arc<Fleet>>,
    wished: Receiver<Wishes>,
    /// Up to which lock the others were looked at.
    last_seen: Option<Lock>,
}

/// When which part is due (2).
struct Due([Instant; Part::COUNT]);

impl Due {
    /// The part that is due first, and when. An empty screen is never due.
    fn first(&self, has_screen: bool) -> (Part, Instant) {
        let parts = Part::ALL.into_iter().filter(|part| has_screen || *part != Part::Screen);
        let dues = parts.map(|part| (part, self.0[part as usize]));
        // Of equals the first one: the list.
        dues.min_by_key(|(_, at)| *at).unwrap_or((Part::List, self.0[Part::List as usize]))
    }

    fn set(&mut self, part: Part, at: Instant) {
        self.0[part as usize] = at;
    }
}

/// The next turn of a part whose pause begins now.
fn next_turn(part: Part, now: Instant, pause: Duration) -> Instant {
    let interval = match part {
        Part::List | Part::Graph => LIST_EVERY,
        Part::Screen => SCREEN_EVERY,
        // One batch after the other.
        Part::Others => Duration::ZERO,
    };
    now + pause + interval
}

impl Reader {
    fn new(client: Client, known: Known) -> (Self, Receiver<Arc<Fleet>>, Sender<Wishes>) {
        let (send, fleet) = channel(Arc::new(known.fleet()));
        let (wishes, wished) = channel(Wishes::default());
        (Self { client, known, send, wished, last_seen: None }, fleet, wishes)
    }

    async fn run(mut self) {
        let now = Instant::now();
        let mut due = Due([now; Part::COUNT]);
        due.set(Part::List, now + LIST_EVERY);
        let mut on_screen: Arc<[Lock]> = Arc::default();
        loop {
            let wishes = self.wished.borrow_and_update().clone();
            if wishes.is_paused {
                if self.wished.changed().await.is_err() {
                    return;
                }
                continue;
            }
            if !Arc::ptr_eq(&on_screen, &wishes.on_screen) {
                on_screen = Arc::clone(&wishes.on_screen);
                self.show(&on_screen, &mut due);
            }
            let (part, at) = due.first(!on_screen.is_empty());
            if at > Instant::now() {
                self.idle(at).await;
                continue;
            }
            let pause = match self.read(part, &on_screen).await {
                Ok(None) => {
                    due.set(
                        part,
                        Instant::now() + if part == Part::Others { OTHERS_IDLE } else { LIST_EVERY },
                    );
                    continue;
                }
                Ok(Some(pause)) => {
                    self.known.set_trouble(part, None);
                    pause
                }
                Err(error) => {
                    self.known.set_trouble(part, Some(error.to_string()));
                    RETRY
                }
            };
            due.set(part, next_turn(part, Instant::now(), pause));
            self.send.send_replace(Arc::new(self.known.fleet()));
            sleep(pause).await;
        }
    }

    /// Other locks are on the screen.
    fn show(&mut self, on_screen: &[Lock], due: &mut Due) {
        // They are looked at soon.
        due.set(Part::Screen, Instant::now());
        if on_screen.is_empty() {
            // It is not read any more, so nothing else would end its trouble.
            self.known.set_trouble(Part::Screen, None);
        }
    }

    /// Until that time, or until something else is wanted.
    async fn idle(&mut self, until: Instant) {
        tokio::select! {
            () = sleep_until(until) => {}
            // Without a sender the task is about to be aborted.
            changed = self.wished.changed() => if changed.is_err() { sleep_until(until).await },
        }
    }

    /// Reads a part. Returns the pause after it; `None` if there was nothing to read.
    async fn read(&mut self, part: Part, on_screen: &[Lock]) -> Result<Option<Duration>, InspectError> {
        match part {
            Part::List => {
                let list = self.client.sessions().await?;
                let on_screen = on_screen.iter().cloned().collect();
                self.known.set_sessions(list, SystemTime::now(), &on_screen);
                Ok(Some(self.after_list()))
            }
            Part::Screen => {
                self.look(on_screen).await?;
                Ok(Some(pace::after_looks(on_screen.len())))
            }
            Part::Graph => {
                if !self.known.has_waits() {
                    self.known.set_graph(WaitGraph::default());
                    self.known.set_trouble(Part::Graph, None);
                    return Ok(None);
                }
                let graph = self.client.wait_graph().await?;
                let looks = graph.waits.len();
                let again = if graph.cycles.is_empty() { 1 } else { 2 };
                self.known.set_graph(graph);
                Ok(Some((self.after_list() + pace::after_looks(looks)) * again))
            }
            Part::Others => {
                let now = Instant::now();
                let locks = self.known.next_to_see(self.last_seen.as_ref(), MOST, now, OTHERS_EVERY);
                let Some(last) = locks.last() else {
                    self.known.set_trouble(Part::Others, None);
                    return Ok(None);
                };
                self.last_seen = Some(last.clone());
                self.look(&locks).await?;
                Ok(Some(pace::after_looks(locks.len())))
            }
        }
    }

    fn after_list(&self) -> Duration {
        let (sessions, locks) = self.known.size();
        pace::after_list(sessions, locks)
    }

    async fn look(&mut self, locks: &[Lock]) -> Result<(), InspectError> {
        let found = self.client.inspect_all(locks.iter().cloned()).await?;
        self.known.set_locks(locks, found, Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    const LIMIT: Duration = Duration::from_secs(20);

    async fn client(label: &str) -> Client {
        Client::builder("memory:fleet-reader").label(label).connect().await.expect("it opens")
    }

    async fn until(fleet: &mut FleetWatch, what: &str, is: impl Fn(&Fleet) -> bool) -> Arc<Fleet> {
        let found = async {
            loop {
                let known = fleet.fleet();
                if is(&known) {
                    return known;
                }
                fleet.changed().await;
            }
        };
        timeout(LIMIT, found).await.unwrap_or_else(|_| panic!("{what}: {:?}", fleet.fleet()))
    }

    #[tokio::test]
    async fn what_sessions_report_is_looked_at_and_forgotten_when_it_is_over() {
        let (holder, waiter) = (client("holder").await, client("waiter").await);
        let mut fleet = watch(client("reader").await).await.expect("the store answers");
        let guard = holder.mutex("a").expect("a name").acquire().await.expect("it is free");
        let seen = |fleet: &Fleet| fleet.locks.iter().any(|lock| lock.status.is_some());
        let known = until(&mut fleet, "the lock is seen", seen).await;
        let lock = &known.locks[0];
        assert_eq!(lock.lock.name.as_str(), "a");
        assert_eq!(lock.session.as_ref().map(|session| session.id), Some(holder.session_id()));
        assert!(lock.is_held() && known.totals.held == 1 && known.totals.alive >= 2, "{known:?}");

        let lock = waiter.mutex("a").expect("a name");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let known = until(&mut fleet, "it waits", |fleet| !fleet.graph.waits.is_empty()).await;
        assert_eq!((known.locks[0].waiting, known.totals.waiting), (1, 1));
        assert!(known.locks[0].waiting_since.is_some());

        fleet.look_at([known.locks[0].lock.clone()]);
        guard.release().await.expect("it is held");
        let other = waiting.await.expect("no panic").expect("it is free");
        let changed = |fleet: &Fleet| fleet.locks.iter().any(|lock| lock.changes_per_second > Some(0.0));
        until(&mut fleet, "the change is counted", changed).await;
        other.release().await.expect("it is held");
        fleet.look_at([]);
        until(&mut fleet, "it is forgotten", |fleet| fleet.locks.is_empty()).await;
        until(&mut fleet, "nothing waits", |fleet| fleet.graph.waits.is_empty()).await;
    }

    #[test]
    fn an_empty_screen_is_never_due() {
        let now = Instant::now();
        let mut due = Due([now + LIST_EVERY; Part::COUNT]);
        due.set(Part::Screen, now);
        assert_eq!(due.first(false), (Part::List, now + LIST_EVERY));
        assert_eq!(due.first(true), (Part::Screen, now));
    }

    #[tokio::test]
    async fn the_trouble_of_a_screen_ends_with_the_screen() {
        let (mut reader, _fleet, _wishes) = Reader::new(client("reader").await, Known::default());
        let mut due = Due([Instant::now(); Part::COUNT]);
        reader.known.set_trouble(Part::Screen, Some("no answer".to_owned()));
        reader.show(&[Lock::mutex(leasehold::LockName::new("a").expect("a name"))], &mut due);
        assert!(reader.known.fleet().trouble.is_some(), "they are not read yet");
        reader.show(&[], &mut due);
        assert_eq!(reader.known.fleet().trouble, None);
    }

    /// A thousand sessions with twenty thousand locks, a full screen, and waits: what a part costs is more than its interval.
    #[test]
    fn each_part_of_a_large_fleet_has_its_turn() {
        let start = Instant::now();
        let pause = |part| match part {
            Part::List => pace::after_list(1_000, 20_000),
            Part::Screen => pace::after_looks(MOST_ON_SCREEN),
            Part::Graph => (pace::after_list(1_000, 20_000) + pace::after_looks(4_000)) * 2,
            Part::Others => pace::after_looks(MOST),
        };
        let all: Duration = Part::ALL.into_iter().map(pause).sum();
        let (mut due, mut now) = (Due([start; Part::COUNT]), start);
        let mut last = [start; Part::COUNT];
        let mut longest = [Duration::ZERO; Part::COUNT];
        while now < start + Duration::from_secs(3_600) {
            let (part, at) = due.first(true);
            now = now.max(at);
            longest[part as usize] = longest[part as usize].max(now - last[part as usize]);
            last[part as usize] = now;
            due.set(part, next_turn(part, now, pause(part)));
            now += pause(part);
        }
        for part in Part::ALL {
            let apart = longest[part as usize].max(now - last[part as usize]);
            assert!(apart <= all * 2, "{part:?}: {apart:?} of {all:?}");
        }
    }

    #[tokio::test]
    async fn a_paused_reader_reads_nothing() {
        let mut fleet = watch(client("reader").await).await.expect("the store answers");
        fleet.changed().await;
        fleet.pause(true);
        // The request that is under way ends.
        drop(timeout(LIST_EVERY, fleet.changed()).await);
        let before = fleet.fleet().read_at;
        assert!(timeout(LIST_EVERY * 2, fleet.changed()).await.is_err());
        assert_eq!(fleet.fleet().read_at, before);
        fleet.pause(false);
        timeout(LIMIT, fleet.changed()).await.expect("it goes on");
    }
}
