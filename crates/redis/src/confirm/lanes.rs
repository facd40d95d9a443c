//! The connections to one server that carry requests for confirmation.
//!
//! 1. A confirmation by replicas takes a round trip or two, so one connection carries all, one after the other.
//! 2. A sync of the append-only file can take a second (`appendfsync everysec`), in which its connection is blocked. So requests
//!    that arrive meanwhile are sent together (databases call it group commit), on another connection, after a pause in
//!    which others join them. A request waits for that pause and for one sync, however many there are. With one connection it
//!    would wait for two.

use super::super::config::RedisConfig;
use super::super::conn::link::{Link, LinkConnection, NoReply};
use super::super::conn::mailbox::Mailboxes;
use super::request::{self, Replies, Request, Required};
use leasehold_store::{Fault, FaultKind, Phase};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

/// How many connections wait for syncs at a time (2).
const MAX_LANES: usize = 4;
/// Between two groups that wait for one sync (2): with `everysec`, all connections together last a second.
const PAUSE: Duration = Duration::from_millis(300);

pub(super) struct Lanes {
    /// Each connects when it is first used.
    links: Vec<Arc<Link>>,
    required: Required,
    queue: Mutex<Queue>,
    /// A connection has become free.
    freed: Notify,
}

struct Queue {
    /// What is sent next.
    pending: Vec<Pending>,
    /// The connections that are not in use; the one to use next is the last.
    free: Vec<Arc<Link>>,
    last_sent: Option<Instant>,
    /// Whether a task is about to send what is pending.
    is_scheduled: bool,
}

struct Pending {
    request: Arc<Request>,
    how: How,
    answer: oneshot::Sender<Result<Answer, NoAnswer>>,
}

/// How a request is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// Whether it follows an ASK redirect.
    pub(super) asking: bool,
    /// Until when it waits for a connection.
    pub(super) connected_until: Instant,
}

/// The replies to a request, and where they come from.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) replies: Replies,
    pub(super) link: Arc<Link>,
    pub(super) connection: LinkConnection,
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(super) enum NoAnswer {
    /// There is no connection.
    Unconnected(Fault),
    /// The connection broke.
    Broken(Fault),
    /// It did not arrive before the deadline.
    TimedOut,
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").field("links", &self.links).finish_non_exhaustive()
    }
}

impl Lanes {
    pub(super) fn new(config: &RedisConfig, required: Required) -> Self {
        let count = if required.durable { MAX_LANES } else { 1 };
        let link = || {
            Arc::new(Link::new(config.for_confirmations(required.durable), Mailboxes::with_handler(|_| {})))
        };
        let links: Vec<_> = (0..count).map(|_| link()).collect();
        let queue = Queue { pending: Vec::new(), free: links.clone(), last_sent: None, is_scheduled: false };
        Self { links, required, queue: Mutex::new(queue), freed: Notify::new() }
    }

    /// Sends a request, and returns its answer. Cancel safety: a request that was not sent yet is not sent.
    pub(super) async fn send(self: &Arc<Self>, request: &Arc<Request>, how: How) -> Result<Answer, NoAnswer> {
        if let [link] = &self.links[..] {
            let answers = self.send_on(link, &[request], how, request.deadline).await?;
            return answers.into_iter().next().ok_or(NoAnswer::TimedOut);
        }
        let (sender, answer) = oneshot::channel();
        self.enqueue(Pending { request: Arc::clone(request), how, answer: sender });
        match timeout_at(request.deadline, answer).await {
            Ok(Ok(answered)) => answered,
            // The task that sent it has ended with its runtime.
            Ok(Err(_)) => Err(self.broken(io::Error::from(io::ErrorKind::BrokenPipe))),
            Err(_) => Err(NoAnswer::TimedOut),
        }
    }

    /// The server's name.
    pub(super) fn node(&self) -> Arc<str> {
        self.links.first().map(|link| Arc::clone(link.node())).unwrap_or_default()
    }

    fn broken(&self, error: impl std::error::Error + Send + Sync + 'static) -> NoAnswer {
        NoAnswer::Broken(Fault::new(FaultKind::Disconnected, Phase::Reply, self.node()).with_source(error))
    }

