//! The program on each store that consists of several servers: only the URL differs.

use super::fixture::{Fixture, expect, start, status};
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
    let mut monitor = start(fixture.command(&["monitor", "--json"]));
    expect(&mut monitor, "{\"event\":\"started\"");
    let trouble = expect(&mut monitor, "{\"event\":\"trouble\"");
    assert!(trouble.contains("keeps no sessions"), "{trouble}");
    monitor.kill().expect("killed");
    fixture.run(&["lead", "job", "--", "true"]).check(2, "has no election");
    for at in [0, 3] {
        quorum.servers()[at].kill().expect("killed");
    }
    a_day(&fixture);
    quorum.servers()[4].kill().expect("killed");
    let port = quorum.servers()[4].port();
    fixture.script(&["--try"], "echo never").check(69, &format!("127.0.0.1:{port}"));
}
