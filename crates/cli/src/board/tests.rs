//! The board over HTTP, without a browser.

use super::*;
use crate::fleet::{LockView, Totals};
use crate::store::secret::Secret;
use leasehold::LockName;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::SystemTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any step takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const TOKEN: &str = "a token that is long enough";

struct Served {
    board: Arc<Board>,
    client: Client,
    at: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Served {
    async fn start(token: Option<&str>, allow_free: bool) -> Self {
        Self::with_pace(token, allow_free, Duration::from_millis(1)).await
    }

    async fn with_pace(token: Option<&str>, allow_free: bool, pace: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("it is bound");
        // A store of its own: all of this process that have one name are one.
        let client = Client::connect(&format!("memory:board-{at}")).await.expect("in memory");
        let token = token.map(|token| Secret::new(token.to_owned()));
        let access = Access::new(&["board.example".to_owned()], token, at.port(), allow_free);
        let board = Board::with_pace(client.clone(), access, "memory".to_owned(), pace);
        let task = tokio::spawn(Arc::clone(&board).serve(listener));
        Self { board, client, at, task }
    }

    /// Sends a request with these header lines, and reads the whole answer.
    async fn send(&self, line: &str, headers: &[&str], body: &str) -> Answer {
        let mut request =
            format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        for header in headers {
            request.push_str(header);
            request.push_str("\r\n");
        }
        let mut stream = TcpStream::connect(self.at).await.expect("it listens");
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).await.expect("it reads");
        let mut text = String::new();
        timeout(LIMIT, stream.read_to_string(&mut text)).await.expect("it answers").expect("as text");
        Answer::parse(&text)
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path}"), &["Host: localhost"], "").await
    }

    /// A request of the page itself.
    async fn post(&self, path: &str, token: Option<&str>, body: &Value) -> Answer {
        let bearer = token.map(|token| format!("Authorization: Bearer {token}"));
        let mut headers =
            vec!["Host: localhost", "Origin: http://localhost", "Content-Type: application/json"];
        headers.extend(bearer.as_deref());
        self.send(&format!("POST {path}"), &headers, &body.to_string()).await
    }

    /// Opens a stream, and reads nothing of it.
    async fn open(&self, query: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.at).await.expect("it listens");
        let request = format!("GET /api/events?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        stream
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Self { status, head: head.to_lowercase(), body: body.to_owned() }
    }
}

/// What a stream sends, up to an event that is wanted.
async fn until(stream: &mut TcpStream, wanted: impl Fn(&str, &Value) -> bool) -> Value {
    let (mut text, mut buffer) = (String::new(), vec![0; 64 * 1024]);
    let read = async {
        loop {
            while let Some((event, rest)) = text.split_once("\n\n") {
                let name = event.lines().find_map(|line| Some(line.split_once("event: ")?.1));
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                if let (Some(name), Some(data)) = (name, data) {
                    let value = serde_json::from_str(data).expect("it is JSON");
                    if wanted(name, &value) {
                        return value;
                    }
                }
                text = rest.to_owned();
            }
            let bytes = stream.read(&mut buffer).await.expect("it is open");
            assert!(bytes > 0, "it ended: {text}");
            // Without the frames of the transfer encoding, whose lines are short.
            let part = String::from_utf8_lossy(&buffer[..bytes]).replace('\r', "");
            text += &part;
        }
    };
    timeout(LIMIT, read).await.expect("the event is sent")
}

/// A fleet of locks with such names, of which each is waited for.
fn fleet(names: impl IntoIterator<Item = String>) -> Arc<Fleet> {
    let view = |name: String| LockView {
        lock: Lock::mutex(LockName::new(name).expect("a name")),
        status: None,
        session: None,
        waiting: 1,
        waiting_since: Some(SystemTime::now()),
        changes_per_second: None,
    };
    let locks: Vec<_> = names.into_iter().map(view).collect();
    let totals = Totals { waiting: locks.len() as u64, ..Totals::default() };
    Arc::new(Fleet { read_at: Some(SystemTime::now()), locks, totals, ..Fleet::default() })
}

