//! A quorum of five servers, some of which are killed, suspended, restarted or emptied.

use super::fixture::load_scripts;
use leasehold::core::drift;
use leasehold::error::{AcquireError, ExtendError};
use leasehold::inspect::Votes;
use leasehold::store::{FaultKind, QuorumConfig, RedisConfig, RedisStore};
use leasehold::{Attempt, Client, FencingToken, Guard, Moment};
use leasehold_testkit::{Proxy, Quorum, RedisServer, RespConnection, Sentinels, Worker, command};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const NODES: usize = 5;
const PROCESSES: usize = 4;
const LIMIT: Duration = Duration::from_secs(420);
/// How often each process counts, unless `LEASEHOLD_QUORUM_ROUNDS` is set; 250 makes it a thousand in total.
const ROUNDS: u64 = 40;

fn rounds() -> u64 {
    let rounds = std::env::var("LEASEHOLD_QUORUM_ROUNDS").ok();
    rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("a number"))
}

fn five() -> Quorum {
    Quorum::start(NODES).expect("five servers that boot")
}

/// Nodes vote from the start, with a timeout that suits a busy machine.
fn url(quorum: &Quorum) -> String {
    format!("{}?min_uptime=0s&node_timeout=250ms", quorum.url())
}

async fn client(url: &str) -> Client {
    Client::builder(url).connect().await.expect("a majority")
}

fn start(url: &str, counter: &RedisServer, process: usize) -> Worker {
    Worker::of_test("failures::quorum::a_worker_that_counts_under_a_quorum", "voter")
        .env("LEASEHOLD_TEST_URL", url)
        .env("LEASEHOLD_TEST_PORT", counter.port().to_string())
        .env("LEASEHOLD_TEST_PROCESS", process.to_string())
        .start()
        .expect("a worker")
}

fn text(server: &RedisServer, key: &str) -> String {
    server.cli(&["GET", key]).expect("an answer").text().unwrap_or("0").to_owned()
}