    async fn send_on(
        &self,
        link: &Arc<Link>,
        requests: &[&Arc<Request>],
        how: How,
        deadline: Instant,
    ) -> Result<Vec<Answer>, NoAnswer> {
        let connected = link.connection(how.connected_until).await;
        let mut connection = connected.map_err(NoAnswer::Unconnected)?;
        let plain: Vec<&Request> = requests.iter().map(|request| &***request).collect();
        let sent = request::send(link, &mut connection, (self.required, how.asking), &plain, deadline).await;
        let replies = sent.map_err(|failed| match failed {
            NoReply::Broken(error) | NoReply::Ended(error) => self.broken(error),
            // Nothing is lent to a link.
            NoReply::NotSent(_) | NoReply::TimedOut => NoAnswer::TimedOut,
        })?;
        let answer = |replies| Answer { replies, link: Arc::clone(link), connection: connection.clone() };
        Ok(replies.into_iter().map(answer).collect())
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code panics while it holds this lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(self: &Arc<Self>, pending: Pending) {
        let mut queue = self.queue();
        queue.pending.push(pending);
        if !queue.is_scheduled {
            queue.is_scheduled = true;
            let scheduled = Scheduled(Arc::clone(self));
            drop(queue);
            tokio::spawn(scheduled.run());
        }
    }

    /// Takes what is pending, and a connection for it. `None` if nothing is.
    async fn next(self: &Arc<Self>) -> Option<(InUse, Vec<Pending>)> {
        loop {
            let earliest = {
                let mut queue = self.queue();
                queue.pending.retain(|pending| !pending.answer.is_closed());
                let asking = queue.pending.first()?.how.asking;
                let is_idle = queue.free.len() == self.links.len();
                let now = Instant::now();
                let earliest = queue.last_sent.filter(|_| !is_idle).map_or(now, |sent| sent + PAUSE);
                if earliest > now {
                    Some(earliest).filter(|_| !queue.free.is_empty())
                } else if let Some(link) = queue.free.pop() {
                    queue.last_sent = Some(now);
                    let all = std::mem::take(&mut queue.pending);
                    let (group, rest) = all.into_iter().partition(|pending| pending.how.asking == asking);
                    queue.pending = rest;
                    return Some((InUse { lanes: Arc::clone(self), link: Some(link) }, group));
                } else {
                    None
                }
            };
            let pause_ends = async {
                match earliest {
                    Some(earliest) => sleep_until(earliest).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.freed.notified() => {}
                () = pause_ends => {}
            }
        }
    }
}

/// The task that sends what is pending. If its runtime ends, what is pending gets no answer.
struct Scheduled(Arc<Lanes>);

impl Scheduled {
    async fn run(self) {
        while let Some((lane, group)) = self.0.next().await {
            tokio::spawn(lane.send(group));
        }
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.is_scheduled = false;
        // Nothing, unless the runtime ends.
        let unsent = std::mem::take(&mut queue.pending);
        drop(queue);
        drop(unsent);
    }
}

/// A connection in use.
struct InUse {
    lanes: Arc<Lanes>,
    /// `None` once it is free.
    link: Option<Arc<Link>>,
}

impl InUse {
    async fn send(self, group: Vec<Pending>) {
        let Some(link) = &self.link else { return };
        let requests: Vec<_> = group.iter().map(|pending| &pending.request).collect();
        let last = |of: &dyn Fn(&Pending) -> Instant| group.iter().map(of).max();
        let (Some(deadline), Some(connected_until), Some(first)) = (
            last(&|pending| pending.request.deadline),
            last(&|pending| pending.how.connected_until),
            group.first(),
        ) else {
            return;
        };
        let how = How { asking: first.how.asking, connected_until };
        let answered = self.lanes.send_on(link, &requests, how, deadline).await;
        drop(requests);
        match answered {
            Ok(answers) => {
                for (pending, answer) in group.into_iter().zip(answers) {
                    // Its caller may have given up.
                    pending.answer.send(Ok(answer)).ok();
                }
            }
            Err(failed) => {
                for pending in group {
                    pending.answer.send(Err(failed.clone())).ok();
                }
            }
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.lanes.queue().free.extend(self.link.take());
        self.lanes.freed.notify_one();
    }
}
