//! A process that ends right after it has dropped a guard, or the future of an acquire.

use leasehold::Client;
use leasehold::error::StopError;
use leasehold_testkit::{Proxy, RedisServer, Worker, any_command};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

/// Longer than anything takes that does not hang.
const LIMIT: Duration = Duration::from_secs(20);
/// How long a request takes to the server: longer than a process needs to end.
const LATENCY: Duration = Duration::from_millis(50);

/// Starts a process that holds the lock `m`, and drops it and ends once it reads a line.
fn start(proxy: &Proxy) -> Worker {
    let mut worker = start_as("dropper", proxy);
    worker.expect("held", LIMIT).unwrap();
    worker
}

fn start_as(role: &str, proxy: &Proxy) -> Worker {
    let worker = Worker::of_test("ending::a_worker_that_drops_and_ends", role);
    worker.env("LEASEHOLD_TEST_URL", proxy.url()).start().unwrap()
}

/// In its first second the keeper has no connection of its own, so that there is most to wait for.
#[tokio::test]
async fn a_guard_that_is_dropped_as_the_process_ends_is_released() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let mutex = client.mutex("m").unwrap();
    let mut worker = start(&proxy);
    assert!(mutex.inspect().await.unwrap().holder.is_some());
    proxy.delay_requests(LATENCY);
    worker.send("end").unwrap();
    assert!(worker.wait(LIMIT).unwrap().success());
    assert_eq!(mutex.inspect().await.unwrap().holder, None, "it was released before the process ended");
}

/// The wait is limited: a server that does not answer keeps no program from ending.
#[tokio::test]
async fn a_process_ends_though_its_release_has_no_answer() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let mut worker = start(&proxy);
    server.stop().unwrap();
    worker.send("end").unwrap();
    assert!(worker.wait(LIMIT).unwrap().success());
    server.resume().unwrap();
}

/// A process that was forked from one with a client, and has a client of its own.
#[tokio::test]
async fn a_guard_that_is_dropped_as_a_forked_process_ends_is_released() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let mut worker = start_as("forker", &proxy);
    worker.expect("held", LIMIT).unwrap();
    proxy.delay_requests(LATENCY);
    worker.send("fork").unwrap();
    worker.expect("its child has ended", LIMIT).unwrap();
    assert_eq!(client.mutex("child").unwrap().inspect().await.unwrap().holder, None);
    assert!(client.mutex("m").unwrap().inspect().await.unwrap().holder.is_some(), "its parent's");
    worker.send("end").unwrap();
    assert!(worker.wait(LIMIT).unwrap().success());
    assert_eq!(client.mutex("m").unwrap().inspect().await.unwrap().holder, None);
}

/// The undo goes over the connection of the acquire, too. That ends with the runtime of the process, or stays and does nothing
/// any more.
#[tokio::test]
async fn an_acquire_that_is_dropped_as_the_process_ends_delays_it_for_its_undo_only() {
    for (role, latency) in [("waiter", 0), ("waiter", 20), ("exiting waiter", 0), ("exiting waiter", 20)] {
        let server = RedisServer::start().unwrap();
        let proxy = Proxy::to_server(&server).unwrap();
        let client = Client::connect(&server.url()).await.unwrap();
        let mutex = client.mutex("m").unwrap();
        let guard = mutex.acquire().await.unwrap();
        let mut worker = start_as(role, &proxy);
        worker.expect("connected", LIMIT).unwrap();
        proxy.delay_requests(Duration::from_millis(latency));
        worker.send("end").unwrap();
        worker.expect("ending", LIMIT).unwrap();
        let start = std::time::Instant::now();
        assert!(worker.wait(LIMIT).unwrap().success());
        // Not as long as it waits for a release that has no answer.
        assert!(start.elapsed() < Duration::from_millis(900), "{role}, {latency} ms: {:?}", start.elapsed());
        guard.release().await.unwrap();
        assert_eq!(mutex.inspect().await.unwrap().holder, None, "the lock is not granted to it");
    }
}

