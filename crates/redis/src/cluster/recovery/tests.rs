//! Calls in a cluster of two scripted nodes.

use super::RetryingCall;
use crate::cluster::tests::{Commands, reply};
use crate::cluster::*;
use leasehold_store::{Executed, Outcome};
use redis::cmd;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncWriteExt, BufReader, DuplexStream, duplex, split};

const MS: Duration = Duration::from_millis(1);
const DOWN: &str = "-CLUSTERDOWN down\r\n";
const WELL: &str = "+OK\r\n";

/// A slot of the first node, and one of the second.
const SLOTS_OF: [u16; 2] = [1, 9000];

/// The reply of a node to a GET of a key, at a time since the start.
type Says = fn(node: u16, key: &str, since: Duration) -> &'static str;

struct TestCluster {
    cluster: Arc<Cluster>,
    refused: Arc<AtomicU32>,
    start: Instant,
}

/// When a call got a reply other than a refusal, if it did; an error if its outcome is unknown.
type Answered = Result<Option<Duration>, Outcome<()>>;

impl TestCluster {
    async fn of(says: Says) -> Self {
        let (refused, start) = (Arc::new(AtomicU32::new(0)), Instant::now());
        let counted = Arc::clone(&refused);
        let config: RedisConfig = "redis+cluster://n:1".parse().expect("a good URL");
        let cluster = Cluster::new(
            config.connector(move |node| {
                let number = if node.ends_with(":2") { 2 } else { 1 };
                let (ours, theirs) = duplex(1 << 16);
                tokio::spawn(serve(theirs, number, says, start, Arc::clone(&counted)));
                async move { Ok(ours) }
            }),
            None,
        );
        cluster.connect().await.expect("reached");
        Self { cluster: Arc::new(cluster), refused, start }
    }

    /// Sends a call to a node.
    fn call(&self, node: usize, within: Duration) -> JoinHandle<Answered> {
        self.send_call("x", node, within)
    }

    fn send_call(&self, key: &'static str, node: usize, within: Duration) -> JoinHandle<Answered> {
        let (cluster, start) = (Arc::clone(&self.cluster), self.start);
        let deadline = Instant::now() + within;
        tokio::spawn(async move {
            match cluster.command(SLOTS_OF[node - 1], cmd("GET").arg(key), deadline).await {
                Ok((Value::ServerError(_), _)) | Err(Outcome::Failed(Executed::No, _)) => Ok(None),
                Ok(_) => Ok(Some(start.elapsed())),
                Err(outcome) => Err(outcome),
            }
        })
    }

    fn calls(&self, calls: usize, node: usize, within: Duration) -> Vec<JoinHandle<Answered>> {
        (0..calls).map(|_| self.call(node, within)).collect()
    }

    async fn until(&self, since: Duration) {
        tokio::time::sleep_until(self.start + since).await;
    }

    fn refused(&self) -> u32 {
        self.refused.load(Ordering::SeqCst)
    }
}

