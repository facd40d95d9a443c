//! The program on each store that consists of several servers: only the URL differs.

use super::scene::{Scene, expect, start, status};
use leasehold_testkit::{Cluster, Quorum, RedisServer, Sentinels};

/// The commands that an operator uses in a day.
fn a_day(scene: &Scene) {
    let mut holder = scene.start(&[], "echo running; read line");
    expect(&mut holder, "running");
    scene.script(&["--try"], "echo never").check(75, &format!("/{}/leasehold", holder.pid()));
    let shown = scene.status();
    assert!(shown["fence"].as_u64().is_some(), "{shown}");
    holder.tell("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    scene.assert_free();

    scene.run(&["acquire", "job", "--lease", "1m", "--token-file", "token"]).check(0, "");
    scene.script(&["--try"], "echo never").check(75, "held by ");
    scene.run(&["extend", "job", "--token-file", "token"]).check(0, "");
    scene.run(&["release", "job", "--token-file", "token"]).check(0, "");
    scene.assert_free();

    scene.run(&["acquire", "job", "--lease", "1m", "--token-file", "token"]).check(0, "");
    scene.run(&["free", "job", "--yes"]).check(0, "");
    scene.assert_free();
    scene.run(&["release", "job", "--token-file", "token"]).check(70, "released by force");
}

#[test]
fn over_sentinels() {
    let sentinels = Sentinels::start(1).expect("servers that boot");
    sentinels.formed().expect("they know one another");
    let scene = Scene::at(sentinels.url());
    a_day(&scene);
    scene.run(&["ls"]).check(0, "");
    a_day(&Scene::at(format!("{}?protocol=resp2", sentinels.url())));
}

#[test]
fn over_shards() {
    let shards: Vec<_> = (0..3).map(|_| RedisServer::start().expect("a server that boots")).collect();
    let addresses: Vec<_> = shards.iter().map(|shard| format!("127.0.0.1:{}", shard.port())).collect();
    let scene = Scene::at(format!("redis+shard://{}", addresses.join(",")));
    a_day(&scene);
    scene.run(&["ls"]).check(0, "");
}

#[test]
fn over_a_cluster() {
    let cluster = Cluster::start(3, 1).expect("nodes that agree");
    let scene = Scene::at(cluster.url());
    a_day(&scene);
    scene.run(&["ls"]).check(0, "");
}

#[test]
fn over_a_quorum() {
    let mut quorum = Quorum::start(5).expect("servers that boot");
    let scene = Scene::at(format!("{}?min_uptime=0s&node_timeout=1s", quorum.url()));
    a_day(&scene);
    scene.run(&["ls"]).check(69, "keeps no sessions");
    let mut monitor = start(scene.command(&["monitor", "--json"]));
    expect(&mut monitor, "{\"event\":\"started\"");
    let trouble = expect(&mut monitor, "{\"event\":\"trouble\"");
    assert!(trouble.contains("keeps no sessions"), "{trouble}");
    monitor.kill().expect("killed");
    scene.run(&["lead", "job", "--", "true"]).check(2, "has no election");
    for at in [0, 3] {
        quorum.servers()[at].kill().expect("killed");
    }
    a_day(&scene);
    quorum.servers()[4].kill().expect("killed");
    let port = quorum.servers()[4].port();
    scene.script(&["--try"], "echo never").check(69, &format!("127.0.0.1:{port}"));
}
