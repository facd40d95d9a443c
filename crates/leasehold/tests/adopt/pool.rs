//! A pool of worker threads with a queue of jobs: jobs of one customer do not overlap.

use leasehold::Error;
use leasehold::blocking::Client;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

type Job = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// Runs jobs on `size` threads, and returns their results.
fn run_in_pool(size: usize, jobs: Vec<Job>) -> Vec<Result<(), Error>> {
    let (submit, submitted) = channel::<Job>();
    for job in jobs {
        submit.send(job).unwrap();
    }
    drop(submit);
    let submitted = Mutex::new(submitted);
    let results = Mutex::new(Vec::new());
    thread::scope(|threads| {
        for _ in 0..size {
            threads.spawn(|| {
                loop {
                    let job = submitted.lock().unwrap().recv();
                    let Ok(job) = job else { return };
                    let result = job();
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

#[test]
fn jobs_of_one_customer_do_not_overlap() {
    let client = Client::connect("memory:adopt-pool").unwrap();
    let busy: Arc<[Mutex<bool>; 3]> = Arc::default();
    let jobs = (0..30).map(|n| -> Job {
        let (client, busy, customer) = (client.clone(), busy.clone(), n % 3);
        Box::new(move || {
            let lock = client.mutex(format!("customer/{customer}"))?.max_wait(Duration::from_secs(20));
            lock.run(|_guard| {
                assert!(!std::mem::replace(&mut *busy[customer].lock().unwrap(), true), "two jobs overlap");
                thread::yield_now();
                *busy[customer].lock().unwrap() = false;
            })?;
            Ok(())
        })
    });
    let results = run_in_pool(4, jobs.collect());
    assert_eq!(results.len(), 30);
    results.into_iter().for_each(Result::unwrap);
}
