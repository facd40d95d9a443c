//! A cluster, whose messages arrive on connections of their own.

use crate::fixture::{
    LONG, Mailbox, Received, SHORT, acquire, alive, claim, execute_on, found, granted, nonce, receive,
    release, session, take,
};
use leasehold_core::{Heartbeat, HeartbeatReply, HoldStatus, Partition, SessionOp, SessionReply};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_store::{Executed, FaultKind, Outcome, Store};
use leasehold_testkit::{AfterDrop, Cluster, Proxy, command};
use std::collections::BTreeMap;
use tokio::net::TcpStream;

/// A store that reaches each node through a proxy, although the nodes announce their own addresses.
async fn proxied(cluster: &Cluster) -> (RedisStore, Vec<Proxy>) {
    let proxies: Vec<_> = (0..3).map(|at| Proxy::to_server(cluster.node(at)).unwrap()).collect();
    let ways: BTreeMap<_, _> =
        (0..3).map(|at| (format!("127.0.0.1:{}", cluster.node(at).port()), proxies[at].port())).collect();
    let config = RedisConfig::from_url(&cluster.url()).unwrap();
    let config = config.connector(move |node| TcpStream::connect(("127.0.0.1", ways[&node])));
    (RedisStore::connect(config).await.unwrap(), proxies)
}

/// For streams that the Redis client library does not open itself, such as TLS, a task of the connection moves the
/// bytes: it must live until the nodes have returned the slot map.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_reached_by_a_custom_connector() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(3, 0)).unwrap();
    let (store, proxies) = proxied(&cluster).await;
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    assert!(proxies.iter().all(|proxy| proxy.accepted() > 0));
}

/// Locks with a common hash tag share calls, also after their slot has moved.
#[tokio::test]
async fn operations_in_one_slot_of_a_cluster_share_calls() {
    let cluster = Cluster::start(3, 0).unwrap();
    let store = RedisStore::connect(cluster.url().parse().unwrap()).await.unwrap();
    let (slot, from) = (cluster.slot("{orders}").unwrap(), cluster.owner_of("{orders}").unwrap());
    let to = (from + 1) % 3;
    let acquire_each = |first: u8| {
        let each = (first..first + 20).map(|n| {
            let store = &store;
            async move { execute_on(store, &format!("{{orders}}/{n}"), take(&claim(n), None), LONG).await }
        });
        futures_util::future::join_all(each)
    };
    let mut sent = Vec::new();
    for (first, at) in [(0, from), (20, from), (40, to), (60, to)] {
        if first == 40 {
            cluster.move_slot(slot, to).unwrap();
        }
        cluster.node(at).reset_counts().unwrap();
        acquire_each(first).await.into_iter().for_each(granted);
        sent.push(cluster.node(at).command_counts().unwrap()["evalsha"]);
    }
    // One alone, then 8, 8 and 3 together. At a node that does not know the script, these are sent twice at most. Right after
    // the move, each goes to the old node first, and then alone to the new one.
    assert_eq!(sent[1], 4, "{sent:?}");
    assert!(sent[0] <= 7 && sent[2] >= 20 && sent[3] <= 7, "{sent:?}");
}

/// The heartbeats of sessions in slots of all primaries: those of every second slot have begun. One session ends meanwhile.
fn session_ops() -> Vec<(Partition, SessionOp)> {
    let each = (0..16_384).step_by(500).map(|slot| {
        let heartbeat = Heartbeat { renew_listing: slot % 1500 == 0, ..alive(1) };
        (Partition::new(slot), SessionOp::Heartbeat(heartbeat))
    });
    let mut ops: Vec<_> = each.collect();
    ops.insert(7, (Partition::new(250), SessionOp::End(session(1))));
    ops
}

async fn begin_every_second(store: &RedisStore, ops: &[(Partition, SessionOp)]) -> Vec<SessionReply> {
    let mut expected = Vec::new();
    for (at, (partition, op)) in ops.iter().enumerate() {
        let SessionOp::Heartbeat(heartbeat) = op else {
            expected.push(SessionReply::End);
            continue;
        };
        let begins = at % 2 == 0;
        expected.push(SessionReply::Heartbeat(if begins {
            HeartbeatReply::Alive
        } else {
            HeartbeatReply::Lapsed
        }));
        if begins {
            let begin = SessionOp::Heartbeat(Heartbeat { begin: Some("{}".to_owned()), ..heartbeat.clone() });
            let begun = store.execute_session(*partition, &begin, LONG).await;
            assert!(matches!(begun, Outcome::Done(_)), "{begun:?}");
        }
    }
    expected
}