/// Each release names the client that has waited longest. Without that the client that has released, and requests the lock
/// again at once, is the first to arrive at the nodes, and gets nearly all of the turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_quorum_take_turns() {
    const CLIENTS: usize = 4;
    const TURNS: usize = 60;
    let quorum = Quorum::start(3).expect("three servers that boot");
    let turns = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let (mutex, turns) = (client(&url(&quorum)).await.mutex("job").expect("a good name"), turns.clone());
        tasks.push(tokio::spawn(async move {
            loop {
                let guard = mutex.acquire().await.expect("acquired");
                let count = {
                    let mut turns = turns.lock().expect("no panic");
                    turns.push(number);
                    turns.len()
                };
                tokio::time::sleep(Duration::from_millis(20)).await;
                guard.release().await.expect("released");
                if count >= TURNS {
                    break;
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let turns = turns.lock().expect("no panic").clone();
    let had = |number| turns.iter().filter(|had| **had == number).count();
    let least = (0..CLIENTS).map(had).min();
    assert!(least >= Some(TURNS / CLIENTS / 3), "{turns:?}");
}

/// Four processes count that often each, while `suffer` disturbs the servers until all are done.
fn counted(mut quorum: Quorum, mut suffer: impl FnMut(&mut Quorum, u32)) {
    let counter = RedisServer::start().expect("a sixth server");
    let url = url(&quorum);
    let mut workers: Vec<_> = (0..PROCESSES).map(|process| start(&url, &counter, process)).collect();
    for worker in &mut workers {
        worker.expect("ready", LIMIT).expect("it is connected");
    }
    let mut left: Vec<_> = workers.iter_mut().collect();
    let (begun, mut rounds) = (Instant::now(), 0);
    while !left.is_empty() {
        assert!(begun.elapsed() < LIMIT, "{} of them are still counting", left.len());
        suffer(&mut quorum, rounds);
        rounds += 1;
        left.retain_mut(|worker| match worker.line(Duration::from_millis(20)) {
            Ok(line) => {
                assert_eq!(line, "done", "after {rounds} rounds");
                false
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
                true
            }
        });
    }
    println!("counted to {} in {:?}, {rounds} rounds", text(&counter, "number"), begun.elapsed());
    let sum: u64 = (0..PROCESSES)
        .map(|process| text(&counter, &format!("count:{process}")).parse::<u64>().expect("a number"))
        .sum();
    let all = PROCESSES as u64 * self::rounds();
    assert_eq!((text(&counter, "number"), sum), (all.to_string(), all));
    assert_eq!(text(&counter, "backward"), "0", "a token went back");
}

/// R5: two of five nodes may be missing.
#[test]
fn four_processes_count_over_a_quorum_without_two_of_its_nodes() {
    counted(five(), |quorum, round| {
        if round < 2 {
            quorum.servers()[round as usize * 3].kill().expect("killed");
        }
    });
}

/// The same with one node down and one other at a time suspended.
#[test]
fn four_processes_count_over_a_quorum_whose_nodes_are_suspended_in_turn() {
    let mut stopped: Option<usize> = None;
    counted(five(), |quorum, round| {
        if round == 0 {
            quorum.servers()[4].kill().expect("killed");
        }
        if let Some(at) = stopped.take() {
            quorum.servers()[at].resume().expect("it goes on");
        }
        let at = round as usize % 4;
        quorum.servers()[at].stop().expect("stopped");
        stopped = Some(at);
        std::thread::sleep(Duration::from_secs(1));
    });
}

/// Not a test by itself: one of the counting processes.
#[test]
fn a_worker_that_counts_under_a_quorum() {
    if Worker::role().as_deref() != Some("voter") {
        return;
    }
    let env = |name: &str| std::env::var(name).expect("set by the test");
    let (url, own) = (env("LEASEHOLD_TEST_URL"), format!("count:{}", env("LEASEHOLD_TEST_PROCESS")));
    let port = env("LEASEHOLD_TEST_PORT").parse().expect("a port");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut redis = RespConnection::open(port, LIMIT).expect("connected");
        let mut call =
            |words: &[&str]| redis.call(words).and_then(leasehold_testkit::Value::ok).expect("done");
        let mutex = client(&url).await.mutex("counter").expect("a good name");
        Worker::report("ready");
        for _ in 0..rounds() {
            let guard = mutex.acquire().await.expect("acquired");
            let number = |text: Option<&str>| text.map_or(0, |text| text.parse::<u64>().expect("a number"));
            let next = (number(call(&["GET", "number"]).text()) + 1).to_string();
            let fence = guard.fencing_token();
            if number(call(&["GET", "fence"]).text()) >= fence.as_u64() {
                call(&["INCR", "backward"]);
            }
            if guard.check().is_err() {
                // The process was suspended for longer than its lease, and has changed nothing.
                continue;
            }
            call(&["MULTI"]);
            call(&["SET", "number", &next]);
            call(&["SET", "fence", &fence.to_string()]);
            call(&["INCR", &own]);
            call(&["EXEC"]);
            // Whether a majority has released it does not matter: holds that are left end with their lease.
            let _ = guard.release().await;
        }
        Worker::report("done");
    });
}

/// Row 41: without a majority every acquire fails in time, and names the reason of each node.
#[tokio::test]
async fn without_a_majority_an_acquire_names_the_nodes_in_time() {
    let mut quorum = five();
    let client = client(&url(&quorum)).await;
    let (killed, waited) = ([0, 2, 3], Duration::from_secs(2));
    for at in killed {
        quorum.servers()[at].kill().expect("killed");
    }
    let ports: BTreeSet<_> =
        killed.map(|at| format!("127.0.0.1:{}", quorum.servers()[at].port())).into_iter().collect();
    for _ in 0..3 {
        let begun = Instant::now();
        let error = client
            .mutex("job")
            .expect("a good name")
            .max_wait(waited)
            .acquire()
            .await
            .expect_err("three are gone");
        assert!(begun.elapsed() < waited + Duration::from_secs(5), "{:?}", begun.elapsed());
        let (AcquireError::Store(fault) | AcquireError::Unknown(fault)) = &error else { panic!("{error:?}") };
        let FaultKind::NoQuorum { needed: 3, total: 5, nodes } = &fault.kind else { panic!("{fault}") };
        let named: BTreeSet<_> = nodes.iter().map(|node| node.node.to_string()).collect();
        assert_eq!(named, ports, "{error}");
    }
    // One node is back, and there is a majority again.
    quorum.servers()[2].restart().expect("it boots");
    client
        .mutex("job")
        .expect("a good name")
        .acquire()
        .await
        .expect("acquired")
        .release()
        .await
        .expect("released");
}

/// R23, on real servers: the validity is the lease less the time that the votes took, and an allowance for drift. An extend
/// that two of three servers do not answer neither lengthens it nor releases the hold where it is.
#[tokio::test]
async fn row_12_an_extend_without_a_majority_keeps_the_validity_and_the_hold() {
    const LEASE: Duration = Duration::from_secs(60);
    let mut quorum = Quorum::start(3).expect("three servers that boot");
    let (holder, other) = (client(&url(&quorum)).await, client(&url(&quorum)).await);
    let requested_at = holder.now();
    let guard = holder.mutex("job").expect("a good name").lease(LEASE).acquire().await.expect("acquired");
    guard.extend().await.expect("all three extend it");
    let valid_until = guard.valid_until();
    let answered_at = holder.now();
    // Redlock's validity, with the drift of one in a hundred that the client allows for.
    assert!(valid_until < answered_at + LEASE - LEASE / 200, "{:?}", guard.remaining());
    assert!(valid_until > requested_at + LEASE - LEASE / 20, "{:?}", guard.remaining());
    for at in [0, 1] {
        quorum.servers()[at].stop().expect("stopped");
    }
    let ExtendError::Store(fault) = guard.extend().await.expect_err("one of three has replied") else {
        panic!("the hold is not lost")
    };
    assert!(matches!(fault.kind, FaultKind::NoQuorum { needed: 2, total: 3, .. }), "{fault}");
    assert_eq!(guard.valid_until(), valid_until, "the minority does not count");
    guard.check().expect("it is valid as long as before");
    let left = quorum.servers()[2].cli(&["PTTL", "job"]).expect("an answer").integer();
    assert!(left > Some(1_000), "the third server still has the hold: {left:?}");
    for at in [0, 1] {
        quorum.servers()[at].resume().expect("resumed");
    }
    let tried = other.mutex("job").expect("a good name").try_acquire().await.expect("an answer");
    assert!(matches!(tried, Attempt::Taken(_)), "no server has released it");
    guard.extend().await.expect("a majority is back");
    guard.release().await.expect("released");
}

/// Three servers behind proxies, and a client of them that waits long for a vote.
struct SlowVotes {
    quorum: Quorum,
    proxies: Vec<Proxy>,
    client: Client,
}

impl SlowVotes {
    async fn start() -> Self {
        let quorum = Quorum::start(3).expect("three servers that boot");
        let proxies: Vec<_> =
            quorum.iter().map(|server| Proxy::to_server(server).expect("a proxy")).collect();
        let nodes: Vec<_> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        let url = format!("redlock://{}?min_uptime=0s&node_timeout=20s", nodes.join(","));
        let client = Client::builder(url).call_timeout(Duration::from_secs(20)).connect().await;
        let client = client.expect("a majority");
        load_scripts(&client.mutex("job").expect("a good name")).await;
        Self { quorum, proxies, client }
    }

    /// For how much longer each server keeps the hold, in milliseconds; less than zero without one.
    fn kept_ms(&self) -> Vec<i64> {
        let kept =
            self.quorum.iter().map(|server| server.cli(&["PTTL", "job"]).expect("an answer").integer());
        kept.map(|ms| ms.expect("a number")).collect()
    }
}

/// R23, on real servers whose votes take their time: the validity is the lease less the time that they took, and the
/// allowance for drift. That is so for an acquire, for the extend that lengthens its first lease, and for a later one.
#[tokio::test]
async fn row_13_the_time_that_votes_take_does_not_count_as_validity() {
    const DELAY: Duration = Duration::from_millis(200);
    const SHORT: Duration = Duration::from_secs(2);
    const LONG: Duration = Duration::from_secs(60);
    let votes = SlowVotes::start().await;
    for proxy in &votes.proxies {
        proxy.delay_replies(DELAY);
    }
    let client = &votes.client;
    // No reply can arrive before the delay is over, and the request is sent after the call began.
    let assert_valid = |begun: Moment, lease: Duration, guard: &Guard| {
        let (answered, valid_until) = (client.now(), guard.valid_until());
        let valid_for = lease.saturating_sub(drift(lease));
        assert!(begun + DELAY <= answered, "the votes took their time");
        assert!(valid_until + DELAY <= answered + valid_for, "the votes' time counts as validity: {guard:?}");
        assert!(valid_until >= begun + valid_for, "more than the votes' time is missing: {guard:?}");
        let mut kept = votes.kept_ms();
        kept.sort_unstable();
        let majority = Duration::from_millis(u64::try_from(kept[1]).unwrap_or(0) + 1);
        assert!(guard.remaining() <= majority, "{kept:?} at the servers: {guard:?}");
    };
    let begun = client.now();
    let job = client.mutex("job").expect("a good name");
    let guard = job.clone().lease(SHORT).acquire().await.expect("acquired");
    assert_valid(begun, SHORT, &guard);
    let begun = client.now();
    guard.extend_to(LONG).await.expect("extended");
    assert_valid(begun, LONG, &guard);
    guard.release().await.expect("released");
}

/// Votes that are cast only after the lease would have ended are taken back at every server, long before they end there.
#[tokio::test]
async fn row_13_votes_that_take_longer_than_the_lease_are_undone() {
    const LEASE: Duration = Duration::from_millis(2_500);
    const ACQUIRE: usize = 1;
    let votes = SlowVotes::start().await;
    for proxy in &votes.proxies {
        proxy.pause_requests(ACQUIRE, command("EVALSHA"));
    }
    let begun = votes.client.now();
    let tries = tokio::spawn({
        let job = votes.client.mutex("job").expect("a good name").lease(LEASE);
        async move { job.try_acquire().await }
    });
    for proxy in &votes.proxies {
        proxy.until_paused(ACQUIRE, Duration::from_secs(10)).await.expect("a request at each server");
    }
    until("the lease is over", || votes.client.now() > begun + LEASE).await;
    let resumed_at = votes.client.now();
    let resumed: Vec<_> = votes.proxies.iter().map(Proxy::resume_requests).collect();
    for resumed in resumed {
        resumed.answered(Duration::from_secs(10)).await.expect("each server has voted");
    }
    let tried = tries.await.expect("no panic");
    match tried {
        // That it is taken is the answer of a second request that found votes of the first.
        Err(AcquireError::LeaseTooShort { .. }) | Ok(Attempt::Taken(_)) => {}
        // A second request came after they were taken back. Its release ends no vote of the first.
        Ok(Attempt::Granted(guard)) => guard.release().await.expect("released"),
        Err(error) => panic!("{error:?}"),
    }
    until("no server has the hold", || votes.kept_ms().iter().all(|kept| *kept < 0)).await;
    // Had they not been undone, the servers would have kept them for the whole lease.
    assert!(votes.client.now() < resumed_at + LEASE, "they ended by themselves");
    let guard = votes.client.mutex("job").expect("a good name").acquire().await.expect("acquired");
    guard.release().await.expect("released");
}

/// A node known to be down is not awaited, even where the other nodes alone do not decide: after a split vote the
/// loser has its result as soon as all reachable nodes have voted.
#[tokio::test]
async fn a_node_that_is_away_is_not_waited_for_where_votes_are_split() {
    const NODE_TIMEOUT: Duration = Duration::from_secs(10);
    let mut quorum = Quorum::start(3).expect("three servers that boot");
    let client = client(&format!("{}?min_uptime=0s&node_timeout=10s", quorum.url())).await;
    let mutex = client.mutex("job").expect("a good name");
    mutex.acquire().await.expect("acquired").release().await.expect("released");
    quorum.servers()[2].kill().expect("killed");
    // Another client holds one of the two nodes that are left.
    quorum.servers()[0].cli(&["SET", "job", "foreign", "PX", "600000"]).expect("an answer");
    // This attempt may discover that a connection is closed, so that the next one is measured.
    let _ = mutex.try_acquire().await;
    let begun = Instant::now();
    for _ in 0..10 {
        let attempt = mutex.try_acquire().await;
        assert!(!matches!(attempt, Ok(Attempt::Granted(_))), "there is no majority to grant it");
    }
    println!("ten attempts took {:?}", begun.elapsed());
    assert!(begun.elapsed() < NODE_TIMEOUT, "{:?}", begun.elapsed());
    quorum.servers()[2].restart().expect("it boots");
    mutex.acquire().await.expect("its vote makes the majority").release().await.expect("released");
}

/// N5: tokens grow, whatever happens to a minority of nodes.
#[tokio::test]
async fn row_31_tokens_of_a_quorum_grow_through_kills_restarts_and_flushes() {
    let mut quorum = five();
    let url = url(&quorum);
    let (one, other) = (client(&url).await, client(&url).await);
    let mut last: Option<FencingToken> = None;
    for round in 0..30_usize {
        let (first, second) = (round % NODES, (round + 1 + round / NODES % 2) % NODES);
        match round % 4 {
            0 => quorum.servers()[first].restart().expect("it boots"),
            1 => {
                quorum.servers()[first].kill().expect("killed");
                quorum.servers()[second].kill().expect("killed");
            }
            2 => {
                for at in [first, second] {
                    drop(quorum.servers()[at].cli(&["FLUSHALL"]));
                }
            }
            _ => {
                for server in quorum.servers().iter_mut().filter(|server| server.pid().is_none()) {
                    server.restart().expect("it boots");
                }
            }
        }
        let client = if round % 2 == 0 { &one } else { &other };
        let guard = client.mutex("job").expect("a good name").acquire().await.expect("acquired");
        let fence = guard.fencing_token();
        assert!(last < Some(fence), "round {round}: {last:?}, then {fence:?}");
        last = Some(fence);
        drop(guard.release().await);
    }
}

/// Row 11, over a quorum, and row 32: a node that came back has forgotten its votes and does not vote again before
/// every hold it may have granted has ended. It still extends and releases the holds it has.
#[tokio::test]
async fn row_32_a_node_of_a_quorum_that_came_back_does_not_vote_at_once() {
    let mut quorum = Quorum::start(3).expect("three servers that boot");
    let uptime = Duration::from_secs(3);
    let config = || {
        let config = QuorumConfig::from_url(&quorum.url()).expect("a good URL");
        config.min_uptime(uptime).node_timeout(Duration::from_millis(250))
    };
    let connect = async |config: QuorumConfig| {
        let store = RedisStore::connect_quorum(config).await.expect("a majority");
        Client::with_store(store).watchdog_lease(uptime).connect().await.expect("connected")
    };
    let (first, second) = (config(), config());
    // A cold start: no node votes.
    let holder = connect(first).await;
    let error = holder.mutex("job").expect("a name").try_acquire().await.expect_err("no node votes");
    assert!(error.to_string().contains("has been up for"), "{error}");
    let guard =
        holder.mutex("job").expect("a name").acquire().await.expect("the nodes have been up for long enough");

    // Two of three nodes forget the hold. If they voted, another client would acquire the lock while the holder
    // still relied on it.
    for at in [0, 1] {
        quorum.servers()[at].restart().expect("it boots");
    }
    let rival = connect(second).await;
    let begun = Instant::now();
    let rivals = rival.mutex("job").expect("a name").acquire().await.expect("the nodes vote again later");
    assert!(guard.check().is_err(), "two hold it after {:?}", begun.elapsed());
    assert!(rivals.fencing_token() > guard.fencing_token());
    rivals.release().await.expect("released");
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Row 50: two of five nodes are away at the acquire. Once they are back, the renewals give them the hold, and then no
/// single node, nor two, lets another client in by forgetting it. Three do.
#[tokio::test]
async fn row_50_a_hold_survives_forgetful_nodes_after_others_were_away() {
    let mut quorum = five();
    let url = url(&quorum);
    for at in [3, 4] {
        quorum.servers()[at].kill().expect("killed");
    }
    let builder = Client::builder(&url).watchdog_lease(Duration::from_secs(3));
    let holder = builder.connect().await.expect("a majority");
    let guard = holder.mutex("job").expect("a good name").acquire().await.expect("acquired");
    until("three have it", || guard.votes() == Some(Votes { held: 3, nodes: 5 })).await;
    assert_eq!(holder.stats().holds_at_bare_majority, 1);
    for at in [3, 4] {
        quorum.servers()[at].restart().expect("it boots");
    }
    let rival = client(&url).await.mutex("job").expect("a good name");
    let all_have_it = || guard.votes() == Some(Votes { held: 5, nodes: 5 });
    let flush = |servers: &[usize]| {
        for (_, server) in quorum.iter().enumerate().filter(|(at, _)| servers.contains(at)) {
            server.cli(&["FLUSHALL"]).expect("an answer");
        }
    };
    for forgetful in [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [0, 1], [2, 3], [4, 0]] {
        until("all have it", all_have_it).await;
        flush(&forgetful);
        // Until a renewal has restored it at each.
        let is_restored = || {
            let has_it = |server: &RedisServer| {
                server.cli(&["EXISTS", "job"]).is_ok_and(|found| found.integer() == Some(1))
            };
            quorum.iter().all(has_it)
        };
        let begun = Instant::now();
        while !is_restored() || begun.elapsed() < Duration::from_millis(1_500) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is missing after {forgetful:?}");
            let attempt = rival.try_acquire().await;
            assert!(!matches!(attempt, Ok(Attempt::Granted(_))), "two hold it after {forgetful:?}");
        }
        guard.check().expect("a majority has it");
    }
    until("all have it", all_have_it).await;
    assert_eq!(holder.stats().holds_at_bare_majority, 0);
    assert_eq!(rival.inspect().await.expect("a majority").votes, Some(Votes { held: 5, nodes: 5 }));
    flush(&[0, 1, 2]);
    let second = rival.acquire().await.expect("a majority has forgotten the first hold");
    assert!(second.fencing_token() > guard.fencing_token());
    guard.lost().await;
}

/// A node that may not vote yet, because it was restarted, gets the hold when it may.
#[tokio::test]
async fn a_node_that_was_restarted_gets_the_hold_once_it_votes() {
    let mut quorum = Quorum::start(3).expect("three servers that boot");
    let uptime = Duration::from_secs(3);
    let config = QuorumConfig::from_url(&quorum.url()).expect("a good URL").min_uptime(uptime);
    let config = config.node_timeout(Duration::from_millis(250));
    let store = RedisStore::connect_quorum(config).await.expect("a majority");
    let client = Client::with_store(store).watchdog_lease(uptime).connect().await.expect("connected");
    let guard = client.mutex("job").expect("a name").acquire().await.expect("the nodes vote soon");
    until("all have it", || guard.votes() == Some(Votes { held: 3, nodes: 3 })).await;
    quorum.servers()[0].restart().expect("it boots");
    let begun = Instant::now();
    // Another client has it know the scripts, so that only its age keeps it from voting.
    let other = self::client(&quorum.servers()[0].url()).await.mutex("other").expect("a name");
    other.acquire().await.expect("acquired").release().await.expect("released");
    until("one has forgotten it", || guard.votes() == Some(Votes { held: 2, nodes: 3 })).await;
    until("it votes again", || guard.votes() == Some(Votes { held: 3, nodes: 3 })).await;
    assert!(begun.elapsed() >= uptime, "it voted after {:?}", begun.elapsed());
    guard.release().await.expect("released");
}

/// A quorum of a primary monitored by these Sentinels and of two single servers; nodes vote once they have been up
/// for `uptime`.
async fn with_two_beside(sentinels: &Sentinels, uptime: Duration) -> (leasehold::Mutex, [RedisServer; 2]) {
    let single = [0, 1].map(|_| RedisServer::start().expect("a server that boots"));
    let node = |url: String| RedisConfig::from_url(&url).expect("a good URL");
    let nodes = [sentinels.url(), single[0].url(), single[1].url()].map(node);
    let config =
        QuorumConfig::of(nodes).expect("a quorum").min_uptime(uptime).node_timeout(Duration::from_secs(1));
    let store = RedisStore::connect_quorum(config).await.expect("a majority");
    let client = Client::with_store(store).watchdog_lease(uptime).connect().await.expect("connected");
    (client.mutex("job").expect("a name").max_wait(Duration::from_secs(60)), single)
}

/// A node may be a primary monitored by Sentinels. After a failover the client uses the new primary, which votes
/// once it has been the primary for long enough.
#[tokio::test]
async fn a_node_of_a_quorum_may_be_a_group_of_sentinels() {
    let sentinels = Sentinels::start(1).expect("servers that boot");
    sentinels.wait_formed().expect("the Sentinels know one another");
    let uptime = Duration::from_secs(3);
    let (mutex, mut single) = with_two_beside(&sentinels, uptime).await;
    let guard = mutex.acquire().await.expect("acquired");
    let before = guard.fencing_token();
    let old = sentinels.primary_index().expect("one server is the primary");
    sentinels.fail_over().expect("the failover begins");
    sentinels.wait_promoted(old).expect("another server is the primary");
    guard.release().await.expect("two of three have it");
    let guard = mutex.acquire().await.expect("the two others vote");
    assert!(guard.fencing_token() > before);
    guard.release().await.expect("released");
    // From here on the group's vote is needed.
    single[1].kill().expect("killed");
    let guard = mutex.acquire().await.expect("the new primary votes after its wait");
    assert!(guard.fencing_token() > before);
    guard.release().await.expect("released");
    let held =
        sentinels.primary().expect("one server is the primary").cli(&["EXISTS", "job"]).expect("an answer");
    assert_eq!(held.integer(), Some(0));
}

/// A promoted replica may not know of every hold that the former primary granted. It does not vote at once, although
/// it has been up for long enough, and a Sentinel may still report that it was the primary for long enough while it
/// spreads the new configuration.
#[tokio::test]
async fn row_32_a_replica_that_is_promoted_in_a_quorum_does_not_vote_at_once() {
    let mut sentinels = Sentinels::start(2).expect("servers that boot");
    sentinels.wait_formed().expect("the Sentinels know one another");
    let uptime = Duration::from_secs(6);
    let (mutex, mut single) = with_two_beside(&sentinels, uptime).await;
    // From here on the group's vote is needed.
    single[1].kill().expect("killed");
    mutex.acquire().await.expect("two vote").release().await.expect("released");
    tokio::time::sleep(uptime).await;

    let moves = Instant::now();
    let old = sentinels.primary_index().expect("one server is the primary");
    sentinels.fail_over().expect("the failover begins");
    let new = sentinels.wait_promoted(old).expect("another server is the primary");
    println!("promoted after {:?}", moves.elapsed());
    let promoted = &sentinels.servers()[new];
    let guard = loop {
        let guard = mutex.acquire().await.expect("the new primary votes after its wait");
        // The old one may have voted as long as it received requests.
        if promoted.cli(&["EXISTS", "job"]).expect("an answer").integer() == Some(1) {
            break guard;
        }
        drop(guard.release().await);
    };
    println!("the new one has voted after {:?}", moves.elapsed());
    assert!(moves.elapsed() >= uptime, "it votes {:?} after the move", moves.elapsed());
    guard.release().await.expect("released");
}

/// R23: a client that is killed between the rounds leaves what its first lease ends.
#[tokio::test]
async fn the_first_lease_of_a_quorum_ends_the_hold_of_a_dead_process() {
    let quorum = five();
    let url = url(&quorum);
    let mut dead = Worker::of_test("failures::quorum::a_worker_that_holds_a_quorum", "holder")
        .env("LEASEHOLD_TEST_URL", &url)
        .start()
        .expect("a worker");
    dead.expect("held", LIMIT).expect("it has the lock");
    dead.kill().expect("killed");
    let client = client(&url).await;
    let mutex = client.mutex("job").expect("a name").max_wait(Duration::from_secs(60));
    mutex.acquire().await.expect("its lease has ended").release().await.expect("released");
}

/// Not a test by itself: a process that is killed with a lock.
#[tokio::test]
async fn a_worker_that_holds_a_quorum() {
    if Worker::role().as_deref() != Some("holder") {
        return;
    }
    let url = std::env::var("LEASEHOLD_TEST_URL").expect("set by the test");
    let client = client(&url).await;
    let job = client.mutex("job").expect("a name").lease(Duration::from_secs(5));
    let _guard = job.acquire().await.expect("acquired");
    Worker::report("held");
    std::future::pending::<()>().await;
}
