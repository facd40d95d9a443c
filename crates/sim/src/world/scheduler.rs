//! The scheduler: virtual time, and tasks of hosts that stop and crash.
//!
//! Everything happens on one thread, in an order drawn from the seed. A random one of the runnable tasks runs; if
//! there is none, time advances to the next event.
//!
//! 1. Events of a stopped host wait until it resumes, in order. Its clock keeps running.
//! 2. Events of a crashed host are discarded.

use crate::world::time::{Clock, Instant};
use futures_util::future::BoxFuture;
use leasehold_testkit::Random;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// One process, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u32);

pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub(crate) struct Scheduler {
    state: Arc<Mutex<State>>,
    woken: Arc<Mutex<Vec<usize>>>,
}

struct State {
    now: Instant,
    random: Random,
    hosts: Vec<Host>,
    tasks: Vec<Option<Task>>,
    ready: Vec<usize>,
    agenda: BinaryHeap<Reverse<(Instant, u64)>>,
    due: BTreeMap<u64, Due>,
    last_key: u64,
}

struct Host {
    clock: Clock,
    is_stopped: bool,
    is_dead: bool,
    /// Events that wait until the host resumes (1).
    inbox: VecDeque<Job>,
    stalled: Vec<usize>,
    live_tasks: u32,
}

struct Task {
    host: HostId,
    /// Not here while it is polled.
    future: Option<BoxFuture<'static, ()>>,
    handle: Arc<TaskWaker>,
    waker: Waker,
}

enum Due {
    Timer(Waker),
    Job(Option<HostId>, Job),
}

/// Wakes a task.
struct TaskWaker {
    task: usize,
    is_woken: AtomicBool,
    woken: Arc<Mutex<Vec<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::Relaxed) {
            lock(&self.woken).push(self.task);
        }
    }
}

/// A task to be polled, with its index.
struct ReadyTask {
    at: usize,
    host: HostId,
    future: BoxFuture<'static, ()>,
    waker: Waker,
}

/// The next event.
enum NextEvent {
    /// This job is due.
    Run(Job),
    /// A timer fired, or the event was deferred.
    Done,
    /// Nothing before the limit.
    Nothing,
}

/// The result of a step.
pub(crate) enum StepResult {
    /// A task of this host ran.
    Task(HostId),
    /// Something else happened, perhaps later than before.
    Job,
    /// Nothing is due before the limit.
    Nothing,
}

impl Scheduler {
    pub(crate) fn new(random: Random) -> Self {
        let state = State {
            now: Instant::default(),
            random,
            hosts: Vec::new(),
            tasks: Vec::new(),
            ready: Vec::new(),
            agenda: BinaryHeap::new(),
            due: BTreeMap::new(),
            last_key: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), woken: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn now(&self) -> Instant {
        self.state().now
    }

    pub(crate) fn add_host(&self, clock: Clock) -> HostId {
        let mut state = self.state();
        state.hosts.push(Host {
            clock,
            is_stopped: false,
            is_dead: false,
            inbox: VecDeque::new(),
            stalled: Vec::new(),
            live_tasks: 0,
        });
        HostId(u32::try_from(state.hosts.len() - 1).unwrap_or(u32::MAX))
    }

    pub(crate) fn clock(&self, host: HostId) -> Clock {
        self.state().host(host).clock
    }

    pub(crate) fn is_dead(&self, host: HostId) -> bool {
        self.state().host(host).is_dead
    }

    pub(crate) fn is_stopped(&self, host: HostId) -> bool {
        self.state().host(host).is_stopped
    }

    /// How many tasks of a host have not ended.
    pub(crate) fn live_tasks(&self, host: HostId) -> u32 {
        self.state().host(host).live_tasks
    }

    pub(crate) fn spawn(&self, host: HostId, future: BoxFuture<'static, ()>) {
        let mut state = self.state();
        if state.host(host).is_dead {
            return;
        }
        state.host(host).live_tasks += 1;
        let task = state.tasks.len();
        let handle = Arc::new(TaskWaker { task, is_woken: AtomicBool::new(true), woken: self.woken.clone() });
        let waker = Waker::from(handle.clone());
        state.tasks.push(Some(Task { host, future: Some(future), handle, waker }));
        drop(state);
        lock(&self.woken).push(task);
    }

    /// Schedules a job. A job of a host runs only while the host runs (1, 2).
    pub(crate) fn at(&self, at: Instant, host: Option<HostId>, job: impl FnOnce() + Send + 'static) {
        self.state().schedule(at, Due::Job(host, Box::new(job)));
    }

    pub(crate) fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep { scheduler: self.clone(), at, key: None }
    }

    pub(crate) fn stop(&self, host: HostId) {
        self.state().host(host).is_stopped = true;
    }

    pub(crate) fn resume(&self, host: HostId) {
        let mut state = self.state();
        let host = state.host(host);
        host.is_stopped = false;
        let (inbox, mut stalled) = (mem::take(&mut host.inbox), mem::take(&mut host.stalled));
        state.ready.append(&mut stalled);
        drop(state);
        for job in inbox {
            job();
        }
    }