/// They go in one batch for each primary, also where a server has lost its scripts or a slot has moved, which costs those
/// concerned another request.
#[tokio::test]
async fn heartbeats_in_many_slots_go_together_and_each_has_its_own_reply() {
    let cluster = Cluster::start(3, 0).unwrap();
    let store = RedisStore::connect(cluster.url().parse().unwrap()).await.unwrap();
    let ops = session_ops();
    let expected = begin_every_second(&store, &ops).await;
    let moved = 4_000;
    let (from, heartbeats) = (cluster.owner(moved).unwrap(), ops.len() - 1);
    for round in ["as it is", "without scripts", "with a slot moved", "with the slot known"] {
        match round {
            "without scripts" => {
                cluster.node(0).cli(&["SCRIPT", "FLUSH", "SYNC"]).unwrap().ok().unwrap();
            }
            "with a slot moved" => {
                cluster.move_slot(moved, (from + 1) % 3).unwrap();
            }
            _ => {}
        }
        (0..3).for_each(|at| cluster.node(at).reset_counts().unwrap());
        let outcomes = store.execute_sessions(&ops, LONG).await;
        let replies = outcomes.into_iter().map(|outcome| match outcome {
            Outcome::Done(reply) => reply,
            failed @ Outcome::Failed(..) => panic!("{round}: {failed:?}"),
        });
        assert_eq!(replies.collect::<Vec<_>>(), expected, "{round}");
        let sent: u64 = (0..3).map(|at| cluster.node(at).command_counts().unwrap()["evalsha"]).sum();
        // What is redirected does not count as a call.
        let again =
            if round == "without scripts" { sent > heartbeats as u64 } else { sent == heartbeats as u64 };
        assert!(again, "{round}: {sent} for {heartbeats}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_replies_fails_its_own_heartbeats_alone() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(3, 0)).unwrap();
    let (store, proxies) = proxied(&cluster).await;
    let ops = session_ops();
    begin_every_second(&store, &ops).await;
    let silent = 1;
    proxies[silent].drop_replies(1, AfterDrop::Stall, command("EVALSHA"));
    let outcomes = store.execute_sessions(&ops, SHORT).await;
    assert_eq!(outcomes.len(), ops.len());
    for ((partition, _), outcome) in ops.iter().zip(outcomes) {
        if cluster.owner(partition.as_u16()).unwrap() == silent {
            assert!(matches!(outcome, Outcome::Failed(Executed::Unknown, _)), "{partition}: {outcome:?}");
        } else {
            assert!(matches!(outcome, Outcome::Done(_)), "{partition}: {outcome:?}");
        }
    }
}

/// An idle subscription connection is pinged: kept if the reply arrives, replaced if not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_detects_that_messages_stopped() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(3, 0)).unwrap();
    let at = cluster.owner(0).unwrap();
    let (store, proxies) = proxied(&cluster).await;
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::new(0), session(1), mailbox, LONG).await.unwrap();
    let before = proxies[at].accepted();
    proxies[at].until_counted("PING", 1, LONG).await.unwrap();
    proxies[at].drop_replies(1, AfterDrop::Stall, command("PING"));
    let received = receive(&mut inbox).await;
    assert!(matches!(received, Some(Received::Resubscribed)), "{received:?}");
    assert_eq!((proxies[at].count("PING"), proxies[at].accepted()), (2, before + 1));
    let channels = cluster.node(at).cli(&["PUBSUB", "SHARDCHANNELS"]).unwrap();
    let channel = channels.elements()[0].text().unwrap();
    cluster.node(at).cli(&["SPUBLISH", channel, &format!("grant {} 1", nonce(5))]).unwrap();
    let received = receive(&mut inbox).await;
    assert!(
        matches!(received, Some(Received::Notification(notification)) if notification.nonce() == Some(nonce(5)))
    );
}

/// Only Valkey 9 has databases in a cluster, if its `cluster-databases` setting says so.
#[tokio::test]
async fn a_cluster_without_databases_refuses_one() {
    let cluster = Cluster::start(1, 0).unwrap();
    let config = RedisConfig::from_url(&format!("{}/1", cluster.url())).unwrap();
    let fault = RedisStore::connect(config).await.unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Unusable(_)) && !fault.is_transient(), "{fault}");
    assert!(fault.to_string().contains("database"), "{fault}");
}
