//! Leaders and holders that watch, on threads.

use super::{MS, S};
use crate::cases::store::TestStore;
use leasehold::LostReason;
use leasehold::blocking::Error;
use leasehold::error::AcquireError;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;

on_every_store! {
    blocking:
    a_thread_leads_again_until_the_shutdown,
    a_warning_comes_before_the_lease_ends_and_a_loss_is_an_error,
    a_holder_learns_that_another_thread_waits,
}

fn a_thread_leads_again_until_the_shutdown(store: &TestStore) {
    let client = store.blocking_client();
    let operator = store.blocking_client().election("scheduler").unwrap();
    let election = client.election("scheduler").unwrap();
    let (terms, lost) = (AtomicU32::new(0), AtomicU32::new(0));
    let error = election.lead_forever(|leadership| {
        match terms.fetch_add(1, SeqCst) {
            // Deposed: the function notices it and returns.
            0 => {
                let observed = operator.inspect_full().unwrap().observed.expect("a leader");
                operator.force_release(observed).unwrap();
                let loss = leadership.lost_timeout(20 * S).unwrap().expect("deposed");
                assert_eq!(loss.reason, LostReason::ForceReleased);
                lost.fetch_add(1, SeqCst);
            }
            1 => assert_eq!(operator.leader().unwrap().expect("this one").fence, leadership.fencing_token()),
            _ => client.shutdown(5 * S).unwrap(),
        }
    });
    assert!(matches!(error, Error::Failed(AcquireError::Closed)), "{error:?}");
    assert_eq!((terms.into_inner(), lost.into_inner()), (3, 1));
}

fn a_warning_comes_before_the_lease_ends_and_a_loss_is_an_error(store: &TestStore) {
    let client = store.blocking_client();
    let mutex = client.mutex("m").unwrap();
    let guard = mutex.clone().lease(2 * S).acquire().unwrap();
    guard.warn_before(1500 * MS).unwrap();
    assert!(guard.remaining() < 1500 * MS);
    thread::scope(|threads| {
        let warned = threads.spawn(|| guard.warn_before(MS));
        let observed = mutex.inspect_full().unwrap().observed.expect("a holder");
        store.blocking_client().mutex("m").unwrap().force_release(observed).unwrap();
        match warned.join().unwrap() {
            Err(Error::Failed(lost)) => assert_eq!(lost.reason, LostReason::ForceReleased),
            warned => panic!("{warned:?}"),
        }
    });
    assert!(matches!(guard.wanted(), Err(Error::Failed(_))));
    assert!(matches!(guard.wanted_timeout(S), Err(Error::Failed(_))));
}

fn a_holder_learns_that_another_thread_waits(store: &TestStore) {
    let (client, other) = (store.blocking_client(), store.blocking_client());
    let mutex = client.mutex("m").unwrap();
    let guard = mutex.acquire().unwrap();
    assert!(!guard.wanted_timeout(200 * MS).unwrap());
    thread::scope(|threads| {
        let waiting = threads.spawn(|| other.mutex("m").unwrap().acquire_timeout(20 * S).unwrap().release());
        guard.wanted().unwrap();
        assert!(guard.wanted_timeout(20 * S).unwrap());
        guard.release().unwrap();
        waiting.join().unwrap().unwrap();
    });
}