#[tokio::test]
async fn every_response_has_the_strict_headers() {
    let served = Served::start(None, false).await;
    for path in ["/", "/style.css", "/board.js", "/icon.svg", "/api/session", "/nothing"] {
        let answer = served.get(path).await;
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-opener-policy: same-origin",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(
                answer.head.contains(&format!("\r\n{header}\r\n")) || answer.head.ends_with(header),
                "{path}: {header}: {}",
                answer.head
            );
        }
        assert_eq!(answer.status, if path == "/nothing" { 404 } else { 200 }, "{path}");
    }
}

#[test]
fn no_file_of_the_page_has_what_the_policy_forbids() {
    for asset in assets::ASSETS {
        let text = asset.text;
        for forbidden in [
            "style=",
            "onclick",
            "onload",
            "javascript:",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!text.contains(forbidden), "{}: {forbidden}", asset.path);
        }
        let others = text.matches("://").count() - text.matches("http://www.w3.org/").count();
        assert_eq!(others, 0, "{}: another site", asset.path);
    }
}

#[tokio::test]
async fn another_host_or_origin_gets_nothing() {
    let served = Served::start(None, true).await;
    let get = async |headers: &[&str]| served.send("GET /api/session", headers, "").await.status;
    assert_eq!(get(&["Host: localhost:1"]).await, 200);
    assert_eq!(get(&["Host: board.example"]).await, 200);
    assert_eq!(get(&["Host: evil.example"]).await, 421, "its name points to this address");
    assert_eq!(get(&["Host: localhost", "Origin: http://evil.example"]).await, 403);
    assert_eq!(get(&["Host: localhost", "Origin: http://localhost"]).await, 200);
    let answer =
        served.send("OPTIONS /api/free", &["Host: localhost", "Origin: http://evil.example"], "").await;
    assert_eq!(answer.status, 403);
    assert!(!answer.head.contains("access-control"), "{}", answer.head);
    // The file itself, too: what it shows must not be read under another name.
    assert_eq!(served.send("GET /", &["Host: evil.example"], "").await.status, 421);
}

#[tokio::test]
async fn without_the_token_only_the_files_are_sent() {
    let served = Served::start(Some(TOKEN), true).await;
    assert_eq!(served.get("/").await.status, 200);
    assert_eq!(served.get("/api/session").await.status, 401);
    assert_eq!(served.get("/api/events?view=locks").await.status, 401);
    let free = json!({ "name": "job", "fence": 1 });
    assert_eq!(served.post("/api/free", None, &free).await.status, 401);
    assert_eq!(served.post("/api/free", Some("another token, of the same"), &free).await.status, 401);
    // By the header, or by the cookie that the token gives.
    let bearer = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(served.send("GET /api/session", &["Host: localhost", &bearer], "").await.status, 200);
    let wrong = served.post("/api/sign-in", None, &json!({ "token": "wrong" })).await;
    assert_eq!(wrong.status, 401);
    let right = served.post("/api/sign-in", None, &json!({ "token": TOKEN })).await;
    assert_eq!(right.status, 204);
    let cookie = right.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    assert!(cookie.contains("; httponly; samesite=strict") && !right.head.contains(TOKEN), "{cookie}");
    let pair = format!("Cookie: {}", cookie.split(';').next().expect("a pair"));
    assert_eq!(served.send("GET /api/session", &["Host: localhost", &pair], "").await.status, 200);
    // A form of another site could send the token, but not like this.
    let headers = ["Host: localhost", "Origin: http://localhost", "Content-Type: text/plain"];
    let body = json!({ "token": TOKEN }).to_string();
    assert_eq!(served.send("POST /api/sign-in", &headers, &body).await.status, 415);
}

