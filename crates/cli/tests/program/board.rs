//! `leasehold board` in a real browser.

use crate::browser::Browser;
use crate::fixture::{Fixture, expect, start, status, until};
use leasehold::Client;
use leasehold_testkit::{RedisServer, Worker};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Starts the board; returns the link that it prints.
fn board(fixture: &Fixture, options: &[&str]) -> (Worker, String) {
    let mut board = start(fixture.command(&[&["board", "--listen", "127.0.0.1:0"], options].concat()));
    let link = expect(&mut board, "http://");
    (board, format!("http://{link}"))
}

/// A process that holds a lock until it is ended, or waits for it.
fn run(fixture: &Fixture, name: &str, options: &[&str]) -> Worker {
    start(
        fixture
            .command(&[&["run", name], options, &["--", "sh", "-c", "echo held; exec sleep 1000"]].concat()),
    )
}

/// The row of a lock: the texts of its cells.
fn row(browser: &Browser, name: &str) -> Vec<String> {
    let name = json!(name);
    let cells = browser.eval(&format!(
        "Array.from(document.querySelectorAll('#rows-locks tr')).filter(row => row.cells[0].textContent === {name})
            .flatMap(row => Array.from(row.cells, cell => cell.textContent))"
    ));
    cells.as_array().expect("cells").iter().map(|cell| cell.as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_lock_and_its_waiter_appear_and_a_click_frees_it() {
    let server = RedisServer::start().expect("redis-server is installed");
    let fixture = Fixture::redis(&server);
    let (_board, link) = board(&fixture, &["--allow-free", "--label", "the operator"]);
    assert!(link.contains("/#token="), "{link}");
    let browser = Browser::start();
    browser.goto(&link);
    browser.until_text("#empty-locks", |text| text == "There are no locks.");
    assert!(!browser.url().contains("token"), "it stays in no address");
    let mut holder = run(&fixture, "nightly", &[]);
    expect(&mut holder, "held");
    until("the lock appears", || !row(&browser, "nightly").is_empty());
    assert_eq!(row(&browser, "nightly")[1..2], ["mutex"]);
    let mut waiter = run(&fixture, "nightly", &[]);
    until("the waiter appears", || row(&browser, "nightly").get(4).map(String::as_str) == Some("1"));
    // Its page, by a click.
    browser.click("#rows-locks a");
    browser.until_text("#title-lock", |text| text == "nightly");
    browser.until_text("#rows-holders", |text| text.contains("sh"));
    browser.until_text("#rows-queue", |text| text.contains("sh"));
    let fence = browser.text("#rows-holders tr td:nth-child(6)");
    // The question, and no.
    browser.click("#rows-holders button");
    assert_eq!(browser.text("#free-title"), "Take this lock away?");
    assert_eq!(browser.text("#free-name"), "nightly");
    assert_eq!(browser.eval("document.activeElement.id"), "free-no", "not the one that does it");
    browser.click("#free-no");
    assert_eq!(browser.text("#free-title"), "");
    assert_eq!(browser.eval("document.activeElement.textContent"), "Free…", "back to where it was");
    // And yes.
    browser.click("#rows-holders button");
    browser.click("#free-yes");
    browser.until_text("#free-result", |text| text.starts_with("nightly was taken from "));
    expect(&mut waiter, "held");
    assert_eq!(status(&mut holder), Some(70), "it has lost the lock");
    browser.until_text("#rows-holders tr td:nth-child(6)", |text| !text.is_empty() && text != fence);
    let audit = browser.until_text("#rows-audit", |text| text.contains("force released"));
    assert!(audit.contains("the operator") && audit.contains(&fence), "{audit}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let _ = waiter.terminate();
}

#[test]
fn a_hostile_name_or_label_stays_text() {
    let server = RedisServer::start().expect("redis-server is installed");
    let fixture = Fixture::redis(&server);
    let (_board, link) = board(&fixture, &["--allow-free"]);
    let browser = Browser::start();
    browser.goto(&link);
    let name = "</title><script>document.hacked=1</script><img src=x onerror='document.hacked=2'>";
    let label = "\"><svg onload=document.hacked=3><b>{{7*7}}</b>";
    let mut holder = run(&fixture, name, &["--label", label]);
    expect(&mut holder, "held");
    let _waiter = run(&fixture, name, &["--label", label]);
    until("the name appears as text", || !row(&browser, name).is_empty());
    browser.click("#rows-locks a");
    browser.until_text("#title-lock", |text| text == name);
    browser.until_text("#rows-holders th", |text| text == label);
    browser.until_text("#rows-queue", |text| !text.is_empty());
    browser.click("#rows-holders button");
    assert_eq!(browser.text("#free-name"), name);
    browser.click("#free-no");
    browser.click("#nav-waits");
    browser.until_text("#waits", |text| text.contains(name));
    assert!(browser.eval("document.querySelector('#graph .lock title').textContent").as_str() == Some(name));
    browser.click("#nav-sessions");
    browser.until_text("#rows-sessions", |text| text.contains(label));
    browser.press("l");
    until("the list again", || !row(&browser, name).is_empty());
    let made = "document.querySelectorAll('img, b:not([id]):not(figcaption b), script:not([src]), [onload], [onerror]').length";
    assert_eq!(browser.eval(made), 0);
    assert_eq!(browser.eval("document.hacked ?? null"), Value::Null);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_lost_server_is_shown_and_comes_back() {
    let mut server = RedisServer::start().expect("redis-server is installed");
    let fixture = Fixture::redis(&server);
    let (mut board, link) = board(&fixture, &[]);
    let browser = Browser::start();
    browser.goto(&link);
    browser.until_text("#connection", |text| text == "live");
    server.kill().expect("it runs");
    browser.until_text("#trouble", |text| text.contains("The store does not answer"));
    assert_eq!(browser.text("#connection"), "live", "the board itself answers");
    server.restart().expect("it starts again");
    browser.until_text("#trouble", str::is_empty);
    let mut holder = run(&fixture, "after", &[]);
    expect(&mut holder, "held");
    until("what came later appears", || !row(&browser, "after").is_empty());
    // The board itself.
    board.terminate().expect("it runs");
    assert_eq!(status(&mut board), Some(0));
    browser.until_text("#connection", |text| text.contains("does not answer"));
    assert!(!row(&browser, "after").is_empty(), "what was known stays");
    let address = link.trim_start_matches("http://").trim_end_matches('/');
    let mut again = start(fixture.command(&["board", "--listen", address]));
    expect(&mut again, "http://");
    browser.until_text("#connection", |text| text == "live");
}

#[test]
fn keyboard_and_screen_reader_find_everything() {
    let server = RedisServer::start().expect("redis-server is installed");
    let fixture = Fixture::redis(&server);
    let (_board, link) = board(&fixture, &[]);
    let browser = Browser::start();
    browser.goto(&link);
    let mut holder = run(&fixture, "job", &[]);
    expect(&mut holder, "held");
    until("the lock appears", || !row(&browser, "job").is_empty());
    // The focus stays while rows change and move.
    browser.eval("document.querySelector('#rows-locks a').focus()");
    let mut others: Vec<_> = (0..3).map(|n| run(&fixture, &format!("a/{n}"), &[])).collect();
    for other in &mut others {
        expect(other, "held");
    }
    until("others appear", || !row(&browser, "a/2").is_empty());
    let first = || browser.eval("document.querySelector('#rows-locks th').textContent");
    until("they are in the order of their names", || first() == "a/0");
    let mut waiter = run(&fixture, "job", &[]);
    until("what is waited for comes first", || first() == "job");
    assert_eq!(browser.eval("document.activeElement.textContent"), "job");
    waiter.kill().expect("it runs");
    // Enter opens it, keys lead on, and each view's heading gets the focus.
    browser.press("\u{e007}");
    browser.until_text("#title-lock", |text| text == "job");
    assert_eq!(browser.eval("document.activeElement.id"), "title-lock");
    browser.press("s");
    browser.until_text("#rows-sessions", |text| text.contains("alive"));
    browser.press("w");
    browser.until_text("#empty-waits", |text| text == "Nothing waits.");
    browser.press("l");
    until("the list", || !row(&browser, "job").is_empty());
    browser.press("/");
    assert_eq!(browser.eval("document.activeElement.id"), "filter-locks");
    browser.press("job");
    until("it is filtered", || row(&browser, "a/0").is_empty() && !row(&browser, "job").is_empty());
    assert_eq!(browser.eval("document.activeElement.value"), "job", "keys are text there");
    // Without a mouse from the start of the page: the first stop leads past the head.
    browser.eval("document.activeElement.blur()");
    browser.press("p");
    browser.until_text("#connection", |text| text == "paused");
    browser.press("p");
    browser.until_text("#connection", |text| text == "live");
    browser.press("?");
    browser.until_text("#help-title", |text| text == "Keys");
    browser.press("\u{e00c}");
    browser.until_text("#help-title", str::is_empty);
    // What a screen reader is given.
    let tree = browser.devtools("Accessibility.getFullAXTree", &json!({}));
    let nodes = tree["nodes"].as_array().expect("nodes");
    let of_role = |role: &str| {
        let is = |node: &&Value| node["role"]["value"] == role && node["ignored"] != true;
        nodes
            .iter()
            .filter(is)
            .map(|node| node["name"]["value"].as_str().unwrap_or_default())
            .collect::<Vec<_>>()
    };
    for role in
        ["button", "link", "table", "searchbox", "combobox", "image", "navigation", "region", "columnheader"]
    {
        let names = of_role(role);
        assert!(!names.is_empty() && names.iter().all(|name| !name.is_empty()), "{role}: {names:?}");
    }
    assert_eq!(of_role("table"), ["Locks that are held or waited for"]);
    assert_eq!(of_role("rowheader"), ["job"]);
    assert!(
        of_role("image").iter().any(|name| name.starts_with("Locks held: now ")),
        "{:?}",
        of_role("image")
    );
    assert_eq!(of_role("status").len(), 1, "one region speaks, of the connection");
    // No view is wider than a small telephone, in either colour.
    for is_dark in [false, true] {
        browser.show_as(360, 740, is_dark);
        for view in ["locks", "sessions", "waits", "lock/job"] {
            browser.goto(&format!("{link}#/{view}"));
            browser.until_text("#totals", |text| text.contains("held"));
            until("it fits", || browser.eval("document.documentElement.scrollWidth <= 360") == true);
        }
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn elsewhere_than_on_this_machine_the_board_needs_a_token() {
    let fixture = Fixture::sqlite();
    let refused = fixture.run(&["board", "--listen", "0.0.0.0:0"]);
    refused.check(2, "so the page needs a token");
    std::fs::write(fixture.path("short"), "short\n").expect("it is written");
    let short = fixture.run(&["board", "--token-file", fixture.path("short").to_str().expect("UTF-8")]);
    short.check(2, "fewer than 16 characters");
    let mut command = fixture.command(&["board", "--listen", "0.0.0.0:0"]);
    command.env("LEASEHOLD_BOARD_TOKEN", "a secret of the environment");
    let mut board = start(command);
    let link = expect(&mut board, "http://0.0.0.0:");
    assert!(!link.contains("secret"), "{link}");
    board.terminate().expect("it runs");
    assert_eq!(status(&mut board), Some(0));
}

#[test]
fn a_store_without_sessions_has_no_board() {
    let fixture = Fixture::at("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3".to_owned());
    let outcome = fixture.run(&["board", "--listen", "127.0.0.1:0"]);
    assert_ne!(outcome.status.code(), Some(0), "{outcome:?}");
}

/// How many locks are held, and how many of them change their holder in a minute.
const LOCKS: usize = 1_000;
const CHANGES_A_MINUTE: u64 = 10_000;
/// How long the browser is left open, in seconds: 600 for `cargo xtask verify board`.
const SECONDS: &str = "LEASEHOLD_BOARD_SECONDS";

/// Holds locks, and releases and acquires them in turns, until it is dropped.
struct Load {
    is_over: Arc<AtomicBool>,
    changes: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    const CLIENTS: usize = 4;

    fn start(url: &str) -> Self {
        let (is_over, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, count, url) = (Arc::clone(&is_over), Arc::clone(&changes), url.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let run = move || {
            runtime.block_on(async {
                let clients = (0..Self::CLIENTS).map(|n| Self::hold(&url, n, &over, &count));
                futures_util::future::join_all(clients).await;
            });
        };
        Self { is_over, changes, thread: Some(std::thread::spawn(run)) }
    }

    async fn hold(url: &str, number: usize, over: &AtomicBool, count: &AtomicU64) {
        let client = Client::connect(url).await.expect("the server runs");
        let name = |n: usize| format!("held/{}", n * Self::CLIENTS + number);
        let mut guards = Vec::new();
        for n in 0..LOCKS / Self::CLIENTS {
            let lock = client.mutex(name(n)).expect("a name");
            guards.push(Some(lock.acquire().await.expect("it is free")));
        }
        let pause = Duration::from_secs(60) * u32::try_from(Self::CLIENTS).expect("few");
        let mut due = tokio::time::interval(pause / u32::try_from(CHANGES_A_MINUTE).expect("few"));
        let mut n = 0;
        while !over.load(Ordering::Relaxed) {
            due.tick().await;
            // On a busy machine a server may not answer in time: then this lock changes in a later turn.
            let released = match guards[n].take() {
                Some(guard) => guard.release().await.is_ok(),
                None => false,
            };
            let lock = client.mutex(name(n)).expect("a name");
            guards[n] = lock.acquire().await.ok();
            count.fetch_add(u64::from(released && guards[n].is_some()), Ordering::Relaxed);
            n = (n + 1) % guards.len();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// What the page takes, after what is not needed has been collected.
#[derive(Debug)]
struct Sizes {
    heap: f64,
    nodes: f64,
    listeners: f64,
    elements: u64,
    board_kb: u64,
}

impl Sizes {
    fn of(browser: &Browser, board: u32) -> Self {
        for _ in 0..3 {
            browser.devtools("HeapProfiler.collectGarbage", &json!({}));
        }
        let metrics = browser.devtools("Performance.getMetrics", &json!({}));
        let metric = |name: &str| {
            let mut all = metrics["metrics"].as_array().expect("metrics").iter();
            all.find(|metric| metric["name"] == name).and_then(|metric| metric["value"].as_f64()).expect(name)
        };
        let status = std::fs::read_to_string(format!("/proc/{board}/status")).expect("the board runs");
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        Self {
            heap: metric("JSHeapUsedSize"),
            nodes: metric("Nodes"),
            listeners: metric("JSEventListeners"),
            elements: browser.eval("document.getElementsByTagName('*').length").as_u64().expect("a number"),
            board_kb: memory.trim().trim_end_matches(" kB").parse().expect("a number"),
        }
    }
}

/// Ticks of processor time that a process has taken; there are 100 in a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<_> = stat.rsplit_once(") ").expect("fields").1.split(' ').collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

#[test]
fn a_browser_left_open_follows_many_changes_and_does_not_grow() {
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let server = RedisServer::start().expect("redis-server is installed");
    let fixture = Fixture::redis(&server);
    let load = Load::start(fixture.url());
    let (board, link) = board(&fixture, &[]);
    let browser = Browser::start();
    browser.devtools("Performance.enable", &json!({}));
    browser.goto(&link);
    // Rows come and go: those that are held the longest are released next.
    browser.eval("(document.querySelector('#sort').value = 'hold', document.querySelector('#sort').dispatchEvent(new Event('change')))");
    let held = || browser.text("#total-held").parse::<usize>().unwrap_or(0);
    until("all locks appear", || held() >= LOCKS * 98 / 100);
    until("a page of them", || browser.eval("document.querySelectorAll('#rows-locks tr').length") == 100);
    let pid = board.pid();
    let before = Sizes::of(&browser, pid);
    let (start, changes, busy) = (Instant::now(), load.changes.load(Ordering::Relaxed), ticks(pid));
    let server_busy = ticks(server.pid().expect("it runs"));
    println!("at the start {before:?}");
    for part in 1..=5 {
        std::thread::sleep(Duration::from_secs(seconds) / 5);
        println!("after {part} of 5 {:?}", Sizes::of(&browser, pid));
    }
    let took = start.elapsed().as_secs_f64();
    let changes = load.changes.load(Ordering::Relaxed) - changes;
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    let share = |ticks: u64| ticks as f64 / took;
    println!(
        "{changes} changes in {took:.0} s; the board took {:.1} % of a core, the server with all its clients {:.1} %",
        share(ticks(pid) - busy),
        share(ticks(server.pid().expect("it runs")) - server_busy)
    );
    let mut after = Sizes::of(&browser, pid);
    // An update that came after the collection has made nodes anew: what is not collected at the next one either has grown.
    for _ in 0..20 {
        if after.nodes < before.nodes * 1.1 + 200.0 && after.heap < before.heap * 1.3 + 1e6 {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
        after = Sizes::of(&browser, pid);
    }
    println!("at the end {after:?}");
    assert!(held() >= LOCKS * 95 / 100, "{}", held());
    assert_eq!(browser.text("#connection"), "live");
    // Each lock is acquired anew every six seconds: an older hold on the page would not be followed.
    let oldest = browser.text("#rows-locks tr:first-child td:nth-child(4)");
    let oldest: u64 = oldest.trim_end_matches('s').parse().expect("less than a minute");
    assert!(oldest < 40, "{oldest} s");
    assert!(after.heap < before.heap * 1.3 + 1e6, "{before:?} {after:?}");
    assert!(after.nodes < before.nodes * 1.1 + 200.0, "{before:?} {after:?}");
    assert!(after.listeners <= before.listeners + 10.0, "{before:?} {after:?}");
    assert!(after.elements <= before.elements + 50, "{before:?} {after:?}");
    assert!(after.board_kb < before.board_kb + 20_000, "{before:?} {after:?}");
}
