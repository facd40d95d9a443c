//! Delays the end of the process until what dropped guards held is released.
//!
//! A guard that is dropped is released by the keeper, on the keeper's own thread. A program that ends right afterwards would end
//! that thread before, and its lock would stay taken until the lease or the session is over.
//!
//! 1. A forked process has the statics of the one it was forked from, but none of its threads. So each keeper counts for the
//!    process that has started it alone, and a lock that another thread held during the fork is not awaited for ever.
//! 2. Nothing here panics into the C library, or runs the destructors of a store.

use super::Shared;
use leasehold_store::sync::{Mutex, MutexGuard};
use std::ffi::c_int;
use std::mem::{ManuallyDrop, forget};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, TryLockError, Weak};
use std::time::{Duration, Instant};

/// How long the end of the process is delayed at most: a connection to a distant server, and the release.
const LONGEST: Duration = Duration::from_secs(1);
/// How long the list of keepers may be in use: its users do not wait with it (1).
const LONGEST_USE: Duration = Duration::from_millis(100);
/// The pause between two looks. At the end of a process, std supports little more than looking again.
const PAUSE: Duration = Duration::from_millis(1);

/// All keepers, with the ids of the processes that have started them (1).
static KEEPERS: Mutex<Keepers> = Mutex::new(Vec::new());

type Keepers = Vec<(u32, Weak<Shared>)>;

/// Has the end of the process wait for a keeper's releases.
pub(super) fn register(keeper: &Arc<Shared>) {
    /// The process that has registered the function, or has inherited it.
    static REGISTERED_BY: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    let Some(mut keepers) = lock_keepers() else {
        tracing::debug!(
            "the end of the process will not wait for the releases of this client: it was forked from one that was just \
             connecting another"
        );
        return;
    };
    keepers.retain(|(started_by, keeper)| *started_by == process && keeper.strong_count() > 0);
    keepers.push((process, Arc::downgrade(keeper)));
    drop(keepers);
    // A second call in a forked process finds nothing left to wait for.
    if REGISTERED_BY.swap(process, Ordering::AcqRel) != process {
        call_at_exit();
    }
}

/// The list of keepers; `None` if the thread that uses it does not exist in this process (1).
fn lock_keepers() -> Option<MutexGuard<'static, Keepers>> {
    let end = Instant::now() + LONGEST_USE;
    loop {
        match KEEPERS.try_lock() {
            Ok(keepers) => return Some(keepers),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

/// Has the process call [`wait_for_releases`] when it ends by returning from `main` or by `exit`.
fn call_at_exit() {
    extern "C" fn at_exit() {
        // The message of a panic may have a destructor, too.
        forget(catch_unwind(wait_for_releases));
    }
    #[allow(
        unsafe_code,
        reason = "std has no hook for the end of a process; this is the one of the C standard library"
    )]
    unsafe extern "C" {
        safe fn atexit(callback: extern "C" fn()) -> c_int;
    }
    if atexit(at_exit) != 0 {
        tracing::debug!(
            "the end of the process will not wait for releases: too many functions are registered for it"
        );
    }
}

/// Waits until no keeper of this process releases anything, for a limited time.
fn wait_for_releases() {
    let end = Instant::now() + LONGEST;
    let process = std::process::id();
    let Some(keepers) = lock_keepers() else { return };
    let own = keepers.iter().filter(|(started_by, _)| *started_by == process);
    // Each may be the last reference, now or by the end of the wait (2).
    let own: Vec<_> = own.filter_map(|(_, keeper)| keeper.upgrade()).map(ManuallyDrop::new).collect();
    drop(keepers);
    for keeper in &own {
        keeper.process_ends.cancel();
    }
    while Instant::now() < end && own.iter().any(|keeper| is_releasing(keeper)) {
        std::thread::sleep(PAUSE);
    }
}

fn is_releasing(keeper: &Shared) -> bool {
    match keeper.state.try_lock() {
        Ok(state) => !state.outstanding.is_empty(),
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Poisoned(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a process that was forked while another thread used the list.
    #[test]
    fn a_list_that_stays_in_use_is_not_awaited_for_ever() {
        let held = KEEPERS.lock().expect("no thread panics with it");
        let is_given_up = std::thread::spawn(|| lock_keepers().is_none()).join().expect("no panic");
        drop(held);
        assert!(is_given_up && lock_keepers().is_some());
    }
}