#[tokio::test]
async fn a_lock_is_freed_only_if_that_is_allowed_and_as_it_was_shown() {
    for allow_free in [false, true] {
        let served = Served::start(None, allow_free).await;
        let mutex = served.client.mutex("job").expect("a name");
        let guard = mutex.acquire().await.expect("it is free");
        let fence = guard.fencing_token().as_u64();
        let free =
            async |fence| served.post("/api/free", None, &json!({ "name": "job", "fence": fence })).await;
        if !allow_free {
            assert_eq!(free(fence).await.status, 403);
            assert!(mutex.inspect().await.expect("an answer").held);
            continue;
        }
        assert_eq!(free(fence - 1).await.status, 409, "another hold");
        assert!(mutex.inspect().await.expect("an answer").held);
        let elsewhere = ["Host: localhost", "Content-Type: application/json"];
        let body = json!({ "name": "job", "fence": fence }).to_string();
        assert_eq!(served.send("POST /api/free", &elsewhere, &body).await.status, 403, "no origin");
        let form = ["Host: localhost", "Origin: http://localhost", "Content-Type: text/plain"];
        assert_eq!(served.send("POST /api/free", &form, &body).await.status, 415);
        assert_eq!(served.send("GET /api/free", &elsewhere, "").await.status, 405);
        assert_eq!(served.post("/api/free", None, &json!({ "name": "" , "fence": fence })).await.status, 400);
        assert_eq!(served.post("/api/free", None, &json!(["job"])).await.status, 400);
        assert!(mutex.inspect().await.expect("an answer").held);
        assert_eq!(free(fence).await.status, 204);
        assert!(!mutex.inspect().await.expect("an answer").held);
        let audit = mutex.inspect_full().await.expect("an answer").audit;
        assert_eq!(audit[0].fence.map(leasehold::FencingToken::as_u64), Some(fence));
        assert_eq!(free(fence).await.status, 409, "it has ended");
    }
}

#[tokio::test]
async fn a_long_body_is_refused() {
    let served = Served::start(None, true).await;
    let answer = served.post("/api/free", None, &json!({ "name": "x".repeat(20_000), "fence": 1 })).await;
    assert_eq!(answer.status, 413);
}

#[tokio::test]
async fn a_page_is_sent_a_part_of_the_locks_and_they_are_looked_at() {
    let served = Served::start(None, false).await;
    served.board.publish(fleet((0..450).map(|n| format!("job/{n:03}"))));
    let mut stream = served.open("view=locks&sort=name&page=1").await;
    let content = until(&mut stream, |event, _| event == "content").await;
    assert_eq!((&content["total"], &content["pages"], &content["page"]), (&json!(450), &json!(5), &json!(1)));
    let names: Vec<_> =
        content["rows"].as_array().expect("rows").iter().map(|row| row["name"].clone()).collect();
    assert_eq!((names.len(), &names[0]), (100, &json!("job/100")));
    assert_eq!(served.board.shown.all().len(), 100);
    let mut filtered = served.open("view=locks&filter=job/44*").await;
    let content = until(&mut filtered, |event, _| event == "content").await;
    assert_eq!((&content["total"], &content["all"]), (&json!(10), &json!(450)));
    drop((stream, filtered));
    let gone = async {
        while !served.board.shown.all().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LIMIT, gone).await.expect("what is not shown is not looked at");
}

#[tokio::test]
async fn names_are_sent_without_what_changes_the_text_around_them() {
    let served = Served::start(None, false).await;
    let hostile = "</script><img src=x onerror=alert(1)>\u{202e}txt";
    served.board.publish(fleet([hostile.to_owned()]));
    let mut stream = served.open("view=locks").await;
    let content = until(&mut stream, |event, _| event == "content").await;
    assert_eq!(content["rows"][0]["name"], json!(hostile));
    assert_eq!(content["rows"][0]["shown"], json!("</script><img src=x onerror=alert(1)>\\u{202e}txt"));
}

