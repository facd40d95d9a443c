//! Many clients that lose their server at once, and reconnect.

use super::fixture::{MS, server};
use leasehold::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 500;
const S: Duration = Duration::from_secs(1);

/// Each client has two connections, and the server has their other ends; the soft limit on many systems is a
/// thousand files.
fn open_many_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .expect("raising the soft limit up to the hard limit is permitted");
}

/// Accepts, counts and closes connections at a port until it is stopped.
struct Porter {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<Duration>>,
}

impl Porter {
    fn at(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        listener.set_nonblocking(true).expect("the listener becomes non-blocking");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let (begun, mut knocks) = (Instant::now(), Vec::new());
            while !stopped.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok(_) => knocks.push(begun.elapsed()),
                    Err(_) => thread::sleep(MS),
                }
            }
            knocks
        });
        Self { stop, thread }
    }

    fn dismiss(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("it does not panic")
    }
}

/// Failure row 39. Five hundred clients lose their server: the rate of reconnection attempts falls to one in a
/// second or two per connection, spread over time. When the server is back, without its data, all clients acquire
/// soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_39_five_hundred_clients_do_not_storm_the_server() {
    open_many_files();
    let mut server = server();
    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        let client = Client::connect(&server.url()).await.expect("the server can be reached");
        let mutex = client.mutex(format!("job/{n}")).expect("a good name");
        drop(mutex.acquire().await.expect("there is no contention"));
        clients.push((client, mutex));
    }
    server.kill().expect("killed");
    let porter = Porter::at(server.port());
    tokio::time::sleep(6 * S).await;
    let knocks = porter.dismiss();
    let late: Vec<_> = knocks.iter().filter(|at| **at > 3 * S).collect();
    let connections = 2 * CLIENTS;
    println!(
        "{} attempts in 6 s, {} in the second half, of {connections} connections",
        knocks.len(),
        late.len()
    );
    assert!(late.len() > CLIENTS, "only {} attempts in the second half", late.len());
    assert!(knocks.len() <= 12 * connections, "{} attempts", knocks.len());
    // By then a pause is at least a second.
    assert!(late.len() <= 4 * connections, "{} attempts in the second half", late.len());
    let most = (0..30).map(|tenth| {
        let from = 3 * S + 100 * MS * tenth;
        late.iter().filter(|at| ***at >= from && ***at < from + 100 * MS).count()
    });
    let most = most.max().expect("thirty");
    assert!(most <= late.len() / 5, "{most} of {} within a tenth of a second", late.len());

    server.restart().expect("it boots again");
    let back = Instant::now();
    let served: Vec<_> = clients
        .iter()
        .map(|(_, mutex)| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.acquire_timeout(30 * S).await.map(drop) })
        })
        .collect();
    for served in served {
        served.await.expect("no panic").expect("the server is back");
    }
    println!("all are served {:?} after the server is back", back.elapsed());
    let stats = server.cli(&["INFO", "stats"]).expect("an answer");
    let stats = stats.text().expect("a text");
    let received = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    let received: usize = received.expect("the server reports it").trim().parse().expect("a number");
    assert!(received <= 3 * connections, "{received} connections were opened");
}
