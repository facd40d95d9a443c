//! The races, each as a test.

use crate::explore::{explore, failure};
use crate::fixture::{leased, lock, release, watched};
use crate::server::{Flaw, Server};
use leasehold::core::HoldId;
use leasehold::error::{AcquireError, ExtendError, ReleaseError};
use leasehold::{Client, Guard, LostReason, MultiAttempt};
use shuttle::{future, thread};
use std::sync::Arc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// A task that acquires the lock, holds it for a moment, and releases it.
fn visitor(server: &Server, client: &Client) -> future::JoinHandle<Result<(), AcquireError>> {
    let (server, mutex) = (server.clone(), leased(client));
    future::spawn(async move {
        let guard = mutex.acquire().await?;
        future::yield_now().await;
        release(&server, guard).await.expect("no time has passed");
        Ok(())
    })
}

async fn acquire(client: &Client) -> Guard {
    leased(client).acquire().await.expect("the server has no faults")
}

/// Another lock.
async fn another(client: &Client) -> Guard {
    let another = client.mutex("orders/43").expect("a plain name");
    another.acquire().await.expect("the server has no faults")
}

#[test]
fn nothing_is_sent_about_a_hold_after_its_release() {
    explore(async |fixture| {
        let client = fixture.client().await;
        // A fixed lease is extended a moment later, not at once.
        fixture.pass(1, 110 * MS);
        let guard = acquire(&client).await;
        future::yield_now().await;
        fixture.release(guard).await.expect("hardly any time has passed");
    });
}

#[test]
fn nothing_is_sent_about_a_hold_after_its_release_whatever_became_of_it() {
    explore(async |fixture| {
        let client = fixture.client().await;
        fixture.pass(3, 1300 * MS);
        let guard = Arc::new(watched(&client).acquire().await.expect("the server has no faults"));
        let theirs = guard.clone();
        let extender = future::spawn(async move {
            let extended = theirs.extend().await;
            assert!(matches!(extended, Ok(()) | Err(ExtendError::Lost(_))), "{extended:?}");
        });
        let extended = guard.extend().await;
        assert!(matches!(extended, Ok(()) | Err(ExtendError::Lost(_))), "{extended:?}");
        extender.await.expect("the task is not aborted");
        let guard = Arc::into_inner(guard).expect("the other task has ended");
        let released = fixture.release(guard).await;
        assert!(matches!(released, Ok(()) | Err(ReleaseError::Lost(_))), "{released:?}");
    });
}

#[test]
fn a_loss_is_signaled_while_the_hold_is_extended_and_released() {
    explore(async |fixture| {
        let client = fixture.client().await;
        let guard = Arc::new(acquire(&client).await);
        let theirs = guard.clone();
        let waits = future::spawn(async move { theirs.lost().await });
        let next = visitor(&fixture.server, &client);
        let (server, claim) = (fixture.server.clone(), fixture.server.claim_of(&guard));
        let takes = thread::spawn(move || server.end_hold(&lock(), &claim));
        // The loss may be found here or by the keeper; in the end it is signaled.
        let _ = guard.extend().await;
        takes.join().expect("it does not panic");
        let extended = guard.extend().await;
        assert!(matches!(extended, Err(ExtendError::Lost(_))), "{extended:?}");
        assert!(guard.check().is_err(), "what is lost stays lost");
        waits.await.expect("the task is not aborted");
        let guard = Arc::into_inner(guard).expect("the other task has ended");
        let released = fixture.release(guard).await;
        // `Ok` as long as the server only knows that this hold was released.
        assert!(matches!(released, Ok(()) | Err(ReleaseError::Lost(_))), "{released:?}");
        next.await.expect("the task is not aborted").expect("the lock is free");
    });
}

#[test]
fn nothing_is_sent_about_a_lost_hold_after_its_release() {
    explore(async |fixture| {
        let client = fixture.client().await;
        fixture.server.set_flaw(Flaw::EndsExtendedHolds);
        let guard = acquire(&client).await;
        let next = visitor(&fixture.server, &client);
        future::yield_now().await;
        let released = fixture.release(guard).await;
        // `Ok` as long as the server only knows that this hold was released.
        assert!(matches!(released, Ok(()) | Err(ReleaseError::Lost(_))), "{released:?}");
        next.await.expect("the task is not aborted").expect("the lock is free");
    });
}

#[test]
fn a_grant_to_a_leaving_waiter_goes_to_the_next_client() {
    explore(async |fixture| {
        let (holder, leaver, waiter) =
            (fixture.client().await, fixture.client().await, fixture.client().await);
        let guard = acquire(&holder).await;
        let leaves = visitor(&fixture.server, &leaver);
        let waits = visitor(&fixture.server, &waiter);
        let server = fixture.server.clone();
        let releases = future::spawn(async move { release(&server, guard).await });
        leaves.abort();
        releases.await.expect("the task is not aborted").expect("no time has passed");
        waits.await.expect("the task is not aborted").expect("it is granted the lock");
        let _ = leaves.await;
    });
}

