//! What a worker says: events, and questions about the guarded counters.

use crate::output::exit::Exit;
use crate::verify::clock::RunClock;
use crate::verify::protocol::{FromWorker, line};
use leasehold_history::{Event, What};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot;

/// The calls of each process have numbers of their own.
const CALLS_PER_PROCESS: u64 = 100_000_000;

/// Writes lines to the coordinator. A line is written at once and as a whole: it is shorter than a pipe's atomic writes.
#[derive(Debug)]
pub(super) struct Reporter {
    clock: RunClock,
    process: u32,
    calls: AtomicU64,
    /// The calls that wait for the value of a counter.
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<u64>>>,
}

impl Reporter {
    pub(super) fn new(clock: RunClock, process: u32) -> Self {
        let first = u64::from(process) * CALLS_PER_PROCESS;
        Self { clock, process, calls: AtomicU64::new(first), waiting: Mutex::default() }
    }

    pub(super) const fn clock(&self) -> RunClock {
        self.clock
    }

    pub(super) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Reports what happens now.
    pub(super) fn event(&self, what: What) {
        self.send(&FromWorker::Event(Event { at_us: self.clock.now_us(), process: self.process, what }));
    }

    #[allow(clippy::unused_self, reason = "a reporter is what may write there")]
    pub(super) fn send(&self, message: &FromWorker) {
        let written = io::stdout().lock().write_all(line(message).as_bytes());
        if written.is_err() {
            // The coordinator is gone.
            std::process::exit(i32::from(Exit::UNAVAILABLE.status()));
        }
    }

    /// Reads the guarded counter of a lock.
    ///
    /// Cancel safety: the answer is dropped when it comes.
    pub(super) async fn read(&self, call: u64, lock: &str) -> Option<u64> {
        self.ask(call, &FromWorker::Read { call, lock: lock.to_owned() }).await
    }

    /// Writes the value of the guarded counter that follows the one that was read, and waits until the write has arrived.
    ///
    /// Cancel safety: the write arrives all the same.
    pub(super) async fn write(&self, call: u64, lock: &str, fence: u64, read: u64) {
        self.ask(call, &FromWorker::Write { call, lock: lock.to_owned(), fence, read }).await;
    }

    async fn ask(&self, call: u64, question: &FromWorker) -> Option<u64> {
        let (sender, receiver) = oneshot::channel();
        self.waiting().insert(call, sender);
        self.send(question);
        receiver.await.ok()
    }

    /// Passes the answer to a question about a counter on.
    pub(super) fn answer(&self, call: u64, value: u64) {
        if let Some(sender) = self.waiting().remove(&call) {
            let _ = sender.send(value);
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, oneshot::Sender<u64>>> {
        // No code panics while it holds this lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
