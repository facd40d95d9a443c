//! The owner of a thread: used by a client where no scope sets another owner.
//!
//! 1. A thread's owner belongs to that thread and that client alone. It is never reused, even after the
//!    thread or the client is gone.
//! 2. A tokio runtime runs one job after another on its threads. There each job has its own owner; otherwise
//!    it would enter locks that an earlier job on the thread still holds.

use crate::guard::owner::{Owner, Owners};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

thread_local! {
    static SELVES: RefCell<Vec<Oneself>> = const { RefCell::new(Vec::new()) };
}

/// The owner of a thread for one client.
struct Oneself {
    /// Keeps the address of the client's owner factory from being reused.
    client: Weak<Owners>,
    /// The runtime's job on this thread, if there is one (2).
    job: Option<tokio::task::Id>,
    owner: Owner,
}

/// Makes a call with this thread as owner, unless a scope sets another.
pub(super) fn for_whom<T>(of: &Arc<Owners>, call: impl FnOnce() -> T) -> T {
    match Owner::current() {
        Some(_) => call(),
        None => owner(of).sync_scope(call),
    }
}

/// The owner of this thread for one client.
fn owner(of: &Arc<Owners>) -> Owner {
    let oneself = SELVES.try_with(|selves| known_or_made(&mut selves.borrow_mut(), of));
    // A thread that is ending has no owner any more.
    oneself.unwrap_or_else(|_| of.make())
}

fn known_or_made(selves: &mut Vec<Oneself>, of: &Arc<Owners>) -> Owner {
    let job = tokio::task::try_id();
    let is_of = |oneself: &Oneself| std::ptr::eq(oneself.client.as_ptr(), Arc::as_ptr(of));
    if let Some(known) = selves.iter().find(|oneself| is_of(oneself) && oneself.job == job) {
        return known.owner.clone();
    }
    // Entries of clients that are gone, and of the previous job.
    selves.retain(|oneself| oneself.client.strong_count() > 0 && !is_of(oneself));
    let owner = of.make();
    selves.push(Oneself { client: Arc::downgrade(of), job, owner: owner.clone() });
    owner
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_store::System;

    fn client() -> Arc<Owners> {
        Arc::new(Owners::new(None, Arc::new(System)).expect("no name is valid"))
    }

    fn known() -> usize {
        SELVES.with(|selves| selves.borrow().len())
    }

    #[test]
    fn a_thread_is_one_to_a_client_and_another_to_another() {
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
    fn clients_that_are_gone_are_forgotten() {
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
