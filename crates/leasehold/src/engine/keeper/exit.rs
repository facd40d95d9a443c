//! Delays the end of the process until what dropped guards held is released.
//!
//! A guard that is dropped is released by the keeper, on the keeper's own thread. A program that ends right afterwards would end
//! that thread before, and its lock would stay taken until the lease or the session is over.

use super::Shared;
use leasehold_store::sync::Mutex;
use std::ffi::c_int;
use std::sync::{Arc, Once, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

/// How long the end of the process is delayed at most: a connection to a distant server, and the release.
const LONGEST: Duration = Duration::from_secs(1);
/// The pause between two looks. At the end of a process, std supports little more than looking again.
const PAUSE: Duration = Duration::from_millis(1);

/// All keepers of the process.
static KEEPERS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Has the end of the process wait for a keeper's releases.
pub(super) fn register(keeper: &Arc<Shared>) {
    static AT_EXIT: Once = Once::new();
    let mut keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
    keepers.retain(|keeper| keeper.strong_count() > 0);
    keepers.push(Arc::downgrade(keeper));
    drop(keepers);
    AT_EXIT.call_once(|| call_at_exit(std::process::id()));
}

/// Has the process `pid` call [`wait_for_releases`] when it ends by returning from `main` or by `exit`.
fn call_at_exit(pid: u32) {
    /// A process that was forked from this one has no keepers.
    static PROCESS: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    extern "C" fn at_exit() {
        if PROCESS.get() == Some(&std::process::id()) {
            wait_for_releases();
        }
    }
    #[allow(
        unsafe_code,
        reason = "std has no hook for the end of a process; this is the one of the C standard library"
    )]
    unsafe extern "C" {
        safe fn atexit(callback: extern "C" fn()) -> c_int;
    }
    // It is called here only.
    let _ = PROCESS.set(pid);
    if atexit(at_exit) != 0 {
        tracing::debug!(
            "the end of the process will not wait for releases: too many functions are registered for it"
        );
    }
}

/// Waits until no keeper releases anything, for a limited time. It must not panic.
fn wait_for_releases() {
    let end = Instant::now() + LONGEST;
    let keepers = match KEEPERS.try_lock() {
        Ok(keepers) => keepers.clone(),
        // A thread that begins to use a client releases nothing yet.
        Err(_) => return,
    };
    while Instant::now() < end && keepers.iter().any(is_releasing) {
        std::thread::sleep(PAUSE);
    }
}

fn is_releasing(keeper: &Weak<Shared>) -> bool {
    let Some(keeper) = keeper.upgrade() else { return false };
    match keeper.state.try_lock() {
        Ok(state) => !state.outstanding.is_empty(),
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Poisoned(_)) => false,
    }
}
