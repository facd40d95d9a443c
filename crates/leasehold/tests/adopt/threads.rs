//! A program of plain threads, whose helpers enter the lock that their caller holds.

use leasehold::blocking::{Client, ReentrantMutex};
use leasehold::{Error, Owner};
use std::thread;

fn add(account: &ReentrantMutex, balance: &std::sync::Mutex<u32>, amount: u32) -> Result<(), Error> {
    let guard = account.acquire()?;
    guard.check()?;
    *balance.lock().unwrap() += amount;
    guard.release()?;
    Ok(())
}

fn transfer(account: &ReentrantMutex, balance: &std::sync::Mutex<u32>) -> Result<(), Error> {
    let guard = account.acquire()?;
    let before = *balance.lock().unwrap();
    // Two helpers, each on a thread of its own, work for this one.
    thread::scope(|threads| {
        let helpers = [1, 2].map(|amount| threads.spawn(Owner::wrap(move || add(account, balance, amount))));
        helpers.into_iter().try_for_each(|helper| helper.join().expect("no helper panics"))
    })?;
    assert_eq!(*balance.lock().unwrap(), before + 3, "no other transfer is in between");
    guard.release()?;
    Ok(())
}

#[test]
fn helpers_work_under_the_lock_of_their_caller() {
    let account = Client::connect("memory:adopt-threads").unwrap().reentrant_mutex("account/7").unwrap();
    let balance = std::sync::Mutex::new(0);
    thread::scope(|threads| {
        let transfers = [(); 4].map(|()| threads.spawn(|| transfer(&account, &balance)));
        for transfer in transfers {
            transfer.join().expect("no transfer panics").unwrap();
        }
    });
    assert_eq!(balance.into_inner().unwrap(), 12);
}
