//! Owners: which names clients may have, and the lifetime of holds acquired for an owner from another process.

use super::fixture::{MS, acquired, lock, taken};
use crate::cases::store::TestStore;
use crate::until::until;
use futures_util::future::BoxFuture;
use leasehold::error::{AcquireError, ConnectError};
use leasehold::store::Environment;
use leasehold::{Client, LostReason, Moment, Owner, ReentrantMutex};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::task::AbortHandle;

on_every_store! {
    asynchronous:
    an_instance_id_that_can_be_no_part_of_an_owner_is_refused;
    // With SQLite a session is dead once its process has ended.
    memory: what_is_held_for_an_owner_from_elsewhere_outlives_the_session;
    sqlite: ;
    redis: what_is_held_for_an_owner_from_elsewhere_outlives_the_session;
}

/// A machine whose keeper can be killed.
struct Machine {
    started: Instant,
    keepers: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Environment for Machine {
    fn now(&self) -> Moment {
        Moment::ZERO + self.started.elapsed()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::now()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(at.since(self.now())))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        let keeper = tokio::spawn(keeper).abort_handle();
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner).push(keeper);
        Ok(())
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

/// A client whose session lapses two seconds after it is killed, and a function that kills it: heartbeats and
/// renewals stop.
async fn mortal(store: &TestStore) -> (Client, impl FnOnce()) {
    let keepers = Arc::<Mutex<Vec<AbortHandle>>>::default();
    let environment = Machine { started: Instant::now(), keepers: keepers.clone() };
    let client = store.builder().session_ttl(Duration::from_secs(2)).environment(environment).connect().await;
    let kill =
        move || keepers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(AbortHandle::abort);
    (client.expect("the store of a case can be reached"), kill)
}

async fn until_lengthened(lock: &ReentrantMutex) {
    let lengthened = async || {
        let status = lock.inspect().await.expect("an answer");
        status.remaining.is_some_and(|remaining| remaining > Duration::from_secs(20))
    };
    until("it has its whole lease", lengthened).await;
}

/// A hold for an owner from another process does not end with the session of the process that acquired it: the owner
/// continues where that process has died. Holds of the process's own owner are evicted.
async fn what_is_held_for_an_owner_from_elsewhere_outlives_the_session(store: &TestStore) {
    let ((dying, kill), b, c) = (mortal(store).await, store.client("b").await, store.client("c").await);
    let owner = b.new_owner();
    let travelled = Owner::from_header(owner.to_header()).expect("our own header");
    let lease = Duration::from_secs(30);
    let own = dying.reentrant_mutex("own").expect("a good name").lease(lease);
    let (ours, theirs) = (acquired(&own).await, acquired(&lock(&dying, &travelled).lease(lease)).await);
    let (seen, own) = (lock(&c, &c.new_owner()), c.reentrant_mutex("own").expect("a good name"));
    until_lengthened(&seen).await;
    until_lengthened(&own).await;

    kill();
    let start = Instant::now();
    let (taken_over, waited) = tokio::join!(
        async { (acquired(&own).await, start.elapsed()) },
        seen.acquire_timeout(Duration::from_secs(5)),
    );
    assert!(taken_over.1 < lease / 2, "taken from the dead, and not outwaited: {:?}", taken_over.1);
    assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "taken from the living: {waited:?}");
    let fence = theirs.fencing_token();
    taken(&seen).await;
    let status = seen.inspect().await.expect("an answer");
    assert_eq!((status.owner.as_ref(), status.session, status.count), (Some(&owner), None, 1));
    let entered = acquired(&lock(&b, &owner)).await;
    assert_eq!((entered.count(), entered.fencing_token()), (2, fence));
    // A killed client receives nothing; but its guard no longer counts as held.
    assert_eq!(ours.check().expect_err("it lapsed").reason, LostReason::SessionLapsed);
    drop((taken_over, entered, theirs));
}

/// Owners are derived from the instance id, so it must leave room for the rest; a bad one is refused before anything
/// is sent.
async fn an_instance_id_that_can_be_no_part_of_an_owner_is_refused(store: &TestStore) {
    for none in ["", "pod\n7", &"x".repeat(236)] {
        let client = store.builder().instance_id(none).connect().await;
        let Err(error) = client else { panic!("{none:?} was taken") };
        assert!(matches!(error, ConnectError::Setting(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("an instance id has 1 to 235 bytes and no control characters"), "{text}");
    }
    let longest = "x".repeat(235);
    let client = store.builder().instance_id(&longest).connect().await.expect("it leaves room");
    let guard = acquired(&lock(&client, &client.new_owner()).lease(500 * MS)).await;
    assert!(guard.owner().as_str().starts_with(&longest));
}
