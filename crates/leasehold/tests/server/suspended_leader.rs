//! A leader in a separate process is suspended: another client is elected, and the old leader detects its loss
//! before its next act.

use crate::cases::store::TestStore;
use leasehold::Client;
use leasehold_testkit::Worker;
use std::time::{Duration, Instant};

const S: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);
const SESSION: Duration = Duration::from_secs(2);

/// Failure rows 10 and 23 of an Election. A suspended leader is succeeded within its session plus one second, by one
/// with a greater token; and when it resumes it detects the loss of its leadership before its next act, without the
/// network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_leader_is_replaced_and_detects_it_before_its_next_act() {
    let store = TestStore::redis();
    let server = store.server().expect("it is on a server");
    let mut leader = Worker::of_test("suspended_leader::a_worker_that_leads", "leader")
        .env("LEASEHOLD_TEST_URL", server.url())
        .start()
        .expect("a worker");
    let first = fence(&leader.expect("leads", LIMIT).expect("it is elected"));
    let next = Client::builder(server.url()).session_ttl(SESSION).connect().await.expect("it can be reached");
    let election = next.election("scheduler").expect("a good name");
    let mut leaders = election.observe();
    let seen = leaders.next().await.expect("an answer").expect("there is a leader");
    assert_eq!(seen.fence.as_u64(), first);
    let campaign = tokio::spawn({
        let election = election.clone();
        async move { election.campaign().await.expect("elected") }
    });
    crate::until::until_waiting(&election, 1).await;
    leader.send("act").expect("the worker reads");
    leader.expect("acted", LIMIT).expect("it leads still");

    leader.stop().expect("stopped");
    let stopped = Instant::now();
    let leadership = campaign.await.expect("no panic");
    let waited = stopped.elapsed();
    println!("with a session of {SESSION:?} another led after {waited:?}");
    assert!(waited < SESSION + S, "{waited:?}");
    assert!(leadership.fencing_token().as_u64() > first);
    let seen = leaders.next().await.expect("an answer").expect("there is a leader");
    assert_eq!(seen.fence, leadership.fencing_token());
    leadership.check().expect("it leads");

    // The test makes it act before it can have received anything: the server is suspended.
    server.stop().expect("stopped");
    leader.send("act").expect("the worker reads");
    leader.resume().expect("it goes on");
    let line = leader.line(LIMIT).expect("the worker reports");
    server.resume().expect("it goes on");
    assert!(line.starts_with("knows"), "it acted as the leader: {line}");
    leadership.check().expect("it leads still");
    leadership.resign().await.expect("resigned");
    // It continues with a new session, and is elected like any other client.
    assert!(fence(&leader.expect("leads", LIMIT).expect("it is elected again")) > first);
}

fn fence(line: &str) -> u64 {
    let number = line.rsplit(' ').next().expect("a split has a last part");
    number.parse().unwrap_or_else(|_| panic!("`{line}` ends with a token"))
}

/// The worker's entry point: leads, and acts on command if it still leads.
#[test]
fn a_worker_that_leads() {
    if Worker::role().as_deref() != Some("leader") {
        return;
    }
    let url = std::env::var("LEASEHOLD_TEST_URL").expect("set by the test");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = runtime.block_on(Client::builder(&url).label("old").session_ttl(SESSION).connect());
    let client = client.expect("the server can be reached");
    let election = client.election("scheduler").expect("a good name");
    loop {
        let leadership = runtime.block_on(election.campaign()).expect("elected");
        Worker::report(&format!("leads {}", leadership.fencing_token()));
        loop {
            if Worker::receive().is_none() {
                return;
            }
            match leadership.check() {
                Ok(()) => Worker::report("acted"),
                Err(lost) => {
                    Worker::report(&format!("knows {lost}"));
                    break;
                }
            }
        }
    }
}
