//! Who is asked for the map, and for how long, with nodes that say what they are told to.

use super::*;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex, split};

/// A node: after how long it answers, if it does; whether it is well; and the epoch that it knows of.
type Says = (Option<Duration>, bool, u64);

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const SILENT: Says = (None, true, 0);

/// Answers as a node does. The port of the only primary is the epoch, so that it is seen whose map it is.
async fn serve(stream: DuplexStream, (after, is_well, epoch): Says) {
    let (reader, mut writer) = split(stream);
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(head)) = lines.next_line().await {
        let count: usize = head.trim_start_matches('*').parse().expect("a command is an array");
        let mut words = Vec::new();
        for _ in 0..count {
            lines.next_line().await.expect("a length");
            words.extend(lines.next_line().await.expect("a word"));
        }
        let Some(after) = after else { return std::future::pending().await };
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let reply = match words.as_slice() {
            ["HELLO", ..] => "%0\r\n".to_owned(),
            ["CLUSTER", "INFO"] => {
                tokio::time::sleep(after).await;
                let state = if is_well { "ok" } else { "fail" };
                let info = format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n");
                format!("${}\r\n{info}\r\n", info.len())
            }
            ["CLUSTER", "SLOTS"] => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\na\r\n:{epoch}\r\n"),
            _ => "+OK\r\n".to_owned(),
        };
        if writer.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Asks such nodes, each a moment after the one before, where the map of that epoch is known: the epoch whose map is believed,
/// if any is, and after how long.
async fn asked(known: u64, nodes: &[Says]) -> (Option<u64>, Duration) {
    let at = |port| Address::Tcp { host: "n".to_owned(), port, tls: false };
    // The first is the one that we know it from.
    let says = std::iter::once((AT_ONCE, true, known)).chain(nodes.iter().copied());
    let says: BTreeMap<_, _> = (1..).map(at).map(|node| node.to_string()).zip(says).collect();
    let config: RedisConfig = "redis+cluster://n:1".parse().expect("a good URL");
    let config = config.connector(move |node| {
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(serve(theirs, says[&node]));
        async move { Ok(ours) }
    });
    let cluster = Cluster::new(config);
    let Shared { config, view, .. } = &*cluster.shared;
    let map = ask_any(config, vec![at(1)], None).await.expect("it is well");
    view.modify(|view| {
        view.map = Some(Arc::new(map));
        true
    });
    let addresses = (2..).map(at).take(nodes.len()).collect();
    let start = Instant::now();
    let map = ask_any(config, addresses, Some(&cluster.shared)).await;
    let epoch = map.ok().map(|map| {
        assert_eq!(map.primaries().len(), 1);
        map.epoch
    });
    (epoch, start.elapsed())
}

/// As in a fail-over: the dead node says nothing, and no other is well. Whoever waited for the dead one would ask again only
/// after seconds, when another has long been promoted.
#[tokio::test(start_paused = true)]
async fn a_silent_node_is_not_waited_for_while_no_other_is_well() {
    let (not_well, later) = ((AT_ONCE, false, 7), (AT_ONCE, false, 8));
    for (nodes, believed) in
        [([SILENT, not_well, not_well], 7), ([not_well, SILENT, later], 8), ([not_well, later, SILENT], 8)]
    {
        let (epoch, took) = asked(7, &nodes).await;
        assert_eq!(epoch, Some(believed), "{nodes:?}");
        assert!(took <= STAGGER + OTHERS + Duration::from_millis(10), "{took:?}: {nodes:?}");
    }
}

/// Who knows less than we do says nothing of how it is now: those who may know better are waited for.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_cut_off_ends_no_waiting() {
    let slow = Some(Duration::from_secs(1));
    for old in [(AT_ONCE, false, 3), (AT_ONCE, true, 3)] {
        let (epoch, took) = asked(7, &[old, SILENT, (slow, true, 8)]).await;
        assert_eq!(epoch, Some(8), "{old:?}");
        assert!(took < Duration::from_millis(1300), "{took:?}");
        // If they do not say anything, it is believed.
        assert_eq!(asked(7, &[old, SILENT]).await.0, Some(3));
    }
}

/// One that is well is believed at once.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_well_ends_the_waiting() {
    let (epoch, took) = asked(7, &[SILENT, (AT_ONCE, false, 7), (AT_ONCE, true, 8)]).await;
    assert_eq!(epoch, Some(8));
    assert!(took <= 2 * STAGGER + Duration::from_millis(10), "{took:?}");
    assert_eq!(asked(7, &[SILENT, SILENT]).await.0, None);
}
