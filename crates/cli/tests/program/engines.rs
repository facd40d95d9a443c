//! The program on each store that consists of several servers: only the URL differs.

use super::fixture::{Fixture, expect, status};
use leasehold_testkit::{Cluster, Quorum, RedisServer, Sentinels};

/// The commands that an operator uses in a day.
fn a_day(fixture: &Fixture) {
    let mut holder = fixture.start(&[], "echo running; read line");
    expect(&mut holder, "running");
    fixture.script(&["--try"], "echo never").check(75, &format!("/{}/leasehold", holder.pid()));
    let shown = fixture.status();
    assert!(shown["fence"].as_u64().is_some(), "{shown}");
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    fixture.assert_free();

    fixture.run(&["acquire", "job", "--lease", "1m", "--token-file", "token"]).check(0, "");
    fixture.script(&["--try"], "echo never").check(75, "held by ");
    fixture.run(&["extend", "job", "--token-file", "token"]).check(0, "");
    fixture.run(&["release", "job", "--token-file", "token"]).check(0, "");
    fixture.assert_free();

    fixture.run(&["acquire", "job", "--lease", "1m", "--token-file", "token"]).check(0, "");
    fixture.run(&["free", "job", "--yes"]).check(0, "");
    fixture.assert_free();
    fixture.run(&["release", "job", "--token-file", "token"]).check(70, "released by force");
}

#[test]
fn over_sentinels() {
    let sentinels = Sentinels::start(1).expect("servers that boot");
    sentinels.wait_formed().expect("they know one another");
    let fixture = Fixture::at(sentinels.url());
    a_day(&fixture);
    fixture.run(&["ls"]).check(0, "");
    a_day(&Fixture::at(format!("{}?protocol=resp2", sentinels.url())));
}

#[test]
fn over_shards() {
    let shards: Vec<_> = (0..3).map(|_| RedisServer::start().expect("a server that boots")).collect();
    let addresses: Vec<_> = shards.iter().map(|shard| format!("127.0.0.1:{}", shard.port())).collect();
    let fixture = Fixture::at(format!("redis+shard://{}", addresses.join(",")));
    a_day(&fixture);
    fixture.run(&["ls"]).check(0, "");
}

#[test]
fn over_a_cluster() {
    let cluster = Cluster::start(3, 1).expect("nodes that agree");
    let fixture = Fixture::at(cluster.url());
    a_day(&fixture);
    fixture.run(&["ls"]).check(0, "");
}

#[test]
fn over_a_quorum() {
    let mut quorum = Quorum::start(5).expect("servers that boot");
    let fixture = Fixture::at(format!("{}?min_uptime=0s&node_timeout=1s", quorum.url()));
    a_day(&fixture);
    let mut holder = fixture.start(&[], "echo running; read line");
    expect(&mut holder, "running");
    assert_eq!(fixture.status()["votes"], serde_json::json!({ "held": 5, "needed": 3, "nodes": 5 }));
    let shown = fixture.run(&["show", "job"]).stdout;
    assert!(shown.contains("votes    5 of 5 nodes (3 are needed)\n"), "{shown}");
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    fixture.run(&["ls"]).check(69, "keeps no sessions");
    fixture.run(&["monitor"]).check(2, "keeps no sessions");
    fixture.run(&["lead", "job", "--", "true"]).check(2, "has no election");
    for at in [0, 3] {
        quorum.servers()[at].kill().expect("killed");
    }
    a_day(&fixture);
    quorum.servers()[4].kill().expect("killed");
    let port = quorum.servers()[4].port();
    fixture.script(&["--try"], "echo never").check(69, &format!("127.0.0.1:{port}"));
    // The living nodes are reported beside the others.
    let found = fixture.run(&["doctor"]);
    found.check(78, "");
    assert_eq!(found.stdout.matches("unreachable: ").count(), 3, "{found:?}");
    assert_eq!(found.stdout.matches("server   Redis ").count(), 2, "{found:?}");
    for at in [1, 2] {
        quorum.servers()[at].kill().expect("killed");
    }
    fixture.run(&["doctor"]).check(69, &format!("127.0.0.1:{port}"));
}

/// Nodes do not vote for a while after their start: a lock without a holder is not free yet.
#[test]
fn a_lock_of_a_quorum_is_free_once_its_nodes_vote() {
    let quorum = Quorum::start(3).expect("servers that boot");
    let fixture = Fixture::at(format!("{}?min_uptime=31s&node_timeout=1s", quorum.url()));
    let failed = fixture.run(&["wait", "job", "--wait", "0s"]);
    failed.check(75, "too few nodes of the quorum can grant it");
    assert!(fixture.status()["blocked_ms"].as_u64() > Some(0), "{}", fixture.status());
    assert!(fixture.run(&["show", "job"]).stdout.contains("blocked  for "));
    let is_free = |_: &i32| fixture.run(&["wait", "job", "--wait", "10s"]).status.success();
    assert!((0..6).find(is_free).is_some(), "{}", fixture.status());
    assert_eq!(fixture.status()["blocked_ms"], serde_json::Value::Null);
    fixture.run(&["run", "job", "--try", "--", "true"]).check(0, "");
}

#[test]
fn nodes_that_do_not_vote_yet_say_until_when_and_are_waited_for() {
    let quorum = Quorum::start(3).expect("servers that boot");
    let fixture = Fixture::at(format!("{}?min_uptime=1h&node_timeout=1s", quorum.url()));
    let failed = fixture.run(&["run", "job", "--try", "--", "echo", "never"]);
    failed.check(69, "; enough of them vote in ");
    assert!(failed.stderr.contains("`?min_uptime=0s`"), "{failed:?}");
    let fixture = Fixture::at(format!("{}?min_uptime=4s&node_timeout=1s", quorum.url()));
    let run = fixture.run(&["run", "job", "--lease", "3s", "--wait", "15s", "--", "echo", "running"]);
    run.check(0, "");
    assert_eq!(run.stdout, "running\n");
}