async fn serve(stream: DuplexStream, node: u16, says: Says, start: Instant, refused: Arc<AtomicU32>) {
    let (reader, mut writer) = split(stream);
    let mut commands = Commands(BufReader::new(reader));
    while let Some(command) = commands.next().await {
        let answer = match command.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["CLUSTER", "SLOTS"] => {
                let range =
                    |first, last, port| format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$1\r\nn\r\n:{port}\r\n");
                format!("*2\r\n{}{}", range(0, 8191, 1), range(8192, 16383, 2))
            }
            ["GET", key] => {
                let answer = says(node, key, start.elapsed());
                refused.fetch_add(u32::from(answer.starts_with('-')), Ordering::SeqCst);
                answer.to_owned()
            }
            _ => reply(&command, true, 1),
        };
        if writer.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn all(calls: Vec<JoinHandle<Answered>>) -> Vec<Option<Duration>> {
    let durations = join_all(calls).await.into_iter();
    durations.map(|durations| durations.expect("no panic").expect("the outcome is known")).collect()
}

#[tokio::test(start_paused = true)]
async fn one_query_answers_all_waiting_tasks() {
    let cluster = TestCluster::of(|_, _, since| if since < 3000 * MS { DOWN } else { WELL }).await;
    let durations = all(cluster.calls(50, 1, 5000 * MS)).await;
    assert!(
        durations.iter().all(|durations| durations.is_some_and(|durations| durations < 3110 * MS)),
        "{durations:?}"
    );
    // Alone, each call would be sent forty times. Together, the others are sent a few times: twice at once, and then
    // every second.
    println!("{} refused", cluster.refused());
    assert!(cluster.refused() < 50 * 8, "{}", cluster.refused());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_passes_the_turn_to_the_next() {
    let cluster = TestCluster::of(|_, _, since| if since < 500 * MS { DOWN } else { WELL }).await;
    let first = cluster.call(1, 5000 * MS);
    cluster.until(5 * MS).await;
    let others = cluster.calls(6, 1, 2000 * MS);
    cluster.until(501 * MS).await;
    first.abort();
    let durations = all(others).await;
    assert!(
        durations.iter().all(|durations| durations.is_some_and(|durations| durations < 610 * MS)),
        "{durations:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_refused_by_one_node_does_not_wait_for_another() {
    let cluster = TestCluster::of(|node, _, since| match node {
        1 => "-LOADING loading\r\n",
        _ if since < 500 * MS => DOWN,
        _ => WELL,
    })
    .await;
    let first = cluster.call(1, 4000 * MS);
    cluster.until(490 * MS).await;
    let mut others = cluster.calls(3, 2, 2000 * MS);
    others.extend(cluster.calls(3, 2, 450 * MS));
    let durations = all(others).await;
    assert!(
        durations.iter().all(|durations| durations.is_some_and(|durations| durations < 610 * MS)),
        "{durations:?}"
    );
    assert_eq!(all(vec![first]).await, [None]);
}

/// A slot without a primary: its calls are refused forever, and so is the call that retries for all.
#[tokio::test(start_paused = true)]
async fn no_call_waits_long_for_one_that_is_refused_forever() {
    let cluster = TestCluster::of(|_, key, since| match key {
        "lost" => "-CLUSTERDOWN Hash slot not served\r\n",
        _ if since < 600 * MS => DOWN,
        _ => WELL,
    })
    .await;
    let first = cluster.send_call("lost", 1, 4000 * MS);
    cluster.until(5 * MS).await;
    let durations = all(cluster.calls(4, 1, 2000 * MS)).await;
    assert!(
        durations.iter().all(|durations| durations.is_some_and(|durations| durations < 1600 * MS)),
        "{durations:?}"
    );
    assert_eq!(all(vec![first]).await, [None]);
}

/// A command sent without time for its reply may be executed, and its outcome would be unknown.
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_for_which_there_is_no_time() {
    let cluster = TestCluster::of(|_, _, _| DOWN).await;
    for _ in 0..5 {
        let before = cluster.refused();
        let durations = all(cluster.calls(200, 1, 700 * MS)).await;
        assert!(durations.iter().all(Option::is_none), "{durations:?}");
        // Each call at once and once or twice again, and one for all; alone, each would be sent ten times.
        assert!(cluster.refused() - before < 600, "{}", cluster.refused() - before);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_something_else_passes_the_turn() {
    let cluster = TestCluster::of(|_, _, _| WELL).await;
    let at = Address::Tcp { host: "n".to_owned(), port: 1, tls: false };
    let (node, deadline) = (cluster.cluster.shared.node(&at), cluster.start + 5000 * MS);
    let (mut one, mut other) = (RetryingCall::default(), RetryingCall::default());
    assert!(one.wait_to_retry(&node, 0, deadline).await && one.retry_guard.is_some());
    let slow = pin!(tokio::time::sleep(1000 * MS));
    let waits = one.releasing_if_slow(slow);
    let second_wait = async {
        assert!(other.wait_to_retry(&node, 0, deadline).await && other.retry_guard.is_some());
        cluster.start.elapsed()
    };
    let ((), waited) = tokio::join!(waits, second_wait);
    assert!(waited > RETRY_BACKOFF.longest && waited < 2 * RETRY_BACKOFF.longest, "{waited:?}");
    assert!(one.retry_guard.is_none());
}