    /// Ends a host. None of its tasks runs again (2).
    pub(crate) fn kill(&self, host: HostId) {
        let mut state = self.state();
        let dead = state.host(host);
        dead.is_dead = true;
        dead.live_tasks = 0;
        let inbox = mem::take(&mut dead.inbox);
        let mut tasks = Vec::new();
        for task in &mut state.tasks {
            tasks.extend(task.take_if(|task| task.host == host));
        }
        // Their destructors run as part of the crashed host.
        drop(state);
        drop((inbox, tasks));
    }

    /// Drops all tasks and events, so that nothing outlives the run.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        let mut inboxes = Vec::new();
        for host in &mut state.hosts {
            host.is_dead = true;
            inboxes.push(mem::take(&mut host.inbox));
        }
        let rest = (mem::take(&mut state.tasks), mem::take(&mut state.due), inboxes);
        state.agenda.clear();
        drop(state);
        drop(rest);
    }

    /// Runs one task, or advances time to the next event up to `limit`.
    pub(crate) fn step(&self, limit: Instant) -> StepResult {
        if let Some(ReadyTask { at, host, mut future, waker }) = self.pick() {
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            self.put_back(at, future, polled.is_ready());
            return StepResult::Task(host);
        }
        match self.next_due(limit) {
            NextEvent::Run(job) => {
                job();
                StepResult::Job
            }
            NextEvent::Done => StepResult::Job,
            NextEvent::Nothing => StepResult::Nothing,
        }
    }

    fn pick(&self) -> Option<ReadyTask> {
        let mut state = self.state();
        state.ready.append(&mut lock(&self.woken));
        while !state.ready.is_empty() {
            let index = usize::try_from(state.random.below(state.ready.len() as u64)).unwrap_or(0);
            let at = state.ready.swap_remove(index);
            let Some(task) = state.tasks[at].as_mut() else { continue };
            let host = task.host;
            if state.host(host).is_stopped {
                state.host(host).stalled.push(at);
                continue;
            }
            let Some(task) = state.tasks[at].as_mut() else { continue };
            task.handle.is_woken.store(false, Ordering::Relaxed);
            if let Some(future) = task.future.take() {
                return Some(ReadyTask { at, host, future, waker: task.waker.clone() });
            }
        }
        None
    }

    fn put_back(&self, at: usize, future: BoxFuture<'static, ()>, is_over: bool) {
        let mut state = self.state();
        // If the host crashed in the meantime, the task is not put back.
        let finished = match &mut state.tasks[at] {
            Some(task) if is_over => {
                let host = task.host;
                state.host(host).live_tasks -= 1;
                state.tasks[at] = None;
                Some(future)
            }
            Some(task) => {
                task.future = Some(future);
                None
            }
            None => Some(future),
        };
        drop(state);
        drop(finished);
    }

    /// Advances time to the next event.
    fn next_due(&self, limit: Instant) -> NextEvent {
        let mut state = self.state();
        let Some(Reverse((at, key))) = state.agenda.peek().copied().filter(|Reverse((at, _))| *at <= limit)
        else {
            return NextEvent::Nothing;
        };
        state.agenda.pop();
        let Some(due) = state.due.remove(&key) else { return NextEvent::Done };
        state.now = state.now.max(at);
        let (host, job) = match due {
            Due::Timer(waker) => {
                waker.wake();
                return NextEvent::Done;
            }
            Due::Job(host, job) => (host, job),
        };
        match host.map(|host| state.host(host)) {
            Some(host) if host.is_dead => {
                drop(state);
                drop(job);
                NextEvent::Done
            }
            Some(host) if host.is_stopped => {
                host.inbox.push_back(job);
                NextEvent::Done
            }
            _ => NextEvent::Run(job),
        }
    }

    /// Advances time to `limit`. Nothing may be due before.
    pub(crate) fn advance(&self, limit: Instant) {
        let mut state = self.state();
        state.now = state.now.max(limit);
    }
}

impl State {
    fn host(&mut self, host: HostId) -> &mut Host {
        &mut self.hosts[host.0 as usize]
    }

    fn schedule(&mut self, at: Instant, due: Due) -> u64 {
        self.last_key += 1;
        self.agenda.push(Reverse((at, self.last_key)));
        self.due.insert(self.last_key, due);
        self.last_key
    }
}

/// Sleeps in virtual time.
pub(crate) struct Sleep {
    scheduler: Scheduler,
    at: Instant,
    key: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let scheduler = self.scheduler.clone();
        let mut state = scheduler.state();
        if state.now >= self.at {
            return Poll::Ready(());
        }
        match self.key.and_then(|key| state.due.get_mut(&key)) {
            Some(due) => *due = Due::Timer(cx.waker().clone()),
            None => self.key = Some(state.schedule(self.at, Due::Timer(cx.waker().clone()))),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let timer = self.scheduler.state().due.remove(&key);
            drop(timer);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A run ends at its first panic, so what a panic left inconsistent is not used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