#[tokio::test]
async fn a_lock_page_shows_its_holder_its_queue_and_its_history() {
    let served = Served::start(None, false).await;
    let mutex = served.client.mutex("job").expect("a name").history(5);
    mutex.acquire().await.expect("it is free").release().await.expect("it is released");
    let _guard = mutex.acquire().await.expect("it is free");
    let mut stream = served.open("view=lock&name=job").await;
    let lock = until(&mut stream, |event, _| event == "lock").await;
    assert_eq!((&lock["held"], &lock["kind"]), (&json!(true), &json!("mutex")), "{lock}");
    assert_eq!(lock["holders"].as_array().map(Vec::len), Some(1), "{lock}");
    assert_eq!(lock["history"].as_array().map(Vec::len), Some(1), "{lock}");
    let nameless = served.get("/api/events?view=lock&name=").await;
    assert_eq!(nameless.status, 400);
    assert!(nameless.body.starts_with("{\"error\":"), "{}", nameless.body);
}

#[tokio::test]
async fn trouble_with_the_store_is_sent_and_its_end() {
    let served = Served::start(None, false).await;
    let mut stream = served.open("view=locks").await;
    until(&mut stream, |event, head| event == "head" && head["trouble"].is_null()).await;
    let lost = Fleet { trouble: Some("refused".to_owned()), ..Fleet::clone(&fleet(["job".to_owned()])) };
    served.board.publish(Arc::new(lost));
    let head = until(&mut stream, |event, head| event == "head" && !head["trouble"].is_null()).await;
    assert_eq!(head["trouble"], json!("refused"));
    served.board.publish(fleet(["job".to_owned()]));
    until(&mut stream, |event, head| event == "head" && head["trouble"].is_null()).await;
}

/// The buffers of the two sockets take a few MB, and the board itself one message.
#[tokio::test]
async fn a_slow_reader_gets_the_newest_state_and_not_all_between() {
    const ROUNDS: u64 = 2_000;
    let served = Served::start(None, false).await;
    let mut stream = served.open("view=locks&sort=name").await;
    let name = "x".repeat(200);
    for round in 0..ROUNDS {
        served.board.publish(fleet((0..100).map(|n| format!("{n:03}/{name}/{round}"))));
        // More than the pace, so that a fast reader would get each.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut received = std::cell::Cell::new(0_u64);
    let newest = format!("/{}", ROUNDS - 1);
    until(&mut stream, |event, content| {
        if event != "content" {
            return false;
        }
        received.set(received.get() + 1);
        content["rows"][0]["name"].as_str().is_some_and(|name| name.ends_with(&newest))
    })
    .await;
    let received = *received.get_mut();
    assert!((1..ROUNDS / 2).contains(&received), "{received} of {ROUNDS}");
}

#[tokio::test]
async fn what_does_not_change_is_not_sent_again() {
    let served = Served::start(None, false).await;
    let same = fleet(["job".to_owned()]);
    served.board.publish(Arc::clone(&same));
    let mut stream = served.open("view=sessions").await;
    until(&mut stream, |event, _| event == "content").await;
    for _ in 0..50 {
        served.board.publish(Arc::clone(&same));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let two = fleet(["a".to_owned(), "b".to_owned()]);
    served.board.publish(two);
    let seen = std::cell::Cell::new(0);
    until(&mut stream, |_, message| {
        seen.set(seen.get() + 1);
        message["waiting"] == json!(2)
    })
    .await;
    assert_eq!(seen.get(), 1);
}

#[tokio::test]
async fn the_number_of_streams_is_bounded() {
    let served = Served::start(None, false).await;
    let mut open = Vec::new();
    for _ in 0..MAX_STREAMS {
        let mut stream = served.open("view=locks").await;
        until(&mut stream, |event, _| event == "head").await;
        open.push(stream);
    }
    assert_eq!(served.get("/api/events?view=locks").await.status, 503);
    assert_eq!(served.get("/api/session").await.status, 200, "the rest goes on");
    drop(open);
    let again = async {
        loop {
            let mut stream = served.open("view=locks").await;
            let mut start = [0; 12];
            stream.read_exact(&mut start).await.expect("an answer");
            if start == *b"HTTP/1.1 200" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, again).await.expect("those that ended make room");
}
