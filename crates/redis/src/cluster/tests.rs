//! Requests for the slot map, and the time until channels are subscribed again, with scripted nodes.

use super::refresh::{OTHERS_TIMEOUT, STAGGER, request_map};
use super::*;
use leasehold_core::{Notification, SessionId};
use leasehold_store::NotificationSink;
use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, duplex, split,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// A scripted node: the delay of its answers, if it answers; whether it reports the cluster up; and its epoch.
type Says = (Option<Duration>, bool, u64);

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const SILENT: Says = (None, true, 0);

/// The commands on a stream, until it ends.
pub(super) struct Commands(pub(super) BufReader<ReadHalf<DuplexStream>>);

impl Commands {
    pub(super) async fn next(&mut self) -> Option<Vec<String>> {
        let mut words = Vec::new();
        for _ in 0..self.number().await? {
            let mut word = vec![0; self.number().await? + 2];
            self.0.read_exact(&mut word).await.ok()?;
            word.truncate(word.len() - 2);
            words.push(String::from_utf8(word).ok()?);
        }
        Some(words)
    }

    /// Number behind the sign of a line: the number of words, or the length of one.
    async fn number(&mut self) -> Option<usize> {
        let mut line = String::new();
        self.0.read_line(&mut line).await.ok()?;
        line.get(1..)?.trim().parse().ok()
    }
}

/// The answer of a node. The port of the only primary is the epoch.
pub(super) fn reply(command: &[String], is_cluster_up: bool, epoch: u64) -> String {
    let words: Vec<_> = command.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["HELLO", ..] => "%0\r\n".to_owned(),
        ["INFO", ..] => "-NOPERM no\r\n".to_owned(),
        ["CLUSTER", "INFO"] => {
            let state = if is_cluster_up { "ok" } else { "fail" };
            let info = format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n");
            format!("${}\r\n{info}\r\n", info.len())
        }
        ["CLUSTER", "SLOTS"] => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\nn\r\n:{epoch}\r\n"),
        [kind @ ("SSUBSCRIBE" | "SUBSCRIBE"), channel] => {
            let kind = kind.to_lowercase();
            format!(">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n:1\r\n", kind.len(), channel.len())
        }
        _ => "+OK\r\n".to_owned(),
    }
}

