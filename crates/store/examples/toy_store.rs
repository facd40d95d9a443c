//! A small store, and the conformance suite that it passes.
//!
//! Run it with `cargo run -p leasehold-store --example toy_store`.
//!
//! The model of `leasehold_store::core` decides what each operation does. A store provides the rest: it keeps the
//! state, executes one operation at a time by one clock, and delivers the notifications. This one keeps the state in
//! a map. One that outlives its process would read it from a database and write it back, in one transaction.

use futures_util::future::{BoxFuture, ready};
use leasehold_store::core::model::{LockState, Sessions};
use leasehold_store::core::{KeyError, Kind, Partition, SessionId};
use leasehold_store::{
    Capabilities, Fault, Lock, NotificationSink, Op, Outcome, Reply, SessionOp, SessionReply,
    SessionTracking, Store, clock,
};
use leasehold_testkit::conformance::{StoreUnderTest, all_cases};
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks in a map. Clones are handles to the same locks.
#[derive(Clone, Default)]
pub(crate) struct ToyStore {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    locks: HashMap<Lock, LockState>,
    sessions: Sessions,
    /// Where each session receives its notifications.
    mailboxes: HashMap<SessionId, Arc<dyn NotificationSink>>,
    /// By how much the tests have moved the clock forward.
    advanced: Duration,
}

impl ToyStore {
    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can happen while this mutex is locked: the model has none.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, lock: &Lock, op: &Op) -> Reply {
        let mut state = self.state();
        let now_us = state.now_us();
        let State { locks, sessions, mailboxes, .. } = &mut *state;
        // Locks of all kinds share one name space: a lock of another kind with this name excludes this one.
        let others = Kind::ALL.into_iter().filter(|kind| *kind != lock.kind);
        let mut others = others.map(|kind| Lock { kind, name: lock.name.clone() });
        let other = others.find_map(|other| locks.get_mut(&other)?.value_at(now_us).cloned());

        let locked = locks.entry(lock.clone()).or_insert_with(|| LockState::new(lock.kind));
        let alive = |session| sessions.status(now_us / 1000, session);
        let (reply, notifications) = match other {
            None => locked.apply(now_us, op, &alive),
            Some(other) => locked.apply_to_occupied_key(&other, now_us, op, &alive),
        };
        // Delivered under the mutex, so that each session receives its notifications in order.
        for notification in notifications {
            if let Some(mailbox) = mailboxes.get(&notification.to()) {
                mailbox.deliver(notification);
            }
        }
        reply
    }
}

impl State {
    fn now_us(&self) -> u64 {
        (clock::boottime() + self.advanced).as_micros()
    }
}

impl fmt::Debug for ToyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToyStore").finish_non_exhaustive()
    }
}

impl Store for ToyStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, _within: Duration) -> BoxFuture<'a, Outcome> {
        // Runs when it is polled. Nothing in it can fail, so no outcome is unknown.
        Box::pin(async move { Outcome::Done(self.apply(lock, op)) })
    }

    fn execute_session<'a>(
        &'a self,
        _partition: Partition,
        op: &'a SessionOp,
        _within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        Box::pin(async move {
            let mut state = self.state();
            let now_ms = state.now_us() / 1000;
            Outcome::Done(state.sessions.apply(now_ms, op))
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().sessions(SessionTracking::ByHeartbeat)
    }

    fn open_mailbox(
        &self,
        _partition: Partition,
        session: SessionId,
        mailbox: Arc<dyn NotificationSink>,
        _within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.state().mailboxes.insert(session, mailbox);
        Box::pin(ready(Ok(())))
    }

    fn close_mailbox(&self, _partition: Partition, session: SessionId) {
        self.state().mailboxes.remove(&session);
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        Ok(()) // A map takes any name.
    }
}

impl StoreUnderTest for ToyStore {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(ready(self.fork()))
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        self.state().advanced += by;
        Some(Box::pin(ready(())))
    }
}

/// Runs the conformance suite, and returns the cases that failed.
pub(crate) fn failures() -> Vec<String> {
    let mut failed = Vec::new();
    for kind in Kind::ALL {
        for case in all_cases().iter().filter(|case| case.applies_to(kind)) {
            let name = format!("{}::{}", kind.as_str(), case.name);
            // A failed case panics, with a message that says what was expected.
            let passed = catch_unwind(AssertUnwindSafe(|| case.run(kind, ToyStore::default()))).is_ok();
            println!("{name}: {}", if passed { "ok" } else { "FAILED" });
            if !passed {
                failed.push(name);
            }
        }
    }
    failed
}

/// Exits with 1 if a case failed.
fn main() -> ExitCode {
    let failed = failures();
    println!("\n{} failed", failed.len());
    for case in &failed {
        println!("  {case}");
    }
    ExitCode::from(u8::from(!failed.is_empty()))
}