/// Whichever of the two signals a process gets: its locks are released, and the hold that it had is reported as ended.
#[tokio::test]
async fn a_process_that_is_asked_to_stop_releases_its_locks() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = RedisServer::start().unwrap();
        let proxy = Proxy::to_server(&server).unwrap();
        let mutex = Client::connect(&server.url()).await.unwrap().mutex("m").unwrap();
        let mut worker = start_as("stopper", &proxy);
        worker.expect("held", LIMIT).unwrap();
        assert!(mutex.inspect().await.unwrap().held);
        send(&worker, signal);
        worker.expect("stopped: Ok(()), held: false", LIMIT).unwrap();
        assert!(!mutex.inspect().await.unwrap().held);
        assert!(worker.wait(LIMIT).unwrap().success());
    }
}

/// A store that does not answer: the error names what is left.
#[tokio::test]
async fn a_process_that_is_asked_to_stop_names_what_it_cannot_release() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let mut worker = start_as("stopper", &proxy);
    worker.expect("held", LIMIT).unwrap();
    proxy.pause_requests(usize::MAX, any_command());
    send(&worker, Signal::INT);
    worker.expect("stopped: Err([\"m\"]), held: false", LIMIT).unwrap();
    assert!(worker.wait(LIMIT).unwrap().success());
}

fn send(worker: &Worker, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(worker.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The entry point of the workers.
#[test]
fn a_worker_that_drops_and_ends() {
    let Some(role) = Worker::role() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connect = async || Client::connect(&std::env::var("LEASEHOLD_TEST_URL").unwrap()).await.unwrap();
    let client = runtime.block_on(connect());
    let mutex = client.mutex("m").unwrap();
    match role.as_str() {
        "dropper" => {
            let guard = runtime.block_on(mutex.acquire()).unwrap();
            Worker::report("held");
            Worker::receive();
            drop(guard);
        }
        "forker" => {
            let guard = runtime.block_on(mutex.acquire()).unwrap();
            Worker::report("held");
            Worker::receive();
            if fork() == 0 {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let client = connect().await;
                    drop(client.mutex("child").unwrap().acquire().await.unwrap());
                });
                drop(runtime);
                std::process::exit(0);
            }
            rustix::process::wait(rustix::process::WaitOptions::empty()).unwrap();
            Worker::report("its child has ended");
            Worker::receive();
            drop(guard);
        }
        "waiter" | "exiting waiter" => {
            Worker::report("connected");
            Worker::receive();
            runtime.block_on(async {
                let acquired = tokio::time::timeout(Duration::from_millis(15), mutex.acquire()).await;
                assert!(acquired.is_err(), "another process holds it");
                Worker::report("ending");
                if role == "exiting waiter" {
                    std::process::exit(0);
                }
            });
        }
        "stopper" => {
            let guard = runtime.block_on(mutex.acquire()).unwrap();
            let stopped = runtime.block_on(async {
                let mut stopping = std::pin::pin!(client.shutdown_on_signal(Duration::from_millis(500)));
                // From its first poll on, the signals do not end the process.
                assert!(futures_util::poll!(&mut stopping).is_pending());
                Worker::report("held");
                stopping.await
            });
            let stopped = stopped.map_err(|error| match error {
                StopError::Shutdown(error) => {
                    error.unreleased.into_iter().map(|left| left.lock.to_string()).collect()
                }
                error => vec![error.to_string()],
            });
            Worker::report(&format!("stopped: {stopped:?}, held: {}", guard.check().is_ok()));
        }
        role => panic!("no such role: {role}"),
    }
    drop((mutex, client, runtime));
    std::process::exit(0);
}

/// Forks this process.
fn fork() -> std::ffi::c_int {
    #[allow(unsafe_code, reason = "std has no fork, which a user's program may use nevertheless")]
    unsafe extern "C" {
        safe fn fork() -> std::ffi::c_int;
    }
    fork()
}