/// Answers like a node.
async fn serve(stream: DuplexStream, (after, is_cluster_up, epoch): Says) {
    let (reader, mut writer) = split(stream);
    let mut commands = Commands(BufReader::new(reader));
    while let Some(command) = commands.next().await {
        let Some(after) = after else { return std::future::pending().await };
        if command == ["CLUSTER", "INFO"] {
            tokio::time::sleep(after).await;
        }
        if writer.write_all(reply(&command, is_cluster_up, epoch).as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Asks such nodes, each a moment after the one before, while the map of epoch `known` is known. Returns the epoch of
/// the accepted map, if any, and the time it took.
async fn queried(known: u64, nodes: &[Says]) -> (Option<u64>, Duration) {
    let at = |port| Address::Tcp { host: "n".to_owned(), port, tls: false };
    // The first node is the source of the known map.
    let says = std::iter::once((AT_ONCE, true, known)).chain(nodes.iter().copied());
    let says: BTreeMap<_, _> = (1..).map(at).map(|node| node.to_string()).zip(says).collect();
    let config: RedisConfig = "redis+cluster://n:1".parse().expect("a good URL");
    let config = config.connector(move |node| {
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(serve(theirs, says[&node]));
        async move { Ok(ours) }
    });
    let cluster = Cluster::new(config, None);
    let Shared { config, view, .. } = &*cluster.shared;
    let map = request_map(config, vec![at(1)], None).await.expect("the cluster is up");
    view.modify(|view| {
        view.map = Some(Arc::new(map));
        true
    });
    let addresses = (2..).map(at).take(nodes.len()).collect();
    let start = Instant::now();
    let map = request_map(config, addresses, Some(&cluster.shared)).await;
    let epoch = map.ok().map(|map| {
        assert_eq!(map.primaries().len(), 1);
        map.epoch
    });
    (epoch, start.elapsed())
}

/// As in a fail-over: the dead node does not answer, and all others report the cluster down. Waiting for the dead one
/// would delay the next request for seconds, while a replica has long been promoted.
#[tokio::test(start_paused = true)]
async fn a_silent_node_is_not_waited_for_while_no_other_is_well() {
    let (not_well, later) = ((AT_ONCE, false, 7), (AT_ONCE, false, 8));
    for (nodes, believed) in
        [([SILENT, not_well, not_well], 7), ([not_well, SILENT, later], 8), ([not_well, later, SILENT], 8)]
    {
        let (epoch, took) = queried(7, &nodes).await;
        assert_eq!(epoch, Some(believed), "{nodes:?}");
        assert!(took <= STAGGER + OTHERS_TIMEOUT + Duration::from_millis(10), "{took:?}: {nodes:?}");
    }
}

/// An older map does not show the present state: nodes that may have a newer one are waited for.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_cut_off_ends_no_waiting() {
    let slow = Some(Duration::from_secs(1));
    for old in [(AT_ONCE, false, 3), (AT_ONCE, true, 3)] {
        let (epoch, took) = queried(7, &[old, SILENT, (slow, true, 8)]).await;
        assert_eq!(epoch, Some(8), "{old:?}");
        assert!(took < Duration::from_millis(1300), "{took:?}");
        // If none answers, the older map is accepted.
        assert_eq!(queried(7, &[old, SILENT]).await.0, Some(3));
    }
}

/// A node that reports the cluster up is accepted at once.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_well_ends_the_waiting() {
    let (epoch, took) = queried(7, &[SILENT, (AT_ONCE, false, 7), (AT_ONCE, true, 8)]).await;
    assert_eq!(epoch, Some(8));
    assert!(took <= 2 * STAGGER + Duration::from_millis(10), "{took:?}");
    assert_eq!(queried(7, &[SILENT, SILENT]).await.0, None);
}

/// How long a message connection lasts in the test below.
const STANDS: Duration = Duration::from_secs(3);

/// A node that ends each message connection a while after the subscription on it, and reports when that was.
async fn serve_for_a_while(stream: DuplexStream, subscribed: UnboundedSender<Instant>) {
    let (reader, mut writer) = split(stream);
    let mut commands = Commands(BufReader::new(reader));
    let mut ends = None;
    loop {
        let left = ends.map_or(Duration::MAX, |ends: Instant| ends.saturating_duration_since(Instant::now()));
        let Ok(Some(command)) = timeout(left, commands.next()).await else { return };
        if command.first().is_some_and(|word| word == "SUBSCRIBE") {
            ends = Some(Instant::now() + STANDS);
            subscribed.send(Instant::now()).ok();
        }
        if writer.write_all(reply(&command, true, 1).as_bytes()).await.is_err() {
            return;
        }
    }
}

struct IgnoringSink;

impl NotificationSink for IgnoringSink {
    fn deliver(&self, _: Notification) {}

    fn resubscribed(&self) {}
}

/// After a connection that has lasted, the next one follows at once, however many have ended before.
#[tokio::test(start_paused = true)]
async fn connections_that_have_lasted_are_no_failures() {
    let (sender, mut subscribed) = unbounded_channel();
    let config: RedisConfig = "redis+cluster://n:1".parse().expect("a good URL");
    let cluster = Cluster::new(
        config.connector(move |_| {
            let (ours, theirs) = duplex(1 << 16);
            tokio::spawn(serve_for_a_while(theirs, sender.clone()));
            async move { Ok(ours) }
        }),
        None,
    );
    cluster.connect().await.expect("reached");
    let deadline = Instant::now() + Duration::from_secs(2);
    let session = SessionId::from_random([1; 12]);
    let opened = cluster.subscriptions().open_mailbox(
        (0, "box".to_owned()),
        session,
        Arc::new(IgnoringSink),
        deadline,
    );
    opened.await.expect("subscribed");
    let mut last = subscribed.recv().await.expect("the first");
    for number in 1..8 {
        let next = subscribed.recv().await.expect("the next");
        let pause = (next - last).saturating_sub(STANDS);
        assert!(pause < Duration::from_millis(50), "{pause:?} before connection {number}");
        last = next;
    }
}