#[test]
fn a_grant_to_a_leaving_task_goes_to_the_next_task_of_its_process() {
    explore(async |fixture| {
        let (holder, client) = (fixture.client().await, fixture.client().await);
        let guard = acquire(&holder).await;
        let leaves = visitor(&fixture.server, &client);
        let waits = visitor(&fixture.server, &client);
        let server = fixture.server.clone();
        let releases = future::spawn(async move { release(&server, guard).await });
        leaves.abort();
        releases.await.expect("the task is not aborted").expect("no time has passed");
        waits.await.expect("the task is not aborted").expect("it is granted the lock");
        let _ = leaves.await;
    });
}

#[test]
fn a_release_that_requests_for_leaving_tasks_goes_to_the_next_client() {
    explore(async |fixture| {
        let (here, there) = (fixture.client().await, fixture.client().await);
        let guard = acquire(&here).await;
        let leaves = visitor(&fixture.server, &here);
        let waits = visitor(&fixture.server, &there);
        let server = fixture.server.clone();
        let releases = future::spawn(async move { release(&server, guard).await });
        leaves.abort();
        future::yield_now().await;
        // The keeper continues a release that is dropped.
        releases.abort();
        waits.await.expect("the task is not aborted").expect("it is granted the lock");
        let _ = (releases.await, leaves.await);
    });
}

#[test]
fn leaving_the_queue_of_a_process_wakes_the_next_task() {
    explore(async |fixture| {
        let client = fixture.client().await;
        let guard = acquire(&client).await;
        let leaves = [visitor(&fixture.server, &client), visitor(&fixture.server, &client)];
        let waits = visitor(&fixture.server, &client);
        let server = fixture.server.clone();
        let releases = future::spawn(async move { release(&server, guard).await });
        for task in &leaves {
            task.abort();
        }
        releases.await.expect("the task is not aborted").expect("no time has passed");
        waits.await.expect("the task is not aborted").expect("it is granted the lock");
        for task in leaves {
            let _ = task.await;
        }
    });
}

#[test]
fn one_of_two_tasks_that_request_the_same_locks_gets_them() {
    explore(async |fixture| {
        let client = fixture.client().await;
        let tries = [(); 2].map(|()| {
            let both = client.multi_mutex(["orders/42", "orders/43"]).expect("plain names");
            future::spawn(async move { both.try_acquire().await.expect("the server has no faults") })
        });
        let mut had = Vec::new();
        for tried in tries {
            if let MultiAttempt::Granted(guard) = tried.await.expect("the task is not aborted") {
                had.push(guard);
            }
        }
        assert_eq!(had.len(), 1, "both are free, and no other client wants them");
    });
}

#[test]
fn a_guard_dropped_together_with_its_client_is_released() {
    explore(async |fixture| {
        let client = fixture.client().await;
        let guard = acquire(&client).await;
        let leaves = visitor(&fixture.server, &client);
        let drops = thread::spawn(move || drop(guard));
        drop(client);
        leaves.abort();
        let _ = leaves.await;
        drops.join().expect("a drop does not panic");
    });
}

#[test]
fn flush_waits_for_dropped_guards_and_no_longer() {
    explore(async |fixture| {
        let client = fixture.client().await;
        let guard = acquire(&client).await;
        let ours = client.clone();
        let settles = future::spawn(async move { ours.flush().await });
        let leaves = visitor(&fixture.server, &client);
        leaves.abort();
        drop(guard);
        let left = leaves.await;
        client.flush().await;
        assert!(
            fixture.server.is_free(&lock()),
            "it is released, whatever the other task's result: {left:?}"
        );
        settles.await.expect("the task is not aborted");
    });
}

/// Shuts a client down, after which nothing may be sent about these holds.
async fn shut_down(server: &Server, client: &Client, holds: &[HoldId]) {
    client.shutdown(Duration::from_secs(5)).await.expect("the server has no faults");
    holds.iter().for_each(|hold| server.ended(*hold));
}

#[test]
fn a_release_and_a_shutdown_at_once_release_the_lock() {
    explore(async |fixture| {
        let (client, other) = (fixture.client().await, fixture.client().await);
        let guard = acquire(&client).await;
        let (lost, hold) = (guard.lost_signal(), fixture.server.claim_of(&guard).hold);
        let waits = visitor(&fixture.server, &other);
        // The acquire request that goes with the release is cleaned up as well.
        let (server, ours) = (fixture.server.clone(), leased(&client));
        let leaves = future::spawn(async move {
            let guard = ours.acquire().await?;
            // The shutdown may have ended it by then.
            let released = release(&server, guard).await;
            assert!(matches!(released, Ok(()) | Err(ReleaseError::Lost(_))), "{released:?}");
            Ok(())
        });
        // If it was handed off, the next holder gives it up, whenever this one learns that it was released.
        let releases = future::spawn(async move { guard.release().await });
        shut_down(&fixture.server, &client, &[hold]).await;
        let released = releases.await.expect("the task is not aborted");
        match released {
            Ok(()) => assert!(!lost.is_cancelled(), "released, and not lost"),
            Err(ReleaseError::Lost(LostReason::ShutDown)) => assert!(lost.is_cancelled(), "signaled"),
            // The other client acquired and released the lock before the end of this hold could be explained.
            Err(ReleaseError::Unknown { .. }) => {}
            odd => panic!("{odd:?}"),
        }
        let left = leaves.await.expect("the task is not aborted");
        assert!(matches!(left, Ok(()) | Err(AcquireError::Closed)), "{left:?}");
        waits.await.expect("the task is not aborted").expect("it is granted the lock");
    });
}

