//! The stream of one page: server-sent events.
//!
//! 1. A message is made when the connection can take one, from the newest state: nothing queues for a slow reader.
//! 2. What has not changed is not sent again.

use crate::board::Board;
use crate::board::charts::unix_ms;
use crate::board::graph_layout::GraphLayout;
use crate::board::lock_page::LockPage;
use crate::board::query::View;
use crate::board::snapshot::{self, ChartsMessage, Content, Head};
use crate::fleet::Fleet;
use crate::lock::any_lock;
use crate::output::printable::printable;
use axum::response::sse::Event;
use futures_util::stream::{Stream, unfold};
use leasehold::LockName;
use leasehold::inspect::WaitGraph;
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};

/// Between two readings of a lock whose page is open.
const LOCK_INTERVAL: Duration = Duration::from_secs(2);

/// The events for a page, without end. `permit` bounds the number of streams.
pub(super) fn events(
    board: Arc<Board>,
    view: View,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let page = Page::new(board, view, permit);
    unfold(page, async |mut page| {
        let event = page.next().await;
        Some((Ok(event), page))
    })
}

/// A page that is open.
struct Page {
    board: Arc<Board>,
    view: View,
    fleet: watch::Receiver<Arc<Fleet>>,
    number: u64,
    /// The next message is not sent before.
    due: Instant,
    /// The last message of each kind, without its time (2).
    last: [String; 3],
    /// How many points the charts had.
    recorded: Option<u64>,
    layout: Option<(Arc<WaitGraph>, GraphLayout)>,
    /// What goes out before the next look.
    ready: VecDeque<Event>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.board.shown.set(self.number, &[]);
    }
}

/// A message, and the time at which it was made: the page shows ages.
#[derive(Serialize)]
struct Message<'a, T> {
    now: u64,
    #[serde(flatten)]
    content: &'a T,
}

impl Page {
    fn new(board: Arc<Board>, view: View, permit: OwnedSemaphorePermit) -> Self {
        let mut fleet = board.fleet.subscribe();
        fleet.mark_changed();
        let number = board.shown.new_stream();
        Self {
            board,
            view,
            fleet,
            number,
            due: Instant::now(),
            last: Default::default(),
            recorded: None,
            layout: None,
            ready: VecDeque::new(),
            _permit: permit,
        }
    }

    /// The next event. The state is looked at only once it is wanted (1).
    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            sleep_until(self.due).await;
            match self.view {
                // The lock is read on its own.
                View::Lock(_) => {}
                // The sender lives as long as the board.
                _ => drop(self.fleet.changed().await),
            }
            self.look().await;
            let pace = match self.view {
                View::Lock(_) => LOCK_INTERVAL.min(self.board.pace * 2),
                _ => self.board.pace,
            };
            self.due = Instant::now() + pace;
        }
    }

    async fn look(&mut self) {
        let fleet = Arc::clone(&self.fleet.borrow_and_update());
        self.push(0, "head", &Head::new(&fleet));
        match self.view.clone() {
            View::Locks(query) => {
                let (rows, shown) = snapshot::locks(&fleet, &query);
                self.board.shown.set(self.number, &shown);
                self.push(1, "content", &Content::Locks(rows));
                self.push_charts(&fleet);
            }
            View::Sessions(query) => {
                self.push(1, "content", &Content::Sessions(snapshot::sessions(&fleet, &query)));
            }
            View::Graph => {
                let layout = match self.layout.take() {
                    Some((graph, layout)) if Arc::ptr_eq(&graph, &fleet.graph) => layout,
                    _ => GraphLayout::new(&fleet.graph),
                };
                self.push(1, "content", &Content::Graph(&layout));
                self.layout = Some((Arc::clone(&fleet.graph), layout));
            }
            View::Lock(name) => self.push_lock(&name).await,
        }
    }

    fn push_charts(&mut self, fleet: &Fleet) {
        let charts = self.board.charts.lock().unwrap_or_else(PoisonError::into_inner);
        if self.recorded == Some(charts.recorded()) {
            return;
        }
        self.recorded = Some(charts.recorded());
        let points = charts.points();
        drop(charts);
        self.push(2, "charts", &ChartsMessage::new(points, fleet));
    }

    async fn push_lock(&mut self, name: &LockName) {
        #[derive(Serialize)]
        struct Failed<'a> {
            name: &'a str,
            failure: String,
        }
        match any_lock::find(&self.board.client, name).await {
            Ok(found) => {
                let page = LockPage::new(name, &found, SystemTime::now());
                self.push(1, "lock", &page);
            }
            Err(failure) => {
                let failed = Failed { name: name.as_str(), failure: printable(&failure.message()) };
                self.push(1, "lock", &failed);
            }
        }
    }

    /// Adds a message, unless it is the same as the last one of its kind (2).
    fn push(&mut self, kind: usize, event: &str, content: &impl Serialize) {
        let text = |content: &_| serde_json::to_string(content).expect("strings, numbers and nulls are JSON");
        let same = text(content);
        if self.last[kind] == same {
            return;
        }
        let message = Message { now: unix_ms(SystemTime::now()), content };
        let message = serde_json::to_string(&message).expect("strings, numbers and nulls are JSON");
        self.ready.push_back(Event::default().event(event).data(message));
        self.last[kind] = same;
    }
}
