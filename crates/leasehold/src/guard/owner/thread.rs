//! The owner of a thread: used by a blocking client where no scope sets another owner.
//!
//! 1. A thread's owner belongs to that thread and that client alone. It is never reused, even after the
//!    thread has ended or the client has been dropped.
//! 2. A tokio runtime runs one job after another on its threads. There each job has its own owner; otherwise
//!    it would enter locks that an earlier job on the thread still holds.

use super::{Owner, OwnerFactory};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

thread_local! {
    /// The client that was used last is at the end.
    static THREAD_OWNERS: RefCell<Vec<ThreadOwner>> = const { RefCell::new(Vec::new()) };
}

/// The owner of a thread for one client.
struct ThreadOwner {
    /// Keeps the address of the client's owner factory from being reused.
    client: Weak<OwnerFactory>,
    /// The runtime's job on this thread, if there is one (2).
    job: Option<tokio::task::Id>,
    owner: Owner,
}

/// The owner of this thread for the client that was used last, if one was used.
pub(super) fn current() -> Option<Owner> {
    let job = tokio::task::try_id();
    let last = |owners: &RefCell<Vec<ThreadOwner>>| {
        let owners = owners.borrow();
        let is_current = |entry: &&ThreadOwner| entry.job == job && entry.client.strong_count() > 0;
        owners.iter().rfind(is_current).map(|entry| entry.owner.clone())
    };
    // A thread that is ending has no owner any more.
    THREAD_OWNERS.try_with(last).ok().flatten()
}

/// Makes a call with this thread as owner, unless a scope sets another.
pub(crate) fn with_thread_owner<T>(factory: &Arc<OwnerFactory>, call: impl FnOnce() -> T) -> T {
    match Owner::of_scope() {
        Some(_) => call(),
        None => owner(factory).sync_scope(call),
    }
}

/// The owner of this thread for one client.
fn owner(factory: &Arc<OwnerFactory>) -> Owner {
    let entry = THREAD_OWNERS.try_with(|owners| find_or_create(&mut owners.borrow_mut(), factory));
    // A thread that is ending has no owner any more.
    entry.unwrap_or_else(|_| factory.create())
}

fn find_or_create(owners: &mut Vec<ThreadOwner>, factory: &Arc<OwnerFactory>) -> Owner {
    let job = tokio::task::try_id();
    let is_of_client = |entry: &ThreadOwner| std::ptr::eq(entry.client.as_ptr(), Arc::as_ptr(factory));
    if let Some(at) = owners.iter().position(|entry| is_of_client(entry) && entry.job == job) {
        let known = owners.remove(at);
        let owner = known.owner.clone();
        owners.push(known);
        return owner;
    }
    // Entries of dropped clients, and of the previous job.
    owners.retain(|entry| entry.client.strong_count() > 0 && !is_of_client(entry));
    let owner = factory.create();
    owners.push(ThreadOwner { client: Arc::downgrade(factory), job, owner: owner.clone() });
    owner
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_store::System;

    fn client() -> Arc<OwnerFactory> {
        Arc::new(OwnerFactory::new(None, Arc::new(System)).expect("no name is valid"))
    }

    fn known() -> usize {
        THREAD_OWNERS.with(|owners| owners.borrow().len())
    }

    #[test]
    fn a_thread_has_one_owner_for_each_client() {
        let (one, other) = (client(), client());
        let (first, second) = (owner(&one), owner(&other));
        assert_ne!(first, second);
        assert_eq!((owner(&one), owner(&other)), (first.clone(), second));
        let elsewhere = std::thread::spawn({
            let one = one.clone();
            move || owner(&one)
        });
        let elsewhere = elsewhere.join().expect("no panic");
        assert_ne!(elsewhere, first);
        let after_it = std::thread::spawn({
            let one = one.clone();
            move || owner(&one)
        });
        assert!(![first, elsewhere].contains(&after_it.join().expect("no panic")));
    }

    #[test]
    fn the_current_owner_is_that_of_the_client_used_last() {
        let (one, other) = (client(), client());
        assert_eq!(Owner::current(), None);
        let (first, second) = (owner(&one), owner(&other));
        assert_eq!(Owner::current().as_ref(), Some(&second));
        assert_eq!((owner(&one), Owner::current()), (first.clone(), Some(first.clone())));
        let scope = Owner::new("a scope").expect("a plain text");
        assert_eq!(scope.sync_scope(Owner::current), Some(scope));
        drop(one);
        assert_eq!(Owner::current(), Some(second.clone()));
        let carried = std::thread::spawn(Owner::wrap(Owner::current)).join().expect("no panic");
        assert_eq!(carried, Some(second));
        assert_eq!(std::thread::spawn(Owner::current).join().expect("no panic"), None);
    }

    /// Tasks that a thread starts side by side must exclude each other.
    #[test]
    fn a_task_that_a_thread_spawns_does_not_have_the_threads_owner() {
        let client = client();
        let of_thread = owner(&client);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it starts");
        let of_task = runtime.block_on(async {
            assert_eq!(Owner::current().as_ref(), Some(&of_thread));
            let blocking = Owner::spawn_blocking(Owner::of_scope).await.expect("no panic");
            (Owner::spawn(async { Owner::of_scope() }).await.expect("no panic"), blocking)
        });
        assert_eq!(of_task, (None, None));
    }

    #[test]
    fn owners_of_dropped_clients_are_removed() {
        let stays = client();
        let first = owner(&stays);
        for _ in 0..100 {
            owner(&client());
        }
        assert!(known() <= 2, "{}", known());
        assert_eq!(owner(&stays), first);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn each_job_on_a_pool_thread_has_its_own_owner() {
        let client = client();
        let job = || {
            let client = client.clone();
            move || (std::thread::current().id(), owner(&client), owner(&client))
        };
        let mut jobs = Vec::new();
        // Sequentially, so that a thread is reused.
        for _ in 0..20 {
            jobs.push(tokio::task::spawn_blocking(job()).await.expect("no panic"));
        }
        assert!(jobs.windows(2).any(|two| two[0].0 == two[1].0), "no thread was used twice");
        for (n, (_, first, again)) in jobs.iter().enumerate() {
            assert_eq!(first, again, "within a job");
            assert!(jobs[..n].iter().all(|(_, before, _)| before != first), "each job");
        }
    }
}