#[test]
fn an_acquire_and_a_shutdown_at_once_leave_nothing() {
    explore(async |fixture| {
        let (client, other) = (fixture.client().await, fixture.client().await);
        let ours = leased(&client);
        let acquires = future::spawn(async move { ours.acquire().await });
        let waits = visitor(&fixture.server, &other);
        shut_down(&fixture.server, &client, &[]).await;
        match acquires.await.expect("the task is not aborted") {
            Ok(guard) => {
                let lost = guard.check().expect_err("nothing is held after a shutdown");
                assert_eq!(lost.reason, LostReason::ShutDown);
                fixture.server.ended(fixture.server.claim_of(&guard).hold);
            }
            Err(AcquireError::Closed) => {}
            Err(odd) => panic!("{odd:?}"),
        }
        waits.await.expect("the task is not aborted").expect("it is granted the lock");
    });
}

#[test]
fn a_drop_an_extend_and_two_shutdowns_at_once_leave_nothing() {
    explore(async |fixture| {
        let client = fixture.client().await;
        let (dropped, extended) = (acquire(&client).await, another(&client).await);
        let holds = [fixture.server.claim_of(&dropped).hold, fixture.server.claim_of(&extended).hold];
        let drops = thread::spawn(move || drop(dropped));
        let extends = future::spawn(async move {
            let result = extended.extend().await;
            assert!(matches!(result, Ok(()) | Err(ExtendError::Lost(_))), "{result:?}");
            extended
        });
        let (server, clone) = (fixture.server.clone(), client.clone());
        let shuts = future::spawn(async move { shut_down(&server, &clone, &holds).await });
        shut_down(&fixture.server, &client, &holds).await;
        shuts.await.expect("the task is not aborted");
        drops.join().expect("a drop does not panic");
        let extended = extends.await.expect("the task is not aborted");
        assert_eq!(extended.check().expect_err("the shutdown released it").reason, LostReason::ShutDown);
    });
}

#[test]
fn a_capped_hold_is_released_once_during_a_release_and_a_shutdown() {
    explore(async |fixture| {
        let (client, other) = (fixture.client().await, fixture.client().await);
        let capped = watched(&client).max_hold(2_000 * MS);
        let guard = capped.acquire().await.expect("the server has no faults");
        let hold = fixture.server.claim_of(&guard).hold;
        let waits = visitor(&fixture.server, &other);
        fixture.pass(2, 1_000 * MS);
        let server = fixture.server.clone();
        let releases = future::spawn(async move { release(&server, guard).await });
        future::yield_now().await;
        shut_down(&fixture.server, &client, &[hold]).await;
        let released = releases.await.expect("the task is not aborted");
        assert!(matches!(released, Ok(()) | Err(ReleaseError::Lost(_))), "{released:?}");
        waits.await.expect("the task is not aborted").expect("it is granted the lock");
    });
}

#[test]
fn each_flaw_of_the_server_is_found() {
    let failure_of = failure(async |fixture| {
        fixture.server.set_flaw(Flaw::PublishesNoGrants);
        let (holder, waiter) = (fixture.client().await, fixture.client().await);
        let guard = acquire(&holder).await;
        let waits = visitor(&fixture.server, &waiter);
        fixture.release(guard).await.expect("no time has passed");
        waits.await.expect("the task is not aborted").expect("it is granted the lock");
    });
    assert!(failure_of.contains("deadlock"), "{failure_of}");

    let failure_of = failure(async |fixture| {
        fixture.server.set_flaw(Flaw::RepliesFirst);
        let client = fixture.client().await;
        fixture.pass(1, 110 * MS);
        let guard = acquire(&client).await;
        future::yield_now().await;
        fixture.release(guard).await.expect("no time has passed");
    });
    assert!(failure_of.contains("extended after its release"), "{failure_of}");

    let failure_of = failure(async |fixture| {
        fixture.server.set_flaw(Flaw::IgnoresReleases);
        let client = fixture.client().await;
        drop(acquire(&client).await);
    });
    assert!(failure_of.contains("still held or waited for"), "{failure_of}");
}
